"""Analyses of finished runs: what is stored of them, and what is shown of what is stored.

An analysis is a module with three functions. ``applies`` says whether it can analyse a benchmark. ``collect`` reads the
folders of runs and returns plain numbers, which are stored as JSON. ``present`` makes claims, tables and figures from
these numbers alone, so that pages can be worded and drawn anew without the runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import rich.table
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape

from benchmarks.runs import Benchmark
from benchmarks.stored import in_markdown

_INTERVAL = re.compile(r" [\[(].*?[\])]")
_NUMBER = re.compile(r"[-+−]?\d")


def is_number(cell: str) -> bool:
    """Whether a cell begins with a number."""
    return bool(_NUMBER.match(cell))


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    terminal: Sequence[str] = ()
    """Columns for which a terminal has room; empty for all."""

    @property
    def markdown(self) -> str:
        """The table in Markdown."""
        rows = (self.header, *self.rows)
        lines = ["| " + " | ".join(in_markdown(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(self.header), *lines[1:]])

    def show(self, console: Console) -> None:
        """Print what a terminal has room for: intervals in the column *return* alone."""
        console.print(self.title, style="bold", highlight=False, markup=False)
        table = rich.table.Table(box=SIMPLE_HEAD, pad_edge=False)
        chosen = [at for at, name in enumerate(self.header) if not self.terminal or name in self.terminal]
        for at in chosen:
            name, numbers = self.header[at], any(is_number(row[at]) for row in self.rows)
            justify: Literal["left", "right"] = "right" if numbers else "left"
            table.add_column(escape(name), justify=justify, overflow="fold", no_wrap=name == "return")
        for row in self.rows:
            cells = ((row[at], self.header[at] == "return" or not is_number(row[at])) for at in chosen)
            table.add_row(*(escape(cell if whole else _INTERVAL.sub("", cell)) for cell, whole in cells))
        console.print(table)


@dataclass(frozen=True)
class Drawing:
    """A figure with the last part of its file name and its caption."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Presentation:
    """What a page shows of an analysis."""

    claims: Sequence[str]
    """Sentences that answer the question, with numbers."""
    tables: Sequence[Table]
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = ()
    """How to read the tables."""
    details: Sequence[tuple[str, str]] = ()
    """Headings and longer texts, such as programs."""


class Analysis(Protocol):
    """The protocol of the modules of this package."""

    def applies(self, benchmark: Benchmark) -> bool:
        """Whether the benchmark's runs can be analysed in this way."""

    def collect(self, benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
        """Read runs and return what is stored as JSON; learning curves under the key ``"curves"``."""

    def present(self, data: dict[str, Any]) -> Presentation:
        """Make claims, tables and figures of what :meth:`collect` returned; ``"curves"`` may be missing."""
