"""What is stored of finished runs: a record for each analysis, from which pages are rendered without the runs.

``NAME.json`` has the numbers, ``NAME.jsonl`` a line for each run with its configuration and final evaluation, and
``NAME-curves.json.gz`` the learning curves.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.analyses import Analysis, credit, language, programs, returns, transfer
from benchmarks.experiments import EXPERIMENTS
from benchmarks.paper import PAPER_FILE, asked_in
from benchmarks.runs import Benchmark, Run
from benchmarks.stored import counted, typed
from benchmarks.versions import COMMAND, VERSIONS_FILE
from lang_envs.files import (
    MIB,
    is_number,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    refuse_irregular,
    write_atomically,
)
from trainers.checkpoint import is_checkpoint_link

ANALYSES: dict[str, Analysis] = {
    "returns": returns,
    "programs": programs,
    "transfer": transfer,
    "credit": credit,
    "language": language,
}
_TITLES = {
    "returns": "returns",
    "programs": "programs",
    "transfer": "environments without training",
    "credit": "credit inside an action",
}
"""What pages of single benchmarks are called, by analysis."""
MAX_CURVES = 256 * MIB
"""Bytes of learning curves without compression."""
_MAX_DEPTH = 4
"""Nesting of curves: data set, agent, seed, measure."""
_MIME = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Picture:
    """A figure's file and caption."""

    file: Path
    caption: str

    @property
    def data(self) -> str:
        """The file as an address that needs no network."""
        return f"data:{_MIME[self.file.suffix]};base64,{base64.b64encode(read_bytes(self.file)).decode()}"


@dataclass(frozen=True)
class Record:
    """The stored numbers of one analysis, with how to repeat it."""

    analysis: str
    """A name of :data:`ANALYSES`."""
    title: str
    data: dict[str, Any] = field(repr=False)
    experiment: str | None = None
    """The paper experiment, whose question and limitations the page shows."""
    scale: str = "embedded"
    command: str = ""
    made_with: str = ""
    warning: str = ""
    kept_figures: tuple[Picture, ...] = ()
    """Figures from before their data were stored, which cannot be drawn anew."""

    def save(self, folder: Path, name: str) -> None:
        """Write numbers and learning curves."""
        folder.mkdir(parents=True, exist_ok=True)
        data = dict(self.data)
        file = _curves_file(folder, name)
        if (curves := data.pop("curves", None)) is None:
            file.unlink(missing_ok=True)
        else:
            write_atomically(file, gzip.compress(json.dumps(curves).encode(), mtime=0))
        stored = asdict(replace(self, data=data))
        text = json.dumps(stored, indent=1, allow_nan=False, ensure_ascii=False, default=os.fspath)
        write_atomically(folder / f"{name}.json", text + "\n")

    @classmethod
    def load(cls, folder: Path, name: str) -> Record:
        """Read numbers and, if they were stored, learning curves.

        Raises
        ------
        ValueError
            If a file is damaged; names it.
        """
        path = folder / f"{name}.json"
        record = typed(cls, read_json(path), str(path))
        if record.analysis not in ANALYSES:
            raise ValueError(f"{path} is damaged: there is no analysis {record.analysis!r:.80}")
        if record.experiment not in (None, *EXPERIMENTS):
            raise ValueError(f"{path} is damaged: there is no experiment {record.experiment!r:.80}")
        for kept in record.kept_figures:
            if kept.file.suffix not in _MIME:
                raise ValueError(f"{path} is damaged: the figure {kept.file.name!r:.80} is none of {', '.join(_MIME)}")
        if os.path.lexists(file := _curves_file(folder, name)):
            return replace(record, data=record.data | {"curves": _read_curves(file)})
        return record


def _read_curves(file: Path) -> Any:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(read_bytes(file))) as opened:
            text = opened.read(MAX_CURVES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if len(text) > MAX_CURVES:
        raise ValueError(f"{file} is too large: expected at most {MAX_CURVES // MIB} MiB without compression")
    curves = parse_json(text, str(file))
    if not _are_curves(curves):
        raise ValueError(f"{file} is damaged: expected learning curves, lists of numbers of the same length")
    return curves


def _are_curves(value: Any, depth: int = 0) -> bool:
    """Whether a value consists of curves: objects with ``step`` and other lists of numbers of the same length."""
    if isinstance(value, dict) and "step" in value:
        lists = list(value.values())
        numbers = all(isinstance(own, list) and all(map(is_number, own)) for own in lists)
        return numbers and len(set(map(len, lists))) == 1
    if not isinstance(value, dict | list) or depth > _MAX_DEPTH:
        return False
    return all(_are_curves(own, depth + 1) for own in (value.values() if isinstance(value, dict) else value))


def _curves_file(folder: Path, name: str) -> Path:
    return folder / f"{name}-curves.json.gz"


def stored_names(folder: Path) -> list[str]:
    """Names of a folder's records, paper experiments first and in their order.

    Raises
    ------
    ValueError
        If there is none.
    """
    names = [file.stem for file in sorted(folder.glob("*.json")) if file.with_suffix(".jsonl").exists()]
    if not names:
        raise ValueError(f"{folder} has no records (NAME.json with NAME.jsonl); `report` writes them from runs")
    order = list(EXPERIMENTS)
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def store(folder: Path, name: str, record: Record, benchmarks: Sequence[Benchmark]) -> None:
    """Write a record, and a line for each run with its configuration and final evaluation."""
    record.save(folder, name)
    runs = [run for benchmark in benchmarks for run in benchmark.runs]
    lines = [json.dumps({"agent": run.agent.name, **run.configuration, **(run.result or {})}) for run in runs]
    write_atomically(folder / f"{name}.jsonl", "\n".join(lines) + "\n")


def _record_of(benchmarks: Sequence[Benchmark], analysis: str) -> Record:
    """Collect one analysis of one benchmark or several."""
    lines = [line for own in benchmarks for line in read_text(own.folder / VERSIONS_FILE).splitlines()]
    return Record(
        analysis,
        f"{', '.join(own.title for own in benchmarks)}: {_TITLES[analysis]}",
        ANALYSES[analysis].collect(benchmarks),
        command="\n".join(line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)),
        made_with=_made_with([run for own in benchmarks for run in own.runs]),
    )


def store_after_runs(benchmark: Benchmark) -> list[str]:
    """Store the analyses of a benchmark that has just ended in its own folder; returns their names."""
    names = [name for name in ("returns", "programs", "transfer") if ANALYSES[name].applies(benchmark)]
    for name in names:
        store(benchmark.folder, name, _record_of([benchmark], name), [benchmark])
    return names


def store_folders(folders: Sequence[Path], records: Path, imports: tuple[str, ...]) -> list[str]:
    """Store all analyses of benchmarks, or of the paper's experiments, in a folder of records; returns their names.

    The programs of several benchmarks are in one record, so that a page compares data sets.

    Raises
    ------
    ValueError
        If a folder has neither, or a benchmark with a run that is not finished or has another configuration.
    """
    stored: list[str] = []
    papers = [folder for folder in folders if (folder / PAPER_FILE).is_file()]
    benchmarks = [Benchmark.finished(folder, imports) for folder in folders if folder not in papers]
    for folder in papers:
        refuse_irregular(folder, is_checkpoint_link)
        stored += _store_paper(folder, records)
    for analysis in _TITLES:
        found = [own for own in benchmarks if ANALYSES[analysis].applies(own)]
        together = [found] if analysis == "programs" and found else [[own] for own in found]
        for group in together:
            name = group[0].folder.resolve().name if len(group) == 1 else "all"
            stored.append(name if analysis == "returns" else f"{name}-{analysis}")
            store(records, stored[-1], _record_of(group, analysis), group)
    return stored


def _store_paper(folder: Path, records: Path) -> list[str]:
    """Store the finished comparisons of each experiment, and print what is missing."""
    console, stored = Console(stderr=True), []
    for name, asked in asked_in(folder).items():
        experiment, benchmarks = EXPERIMENTS[name], asked.benchmarks(name)
        runs = [run for benchmark in benchmarks for run in benchmark.runs]
        for run in runs:
            run.check()
        done = [benchmark for benchmark in benchmarks if all(run.finished for run in benchmark.runs)]
        warnings = [
            "These are short runs (--quick) for testing the software; the numbers have no meaning."
        ] * asked.quick
        if left := sum(not run.finished for run in runs):
            missing = ", ".join(benchmark.title for benchmark in benchmarks if benchmark not in done)
            warnings.append(f"{left} of {len(runs)} runs are not finished ({missing}).")
            console.print(f"{name}: {warnings[-1]}", markup=False, highlight=False, soft_wrap=True)
        if done:
            record = Record(
                experiment.analysis,
                experiment.title,
                ANALYSES[experiment.analysis].collect(done),
                experiment=name,
                scale=asked.scale,
                command=asked.command,
                made_with=_made_with([run for benchmark in done for run in benchmark.runs]),
                warning=" ".join(warnings),
            )
            store(records, name, record, done)
            stored.append(name)
    return stored


def _made_with(runs: Sequence[Run]) -> str:
    """Versions that all runs share, then those of some runs, such as the commit of the day, and the training time."""
    texts = [read_text(run.path / VERSIONS_FILE).split("\n") for run in runs]
    common = [line for line in texts[0] if line and all(line in text for text in texts)]
    others = Counter("; ".join(line for line in text if line and line not in common) for text in texts)
    hours = sum(run.training_hours for run in runs)
    minutes = round(60 * hours)
    took = f"{counted(len(runs), 'run')}, {counted(minutes, 'minute')} of training if done one after the other"
    return "\n".join([*common, *(f"{counted(count, 'run')}: {text}" for text, count in others.items() if text), took])
