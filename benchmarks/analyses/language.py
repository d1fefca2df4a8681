"""What training does to a model's language ability (the paper's table 2).

For the embedded model: perplexity on a fresh sample of its pre-training text, which is text of random policies in all
environments and programs of the random grammar. For other models: tasks of the lm-evaluation-harness, on the base model
and on it with each adapter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import track

from benchmarks import figures
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses import Drawing, Presentation, Table
from benchmarks.runs import Benchmark, make_envs
from benchmarks.statistics import Interval, mean
from lang_envs import ENVIRONMENTS, load_tokenizer
from lang_envs.datascicoding import DATASETS
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import prompt
from lang_envs.files import is_number, read_json, write_atomically
from trainers.agents.ppo import PPOAgent
from trainers.embedded_lm.pretrain import losses, query, random_play, random_shape, sizes
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
    if not benchmark.config.embedded:
        raise ValueError(
            f"{benchmark.folder} has the model {benchmark.config.model}: choose --tasks of the lm-evaluation-harness"
        )
    texts = cache(lambda: texts_of_environments(load_tokenizer("embedded")))
    return _collect(benchmark, None, lambda agent: perplexities(agent, texts()))


def collect_tasks(
    benchmark: Benchmark, tasks: Sequence[str], include: Path | None, limit: int | None
) -> dict[str, Any]:
    """Collect scores of the lm-evaluation-harness before training, and with the adapter of each run.

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
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise ImportError("--tasks need the lm-evaluation-harness: pip install 'lang-envs[evaluation]'") from None
    manager = TaskManager(include_path=None if include is None else str(include))
    if unknown := [task for task in tasks if task not in manager.all_tasks]:
        raise ValueError(f"the lm-evaluation-harness has no task {unknown[0]!r}")
    tokenizer = str(EMBEDDED_FOLDER) if benchmark.config.embedded else str(benchmark.config.model)

    def score(agent: PPOAgent) -> Scores:
        model = HFLM(agent.language_model.model.get_base_model(), tokenizer=tokenizer, batch_size=8)
        found = simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, limit=limit)
        return {
            (task, name.removesuffix(",none")): value
            for task, measures in found["results"].items()
            for name, value in measures.items()
            if isinstance(value, float) and "stderr" not in name
        }

    return _collect(benchmark, list(tasks), score)


def _collect(benchmark: Benchmark, tasks: list[str] | None, score: Callable[[PPOAgent], Scores]) -> dict[str, Any]:
    """Score the model before training and each run's model; perplexities are kept in the folders of the runs."""
    config = benchmark.config
    benchmark.check_imports()
    if config.seeds < 2:
        raise ValueError(f"{benchmark.folder} has one seed, and an interval needs two: run it with --seeds 3 or more")
    if not benchmark.learners:
        raise ValueError(f"no agent of {benchmark.folder} has a language model and a critic: {config.algo}")
    before: Scores = {}
    after: dict[AgentSpec, list[Scores]] = {spec: [] for spec in benchmark.learners}
    runs = [run for spec in after for run in benchmark.of(spec)]
    for run in track(runs, "scores", transient=True, disable=not sys.stdout.isatty()):
        file = run.path / PERPLEXITY_FILE
        if tasks is None and file.exists():
            before, own = _stored(file)
        else:
            with closing(make_envs(config)) as envs:
                agent = run.load_agent(envs)
            if not before:  # the same for all runs
                with agent.language_model.model.disable_adapter():
                    before = score(agent)
            own = score(agent)
            if tasks is None:
                write_atomically(file, json.dumps([[*key, before[key], own[key]] for key in before]) + "\n")
        after[run.agent].append(own)
    return {
        "env": config.env,
        "model": config.model or "embedded",
        "steps": config.run_defaults.steps,
        "seeds": config.seeds,
        "tasks": tasks,
        "before": [[*key, value] for key, value in before.items()],
        "agents": [
            {**spec.as_json, "after": [[*key, mean([[own[key] for own in found]])._asdict()] for key in before]}
            for spec, found in after.items()
        ],
    }


def _stored(file: Path) -> tuple[Scores, Scores]:
    """Read what was measured before: finite numbers by family and part."""
    keys, rows = list(product(FAMILIES, PARTS)), read_json(file)
    whole = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 4 for row in rows)
    if not whole or [tuple(row[:2]) for row in rows] != keys or not all(is_number(n) for row in rows for n in row[2:]):
        raise ValueError(f"{file} is damaged: expected {len(keys)} texts, each with two numbers; delete it")
    before, after = ({key: row[at] for key, row in zip(keys, rows, strict=True)} for at in (2, 3))
    return before, after


def present(data: dict[str, Any]) -> Presentation:
    """Present scores before and after training."""
    harness = data["tasks"] is not None
    intervals = {AgentSpec.of(own): [Interval(**row[2]) for row in own["after"]] for own in data["agents"]}
    header = (*(("task", "measure") if harness else ("text", "part")), "before", *(spec.label for spec in intervals))
    rows = [
        (*row[:2], f"{row[2]:.3f} (exact)", *(own[at].shown() for own in intervals.values()))
        for at, row in enumerate(data["before"])
    ]
    title = "Scores of the lm-evaluation-harness" if harness else "Perplexity per token"
    trained = f"{data['steps']:,} steps in {data['env']}"
    note = (
        f"lm-evaluation-harness on {data['model']}, before training and with the adapters after {trained}: mean over "
        f"{data['seeds']} seeds with its 95 % bootstrap interval over seeds. The base model is that of training."
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
    others = [index for index, row in enumerate(rows) if row[0] != family]
    other = max(abs(own[index].value / rows[index][2] - 1) for own in after.values() for index in others)
    return (
        f"Mean perplexity on actions in {family}, the family of the training environment, changes from "
        f"{rows[at][2]:.2f} to {changed}. On text of other environments it changes by at most {other:.1%}."
    )


def _draw(data: dict[str, Any]) -> Figure:
    figure, (axes,) = figures.grid(1, 1, 6.0, 0.8 + 0.45 * len(data["before"]))
    agents = data["agents"]
    for index, own in enumerate(agents):
        spec = AgentSpec.of(own)
        for row, ((*_, before), (*_, after)) in enumerate(zip(data["before"], own["after"], strict=True)):
            shift = (index - (len(agents) - 1) / 2) * 0.2
            ratio = Interval(*(after[end] / (before or 1.0) for end in Interval._fields))
            figures.draw_interval(axes, ratio, row + shift, spec.colour, None if row else spec.label)
    axes.axvline(1, color="grey", linewidth=1)
    figures.name_rows(axes, [f"{text}: {part}" for text, part, _ in data["before"]])
    axes.set_xlabel("after / before training")
    figures.legend_below(figure, [axes])
    return figure
