"""What runs wrote while they learnt, read and drawn."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks.cell import Cell
from benchmarks.statistics import interval_of_means
from benchmarks.stored import require_numbers
from lang_envs.files import MIB, parse_json, read_bytes
from trainers.loop import METRICS_FILE, RECENT_EPISODES

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

NEAR_OPTIMUM = 0.9
_MAX_METRICS = 1024 * MIB
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart."""


def read_metrics(cell: Cell) -> list[dict[str, Any]]:
    """What a finished run wrote while it learnt.

    Raises
    ------
    ValueError
        If that is damaged, lacks lines, or ends before the run did.
    """
    file = cell.path / METRICS_FILE
    lines = read_bytes(file, _MAX_METRICS).splitlines() if file.exists() else []
    found = [parse_json(line, f"line {number} of {file}") for number, line in enumerate(lines, 1)]
    again = f"delete {cell.path} and run it again"
    for number, line in enumerate(found, 1):
        if not isinstance(line, dict) or line.get("iteration") != number or not {"step", "timing"} <= line.keys():
            raise ValueError(f"line {number} of {file} is not that of iteration {number}: {again}")
        require_numbers(line, tuple(line.keys() - {"timing", "sandbox"}), f"line {number} of {file}")
        require_numbers(line["timing"], ("rollout_seconds", "learn_seconds"), f"line {number} of {file}: timing")
    steps, last = cell.config.usual.steps, found[-1]["step"] if found else 0
    if last < steps:
        raise ValueError(f"{file} ends at step {last:,} of {steps:,}: {again}")
    return found


def hours(cells: Iterable[Cell]) -> float:
    """What finished runs took to play and to learn, one after the other; without starting and evaluation."""
    timings = [line["timing"] for cell in cells for line in read_metrics(cell)]
    return sum(timing["rollout_seconds"] + timing["learn_seconds"] for timing in timings) / 3600


def whole(lines: list[dict[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Those with a measure; of means over the last 20 episodes those in which 20 have ended, for the first to end are
    the short ones, which are the successful ones."""
    few = RECENT_EPISODES if measure.startswith("recent_") else 0
    return [line for line in lines if measure in line and line.get("episodes", few) >= few]


def decisions_to_near_optimum(lines: list[dict[str, Any]], optimum: float | None) -> int | None:
    """Until the mean return of the last 20 episodes first reaches 90 % of the optimum; None for never."""
    if optimum is None or optimum <= 0:  # 90 % of nothing says nothing
        return None
    near = (line["step"] for line in whole(lines, "recent_return") if line["recent_return"] >= NEAR_OPTIMUM * optimum)
    return next(near, None)


def draw_seeds(
    axes: Axes, algo: str, cells: list[Cell], measure: str, colour: str, style: str = "-", *, singly: bool = True
) -> None:
    """What the metrics of an agent's runs say of one measure: a thick line for their mean, a band for its 95 % interval
    and, drawn ``singly`` too, a line for each seed."""
    lines = [whole(read_metrics(cell), measure) for cell in cells]
    curves = [([line["step"] for line in own], [line[measure] for line in own]) for own in lines if own]
    label = f"{algo} ({len(cells)} seed{'s' if len(cells) > 1 else ''})"
    if len(curves) < len(cells):
        label = f"{algo} ({len(curves)} of {len(cells)} seeds: else fewer than {RECENT_EPISODES} episodes)"
    if not curves:
        axes.plot([], [], color=colour, linestyle=style, label=label)
        return
    grid = np.linspace(max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves), 200)
    resampled = np.stack([np.interp(grid, *curve) for curve in curves])
    for curve in curves if singly else []:
        axes.plot(*curve, color=colour, alpha=0.3, linewidth=0.8, marker="o" if len(curve[0]) == 1 else None)
    if len(curves) > 1:
        axes.fill_between(grid, *interval_of_means(resampled), color=colour, alpha=0.15, linewidth=0)
    axes.plot(grid, resampled.mean(0), color=colour, linestyle=style, linewidth=2.2, label=label)


def save(figure: plt.Figure, path: Path) -> Path:
    """Write a figure, and forget it."""
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path
