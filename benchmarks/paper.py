"""The paper's experiments (arXiv 2405.15821), and ours that ask further: ``python -m benchmarks paper``.

An experiment is a set of runs. Runs that several experiments ask for are done once; a finished run is never done again.
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
from benchmarks.cell import Benchmark, Cell
from benchmarks.config import AgentOverrides, BenchmarkConfig, parse_variant
from benchmarks.curves import hours
from benchmarks.experiments import EXPERIMENTS, Experiment, Panel
from benchmarks.footprint import footprint
from benchmarks.presets import usual
from benchmarks.run import run_cells
from benchmarks.stored import typed
from lang_envs.files import read_object, write_atomically
from trainers.agents import agent_class
from trainers.agents.settings import EMBEDDED_SETTINGS, Settings, resolve
from trainers.loop import alone_in

PAPER_FILE = "paper.json"
_MOST_SEEDS = 10_000
_CODE_MODEL, _MODEL = "codellama/CodeLlama-7b-hf", "meta-llama/Llama-2-7b-hf"
_PAPER_STEPS = {"Overcooked": 40_000, "VirtualHome": 6_000, "DataSciCoding": 10_000}  # the authors' own scripts
_TOKENS_OF_A_QUERY = 128  # prompt and tree, rounded up: some 85 in the kitchens and in the household


@dataclass(frozen=True)
class PaperConfig:
    """Run the paper's experiments, or some of them; what is finished is not done again."""

    only: tuple[str, ...] = ()
    """Names of experiments, also with commas between: search, curves, entropy, programs, discount, endless, length,
    sampling, generalisation, credit, language (default: all)."""
    seeds: int | None = None
    """Runs of each agent (default: 10; 3 in the search, where programs are written, and with 7B models)."""
    scale: Literal["embedded", "7b"] = "embedded"
    """The embedded model on a CPU, or the paper's models and hyper-parameters on a GPU."""
    model: str | None = None
    """With --scale 7b another Hugging Face model than the paper's, or a folder."""
    quick: bool = False
    """Two short runs of everything, to see that it works."""
    dry_run: bool = False
    """Only say what would be run, and what it takes."""
    output: Path | None = None
    """Folder of the runs (default: runs/paper-embedded, runs/paper-embedded-quick, runs/paper-7b)."""
    workers: int | None = None
    """Runs at the same time; by default one for each core, or one on a GPU."""
    quantize: Literal["4bit", "8bit"] | None = None
    """With --scale 7b: load the base model in 4bit or 8bit."""
    gradient_checkpointing: bool = False
    """With --scale 7b: compute activations again in the backward pass instead of keeping them."""

    @property
    def folder(self) -> Path:
        return self.output or Path("runs") / f"paper-{self.scale}{'-quick' if self.quick else ''}"

    @property
    def _names(self) -> list[str]:
        return [name.strip() for names in self.only for name in names.split(",") if name.strip()]

    @property
    def experiments(self) -> dict[str, Experiment]:
        """What was asked for, by name."""
        return {
            name: found
            for name, found in EXPERIMENTS.items()
            if self.scale in found.scales and (not self.only or name in self._names)
        }

    @property
    def command(self) -> str:
        """What to type for the same."""
        words = ["python -m benchmarks paper", *(["--only", *self._names] if self.only else [])]
        for name in ("seeds", "scale", "model", "quick", "quantize", "gradient_checkpointing"):
            if (value := getattr(self, name)) not in (None, False, "embedded"):
                words += [f"--{name.replace('_', '-')}", *([str(value)] if value is not True else [])]
        return " ".join(words)

    def check(self) -> None:
        """Refuse what makes no sense together.

        Raises
        ------
        ValueError
            Naming the option.
        """
        if self.only and not self._names:
            raise ValueError(f"--only names no experiment; there are {', '.join(EXPERIMENTS)}")
        for name in self._names:
            if name not in EXPERIMENTS:
                raise ValueError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
            if self.scale not in EXPERIMENTS[name].scales:
                raise ValueError(f"{name!r} is for --scale {EXPERIMENTS[name].scales[0]} alone")
        for name in ("model", "quantize", "gradient_checkpointing"):
            if (value := getattr(self, name)) and self.scale != "7b":
                raise ValueError(f"{name}={value!r} is for --scale 7b")
        if self.quick and self.scale == "7b":
            raise ValueError("--quick is for the embedded scale; --dry-run shows what --scale 7b would run")
        if self.seeds is not None and self.seeds < 2:
            raise ValueError(f"seeds={self.seeds}: an interval needs at least 2")
        if self.seeds is not None and self.seeds > _MOST_SEEDS:
            raise ValueError(f"seeds={self.seeds} is more than {_MOST_SEEDS:,}")

    def benchmarks(self, name: str) -> list[Benchmark]:
        """The benchmarks of an experiment, one for each panel."""
        found = EXPERIMENTS[name]
        panels = found.panels
        if self.quick:  # one environment, but every kind of tokens
            panels = tuple(panel for panel in panels if panel.env == panels[0].env)
        return [Benchmark(self._config(panel, found), self.folder / panel.folder) for panel in panels]

    def model_folder(self, panel: Panel) -> Path:
        return self.folder / "models" / str(panel.tokens)

    def _config(self, panel: Panel, found: Experiment) -> BenchmarkConfig:
        common: dict[str, Any] = {
            "algo": ",".join(panel.algos),
            "env": panel.env,
            "transfer": panel.transfer,
            "first_seed": found.first_seed,
        }
        if self.scale == "7b":
            family = panel.env.partition("-")[0]
            return BenchmarkConfig(
                **common,
                seeds=self.seeds or 3,
                model=self.model or (_CODE_MODEL if family == "DataSciCoding" else _MODEL),
                preset="paper",
                steps=_PAPER_STEPS[family],
                num_envs=4,
                rollout_steps=32,  # batches of 128
                agent=AgentOverrides(quantize=self.quantize, gradient_checkpointing=self.gradient_checkpointing),
            )
        common["device"] = "cpu"  # such small models are slower on a GPU
        takes = usual(panel.env)._asdict()
        settings = takes.pop("settings")
        if panel.tokens is not None:
            common["model"] = str(self.model_folder(panel))
            common["agent"] = AgentOverrides(**EMBEDDED_SETTINGS | settings)
        if self.quick:
            takes["rollout_steps"] = min(16, takes["rollout_steps"])
            takes["steps"] = 2 * takes["num_envs"] * takes["rollout_steps"]
            common["eval_episodes"] = 4
        return BenchmarkConfig(**common, **takes, seeds=self.seeds or (2 if self.quick else found.seeds))


def run_paper(config: PaperConfig) -> Path | None:
    """Run the experiments that were asked for; returns their folder, or None where the plan was only shown.

    Raises
    ------
    ValueError
        If an option is wrong, or a run in the folder was begun with another plan.
    """
    config.check()
    console = Console()
    benchmarks = {name: config.benchmarks(name) for name in config.experiments}
    for cell in distinct(benchmarks):
        cell.check()
    if config.dry_run:
        _show_plan(config, benchmarks, console)
        return None
    panels = [panel for found in config.experiments.values() for panel in found.panels if panel.tokens]
    to_make = {str(config.model_folder(panel)): panel for panel in panels}
    for benchmark in (benchmark for found in benchmarks.values() for benchmark in found):
        if benchmark.config.model not in to_make:
            benchmark.config.check()
    with alone_in(config.folder):
        remember(config)
        for folder, panel in to_make.items():
            base_model(str(panel.tokens), panel.env, Path(folder), QUICK if config.quick else READING)
    go_on = f"python -m benchmarks {shlex.join(sys.argv[1:])}"
    run_cells(distinct(benchmarks), "paper", config.folder, config.workers, console, go_on)
    return config.folder


@dataclass(frozen=True)
class Asked:
    """The experiments of a folder as each was last asked for, by name."""

    configs: dict[str, PaperConfig]
    benchmarks: dict[str, list[Benchmark]]


def remember(config: PaperConfig) -> None:
    """Keep what was asked for: of each experiment the options it was last run with.

    Raises
    ------
    ValueError
        If another version wrote what is kept.
    """
    asked = {name: asdict(replace(config, only=(name,))) for name in config.experiments}
    file = config.folder / PAPER_FILE
    before = {name: asdict(asked) for name, asked in remembered(config.folder).configs.items()} if file.exists() else {}
    write_atomically(file, json.dumps(before | asked, indent=2, default=str) + "\n")


def remembered(folder: Path) -> Asked:
    """What was asked for in a folder, which may have been moved.

    Raises
    ------
    ValueError
        If another version wrote it.
    """
    file = folder / PAPER_FILE
    saved = read_object(file)
    if unknown := saved.keys() - EXPERIMENTS.keys():
        raise ValueError(f"{file} is not of this version, which has no experiment {min(unknown)!r}")
    optional = tuple(field.name for field in fields(PaperConfig))
    configs = {name: typed(PaperConfig, own, f"{file}: {name}", optional) for name, own in saved.items()}
    configs = {name: replace(own, only=(name,), output=folder) for name, own in configs.items()}
    for name, own in configs.items():
        try:
            own.check()
        except ValueError as error:
            raise ValueError(f"{file}: {name}: {error}") from None
    ordered = {name: configs[name] for name in EXPERIMENTS if name in configs}
    return Asked(ordered, {name: asked.benchmarks(name) for name, asked in ordered.items()})


def distinct(benchmarks: dict[str, list[Benchmark]]) -> list[Cell]:
    """Every run once; one that is asked to play elsewhere too stands for one that is not."""
    cells: dict[Path, Cell] = {}
    for cell in (cell for found in benchmarks.values() for benchmark in found for cell in benchmark.cells):
        known = cells.get(cell.path)
        if known is None or len(cell.config.transfer) > len(known.config.transfer):
            cells[cell.path] = cell
    return list(cells.values())


def _show_plan(config: PaperConfig, benchmarks: dict[str, list[Benchmark]], console: Console) -> None:
    """What would be run: a table for each environment, a line for each agent in it."""
    large = config.scale == "7b"
    for name, found in benchmarks.items():
        for benchmark in found:
            title = f"{name}: {benchmark.title}, {benchmark.config.usual.steps:,} decisions a run"
            console.print(title, style="bold", soft_wrap=True, highlight=False)
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            table.add_column("agent", overflow="fold")
            for column in ("runs", "done", "updates", "lr: actor", "critic", *["GiB"] * large):
                table.add_column(column, justify="right")
            for algo in benchmark.config.algos:
                table.add_row(escape(algo), *_plan_of(benchmark, algo, with_memory=large))
            console.print(table)
    cells = distinct(benchmarks)
    done = [cell for cell in cells if cell.finished]
    took = f" ({hours(done):.1f} hours of training, one after the other)" if done else ""
    console.print(
        f"{len(cells)} distinct runs, {len(done)} of them done{took}, in {config.folder}."
        + " GiB: an estimate by the model's shape, of base, adapter, activations and logits." * large,
        markup=False,
        soft_wrap=True,
    )


def _plan_of(benchmark: Benchmark, algo: str, *, with_memory: bool) -> tuple[str, ...]:
    config, usual = benchmark.config, benchmark.config.usual
    options = config.agent_options(algo, config.first_seed)
    model = options.pop("model", "embedded")
    settings: Settings = resolve(agent_class(parse_variant(algo)[0]).settings_type, model, options)
    updates = usual.steps // (usual.num_envs * usual.rollout_steps) * settings.epochs * settings.minibatches
    cells = benchmark.of(algo)
    # A rollout's queries are at most as many as its steps; of programs' prompts no bound is known.
    queries = None if config.env.startswith("DataSciCoding") else usual.num_envs * usual.rollout_steps
    tokens = queries and math.ceil(queries / settings.minibatches) * _TOKENS_OF_A_QUERY
    return (
        str(len(cells)),
        str(sum(cell.finished for cell in cells)),
        f"{updates:,}",
        f"{settings.actor_lr:g}",
        f"{settings.critic_lr:g}",
        *([f"{footprint(model, settings, minibatch_tokens=tokens).total:.0f}"] if with_memory else []),
    )
