"""Run the experiments: ``python -m benchmarks paper``.

An experiment is a set of runs. Runs that several experiments share are done once; finished runs are not repeated.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.action_length import QUICK, READING, base_model
from benchmarks.agent_spec import AgentSpec
from benchmarks.config import AgentOptions, BenchmarkConfig, OptionalInt, OptionalText
from benchmarks.experiments import EXPERIMENTS, Comparison, Experiment
from benchmarks.presets import run_defaults
from benchmarks.processes import run_all
from benchmarks.runs import Benchmark, Run
from benchmarks.stored import typed
from benchmarks.throughput.footprint import footprint
from lang_envs.files import read_object, write_atomically
from trainers.agents import agent_class
from trainers.agents.ppo import PPOSettings
from trainers.loop import alone_in
from trainers.settings import resolve

PAPER_FILE = "paper.json"
_MOST_SEEDS = 10_000
_CODE_MODEL, _MODEL = "codellama/CodeLlama-7b-hf", "meta-llama/Llama-2-7b-hf"
_PAPER_STEPS = {"Overcooked": 40_000, "VirtualHome": 6_000, "DataSciCoding": 10_000}  # the authors' own scripts
_EMBEDDED = {own.name: own.metadata["embedded"] for own in fields(PPOSettings) if "embedded" in own.metadata}
_TOKENS_PER_QUERY = 128  # prompt and candidates; about 85 in Overcooked and VirtualHome


@dataclass(frozen=True)
class PaperConfig:
    """Run the paper's experiments, all or some; finished runs are not repeated."""

    only: tuple[str, ...] = ()
    """Names of experiments, separated by spaces or commas: search, curves, entropy, programs, discount, endless,
    length, sampling, generalisation, credit, language (default: all)."""
    seeds: OptionalInt = None
    """Runs of each agent (default: 10; 3 for search, for programs, and with 7B models)."""
    scale: Literal["embedded", "7b"] = "embedded"
    """embedded (the embedded model on a CPU), or 7b (the paper's models and hyper-parameters on a GPU)."""
    model: OptionalText = None
    """With --scale 7b: another Hugging Face model than the paper's, or a folder."""
    quick: bool = False
    """Two short runs of each agent, to test the software."""
    dry_run: bool = False
    """Print the runs and what they need; run nothing."""
    output: Path | None = None
    """Folder of the runs (default: runs/paper-embedded, runs/paper-embedded-quick, runs/paper-7b)."""
    workers: OptionalInt = None
    """Runs at the same time (default: one for each CPU core; one on a GPU)."""
    quantize: Literal["4bit", "8bit"] | None = None
    """With --scale 7b: load the base model in 4bit or 8bit."""
    gradient_checkpointing: bool = False
    """With --scale 7b: recompute activations in the backward pass instead of storing them."""

    @property
    def folder(self) -> Path:
        """The folder of all runs."""
        return self.output or Path("runs") / f"paper-{self.scale}{'-quick' if self.quick else ''}"

    @property
    def _names(self) -> list[str]:
        return [name.strip() for names in self.only for name in names.split(",") if name.strip()]

    @property
    def experiments(self) -> dict[str, Experiment]:
        """The chosen experiments by name."""
        return {
            name: found
            for name, found in EXPERIMENTS.items()
            if self.scale in found.scales and (not self.only or name in self._names)
        }

    @property
    def command(self) -> str:
        """The command that repeats these experiments."""
        words = ["python -m benchmarks paper", *(["--only", *self._names] if self.only else [])]
        for name in ("seeds", "scale", "model", "quick", "quantize", "gradient_checkpointing"):
            if (value := getattr(self, name)) not in (None, False, "embedded"):
                words += [f"--{name.replace('_', '-')}", *([str(value)] if value is not True else [])]
        return " ".join(words)

    def check(self) -> None:
        """Refuse unknown names and options that contradict each other.

        Raises
        ------
        ValueError
            Naming the option.
        """
        if self.only and not self._names:
            raise ValueError(f"--only names no experiment; expected some of {', '.join(EXPERIMENTS)}")
        for name in self._names:
            if name not in EXPERIMENTS:
                raise ValueError(f"there is no experiment {name!r}; expected one of {', '.join(EXPERIMENTS)}")
            if self.scale not in EXPERIMENTS[name].scales:
                raise ValueError(f"{name!r} needs --scale {EXPERIMENTS[name].scales[0]}")
        for name in ("model", "quantize", "gradient_checkpointing"):
            if (value := getattr(self, name)) and self.scale != "7b":
                raise ValueError(f"{name}={value!r} needs --scale 7b")
        if self.quick and self.scale == "7b":
            raise ValueError("--quick needs --scale embedded; --scale 7b --dry-run prints what would be run")
        if self.seeds is not None and self.seeds < 2:
            raise ValueError(f"seeds={self.seeds}: an interval needs at least 2")
        if self.seeds is not None and self.seeds > _MOST_SEEDS:
            raise ValueError(f"seeds={self.seeds} is more than {_MOST_SEEDS:,}")

    def benchmarks(self, name: str) -> list[Benchmark]:
        """The benchmarks of an experiment, one for each comparison."""
        found = EXPERIMENTS[name]
        chosen = found.comparisons
        if self.quick:  # one environment, with all its tokenizers
            chosen = tuple(comparison for comparison in chosen if comparison.env == chosen[0].env)
        return [Benchmark(self._config(comparison, found), self.folder / comparison.folder) for comparison in chosen]

    def model_folder(self, comparison: Comparison) -> Path:
        """The folder of the base model for a tokenizer."""
        return self.folder / "models" / str(comparison.tokens)

    def _config(self, comparison: Comparison, found: Experiment) -> BenchmarkConfig:
        common: dict[str, Any] = {
            "algo": ",".join(agent.name for agent in comparison.agents),
            "env": comparison.env,
            "transfer": comparison.transfer,
            "first_seed": found.first_seed,
        }
        if self.scale == "7b":
            family = comparison.env.partition("-")[0]
            return BenchmarkConfig(
                **common,
                seeds=self.seeds or 3,
                model=self.model or (_CODE_MODEL if family == "DataSciCoding" else _MODEL),
                preset="paper",
                steps=_PAPER_STEPS[family],
                num_envs=4,
                rollout_steps=32,  # batches of 128
                agent=AgentOptions(quantize=self.quantize, gradient_checkpointing=self.gradient_checkpointing),
            )
        common["device"] = "cpu"  # small models are slower on a GPU
        size = run_defaults(comparison.env)._asdict()
        settings = size.pop("settings")
        if comparison.tokens is not None:
            common["model"] = str(self.model_folder(comparison))
            common["agent"] = AgentOptions(**_EMBEDDED | settings)
        if self.quick:
            size["rollout_steps"] = min(16, size["rollout_steps"])
            size["steps"] = 2 * size["num_envs"] * size["rollout_steps"]
            common["eval_episodes"] = 4
        return BenchmarkConfig(**common, **size, seeds=self.seeds or (2 if self.quick else found.seeds))


def run_paper(config: PaperConfig) -> Path | None:
    """Run the chosen experiments and return their folder; with ``dry_run`` print them and return None.

    Raises
    ------
    ValueError
        If an option is wrong, or a run in the folder was started with another configuration.
    """
    config.check()
    console = Console()
    benchmarks = {name: config.benchmarks(name) for name in config.experiments}
    for run in distinct(benchmarks):
        run.check()
    if config.dry_run:
        _show(config, benchmarks, console)
        return None
    chosen = [comparison for found in config.experiments.values() for comparison in found.comparisons]
    to_make = {str(config.model_folder(comparison)): comparison for comparison in chosen if comparison.tokens}
    for benchmark in (benchmark for found in benchmarks.values() for benchmark in found):
        if benchmark.config.model not in to_make:
            benchmark.config.check()
    with alone_in(config.folder):
        remember(config)
        for folder, comparison in to_make.items():
            base_model(str(comparison.tokens), comparison.env, Path(folder), QUICK if config.quick else READING)
    go_on = f"python -m benchmarks {shlex.join(sys.argv[1:])}"
    run_all(distinct(benchmarks), "paper", config.folder, config.workers, console, go_on)
    return config.folder


def remember(config: PaperConfig) -> None:
    """Store the options with which each experiment was last run.

    Raises
    ------
    ValueError
        If another version wrote the stored options.
    """
    asked = {name: asdict(replace(config, only=(name,))) for name in config.experiments}
    file = config.folder / PAPER_FILE
    before = {name: asdict(own) for name, own in asked_in(config.folder).items()} if file.exists() else {}
    write_atomically(file, json.dumps(before | asked, indent=2, default=str) + "\n")


def asked_in(folder: Path) -> dict[str, PaperConfig]:
    """Return the options with which each experiment of a folder was last run; the folder may have been moved.

    Raises
    ------
    ValueError
        If another version wrote them.
    """
    file = folder / PAPER_FILE
    saved = read_object(file)
    if unknown := saved.keys() - EXPERIMENTS.keys():
        raise ValueError(f"{file} is of another version: this one has no experiment {min(unknown)!r:.80}")
    optional = tuple(field.name for field in fields(PaperConfig))
    found = {}
    for name in (name for name in EXPERIMENTS if name in saved):
        found[name] = replace(typed(PaperConfig, saved[name], f"{file}: {name}", optional), only=(name,), output=folder)
        try:
            found[name].check()
        except ValueError as error:
            raise ValueError(f"{file}: {name}: {error}") from None
    return found


def distinct(benchmarks: dict[str, list[Benchmark]]) -> list[Run]:
    """Return every run once; of two that differ in ``transfer`` the one with more environments."""
    runs: dict[Path, Run] = {}
    for run in (run for found in benchmarks.values() for benchmark in found for run in benchmark.runs):
        known = runs.get(run.path)
        if known is None or len(run.config.transfer) > len(known.config.transfer):
            runs[run.path] = run
    return list(runs.values())


def _show(config: PaperConfig, benchmarks: dict[str, list[Benchmark]], console: Console) -> None:
    """Print a table for each comparison, with a line for each agent."""
    large = config.scale == "7b"
    for name, found in benchmarks.items():
        for benchmark in found:
            title = f"{name}: {benchmark.title}, {benchmark.config.run_defaults.steps:,} steps a run"
            console.print(title, style="bold", soft_wrap=True, highlight=False, markup=False)
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("agent", overflow="fold")
            for column in ("runs", "finished", "updates", "learning rate: actor", "critic", *["GiB"] * large):
                table.add_column(column, justify="right")
            for spec in benchmark.config.agents:
                table.add_row(escape(spec.label), *_needs(benchmark, spec, with_memory=large))
            console.print(table)
    runs = distinct(benchmarks)
    done = [run for run in runs if run.finished]
    took = f" ({sum(run.training_hours for run in done):.1f} hours of training)" if done else ""
    console.print(
        f"{len(runs)} distinct runs, {len(done)} of them finished{took}, in {config.folder}."
        + " GiB: GPU memory, estimated from the model's shape." * large,
        markup=False,
        soft_wrap=True,
    )


def _needs(benchmark: Benchmark, spec: AgentSpec, *, with_memory: bool) -> tuple[str, ...]:
    config, size = benchmark.config, benchmark.config.run_defaults
    options = config.agent_options(spec, config.first_seed)
    model = options.pop("model", "embedded")
    settings = resolve(agent_class(spec.algorithm).settings_type, model, options)
    updates = size.steps // (size.num_envs * size.rollout_steps) * settings.epochs * settings.minibatches
    runs = benchmark.of(spec)
    # A rollout has at most as many queries as steps; the length of prompts for programs is not known.
    queries = None if config.env.startswith("DataSciCoding") else size.num_envs * size.rollout_steps
    tokens = queries and math.ceil(queries / settings.minibatches) * _TOKENS_PER_QUERY
    return (
        str(len(runs)),
        str(sum(run.finished for run in runs)),
        f"{updates:,}",
        f"{settings.actor_lr:g}",
        f"{settings.critic_lr:g}",
        *([f"{footprint(model, settings, minibatch_tokens=tokens).total:.0f}"] if with_memory else []),
    )
