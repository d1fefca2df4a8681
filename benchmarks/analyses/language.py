"""What training does to a model's language ability (the paper's table 2).

For the embedded model: perplexity on a fresh sample of its pre-training text, which is text of random policies in all
environments and programs of the random grammar. For other models: tasks of the lm-evaluation-harness, on the base model
and on it with each adapter.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from peft import LoraConfig
from rich.progress import track
from safetensors.torch import save_file

from benchmarks import figures
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses import Drawing, Presentation
from benchmarks.runs import Benchmark, make_envs
from benchmarks.statistics import Interval, mean
from benchmarks.stored import require_numbers
from benchmarks.tables import Table
from lang_envs import ENVIRONMENTS
from lang_envs.datascicoding import DATASETS
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import prompt
from lang_envs.files import is_number, read_json, read_object, write_atomically
from trainers.agent_state import load_tensors
from trainers.agents.ppo import PPOAgent
from trainers.embedded_lm.pretrain import losses, query, random_play, random_shape, sizes
from trainers.language_agent import ADAPTER_FOLDER
from trainers.language_model import EMBEDDED_FOLDER
from trainers.prefix_tree import Query, split

Scores = dict[tuple[str, str], float]
"""By text and part (or task and measure)."""
Texts = dict[str, tuple[list[Query], np.ndarray]]
"""By environment family: texts, and how often each of them was met."""
FAMILIES, PARTS = ("Overcooked", "VirtualHome", "DataSciCoding"), ("observations", "actions")
PERPLEXITY_FILE = "perplexity.json"
_SEED = 1_000_000  # of no pre-training and no run
_STEPS, _PROGRAMS = 1_000, 64
_TOKENS_PER_FORWARD = 3072
_TWO = [True, True]
_MODULE = re.compile(r"[\w-]+(\.[\w-]+)*")


def applies(benchmark: Benchmark) -> bool:
    """Whether the benchmark trained the embedded model on several seeds."""
    return benchmark.config.embedded and benchmark.config.seeds > 1 and bool(benchmark.learners)


def texts_of_environments(tokenizer: Any) -> Texts:
    """Sample texts of random policies in each family of environments, and programs of the random grammar."""
    found: Texts = {}
    for family in FAMILIES[:2]:
        queries, counts = [], []
        for index, name in enumerate(name for name in ENVIRONMENTS if name.startswith(family)):
            seen, _ = random_play(name, _STEPS, seed=_SEED + index)
            queries += [query(tokenizer, text, phrases) for text, phrases in seen]
            counts += list(seen.values())
        found[family] = queries, np.array(counts, dtype=float)
    rng = np.random.default_rng(_SEED)
    titles = [entry.title for entry in DATASETS.values()]
    programs = []
    for _ in range(_PROGRAMS):
        shape, classes = random_shape(rng)
        text = prompt("completion", titles[rng.integers(len(titles))], shape, classes, None)
        programs.append(query(tokenizer, text, (random_program(rng),)))
    found[FAMILIES[2]] = programs, np.ones(len(programs))
    return found


@torch.no_grad()
def perplexities(agent: PPOAgent, texts: Texts) -> Scores:
    """Return the model's perplexity per token, by family and part of the text (observations, actions)."""
    found = {}
    model, pad_id = agent.language_model.model, agent.tokenizer.pad_id
    for family, (queries, counts) in texts.items():
        nats = np.zeros((2, len(queries)))
        for rows in split(queries, _TOKENS_PER_FORWARD):
            nats[:, rows] = torch.stack(losses(model, [queries[i] for i in rows], pad_id)).double().cpu().numpy()
        for part, own, tokens in zip(PARTS, nats, sizes(queries), strict=True):
            found[family, part] = float(np.exp(counts @ own / (counts @ tokens)))
    return found


def collect(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Collect perplexities before training, and of each agent after it; each run is measured once.

    Raises
    ------
    ValueError
        If the model is not the embedded one, there is one seed, or no agent has a language model.
    """
    (benchmark,) = benchmarks
    config = benchmark.config
    if not config.embedded:
        raise ValueError(
            f"{benchmark.folder} has the model {config.model}: choose --tasks of the lm-evaluation-harness"
        )
    benchmark.check_imports()
    benchmark.check_learners()
    texts: Texts = {}
    before: Scores = {}
    after: dict[AgentSpec, list[Scores]] = {spec: [] for spec in benchmark.learners}
    runs = [run for spec in after for run in benchmark.of(spec)]
    for run in track(runs, "perplexity", transient=True, disable=not sys.stdout.isatty()):
        file = run.path / PERPLEXITY_FILE
        if not file.exists():
            with closing(make_envs(config)) as envs:
                agent = run.load_agent(envs)
            texts = texts or texts_of_environments(agent.tokenizer)
            if not before:  # the same for all runs
                with agent.language_model.model.disable_adapter():
                    before = perplexities(agent, texts)
            own = perplexities(agent, texts)
            rows = [[*key, before[key], own[key]] for key in before]
            write_atomically(file, json.dumps(rows) + "\n")
        before, own = _stored(file)
        after[run.agent].append(own)
    return _data(benchmark, None, before, after)


def _data(
    benchmark: Benchmark, tasks: Sequence[str] | None, before: Scores, after: dict[AgentSpec, list[Scores]]
) -> dict[str, Any]:
    config = benchmark.config
    return {
        "env": config.env,
        "model": config.model or "embedded",
        "steps": config.run_defaults.steps,
        "seeds": config.seeds,
        "tasks": None if tasks is None else list(tasks),
        "before": [[*key, value] for key, value in before.items()],
        "agents": [
            {
                "algorithm": spec.algorithm,
                "settings": dict(spec.settings),
                "after": [[*key, mean([[own[key] for own in found]])._asdict()] for key in before],
            }
            for spec, found in after.items()
        ],
    }


def _stored(file: Path) -> tuple[Scores, Scores]:
    """Read what was measured before: finite numbers by family and part."""
    before, after = Scores(), Scores()
    rows = read_json(file)
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, list) or list(map(type, row[:2])) != [str, str] or list(map(is_number, row[2:])) != _TWO:
            raise ValueError(f"{file} is damaged: {row!r:.80} is not a text, a part, and two numbers; delete it")
        before[row[0], row[1]], after[row[0], row[1]] = row[2:]
    if before.keys() != {(family, part) for family in FAMILIES for part in PARTS}:
        raise ValueError(f"{file} is damaged: texts are missing, or there are too many; delete it")
    return before, after


def present(data: dict[str, Any]) -> Presentation:
    """Present scores before and after training."""
    harness = data["tasks"] is not None
    after = {AgentSpec(own["algorithm"], own["settings"]): own["after"] for own in data["agents"]}
    intervals = {spec: [Interval(**row[2]) for row in rows] for spec, rows in after.items()}
    header = (*(("task", "measure") if harness else ("text", "part")), "before", *(spec.label for spec in after))
    rows = [
        (*row[:2], f"{row[2]:.3f} (exact)", *(own[at].shown() for own in intervals.values()))
        for at, row in enumerate(data["before"])
    ]
    title = "Scores of the lm-evaluation-harness" if harness else "Perplexity per token"
    trained = f"{data['steps']:,} steps in {data['env']}"
    note = (
        f"lm-evaluation-harness on {data['model']}, before training and with the adapters after {trained}: mean over "
        f"{data['seeds']} seeds with its 95 % bootstrap interval over seeds. The base model is not quantised."
        if harness
        else f"Embedded model, on text of random policies (seed {_SEED:,}), before training and after {trained}: mean "
        f"over {data['seeds']} seeds with its 95 % bootstrap interval. A trained agent should choose other actions "
        "than a random policy: a higher perplexity on actions of its own environment is the intended result."
    )
    drawing = Drawing("language", f"{title} divided by its value before training, with 95 % intervals.", _draw(data))
    claims = [] if harness else [_claim(data, intervals)]
    return Presentation(claims, [Table(title, header, rows)], [drawing], [note])


def _claim(data: dict[str, Any], after: dict[AgentSpec, list[Interval]]) -> str:
    """Say how far perplexity changes on the agents' own actions, and how far on text of other environments."""
    family = data["env"].rpartition(":")[2].partition("-")[0]
    rows = data["before"]
    at = next(index for index, row in enumerate(rows) if row[0] == family and row[1] == PARTS[1])
    changed = ", ".join(f"{own[at].value:.2f} ({spec.label})" for spec, own in after.items())
    other = max(
        abs(own[index].value / row[2] - 1)
        for own in after.values()
        for index, row in enumerate(rows)
        if row[0] != family
    )
    return (
        f"Mean perplexity on actions in {family}, the family of the training environment, changes from "
        f"{rows[at][2]:.2f} to {changed}. On text of other environments it changes by at most {other:.1%}."
    )


def _draw(data: dict[str, Any]) -> Figure:
    figure, (axes,) = figures.grid(1, 1, 6.0, 0.8 + 0.45 * len(data["before"]))
    agents = data["agents"]
    for index, own in enumerate(agents):
        spec = AgentSpec(own["algorithm"], own["settings"])
        for row, ((*_, before), (*_, after)) in enumerate(zip(data["before"], own["after"], strict=True)):
            shift = (index - (len(agents) - 1) / 2) * 0.2
            ratio = Interval(*(after[end] / (before or 1.0) for end in Interval._fields))
            figures.draw_interval(axes, ratio, row + shift, spec.colour, None if row else spec.label)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_yticks(range(len(data["before"])), [f"{text}: {part}" for text, part, _ in data["before"]])
    axes.set_ylim(len(data["before"]) - 0.5, -0.5)
    axes.set_xlabel("after / before training")
    figures.legend_below(figure, [axes])
    return figure


def _copy_adapter(saved: Path, folder: Path) -> str:
    """Copy an adapter's weights with a new configuration of the same shape: PEFT imports what some options name.

    Raises
    ------
    ValueError
        If it is no LoRA adapter of layers by name.
    """
    file = saved / "adapter_config.json"
    found = read_object(file, "peft_type", "r", "lora_alpha", "target_modules")
    targets = found["target_modules"]
    targets = targets if isinstance(targets, list) else [targets]
    if found["peft_type"] != "LORA" or not all(isinstance(name, str) and _MODULE.fullmatch(name) for name in targets):
        raise ValueError(f"{file} is no LoRA adapter of layers by name")
    require_numbers(found, ("r", "lora_alpha"), str(file))
    LoraConfig(
        r=found["r"],
        lora_alpha=found["lora_alpha"],
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    ).save_pretrained(str(folder))
    save_file(load_tensors(saved / "adapter_model.safetensors"), folder / "adapter_model.safetensors")
    return str(folder)


def collect_tasks(
    benchmark: Benchmark, tasks: Sequence[str], include: Path | None, limit: int | None
) -> dict[str, Any]:
    """Collect scores of the lm-evaluation-harness: of the base model, and of it with the adapter of each run.

    Parameters
    ----------
    tasks : sequence of str
        Names that the harness knows.
    include : Path, optional
        A folder with definitions of further tasks.
    limit : int, optional
        At most this many examples of each task.

    Raises
    ------
    ImportError
        If the harness is not installed.
    ValueError
        If the harness has no such task, the benchmark has one seed, or no agent has a language model.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise ImportError("--tasks need the lm-evaluation-harness: pip install 'lang-envs[evaluation]'") from None
    config = benchmark.config
    benchmark.check_imports()
    benchmark.check_learners()
    manager = TaskManager(include_path=None if include is None else str(include))
    if unknown := [task for task in tasks if task not in manager.all_tasks]:
        raise ValueError(f"the lm-evaluation-harness has no task {unknown[0]!r}")
    base = str(EMBEDDED_FOLDER) if config.embedded else str(config.model)

    def score(adapter: Path | None) -> Scores:
        options = {"pretrained": base, "dtype": "float32" if config.embedded else "auto"}
        with tempfile.TemporaryDirectory() as copy:
            options |= {} if adapter is None else {"peft": _copy_adapter(adapter, Path(copy))}
            found = simple_evaluate(
                model="hf", model_args=options, tasks=list(tasks), task_manager=manager, limit=limit,
                device=config.device or ("cuda" if torch.cuda.is_available() else "cpu"), batch_size=8,
            )  # fmt: skip
        return {
            (task, name.removesuffix(",none")): value
            for task, measures in found["results"].items()
            for name, value in measures.items()
            if isinstance(value, float) and "stderr" not in name
        }

    after = {
        spec: [score(run.checkpoint / ADAPTER_FOLDER) for run in benchmark.of(spec)] for spec in benchmark.learners
    }
    return _data(benchmark, tasks, score(None), after)
