"""Figures: one colour for an algorithm, line styles for its variants, a dot or a thin line for each seed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks.agent_spec import AgentSpec
from benchmarks.statistics import Interval, Values, interval_of_means, mean
from lang_envs.files import write_atomically

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

plt.rcParams |= {
    "svg.hashsalt": "lang-envs",  # the same figure is the same file
    "text.parse_math": False,  # labels are settings that users typed, which may contain dollar signs
    "savefig.facecolor": "white",  # readable on dark pages too
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "legend.frameon": False,
}
_STYLES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)), (0, (3, 1)))
_MAX_SINGLE = 4
"""With more agents, learning curves leave out the single seeds."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Environment steps and values."""


def line_styles(agents: Sequence[AgentSpec]) -> dict[AgentSpec, Any]:
    """Line style of each agent: an algorithm's first variant is solid, the next dashed, and so on."""
    found: dict[AgentSpec, Any] = {}
    for agent in agents:
        found[agent] = _STYLES[sum(agent.algorithm == other.algorithm for other in found) % len(_STYLES)]
    return found


def grid(
    count: int, columns: int, width: float, height: float, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``count`` panels of this mean size in inches; ``ratios`` are relative heights of rows."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False,
        height_ratios=ratios,
    )  # fmt: skip
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    return figure, list(panels.flat[:count])


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend for all panels below them."""
    entries = {name: line for axes in panels for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if not entries:
        return
    letters = max(map(len, entries))
    columns = max(1, min(len(entries), int(figure.get_figwidth() / (0.55 + 0.07 * letters))))
    rows = -(-len(entries) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.1)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def draw_curves(
    axes: Axes, curves: Mapping[AgentSpec, Sequence[Curve]], labels: Mapping[AgentSpec, str] | None = None
) -> None:
    """Draw each agent's mean over seeds as a thick line, its 95 % interval as a band, and single seeds as thin lines.

    Seeds without a point are left out, an agent without any is in the legend; a seed with a single point is a dot.
    """
    styles = line_styles(list(curves))
    for agent, seeds in curves.items():
        seeds = [seed for seed in seeds if len(seed[0])]
        label = (labels or {}).get(agent, agent.label)
        colour, style = agent.colour, styles[agent]
        if not seeds:
            axes.plot([], [], color=colour, linestyle=style, linewidth=2, label=label)  # for the legend
            continue
        steps = np.linspace(max(seed[0][0] for seed in seeds), min(seed[0][-1] for seed in seeds), 200)
        values = np.stack([np.interp(steps, *seed) for seed in seeds])
        for seed in seeds if len(curves) <= _MAX_SINGLE else []:
            axes.plot(*seed, color=colour, alpha=0.3, linewidth=0.7, marker="." if len(seed[0]) == 1 else None)
        if len(seeds) > 1:
            axes.fill_between(steps, *interval_of_means(values), color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, values.mean(0), color=colour, linestyle=style, linewidth=2, label=label)


def draw_dots(axes: Axes, rows: Sequence[tuple[str, str, Values]], xlabel: str) -> None:
    """Draw a row for each (name, colour, values): a dot for each seed, the mean, and its 95 % interval."""
    for row, (_, colour, values) in enumerate(rows):
        spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else [0.0]
        axes.scatter(values, row + np.asarray(spread), s=12, color=colour, alpha=0.55, linewidth=0)
        if len(values) > 1:
            draw_interval(axes, mean([values]), row, colour)
    name_rows(axes, [name for name, *_ in rows])
    axes.set_xlabel(xlabel)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows at heights 0, 1, ..., the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def draw_interval(axes: Axes, interval: Interval, row: float, colour: str, label: str | None = None) -> None:
    """Draw a mean and its 95 % interval at a height."""
    spread = np.array([[interval.value - interval.low], [interval.high - interval.value]]).clip(0)
    axes.errorbar(
        [interval.value], [row], xerr=spread, color=colour, marker="|", markersize=13, markeredgewidth=2,
        elinewidth=2, capsize=0, linestyle="none", label=label,
    )  # fmt: skip


def draw_against(axes: Axes, seeds: Mapping[float, Values], colour: str, style: Any, label: str) -> None:
    """Draw means and 95 % intervals over a numeric setting, with a dot for each seed; ``style`` connects the means."""
    at = sorted(seeds)
    for x in at:
        axes.scatter([x] * len(seeds[x]), seeds[x], s=10, color=colour, alpha=0.35, linewidth=0)
    draw_intervals_against(axes, {x: mean([seeds[x]]) for x in at}, colour, style, label)


def draw_intervals_against(axes: Axes, found: Mapping[float, Interval], colour: str, style: Any, label: str) -> None:
    """Draw means and 95 % intervals over a numeric setting; ``style`` connects the means."""
    at = sorted(found)
    value, low, high = np.array([found[x] for x in at]).T
    spread = np.stack([value - low, high - value]).clip(0)
    axes.errorbar(
        at, value, yerr=spread, color=colour, linestyle=style, linewidth=1, marker="o", markersize=5, elinewidth=2,
        capsize=0, label=label,
    )  # fmt: skip


def draw_optimum(axes: Axes, optimum: float | None, *, vertical: bool = False) -> None:
    """Draw the environment's optimal return, if it is known."""
    if optimum is not None:
        draw = axes.axvline if vertical else axes.axhline
        draw(optimum, color="black", linestyle=(0, (4, 3)), linewidth=1, label="optimum")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as SVG and release its memory."""
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_atomically(path, content.getvalue())
    return path
