"""One page of finished runs, which needs no network: ``python -m benchmarks report runs/…``.

What stands on it is also kept in files: a text in Markdown for each section, its pictures, the numbers that its tables
were made of, and a line of JSON for each run.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import gymnasium as gym
import jinja2
import numpy as np

from benchmarks import credit_study, language_ability, programs, transfer
from benchmarks.cell import Benchmark, Cell
from benchmarks.comparison import (
    compare,
    compare_over,
    draw_against,
    draw_comparisons,
    draw_profiles,
    optimum_of,
    runs_of,
)
from benchmarks.curves import hours
from benchmarks.experiments import DISCOUNTS, EXPERIMENTS, FAMILY, FOOD
from benchmarks.paper import PAPER_FILE, Asked, remembered
from benchmarks.statistics import Interval, mean, mean_difference
from benchmarks.tables import Known, Table, is_number
from benchmarks.versions import COMMAND, VERSIONS_FILE
from lang_envs.files import read_text, refuse_irregular, write_atomically
from lang_envs.tokenizer import load_tokenizer
from trainers.checkpoint import is_checkpoint_link

_LIMITS = {
    "7b": "What it cannot show: the effect of one thing alone, for the paper's settings of the agents differ in more "
    "than their credit: entropy bonus, minibatches, epochs."
}
"""Of experiments at another scale than the embedded one, for which their own are written."""
_CONDITIONS = {
    "with an entropy bonus": "",
    "the same, λ_w = 0.95": "[gae_lambda_token=0.95]",
    "without a bonus": "[entropy_coefficient=0.0]",
}
"""Under which agents are compared by the length of their actions."""
_WARNINGS = {"quick": "Short runs", "missing": "What is missing"}
"""Sections of nothing else, by name; their titles."""
_BARE_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+ ?%?")


@dataclass(frozen=True)
class Picture:
    caption: str
    base64: str
    width: int
    """In pixels."""


@dataclass(frozen=True)
class Section:
    """What the page says of one experiment, ``name`` for short."""

    name: str
    title: str
    paragraphs: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    details: Sequence[tuple[str, str]] = ()
    command: str = ""
    runs: Sequence[Benchmark] = ()

    def __post_init__(self) -> None:
        """Numbers that stand alone are refused.

        Raises
        ------
        ValueError
            If a table holds a number with neither an interval nor a reason to have none.
        """
        for table in self.tables:
            for row in table.rows:
                for name, cell in zip(table.header, row, strict=True):
                    if _BARE_NUMBER.fullmatch(cell) and not isinstance(cell, Known):
                        raise ValueError(f"{self.title}: {name} of {row[0]} is {cell}, without an interval")

    def keep(self, folder: Path) -> None:
        """Write it into files that begin with its name."""
        folder.mkdir(parents=True, exist_ok=True)
        text = [f"# {self.title}", *self.paragraphs]
        for number, picture in enumerate(self.pictures, 1):
            file = f"{self.name}-{number}.png"
            (folder / file).write_bytes(base64.b64decode(picture.base64))
            text += [f"![{picture.caption}]({file})", picture.caption]
        for table in self.tables:
            text += [table.note, table.markdown]
        if self.command:
            text += ["Again:", _fenced(self.command)]
        text += [f"{name}:\n\n{_fenced(detail.strip())}" for name, detail in self.details]
        write_atomically(folder / f"{self.name}.md", "\n\n".join(text) + "\n")
        if self.tables:
            numbers = [table.kept for table in self.tables]
            write_atomically(folder / f"{self.name}.json", json.dumps(numbers, indent=1, allow_nan=False) + "\n")
        lines = [_line_of(cell) for run in self.runs for cell in run.cells]
        if lines:
            write_atomically(folder / f"{self.name}.jsonl", "\n".join(lines) + "\n")


def _fenced(text: str) -> str:
    """As it is, in Markdown; what a program says must not end the block it stands in."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _line_of(cell: Cell) -> str:
    """A run's settings and what it came to."""
    return json.dumps({"agent": cell.algo, **cell.plan, **(cell.result or {})})


def write_report(folders: Sequence[Path], output: Path, tables: Path, imports: tuple[str, ...] = ()) -> Path:
    """Put finished runs, or the paper's experiments, on one page, and what stands on it into files in ``tables``.

    Modules that the folders name are not imported, but for ``imports``: of an environment of another module the page has no
    optimum and no random policy.

    Raises
    ------
    ValueError
        If a folder holds neither, or a run that is not done or was begun with another plan, or one seed alone.
    """
    if not folders:
        raise ValueError("name the folders of one or more runs")
    sections = [section for folder in folders for section in _sections(folder, imports)]
    names = [section.name for section in sections]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two folders have the same name, or two the experiment: {', '.join(sorted(twice))}")
    alike = Counter(section.title for section in sections)
    sections = [
        replace(section, title=f"{section.title} ({section.name})") if alike[section.title] > 1 else section
        for section in sections
    ]
    for section in sections:
        section.keep(tables)
    for name in _WARNINGS.keys() - set(names):  # true of an earlier page
        (tables / f"{name}.md").unlink(missing_ok=True)
    environment = jinja2.Environment(loader=jinja2.PackageLoader("benchmarks"), autoescape=True)
    environment.tests["number"] = is_number
    title = " and ".join(folder.resolve().name for folder in folders[:2])
    title += f" and {len(folders) - 2} more" if folders[2:] else ""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, environment.get_template("report.html").render(title=title, sections=sections))
    return output


def _sections(folder: Path, imports: tuple[str, ...]) -> list[Section]:
    if (folder / PAPER_FILE).is_file():
        refuse_irregular(folder, is_checkpoint_link)
        return _of_paper(remembered(folder))
    return _of_benchmark(Benchmark.finished(folder, imports))


def _of_benchmark(benchmark: Benchmark) -> list[Section]:
    """Everything that there is to say of one benchmark."""
    name = benchmark.folder.resolve().name
    found = [_comparison(name, benchmark.title, [benchmark])]
    if programs.wrote_programs(benchmark):
        found.append(_programs(f"{name}-programs", f"{benchmark.title}: programs", [benchmark]))
    if benchmark.config.transfer:
        found.append(_transfer(f"{name}-unseen", f"{benchmark.title}: unseen tasks", [benchmark]))
    if benchmark.config.env == FOOD and benchmark.config.embedded and benchmark.learners:
        found.append(_credit(f"{name}-credit", f"{benchmark.title}: credit inside an action", [benchmark]))
    lines = read_text(benchmark.folder / VERSIONS_FILE).splitlines()
    command = next((line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)), "")
    firsts = [benchmark.of(algo)[0] for algo in benchmark.config.algos]
    plans = [(f"What {cell.algo} was trained with", json.dumps(cell.plan, indent=2)) for cell in firsts]
    made = [("Made with", _made_with(benchmark.cells)), *plans]
    return [*found, Section(f"{name}-made", f"How {name} was made", details=made, command=command)]


def _of_paper(asked: Asked) -> list[Section]:
    """What is done of the experiments, environment by environment, and by name what is not."""
    found: list[Section] = []
    missing = []
    for name, benchmarks in asked.benchmarks.items():
        experiment, config = EXPERIMENTS[name], asked.configs[name]
        cells = [cell for benchmark in benchmarks for cell in benchmark.cells]
        for cell in cells:
            cell.check()
        done = [benchmark for benchmark in benchmarks if all(cell.finished for cell in benchmark.cells)]
        if left := sum(not cell.finished for cell in cells):
            environments = ", ".join(benchmark.title for benchmark in benchmarks if benchmark not in done)
            missing.append(f"{experiment.title}: {left} of {len(cells)} runs are not done ({environments}).")
        if not done:
            continue
        benchmarks, cells = done, [cell for benchmark in done for cell in benchmark.cells]
        section = _BUILDERS.get(name, _comparison)(name, experiment.title, benchmarks)
        extra = _EXTRAS[name](benchmarks) if name in _EXTRAS else ([], [])
        found.append(
            replace(
                section,
                paragraphs=[experiment.question, *section.paragraphs, _LIMITS.get(config.scale, experiment.limits)],
                pictures=[*extra[0], *section.pictures],
                tables=[*extra[1], *section.tables],
                details=[*section.details, ("Made with", _made_with(cells))],
                command=config.command,
            )
        )
    if any(config.quick for config in asked.configs.values()):
        warning = "These runs are short ones (--quick), made to see that everything works. They say nothing else."
        found.insert(0, Section("quick", _WARNINGS["quick"], [warning]))
    return [*found, *([Section("missing", _WARNINGS["missing"], missing)] if missing else [])]


def _made_with(cells: Sequence[Cell]) -> str:
    """What all runs are made with, then what only some are, such as the commit of the day."""
    texts = [read_text(cell.path / VERSIONS_FILE).split("\n") for cell in cells]
    common = [line for line in texts[0] if line and all(line in text for text in texts)]
    others = Counter("; ".join(line for line in text if line and line not in common) for text in texts)
    took = f"{len(cells)} runs: {60 * hours(cells):.0f} minutes of training, if done one after the other"
    return "\n".join([*common, *(f"{count} runs: {text}" for text, count in others.items() if text), took])


def _comparison(name: str, title: str, benchmarks: Sequence[Benchmark]) -> Section:
    for benchmark in benchmarks:
        benchmark.check_seeds()
    compared = [compare(benchmark) for benchmark in benchmarks]
    picture = _picture(
        "Learning curves: a thick line for the mean of each agent's runs, a band for its 95 % interval; of few agents "
        "a thin line for each run.",
        lambda path: draw_comparisons(benchmarks, path),
    )
    paragraphs = [
        paragraph
        for benchmark, (_, sentences) in zip(benchmarks, compared, strict=True)
        for paragraph in _shows(sentences, f", in {benchmark.title}")
    ]
    return Section(name, title, paragraphs, [picture], [table for table, _ in compared], runs=benchmarks)


def _programs(name: str, title: str, benchmarks: Sequence[Benchmark]) -> Section:
    table = programs.tabulate(benchmarks)
    best = [
        (f"{data}, {algo}: the best program, ROC AUC {standing['best']:.4f} (the most of many)", standing["program"])
        for data, algos in table.numbers["sets"].items()
        for algo, standing in algos.items()
        if "program" in standing
    ]
    picture = _picture(
        "Programs over decisions, a row for each data set.", lambda path: programs.draw(benchmarks, path)
    )
    shows = _shows(programs.verdicts(table))
    return Section(name, title, shows, [picture], [table], best, runs=benchmarks)


def _transfer(name: str, title: str, benchmarks: Sequence[Benchmark]) -> Section:
    (benchmark,) = benchmarks
    found = transfer.gather(benchmark)
    picture = _picture(
        "Returns in environments that were not trained in.", lambda path: transfer.draw(benchmark, found, path)
    )
    shows = _shows(transfer.verdicts(found))
    return Section(name, title, shows, [picture], [transfer.tabulate(benchmark, found)], runs=benchmarks)


def _credit(name: str, title: str, benchmarks: Sequence[Benchmark]) -> Section:
    (benchmark,) = benchmarks
    found = credit_study.study(benchmark)
    picture = _picture(
        "Advantage of each token of two actions at two decisions; colours by the square root of the amount.",
        lambda path: credit_study.draw(found, path),
    )
    return Section(
        name,
        title,
        _shows([credit_study.verdict(found)]),
        [picture],
        [found.tabulate()],
        command=f"python -m benchmarks credit {benchmark.folder}",
        runs=benchmarks,
    )


def _language(name: str, title: str, benchmarks: Sequence[Benchmark]) -> Section:
    (benchmark,) = benchmarks
    table = language_ability.perplexity_table(benchmark)
    shows = _shows([language_ability.verdict(benchmark, table)])
    return Section(name, title, shows, tables=[table], runs=benchmarks)


def _shows(sentences: Sequence[str], where: str = "") -> list[str]:
    return [f"What it shows{where}: {' '.join(sentences)}"] if sentences else []


_BUILDERS: dict[str, Callable[[str, str, Sequence[Benchmark]], Section]] = {
    "programs": _programs,
    "generalisation": _transfer,
    "credit": _credit,
    "language": _language,
}
"""Of experiments that are not shown as learning curves and a table of returns."""


def _picture(caption: str, draw: Callable[[Path], Path]) -> Picture:
    with tempfile.TemporaryDirectory() as folder:
        data = draw(Path(folder) / "picture.png").read_bytes()
    width = int.from_bytes(data[16:20])  # where a PNG has it
    return Picture(caption, base64.b64encode(data).decode(), width)


# --------------------------------------------------------------------------------- what single experiments have besides

Extra = tuple[list[Picture], list[Table]]


def _over_tasks(benchmarks: Sequence[Benchmark]) -> Extra:
    profiles = _picture("Performance profiles over all environments.", lambda path: draw_profiles(benchmarks, path))
    return [profiles], [compare_over(benchmarks)]


def _over_discounts(benchmarks: Sequence[Benchmark]) -> Extra:
    (benchmark,) = benchmarks
    found = {at: mean([runs_of(benchmark, algo).returns]) for at, algo in DISCOUNTS.items()}
    picture = _picture(
        "Return by the discount inside an action; 1 is POAD.",
        lambda path: draw_against({"NTPO's family": found}, r"$\gamma_w$", "return", path, optimum_of(benchmark)),
    )
    return [picture], []


def _over_lengths(benchmarks: Sequence[Benchmark]) -> Extra:
    gaps: dict[str, dict[float, Interval]] = {name: {} for name in _CONDITIONS}
    returns: dict[str, dict[str, dict[float, Interval]]] = {
        name: {algo + settings: {} for algo in FAMILY} for name, settings in _CONDITIONS.items()
    }
    for benchmark in benchmarks:
        length = _tokens_per_action(benchmark)
        for name, settings in _CONDITIONS.items():
            own = {algo: runs_of(benchmark, algo).returns for algo in returns[name] if algo in benchmark.config.algos}
            for algo, values in own.items():
                returns[name][algo][length] = mean([values])
            if own:
                gaps[name][length] = mean_difference(own["poad" + settings], own["ntpo" + settings])
    label, optimum = "tokens per action (mean)", optimum_of(benchmarks[0])
    return [
        _picture(
            "What POAD is ahead of NTPO, by the length of actions in tokens.",
            lambda path: draw_against(gaps, label, "return of POAD − return of NTPO", path),
        ),
        *(
            _picture(
                f"Return by the length of actions in tokens: {name}.",
                partial(draw_against, found, label, "return", optimum=optimum),
            )
            for name, found in returns.items()
        ),
    ], []


def _tokens_per_action(benchmark: Benchmark) -> float:
    """The mean over an environment's phrases, the end token among them."""
    tokenizer = load_tokenizer(benchmark.config.model or "embedded")
    phrases = gym.make(benchmark.config.env, interface="text").unwrapped.get_wrapper_attr("action_names")
    return float(np.mean([len(tokenizer.encode_action(phrase)) for phrase in phrases]))


_EXTRAS: dict[str, Callable[[Sequence[Benchmark]], Extra]] = {
    "curves": _over_tasks,
    "discount": _over_discounts,
    "length": _over_lengths,
}
assert _EXTRAS.keys() | _BUILDERS.keys() <= EXPERIMENTS.keys()
