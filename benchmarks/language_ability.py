"""What training does to a model's language (the paper's table 2): ``python -m benchmarks language-ability RUN``.

For the embedded model, perplexity on another sample of the text that it has read: what random policies see and say in
all environments, whose situations are few, so that most of them were read before, and new programs of the random grammar. For
any other model, tasks of the lm-evaluation-harness on the base model and on it with each adapter.
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
from peft import LoraConfig
from rich.progress import track
from safetensors.torch import save_file

from benchmarks.cell import Benchmark, Cell, make_envs
from benchmarks.statistics import Interval, mean
from benchmarks.stored import require_numbers
from benchmarks.tables import Known, Table
from lang_envs import ENVIRONMENTS
from lang_envs.datascicoding import DATASETS
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import prompt
from lang_envs.files import is_number, read_json, read_object, write_atomically
from trainers.agent_state import load_tensors
from trainers.agents.common import ADAPTER_FOLDER, PPOAgent
from trainers.embedded_lm.pretrain import losses, query, random_play, random_shape, sizes
from trainers.language_model import EMBEDDED_FOLDER
from trainers.prefix_tree import Query, split

Scores = dict[tuple[str, str], float]
_SEED = 1_000_000  # of no pre-training and no run
_DECISIONS, _PROGRAMS = 1_000, 64
_TOKENS_PER_FORWARD = 3072
_FILE = "perplexity.json"
_KINDS, _PARTS, _TWO = ("Overcooked", "VirtualHome", "DataSciCoding"), ("seen", "said"), [True, True]
_MODULE = re.compile(r"[\w-]+(\.[\w-]+)*")


def texts_of_envs(tokenizer: Any) -> dict[str, tuple[list[Query], np.ndarray]]:
    """Texts by kind, and how often each was met."""
    found: dict[str, tuple[list[Query], np.ndarray]] = {}
    for family in ("Overcooked", "VirtualHome"):
        queries, counts = [], []
        for index, name in enumerate(name for name in ENVIRONMENTS if name.startswith(family)):
            seen, _ = random_play(name, _DECISIONS, seed=_SEED + index)
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
    found["DataSciCoding"] = programs, np.ones(len(programs))
    return found


@torch.no_grad()
def perplexities(agent: PPOAgent, texts: dict[str, tuple[list[Query], np.ndarray]]) -> Scores:
    """By kind of text and part of it (what is seen, what is said): the model's perplexity per token."""
    found = {}
    model, pad_id = agent.language_model.model, agent.tokenizer.pad_id
    for kind, (queries, counts) in texts.items():
        nats = np.zeros((2, len(queries)))
        for rows in split(queries, _TOKENS_PER_FORWARD):
            nats[:, rows] = torch.stack(losses(model, [queries[i] for i in rows], pad_id)).double().cpu().numpy()
        for part, own, tokens in zip(_PARTS, nats, sizes(queries), strict=True):
            found[kind, part] = float(np.exp(counts @ own / (counts @ tokens)))
    return found


def perplexity_table(run: Benchmark) -> Table:
    """Perplexity before training, and after that of each agent.

    Raises
    ------
    ValueError
        If the run is of another model than the embedded one, has one seed, or no agent with a language model.
    """
    config = run.config
    if not config.embedded:
        raise ValueError(f"{run.folder} has the model {config.model}: name --tasks of the lm-evaluation-harness for it")
    run.check_learners()
    measured = _measure({algo: run.of(algo) for algo in run.learners})
    (before, _), *_ = next(iter(measured.values()))
    after = {algo: {key: mean([[own[key] for _, own in found]]) for key in before} for algo, found in measured.items()}
    note = (
        f"Perplexity per token of the embedded model on text that random policies see and say (seed {_SEED:,}), before "
        f"training (exact) and after {config.usual.steps:,} decisions in {config.env}: mean over {config.seeds} seeds "
        "with its 95 % interval (bootstrap). A trained agent is to say other things than a random one: that its "
        "perplexity on what is said rises in its own environment is what was asked of it."
    )
    return _tabulate(note, ("text", "part"), before, after)


def verdict(run: Benchmark, table: Table) -> str:
    """A sentence that says how far perplexity moved in the environment that was trained in, and how far elsewhere."""
    before, after = table.numbers["before"], table.numbers["after"]
    own = f"{run.config.env.rpartition(':')[2].partition('-')[0]} said"
    moved = ", ".join(f"{algo} {found[own]['value']:.2f}" for algo, found in after.items())
    away = max(
        abs(found[text]["value"] / before[text] - 1)
        for found in after.values()
        for text in before
        if text.split()[0] != own.split()[0]
    )
    return (
        f"Perplexity on what is said in the agents' own kind of environment goes from {before[own]:.2f} to: {moved}; in "
        f"other environments it moves by {away:.1%} at most (means)."
    )


def _measure(cells: dict[str, list[Cell]]) -> dict[str, list[tuple[Scores, Scores]]]:
    """Of each run the perplexities before training and after; what is once measured is kept beside the run."""
    found: dict[str, list[tuple[Scores, Scores]]] = {algo: [] for algo in cells}
    texts: dict[str, tuple[list[Query], np.ndarray]] = {}
    before: Scores = {}
    everything = [(algo, cell) for algo, own in cells.items() for cell in own]
    for algo, cell in track(everything, "perplexity", transient=True, disable=not sys.stdout.isatty()):
        file = cell.path / _FILE
        if not file.exists():
            with closing(make_envs(cell.config)) as envs:
                agent = cell.load_agent(envs)
            texts = texts or texts_of_envs(agent.tokenizer)
            if not before:  # the same for all
                with agent.language_model.model.disable_adapter():
                    before = perplexities(agent, texts)
            after = perplexities(agent, texts)
            kept = [[*key, before[key], after[key]] for key in before]
            write_atomically(file, json.dumps(kept) + "\n")
        before, after = _kept(file)
        found[algo].append((before, after))
    return found


def _kept(file: Path) -> tuple[Scores, Scores]:
    """What was measured, checked: numbers by kind of text and part of it."""
    before, after = Scores(), Scores()
    rows = read_json(file)
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, list) or list(map(type, row[:2])) != [str, str] or list(map(is_number, row[2:])) != _TWO:
            raise ValueError(f"{file} is damaged: {row!r:.80} is no text, part, and two numbers; delete it")
        before[row[0], row[1]], after[row[0], row[1]] = row[2:]
    if before.keys() != {(kind, part) for kind in _KINDS for part in _PARTS}:
        raise ValueError(f"{file} is damaged: it lacks texts, or has too many; delete it")
    return before, after


def _copy_adapter(saved: Path, folder: Path) -> str:
    """An adapter's weights beside a configuration made anew from its shape, for PEFT imports what some options name.

    Raises
    ------
    ValueError
        If it is no LoRA adapter, or not such as agents save it.
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


def harness_table(run: Benchmark, tasks: Sequence[str], include: Path | None, limit: int | None) -> Table:
    """Tasks of the lm-evaluation-harness on the base model, and on it with the adapter of each run.

    Parameters
    ----------
    tasks : sequence of str
        Names that the harness knows.
    include : Path, optional
        A folder with definitions of further tasks.
    limit : int, optional
        At most this many examples of each.

    Raises
    ------
    ImportError
        If the harness is not installed.
    ValueError
        If the harness knows no such task, or the run has one seed, or no agent with a language model.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise ImportError("tasks need the lm-evaluation-harness: pip install 'lang-envs[evaluation]'") from None
    config = run.config
    run.check_learners()
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

    before = score(None)
    after: dict[str, dict[tuple[str, str], Interval]] = {}
    for algo in run.learners:
        own = [score(cell.checkpoint / ADAPTER_FOLDER) for cell in run.of(algo)]
        after[algo] = {key: mean([[found[key] for found in own]]) for key in before}
    note = (
        f"lm-evaluation-harness on {config.model or 'the embedded model'}, before training and with the adapters of "
        f"{config.usual.steps:,} decisions in {config.env}: mean over {config.seeds} seeds with its 95 % interval "
        "(bootstrap over seeds; the examples are the same). The base model is not quantised."
    )
    return _tabulate(note, ("task", "measure"), before, after)


def _tabulate(
    note: str, names: tuple[str, str], before: Scores, after: dict[str, dict[tuple[str, str], Interval]]
) -> Table:
    rows = [
        (*key, Known(f"{value:.3f}"), *(own[key].shown() for own in after.values())) for key, value in before.items()
    ]
    numbers = {
        "before": {" ".join(key): value for key, value in before.items()},
        "after": {algo: {" ".join(key): found._asdict() for key, found in own.items()} for algo, own in after.items()},
    }
    return Table(note, (*names, "before", *after), rows, numbers)
