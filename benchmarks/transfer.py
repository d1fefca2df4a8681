"""How agents play environments that they were not trained in, beside the paper's numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from rich.console import Console

from benchmarks.cell import Benchmark, Cell
from benchmarks.config import BenchmarkConfig
from benchmarks.curves import COLOURS, save
from benchmarks.experiments import FOOD
from benchmarks.presets import PAPER_TRANSFER
from benchmarks.statistics import Interval, beside, bootstrap_mean
from benchmarks.tables import Known, Table

UNTRAINED = "untrained"
_NOTE = (
    "Mean discounted return, then the share of episodes that succeed, each with its 95 % interval{where} (bootstrap "
    "over seeds and over the episodes of each); actions are sampled. The agents were trained in {trained_in} alone, "
    "for {steps:,} decisions{seeds}, and played {episodes} episodes of each task; 'untrained' is {first} before "
    "training."
)
_EMBEDDED_NOTE = (
    " The embedded model has read the words of the suite's own tasks in the text of random policies, so that it can "
    "encode them; it was never rewarded in any of them."
)
_PAPER_NOTE = " Paper: LLaMA2-7B, table 1 of arXiv 2405.15821."


Found = dict[str, dict[str, dict[str, Any]]]


def gather(benchmark: Benchmark) -> Found:
    """For each environment and each column (untrained, then the agents) the interval of the return, and the success rate."""
    table: Found = {}
    algos = benchmark.config.algos
    for env in benchmark.config.transfer:
        table[env] = {UNTRAINED: _summary(benchmark.of(algos[0]), UNTRAINED, env)}
        table[env] |= {algo: _summary(benchmark.of(algo), "trained", env) for algo in algos}
    return table


def _summary(cells: list[Cell], stage: str, env: str) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for way in ("sampled", "greedy"):
        played = [cell.played(stage)[env][way] for cell in cells]
        for measure in ("return", "success"):
            summary[f"{way}_{measure}"] = bootstrap_mean([episodes[measure] for episodes in played])._asdict()
    return summary


def tabulate(benchmark: Benchmark, found: Found) -> Table:
    """A row for each environment, and below it the paper's, where it has one."""
    columns = [UNTRAINED, *benchmark.config.algos]
    rows, papers = [], _papers(benchmark.config)
    for env, best in optima(benchmark).items():
        rows.append(
            [env, "" if best is None else Known(f"{best:.4f}"), *(_cell(found[env][column]) for column in columns)]
        )
        if env in papers:
            paper = papers[env]
            rows.append(["… paper, 7B", "", *(_paper_cell(paper.get(column)) for column in columns)])
    note = _note(benchmark.config)
    return Table(note, ["task", "best", *columns], rows, {"environments": found})


def verdicts(found: Found) -> list[str]:
    """Sentences that say where the first agent succeeds more often than the untrained one and the others, by their
    intervals."""
    untrained, ours, *others = next(iter(found.values()))

    def success(environment: dict[str, dict[str, Any]], column: str) -> Interval:
        return Interval(**environment[column]["sampled_success"])

    return [
        f"Success of {ours} beside {theirs}'s: "
        + beside(
            {
                _short(env): (success(environment, ours), success(environment, theirs))
                for env, environment in found.items()
            }
        )
        + "."
        for theirs in (untrained, *others)
    ]


def optima(benchmark: Benchmark) -> dict[str, float | None]:
    """The best return in each environment, where that is known and the environment may be made to be asked."""
    environments = {env: benchmark.environment(env, {}) for env in benchmark.config.transfer}
    return {
        env: getattr(environment and environment.unwrapped, "optimal_return", None)
        for env, environment in environments.items()
    }


def write_transfer(benchmark: Benchmark, folder: Path, console: Console) -> None:
    """Print the table, write it as ``transfer.md`` and ``transfer.json``, and draw it as ``transfer.png``."""
    found = gather(benchmark)
    table = tabulate(benchmark, found)
    short = replace(table, rows=[(_short(env), *cells) for env, *cells in table.rows])
    short.show(console, "In environments that were not trained in: mean return, success")
    console.print(_note(benchmark.config, where=" in transfer.md"), style="dim", markup=False)
    table.keep(folder / "transfer.md")
    console.print(f"figure: {draw(benchmark, found, folder / 'transfer.png')}", soft_wrap=True)


def _short(env: str) -> str:
    """``"VirtualHome-apple-pie-v0"`` as ``"apple-pie"``."""
    return re.sub(r"-v\d+$", "", env).partition("-")[2] or env


def _note(config: BenchmarkConfig, where: str = " in brackets") -> str:
    """What the numbers are, and what they are not."""
    note = _NOTE.format(
        where=where,
        trained_in=config.env,
        steps=config.usual.steps,
        seeds=f", {config.seeds} seeds each" if config.seeds > 1 else ", one seed",
        episodes=config.eval_episodes,
        first=config.algos[0],
    )
    embedded = config.embedded
    return note + _EMBEDDED_NOTE * embedded + _PAPER_NOTE * any(env in _papers(config) for env in config.transfer)


def _papers(config: BenchmarkConfig) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's numbers by environment, of agents that were trained in the same environment as these."""
    return PAPER_TRANSFER if config.env == FOOD else {}


def _cell(found: dict[str, Any]) -> str:
    returned, success = (Interval(**found[f"sampled_{measure}"]) for measure in ("return", "success"))
    return f"{returned.shown()} {success.shown('{:.0%}')}"


def _paper_cell(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"{found[0]:.4f} {found[1]:.0%}"


def draw(benchmark: Benchmark, table: Found, path: Path) -> Path:
    """Bars of returns with their intervals, a line at the best return."""
    figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
    columns = list(next(iter(table.values())))
    width = 0.8 / len(columns)
    at = np.arange(len(table))
    colours = ("grey", *COLOURS * len(columns))  # the agents' as in every other figure
    for k, (column, colour) in enumerate(zip(columns, colours, strict=False)):
        intervals = [found[column]["sampled_return"] for found in table.values()]
        means = np.array([interval["value"] for interval in intervals])
        spread = np.array([[i["value"] - i["low"], i["high"] - i["value"]] for i in intervals]).T.clip(0)
        axes.bar(at + (k + 0.5) * width - 0.4, means, width, yerr=spread, color=colour, label=column, capsize=2)
    if known := {k: best for k, best in enumerate(optima(benchmark).values()) if best is not None}:
        where = np.array(list(known))
        axes.hlines(list(known.values()), where - 0.42, where + 0.42, "black", "--", label="optimum", linewidth=1)
    axes.set_xticks(at, [_short(env).replace("-", "\n") for env in table])
    axes.set_ylabel("mean discounted return")
    axes.grid(alpha=0.25, axis="y")
    figure.legend(loc="outside lower center", ncols=len(columns) + 1)
    return save(figure, path)
