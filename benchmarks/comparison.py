"""Agents beside each other in one environment, or over several: every number with its runs and its interval."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from rich.console import Console

import trainers
from benchmarks.cell import Benchmark
from benchmarks.curves import COLOURS, NEAR_OPTIMUM, decisions_to_near_optimum, draw_seeds, read_metrics, save
from benchmarks.programs import wrote_programs
from benchmarks.statistics import (
    Interval,
    Values,
    can_differ,
    differ,
    interquartile_mean,
    mean,
    performance_profile,
    probability_of_improvement,
)
from benchmarks.tables import Known, Table
from trainers.agents.random import RandomAgent

_MOST_EPISODES = 10_000
_FEW = 4
"""Agents whose single runs can be told apart in one picture."""
_LEARNT = ("kl", "skipped")
"""What only agents that learn by PPO have."""
_IN_TERMINAL = ("agent", "return", "greedy", "success", "decisions to 90 %")
_TOO_FEW = "n = {} runs of each agent are too few to say who is better."


@dataclass(frozen=True)
class Runs:
    """What the finished runs of one agent came to, a value for each seed.

    ``decisions_to_near_optimum`` counts until the mean return of the last 20 training episodes first reaches 90 % of
    the optimum; a run that never does counts with all its decisions. ``fell`` counts the runs that were below half of
    the optimum at any time after that.
    """

    returns: list[float]
    greedy: list[float]
    success: list[float]
    decisions_to_near_optimum: list[float]
    never: int
    fell: int
    kl: list[float]
    skipped: list[float]


@lru_cache(maxsize=64)
def optimum_of(benchmark: Benchmark) -> float | None:
    """The best return in its environment, where that is known and the environment may be made to be asked."""
    config = benchmark.config
    if wrote_programs(benchmark):  # and their data may be elsewhere
        return None
    environment = benchmark.environment(config.env, config.env_arguments)
    return getattr(environment and environment.unwrapped, "optimal_return", None)


@lru_cache(maxsize=64)
def random_returns(benchmark: Benchmark) -> np.ndarray | None:
    """Discounted returns of a random policy in its environment, one for each episode; float64 array (episodes,)."""
    config = benchmark.config
    if wrote_programs(benchmark):  # to say anything at random is no program
        return None
    if (environment := benchmark.environment(config.env, config.env_arguments)) is None:
        return None
    agent, episodes = RandomAgent(environment), min(config.eval_episodes, _MOST_EPISODES)
    try:
        return trainers.evaluate(agent, config.env, max(2, episodes), **config.env_arguments).returns
    except NotImplementedError:  # an environment of open text that does not say what a random policy says
        return None


def runs_of(benchmark: Benchmark, algo: str) -> Runs:
    """Read what an agent's runs came to."""
    cells = benchmark.of(algo)
    optimum = optimum_of(benchmark)
    results = [cell.result or {} for cell in cells]
    curves = [read_metrics(cell) for cell in cells]
    reached = [decisions_to_near_optimum(curve, optimum) for curve in curves]
    return Runs(
        returns=[result["sampled"]["return"] for result in results],
        greedy=[result["greedy"]["return"] for result in results],
        success=[result["sampled"]["success"] for result in results],
        decisions_to_near_optimum=[
            curve[-1]["step"] if at is None else at for at, curve in zip(reached, curves, strict=True)
        ],
        never=reached.count(None),
        fell=sum(_fell(curve, at, optimum) for curve, at in zip(curves, reached, strict=True)),
        kl=[_mean_of(curve, "approximate_kl") for curve in curves],
        skipped=[_mean_of(curve, "skipped_actor_steps") for curve in curves],
    )


def _fell(curve: list[dict[str, float]], reached: int | None, optimum: float | None) -> bool:
    if reached is None or optimum is None:
        return False
    return any(line["recent_return"] < optimum / 2 for line in curve if line["step"] > reached)


def _mean_of(curve: list[dict[str, float]], measure: str) -> float:
    return float(np.mean([line[measure] for line in curve if measure in line] or [np.nan]))


def compare(benchmark: Benchmark) -> tuple[Table, list[str]]:
    """A row for each agent, and sentences that say which of them the runs tell apart from the first."""
    algos, optimum = benchmark.config.algos, optimum_of(benchmark)
    share = optimum is not None and optimum > 0  # of anything else a share says nothing
    enough = can_differ(benchmark.config.seeds, len(algos) - 1)
    runs = {algo: runs_of(benchmark, algo) for algo in algos}
    first = runs[algos[0]]
    learnt = not all(np.isnan(own.kl).all() for own in runs.values())
    rows, better = [], {}
    for algo, own in runs.items():
        row = {
            "agent": algo,
            "n": Known(len(own.returns)),
            "return": _over(own.returns),
            "interquartile mean": _over(own.returns, statistic=interquartile_mean),
            "lowest … highest": f"{min(own.returns):.3f} … {max(own.returns):.3f}",
        }
        if share:
            row["of optimum"] = _over(np.array(own.returns) / optimum, "{:.1%}")
        row["greedy"] = _over(own.greedy)
        row["success"] = _over(own.success, "{:.0%}")
        if share:
            reached = len(own.returns) - own.never
            never = f", {own.never} of {len(own.returns)} never" if own.never else ""
            row["decisions to 90 %"] = _over(own.decisions_to_near_optimum, "{:,.0f}") + never if reached else "never"
            row["fell back"] = f"{own.fell} of {reached}" if reached else ""
        if learnt:
            row["approximate KL"] = _over(own.kl, "{:.4f}")
            row["skipped steps"] = _over(own.skipped, "{:.0%}")
        rows.append(row)
        if enough:
            better[algo] = probability_of_improvement([first.returns], [own.returns])
            row[f"{algos[0]} above it"] = "" if algo == algos[0] else better[algo].shown("{:.0%}")
    cells = [tuple(row.values()) for row in rows]
    if (chance := random_returns(benchmark)) is not None:
        known = {"agent": "random policy", "n": f"{len(chance)} episodes", "return": _over(chance)}
        if share:
            known["of optimum"] = _over(chance / optimum, "{:.1%}")
        cells.append(tuple(known.get(name, "") for name in rows[0]))
    notes = [
        f"{benchmark.title}, {benchmark.config.usual.steps:,} decisions a run; returns of "
        f"{benchmark.config.eval_episodes} episodes after training, actions sampled (greedy: the most probable). "
        "In brackets: 95 % intervals (bootstrap over runs; of the random policy over its episodes)."
    ]
    if share:
        notes.append(
            f"Decisions to 90 %: until the mean return of 20 training episodes reaches {NEAR_OPTIMUM:.0%} of the "
            f"optimum ({optimum:.4f}); a run that never does counts with all its decisions. Fell back: was below half "
            "of the optimum at any time after that, of the runs that reached it."
        )
    if learnt:
        notes.append(
            "Skipped: steps of the adapter that the KL threshold forbade. KL is that of a token, of TWOSOME that of an "
            "action."
        )
    if enough:
        notes.append(f"{algos[0]} above it: in so many of the pairs of runs; 50% says nothing.")
    numbers = {algo: vars(own) | {name: _known(vars(own)[name]) for name in _LEARNT} for algo, own in runs.items()}
    verdicts = [_TOO_FEW.format(benchmark.config.seeds)] if algos[1:] else []
    if enough:
        told = differ(first.returns, {algo: runs[algo].returns for algo in algos[1:]})
        verdicts = _verdicts(algos[0], better, told)
    table = Table(" ".join(notes), tuple(rows[0]), cells, {"optimum": optimum, "runs": numbers})
    return table, verdicts


def write_comparison(benchmark: Benchmark, folder: Path, console: Console) -> None:
    """Print the table and who is told apart, write it as ``table.md`` and, with every seed's numbers, as
    ``table.json``, and draw the learning curves as ``curves.png``."""
    table, verdicts = compare(benchmark)
    config, optimum = benchmark.config, optimum_of(benchmark)
    best = "" if optimum is None else f"; optimum {optimum:.4f}"
    title = f"{config.env}: {config.usual.steps:,} decisions a run, then {config.eval_episodes} episodes each{best}"
    table.show(console, title, _IN_TERMINAL, whole=("return",))
    for sentence in verdicts:
        console.print(sentence, markup=False, highlight=False)
    table.keep(folder / "table.md")
    console.print(f"table: {folder / 'table.md'}", soft_wrap=True)
    console.print(f"figure: {draw_comparisons([benchmark], folder / 'curves.png')}", soft_wrap=True)


def _over(values: Values, form: str = "{:.3f}", statistic: Callable[[Sequence[Values]], Interval] = mean) -> str:
    """With its interval, which one run alone does not have; nothing where there is nothing to average."""
    if np.isnan(values).any():
        return ""
    return statistic([values]).shown(form) if len(values) > 1 else form.format(values[0])


def _known(values: list[float]) -> list[float | None]:
    """As JSON has numbers that are not there."""
    return [None if np.isnan(value) else value for value in values]


def _verdicts(ours: str, better: dict[str, Interval], told: dict[str, bool]) -> list[str]:
    above = [algo for algo, apart in told.items() if apart and better[algo].value > 0.5]
    below = [algo for algo, apart in told.items() if apart and better[algo].value < 0.5]
    same = [algo for algo in told if algo not in (*above, *below)]
    test = "more often than chance would have it (rank test with Holm's correction, p < 0.05)"
    found = [
        f"{ours} ends {where} {', '.join(they)} {test}." for where, they in (("above", above), ("below", below)) if they
    ]
    return [*found, *([f"These runs do not tell {ours} apart from {', '.join(same)}."] if same else [])]


def compare_over(benchmarks: Sequence[Benchmark]) -> Table:
    """The same agents over several environments: interquartile mean of returns as shares of the optimum."""
    algos = benchmarks[0].config.algos
    shares = {algo: _shares(benchmarks, algo) for algo in algos}
    rows = [
        (
            algo,
            Known(sum(map(len, own))),
            interquartile_mean(own).shown("{:.1%}"),
            mean(own).shown("{:.1%}"),
            "" if algo == algos[0] else probability_of_improvement(shares[algos[0]], own).shown("{:.0%}"),
        )
        for algo, own in shares.items()
    ]
    names = ", ".join(benchmark.config.env for benchmark in benchmarks)
    note = f"Returns as shares of the optimum over {names}; seeds are drawn anew within each environment."
    header = ("agent", "n", "interquartile mean", "mean", f"{algos[0]} above it")
    return Table(note, header, rows, {"shares": {algo: list(map(list, own)) for algo, own in shares.items()}})


def _shares(benchmarks: Sequence[Benchmark], algo: str) -> list[np.ndarray]:
    """Returns of an agent's runs in each environment as shares of the optimum.

    Raises
    ------
    ValueError
        If an environment has none that is known and above 0.
    """
    found = []
    for benchmark in benchmarks:
        if (optimum := optimum_of(benchmark)) is None or optimum <= 0:
            raise ValueError(f"{benchmark.title} has no positive optimum of which returns could be shares")
        found.append(np.array(runs_of(benchmark, algo).returns) / optimum)
    return found


# ------------------------------------------------------------------------------------------------------------- figures


def draw_comparisons(benchmarks: Sequence[Benchmark], path: Path) -> Path:
    """Learning curves, a panel for each environment; of few agents every run."""
    columns = min(2, len(benchmarks))
    rows = -(-len(benchmarks) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(6.5 * columns, 4.2 * rows), layout="constrained", squeeze=False
    )
    for axes, benchmark in zip(panels.flat, benchmarks, strict=False):
        algos, optimum = benchmark.config.algos, optimum_of(benchmark)
        styles = itertools.cycle((colour, style) for style in ("-", "--", ":") for colour in COLOURS)
        for algo, (colour, style) in zip(algos, styles, strict=False):
            singly = len(algos) <= _FEW
            draw_seeds(axes, algo, benchmark.of(algo), "recent_return", colour, style, singly=singly)
        if optimum is not None:
            axes.axhline(optimum, color="black", linestyle="--", linewidth=1, label="optimum")
        if (chance := random_returns(benchmark)) is not None:
            axes.axhline(chance.mean(), color="grey", linestyle=":", linewidth=1.4, label="random policy")
        axes.set_title(benchmark.title, fontsize="medium")
        axes.set_xlim(0, 1.02 * benchmark.config.usual.steps)
        axes.grid(alpha=0.25)
    lines, names = max((axes.get_legend_handles_labels() for axes in panels.flat), key=lambda found: len(found[0]))
    if len({benchmark.config.algos for benchmark in benchmarks}) > 1:
        for axes in panels.flat[: len(benchmarks)]:
            axes.legend(fontsize="x-small")
    elif lines:
        to_a_line = max(1, int(6.5 * columns / (0.6 + 0.075 * max(map(len, names)))))  # inches a letter takes
        figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(names) // to_a_line))
        figure.legend(lines, names, loc="outside lower center", ncols=to_a_line, fontsize="small")
    for axes in panels.flat[len(benchmarks) :]:
        axes.set_axis_off()
    for axes in panels.flat[max(0, len(benchmarks) - columns) : len(benchmarks)]:
        axes.set_xlabel("decisions")
    figure.supylabel("discounted return (mean of last 20 episodes)", fontsize="medium")
    return save(figure, path)


def draw_profiles(benchmarks: Sequence[Benchmark], path: Path) -> Path:
    """The share of runs that end above each share of the optimum."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    thresholds = np.linspace(0, 1, 101)
    for algo, colour in zip(benchmarks[0].config.algos, COLOURS * 9, strict=False):
        value, low, high = np.array(performance_profile(_shares(benchmarks, algo), thresholds.tolist())).T
        axes.plot(thresholds, value, color=colour, label=algo, linewidth=2)
        axes.fill_between(thresholds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("share of the optimum")
    axes.set_ylabel("share of runs above it")
    axes.grid(alpha=0.25)
    axes.legend()
    return save(figure, path)


def draw_against(
    series: dict[str, dict[float, Interval]], xlabel: str, ylabel: str, path: Path, optimum: float | None = None
) -> Path:
    """Intervals over numbers, a line for each series."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (name, found), colour in zip(series.items(), COLOURS * len(series), strict=False):
        if not found:
            continue
        value, low, high = np.array([found[at] for at in sorted(found)]).T
        spread = np.stack([value - low, high - value]).clip(0)
        axes.errorbar(sorted(found), value, yerr=spread, color=colour, marker="o", capsize=3, label=name)
    if optimum is not None:
        axes.axhline(optimum, color="black", linestyle="--", linewidth=1, label="optimum")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.legend()
    return save(figure, path)
