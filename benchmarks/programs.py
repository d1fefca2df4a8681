"""What programs agents wrote: the best of them, and what the last ones were worth, beside published numbers.

``python -m benchmarks programs runs/a runs/b`` puts the runs of several data sets into one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from rich.console import Console

from benchmarks.cell import Benchmark, Cell
from benchmarks.config import BenchmarkConfig
from benchmarks.curves import COLOURS, draw_seeds, read_metrics, save
from benchmarks.presets import PAPER_PROGRAMS
from benchmarks.statistics import Interval, beside, bootstrap_mean
from benchmarks.tables import Known, Table
from lang_envs.files import read_text
from trainers.loop import BEST_PROGRAM_FILE

_LAST = 0.9
_MAX_PROGRAM = 1 << 20
_MEASURES = {
    "reward": "mean reward",
    "works": "share of programs that work",
    "score": "mean ROC AUC of those",
    "best_score": "best ROC AUC so far",
}
_HEADER = ("data set", "by", "seeds", "best program", "in runs", "last tenth: reward", "that work", "their ROC AUC")
_NOTE = """
ROC AUC on five random splits in halves. "Best program" is the best of all that an agent's runs wrote, "in runs" the
mean over the runs of each one's best, with the range: maxima over many programs, scored on the splits on which they
were chosen. "Last tenth" is the mean reward (−1 for a program that fails) over the last tenth of a run's decisions,
then the share of programs that work and the mean ROC AUC of those, with 95 % intervals (bootstrap over seeds, and over
the rollouts of each; few seeds make them too narrow). Paper: table 4 of arXiv 2405.15821, CodeLLaMA-7B and 10,000
decisions, with the CAAFE results it gives. Model, rows, splits and classifiers are not the same, so those rows say what
is usual on a set and not who is better.
""".strip().replace("\n", " ")


def wrote_programs(benchmark: Benchmark) -> bool:
    """Whether programs are what its runs wrote."""
    return "works" in read_metrics(benchmark.cells[0])[0]


def tabulate(runs: Sequence[Benchmark]) -> Table:
    """The programs of runs on one or more data sets, beside published ones."""
    rows: list[tuple[str, ...]] = []
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        name = _data_set(run.config)
        for algo in run.config.algos:
            if algo in found.get(name, {}):
                raise ValueError(f"{run.folder} has {algo} on {name}, which another of these folders has, too")
            standing = _standing(run.of(algo))
            found.setdefault(name, {})[algo] = standing
            rows.append((name, algo, *_format(standing)))
    for name in found:
        if published := PAPER_PROGRAMS.get(name):
            rows += [(name, by, "", Known(f"{score:.4f}"), "", "", "", "") for by, score in published.items()]
    rows.sort(key=lambda row: list(found).index(row[0]))
    return Table(_NOTE, _HEADER, rows, {"sets": found})


def verdicts(table: Table) -> list[str]:
    """Sentences that say where the first agent's last programs are better than another's, by their intervals."""
    sets = table.numbers["sets"]
    ours, *others = next(iter(sets.values()))
    found = []
    for theirs in others:
        for measure, what in (("score", "ROC AUC of the working programs"), ("reward", "Mean reward")):
            pairs = {
                name: (Interval(**own[ours][measure]), Interval(**own[theirs][measure]))
                for name, own in sets.items()
                if measure in own[ours] and measure in own[theirs]  # no score where a run's last programs all failed
            }
            if pairs:
                found.append(f"{what} of {ours} beside {theirs}'s: {beside(pairs)}.")
    return found


def write_programs(runs: Sequence[Benchmark], folder: Path, console: Console) -> None:
    """Print the table, write it as ``programs.md`` and, with every seed's numbers, as ``programs.json``, and draw the
    curves behind it as ``programs.png``."""
    table = tabulate(runs)
    table.show(console, "Programs")
    table.keep(folder / "programs.md")
    console.print(f"table: {folder / 'programs.md'}", soft_wrap=True)
    console.print(f"figure: {draw(runs, folder / 'programs.png')}", soft_wrap=True)


def draw(runs: Sequence[Benchmark], path: Path) -> Path:
    """A row for each run; in it a panel for each measure, over decisions."""
    figure, panels = plt.subplots(
        len(runs), len(_MEASURES), figsize=(14, 3 * len(runs) + 0.6), layout="constrained", squeeze=False
    )
    for run, row in zip(runs, panels, strict=True):
        name, algos = _data_set(run.config), run.config.algos
        for axes, (measure, title) in zip(row, _MEASURES.items(), strict=True):
            for algo, colour in zip(algos, COLOURS * len(algos), strict=False):
                draw_seeds(axes, algo, run.of(algo), measure, colour)
            axes.set_title(title, fontsize="medium")
            axes.grid(alpha=0.25)
        if published := PAPER_PROGRAMS.get(name):
            for (by, score), style in zip(published.items(), ("--", "-.", ":"), strict=True):
                row[-1].axhline(score, color="black", linestyle=style, linewidth=1, label=by)
        row[0].set_ylabel(name)
        row[-1].legend(fontsize="small")
    for axes in panels[-1]:
        axes.set_xlabel("decisions")
    return save(figure, path)


def _data_set(config: BenchmarkConfig) -> str:
    given = config.env_options.get("dataset")
    return str(given or config.env.rpartition(":")[2].removeprefix("DataSciCoding-").removesuffix("-v0"))


def _standing(cells: list[Cell]) -> dict[str, Any]:
    """Of one agent in one environment: the best program, the best of each seed, means of the last tenth."""
    curves = {cell.seed: read_metrics(cell) for cell in cells}
    best = {seed: lines[-1].get("best_score") for seed, lines in curves.items()}
    last = [[line for line in lines if line["step"] > _LAST * lines[-1]["step"]] for lines in curves.values()]
    standing: dict[str, Any] = {"best_of_seeds": best}
    for measure in ("reward", "works", "score"):
        values = [[line[measure] for line in lines if measure in line] for lines in last]
        if all(values):  # no score where no program of a seed works
            standing[measure] = bootstrap_mean(values)._asdict()
    scored = {seed: score for seed, score in best.items() if score is not None}
    if scored:
        champion = max(scored, key=lambda seed: scored[seed])
        standing["best"] = scored[champion]
        file = next(cell.path / BEST_PROGRAM_FILE for cell in cells if cell.seed == champion)
        if not file.exists():
            raise ValueError(f"{file} is gone, the best program of its agent")
        standing["program"] = read_text(file, _MAX_PROGRAM)
    return standing


def _format(standing: dict[str, Any]) -> tuple[str, ...]:
    seeds = len(standing["best_of_seeds"])
    scores = [score for score in standing["best_of_seeds"].values() if score is not None]
    return (
        Known(seeds),
        Known(f"{standing['best']:.4f}") if scores else "none works",
        f"{sum(scores) / len(scores):.4f} ({min(scores):.4f} … {max(scores):.4f})"
        + f", {len(scores)} of {seeds} runs" * (len(scores) < seeds)
        if scores
        else "",
        Interval(**standing["reward"]).shown(),
        Interval(**standing["works"]).shown("{:.0%}"),
        Interval(**standing["score"]).shown() if "score" in standing else "",
    )
