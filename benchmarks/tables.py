"""Tables for terminals, Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape

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
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
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
