"""What a benchmark came to: a table and learning curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
import numpy as np
import rich.table
from rich import box
from rich.console import Console
from rich.markup import escape

import trainers
from benchmarks.cell import Benchmark, Cell
from benchmarks.statistics import interval_of_means
from lang_envs.files import parse_json, write_atomically
from trainers.agents.random import RandomAgent
from trainers.loop import METRICS_FILE, RECENT_EPISODES

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

NEAR_OPTIMUM = 0.9
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart."""


@dataclass(frozen=True)
class Row:
    """An agent over its seeds. Returns are mean discounted returns of evaluation episodes, a value for each seed.

    ``steps_to_near_optimum`` counts decisions until the mean return of the last 20 training episodes first reaches
    90 % of the optimum; None for a seed that never did, or where the optimum is not known.
    """

    algo: str
    seeds: list[int]
    returns: list[float]
    greedy_returns: list[float]
    success_rates: list[float]
    steps_to_near_optimum: list[int | None]


@dataclass(frozen=True)
class Summary:
    env: str
    steps: int
    eval_episodes: int
    optimal_return: float | None
    random_return: float
    random_success_rate: float
    rows: list[Row]


def summarise(benchmark: Benchmark) -> Summary:
    """Read every cell's result and training curve, and play the random policy beside them."""
    config = benchmark.config
    env = gym.make(config.env, **config.env_options)
    optimum = getattr(env.unwrapped, "optimal_return", None)
    chance = trainers.evaluate(RandomAgent(env), config.env, config.eval_episodes, **config.env_options)
    rows = []
    for algo in config.algos:
        own = benchmark.of(algo)
        results = [cell.result for cell in own]
        assert all(results), "summarise needs finished cells"
        rows.append(
            Row(
                algo,
                seeds=[cell.seed for cell in own],
                returns=[result["sampled"]["return"] for result in results if result],
                greedy_returns=[result["greedy"]["return"] for result in results if result],
                success_rates=[result["sampled"]["success"] for result in results if result],
                steps_to_near_optimum=[steps_to_near_optimum(read_metrics(cell), optimum) for cell in own],
            )
        )
    return Summary(
        config.env, config.usual.steps, config.eval_episodes, optimum, chance.mean_return, chance.success_rate, rows
    )


def read_metrics(cell: Cell) -> list[dict[str, Any]]:
    """What a finished run wrote while it learnt.

    Raises
    ------
    ValueError
        If that is damaged, or ends before the run did.
    """
    file = cell.path / METRICS_FILE
    lines = file.read_text().splitlines() if file.exists() else []
    found = [parse_json(line, f"line {number} of {file}") for number, line in enumerate(lines, 1)]
    steps, last = cell.config.usual.steps, found[-1]["step"] if found else 0
    if last < steps:
        raise ValueError(f"{file} ends at step {last:,} of {steps:,}: delete {cell.path} and run it again")
    return found


def whole(lines: list[dict[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Those with a measure; of means over the last 20 episodes those in which 20 have ended, for the first to end are
    the short ones, which are the successful ones."""
    few = RECENT_EPISODES if measure.startswith("recent_") else 0
    return [line for line in lines if measure in line and line.get("episodes", few) >= few]


def steps_to_near_optimum(lines: list[dict[str, Any]], optimum: float | None) -> int | None:
    if optimum is None or optimum <= 0:  # 90 % of nothing says nothing
        return None
    near = (line["step"] for line in whole(lines, "recent_return") if line["recent_return"] >= NEAR_OPTIMUM * optimum)
    return next(near, None)


def write_tables(summary: Summary, folder: Path, console: Console) -> None:
    """Print the table, and write it as ``table.md`` and, with every seed's numbers, as ``table.json``."""
    header = ["agent", "seeds", "return: mean ± std", "min … max", "of optimum", "greedy", "success", "steps to 90 %"]
    body = [_format(row, summary.optimal_return) for row in summary.rows]
    body.append(
        ["random policy", "", f"{summary.random_return:.4f}", *[""] * 3, f"{summary.random_success_rate:.0%}", ""]
    )
    if summary.optimal_return is not None:
        body.append(["optimum", "", f"{summary.optimal_return:.4f}", "", "100 %", "", "", ""])
    title = f"{summary.env}: {summary.steps:,} decisions a seed, then {summary.eval_episodes} episodes each"
    table = rich.table.Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("agent", "return", "of best", "greedy", "success", "steps to 90 %"):  # what fits 80 columns
        table.add_column(
            name,
            justify="left" if name == "agent" else "right",
            no_wrap=name not in ("agent", "steps to 90 %"),
            overflow="fold",
            min_width=8 if name == "agent" else None,
        )
    for agent, _, mean, _, share, greedy, success, steps in body:
        table.add_row(escape(agent), mean, share, greedy, success, _range(steps))
    console.print(table)
    Table(title, header, body, asdict(summary)).keep(folder / "table.md")


class Known(str):
    """A number that has no interval, for chance has no part in it: a count, an exact value, one that was published."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Rows below a note that says what they are, and the numbers that they were made of."""

    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: dict[str, Any]

    @property
    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.header) + " |", "|" + "---|" * len(self.header)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines)

    def keep(self, path: Path) -> None:
        """Write it in Markdown, and the numbers beside it as JSON."""
        write_atomically(path, f"{self.note}\n\n{self.markdown}\n")
        write_atomically(path.with_suffix(".json"), json.dumps(self.numbers, indent=2, allow_nan=False) + "\n")


def _range(steps: str) -> str:
    """The first and the last of several numbers of steps, as the terminal has room for."""
    found = steps.split(", ")
    reached = sorted((text for text in found if text != "never"), key=lambda text: int(text.replace(",", "") or 0))
    if not reached:
        return found[0]
    ends = reached[0] if reached[0] == reached[-1] else f"{reached[0]} … {reached[-1]}"
    return ends if len(reached) == len(found) else f"{ends}, {len(found) - len(reached)} never"


def _format(row: Row, optimum: float | None) -> list[str]:
    returns = np.array(row.returns)
    spread = f" ± {returns.std(ddof=1):.4f}" if len(returns) > 1 else ""
    steps = ", ".join("never" if steps is None else f"{steps:,}" for steps in row.steps_to_near_optimum)
    return [
        row.algo,
        str(len(row.seeds)),
        f"{returns.mean():.4f}{spread}",
        f"{returns.min():.4f} … {returns.max():.4f}",
        f"{returns.mean() / optimum:.1%}" if optimum else "",
        f"{np.mean(row.greedy_returns):.4f}",
        f"{np.mean(row.success_rates):.0%}",
        steps if optimum is not None else "",
    ]


def draw_curves(benchmark: Benchmark, summary: Summary, path: Path) -> Path:
    """Mean return of the last 20 training episodes over decisions."""
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    algos = benchmark.config.algos
    for algo, colour in zip(algos, COLOURS * len(algos), strict=False):
        draw_seeds(axes, algo, benchmark.of(algo), "recent_return", colour)
    if summary.optimal_return is not None:
        axes.axhline(summary.optimal_return, color="black", linestyle="--", linewidth=1, label="optimum")
    axes.axhline(summary.random_return, color="grey", linestyle=":", linewidth=1.4, label="random policy")
    axes.set_xlabel("decisions")
    axes.set_ylabel("discounted return (mean of last 20 episodes)")
    axes.set_title(benchmark.config.env)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_seeds(
    axes: Axes, algo: str, cells: list[Cell], measure: str, colour: str, style: str = "-", *, singly: bool = True
) -> None:
    """What the metrics of an agent's runs say of one measure: a thick line for their mean, a band for its 95 % interval
    and, drawn ``singly`` too, a line for each seed."""
    lines = [whole(read_metrics(cell), measure) for cell in cells]
    curves = [([line["step"] for line in own], [line[measure] for line in own]) for own in lines if own]
    if not curves:
        return
    grid = np.linspace(max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves), 200)
    resampled = np.stack([np.interp(grid, *curve) for curve in curves])
    for curve in curves if singly else []:
        axes.plot(*curve, color=colour, alpha=0.3, linewidth=0.8, marker="o" if len(curve[0]) == 1 else None)
    if len(curves) > 1:
        axes.fill_between(grid, *interval_of_means(resampled), color=colour, alpha=0.15, linewidth=0)
    label = f"{algo.rpartition(':')[2]} ({len(curves)} seed{'s' if len(curves) > 1 else ''})"
    axes.plot(grid, resampled.mean(0), color=colour, linestyle=style, linewidth=2.2, label=label)
