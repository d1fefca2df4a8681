"""Programs that agents wrote: the best of them and the last ones, with published results for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import figures
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses import Drawing, Presentation
from benchmarks.config import BenchmarkConfig
from benchmarks.presets import PAPER_PROGRAMS
from benchmarks.runs import Benchmark, Run
from benchmarks.statistics import Interval, bootstrap_mean, compare_intervals
from benchmarks.tables import Table
from lang_envs.datascicoding.env import BEST_PROGRAM_FILE
from lang_envs.files import read_text

_LAST = 0.9
_MAX_PROGRAM = 1 << 20
_MEASURES = {
    "reward": "mean reward",
    "works": "fraction of working programs",
    "score": "ROC AUC of working programs",
    "best_score": "best ROC AUC so far",
}
_HEADER = ("data set", "agent", "n", "best program", "best of each run", "reward", "working", "ROC AUC of working")
_NOTES = (
    "ROC AUC is the mean over five random splits in halves. *best program*: the best of all programs of an agent; "
    "*best of each run*: mean over runs, with the range. Both are maxima over many programs, scored on the splits on "
    "which they were chosen.",
    "*reward* (−1 for a program that fails), *working* (fraction of programs) and *ROC AUC of working*: means over the "
    "last tenth of a run's steps, with 95 % bootstrap intervals over seeds and over the rollouts of each seed. With "
    "three seeds these intervals are too narrow.",
    "Published results: table 4 of arXiv 2405.15821 (CodeLLaMA-7B, 10,000 steps; CAAFE as given there). Their model, "
    "rows, splits and classifiers differ from ours: they show what is common on a data set, not who is better.",
)


def applies(benchmark: Benchmark) -> bool:
    """Whether the runs wrote programs."""
    return "works" in benchmark.runs[0].metrics()[0]


def collect(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Collect scores of programs by data set and agent.

    Raises
    ------
    ValueError
        If two benchmarks have the same agent on the same data set, or a best program is missing.
    """
    sets: dict[str, list[dict[str, Any]]] = {}
    curves: dict[str, dict[str, Any]] = {}
    for benchmark in benchmarks:
        name = _data_set(benchmark.config)
        for spec in benchmark.config.agents:
            if spec.name in curves.get(name, {}):
                raise ValueError(f"{benchmark.folder} has {spec.label} on {name}, and so has another of these folders")
            runs = benchmark.of(spec)
            own = {"algorithm": spec.algorithm, "settings": dict(spec.settings), **_of_runs(runs)}
            sets.setdefault(name, []).append(own)
            curves.setdefault(name, {})[spec.name] = [_curves(run) for run in runs]
    return {"sets": sets, "curves": curves}


def _data_set(config: BenchmarkConfig) -> str:
    given = config.env_options.get("dataset")
    return str(given or config.env.rpartition(":")[2].removeprefix("DataSciCoding-").removesuffix("-v0"))


def _of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """One agent on one data set: its best program, the best score of each seed, means of the last tenth."""
    curves = {run.seed: run.metrics() for run in runs}
    best = {seed: lines[-1].get("best_score") for seed, lines in curves.items()}
    last = [[line for line in lines if line["step"] > _LAST * lines[-1]["step"]] for lines in curves.values()]
    found: dict[str, Any] = {"best_of_seeds": {str(seed): score for seed, score in best.items()}}
    for measure in ("reward", "works", "score"):
        values = [[line[measure] for line in lines if measure in line] for lines in last]
        if all(values):  # no score if no program of a seed works
            found[measure] = bootstrap_mean(values)._asdict()
    if scored := {seed: score for seed, score in best.items() if score is not None}:
        champion = max(scored, key=lambda seed: scored[seed])
        file = next(run.path / BEST_PROGRAM_FILE for run in runs if run.seed == champion)
        if not file.exists():
            raise ValueError(f"{file}, the best program of its agent, is missing")
        found |= {"best": scored[champion], "program": read_text(file, _MAX_PROGRAM)}
    return found


def _curves(run: Run) -> dict[str, dict[str, list[float]]]:
    lines = run.metrics()
    return {
        measure: {"step": [line["step"] for line in own], "value": [line[measure] for line in own]}
        for measure in _MEASURES
        if (own := [line for line in lines if measure in line])
    }


def present(data: dict[str, Any]) -> Presentation:
    """Present the best and the last programs of each agent on each data set."""
    sets: dict[str, list[dict[str, Any]]] = data["sets"]
    rows: list[tuple[str, ...]] = []
    for name, agents in sets.items():
        rows += [(name, _spec(own).label, *_cells(own)) for own in agents]
        published = PAPER_PROGRAMS.get(name, {}).items()
        rows += [(name, by, "", f"{score:.4f} (published)", "", "", "", "") for by, score in published]
    drawings = [Drawing("best-programs", _BEST, _draw_best(sets))]
    if "curves" in data:
        drawings.append(Drawing("learning-curves", _CURVES, _draw_curves(data["curves"])))
    details = [
        (f"{name}, {_spec(own).label}: best program, ROC AUC {own['best']:.4f} (maximum of many)", own["program"])
        for name, agents in sets.items()
        for own in agents
        if "program" in own
    ]
    return Presentation(_claims(sets), [Table("Programs", _HEADER, rows)], drawings, _NOTES, details)


_BEST = "ROC AUC of the best program of each run (dots) and of published programs (lines)."
_CURVES = (
    "Programs over environment steps, a row for each data set: mean over seeds, with its 95 % interval as a band; thin "
    "lines: seeds."
)


def _spec(own: dict[str, Any]) -> AgentSpec:
    return AgentSpec(own["algorithm"], own["settings"])


def _scores(own: dict[str, Any]) -> list[float]:
    return [score for score in own["best_of_seeds"].values() if score is not None]


def _cells(own: dict[str, Any]) -> tuple[str, ...]:
    seeds, scores = len(own["best_of_seeds"]), _scores(own)
    each = f"{sum(scores) / len(scores):.4f} ({min(scores):.4f} … {max(scores):.4f})" if scores else ""
    return (
        str(seeds),
        f"{own['best']:.4f} (maximum)" if scores else "none works",
        each + f", {len(scores)} of {seeds} runs" * (0 < len(scores) < seeds),
        Interval(**own["reward"]).shown(),
        Interval(**own["works"]).shown("{:.0%}"),
        Interval(**own["score"]).shown() if "score" in own else "",
    )


def _claims(sets: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Compare the first agent's last programs with those of the others by their intervals."""
    by_agent: dict[AgentSpec, dict[str, dict[str, Any]]] = {}
    for name, agents in sets.items():
        for own in agents:
            by_agent.setdefault(_spec(own), {})[name] = own
    (first, ours), *others = by_agent.items()
    works = [Interval(**own["works"]).value for own in ours.values()]
    spread = f"{min(works):.0%} to {max(works):.0%}" if len(works) > 1 else f"{works[0]:.0%}"
    claims = [f"At the end of training {spread} of the programs of {first.label} work (means over seeds)."]
    for spec, theirs in others:
        for measure, what in (("score", "ROC AUC of working programs"), ("reward", "Mean reward")):
            pairs = {
                name: (Interval(**own[measure]), Interval(**theirs[name][measure]))
                for name, own in ours.items()
                if name in theirs and measure in own and measure in theirs[name]
            }
            if pairs:
                compared = compare_intervals(pairs)
                claims.append(f"{what} of {first.label} compared with {spec.label}, by 95 % intervals: {compared}.")
    return claims


def _draw_best(sets: dict[str, list[dict[str, Any]]]) -> Figure:
    figure, panels = figures.grid(len(sets), 3, 3.6, 1.7)
    for axes, (name, agents) in zip(panels, sets.items(), strict=True):
        for row, own in enumerate(agents):
            scores = _scores(own)
            axes.scatter(scores, [row] * len(scores), s=18, color=_spec(own).colour, alpha=0.7, linewidth=0)
        axes.set_yticks(range(len(agents)), [_spec(own).label for own in agents])
        axes.set_ylim(len(agents) - 0.5, -0.5)
        _draw_published(axes, name, vertical=True)
        axes.set_title(name)
        axes.set_xlabel("ROC AUC")
    figures.legend_below(figure, panels)
    return figure


def _draw_curves(curves: dict[str, dict[str, list[dict[str, Any]]]]) -> Figure:
    figure, panels = figures.grid(len(curves) * len(_MEASURES), len(_MEASURES), 3.4, 2.6)
    for index, axes in enumerate(panels):
        name = list(curves)[index // len(_MEASURES)]
        measure = list(_MEASURES)[index % len(_MEASURES)]
        own = {
            AgentSpec.parse(agent): [
                (seed[measure]["step"], seed[measure]["value"]) for seed in seeds if measure in seed
            ]
            for agent, seeds in curves[name].items()
        }
        figures.draw_curves(axes, own)
        if measure == "best_score":
            _draw_published(axes, name)
        axes.set_title(f"{name}: {_MEASURES[measure]}", fontsize="small")
        axes.set_xlabel("environment steps")
    figures.legend_below(figure, panels)
    return figure


def _draw_published(axes: Axes, name: str, *, vertical: bool = False) -> None:
    draw = axes.axvline if vertical else axes.axhline
    for (by, score), style in zip(PAPER_PROGRAMS.get(name, {}).items(), ("--", "-.", ":"), strict=False):
        draw(score, color="black", linestyle=style, linewidth=1, label=f"{by} (published)")
