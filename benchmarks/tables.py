"""Tables for terminals, files and pages."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape

from lang_envs.files import write_atomically

_SPREAD = re.compile(r" [\[(].*?[\])]")
_NUMBER = re.compile(r"[-+−]?\d")


class Known(str):
    """A number that has no interval, for chance has no part in it: a count, an exact value, one that was published."""

    __slots__ = ()


def is_number(cell: str) -> bool:
    """Whether a cell begins with one."""
    return bool(_NUMBER.match(cell))


@dataclass(frozen=True)
class Table:
    """Rows below a note that says what they are, and the numbers that they were made of."""

    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: dict[str, Any]

    @property
    def markdown(self) -> str:
        rows = (self.header, *self.rows)
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(self.header), *lines[1:]])

    @property
    def kept(self) -> dict[str, Any]:
        """What is kept of it beside the text."""
        return {"note": self.note, **self.numbers}

    def keep(self, path: Path) -> None:
        """Write it in Markdown, and the numbers beside it as JSON."""
        write_atomically(path, f"{self.note}\n\n{self.markdown}\n")
        write_atomically(path.with_suffix(".json"), json.dumps(self.kept, indent=2, allow_nan=False) + "\n")

    def show(
        self, console: Console, title: str, columns: Collection[str] | None = None, whole: Collection[str] = ()
    ) -> None:
        """Print what a terminal has room for: some columns (by default all), intervals and ranges in those alone that
        are to stand there ``whole``."""
        console.print(title, style="bold", highlight=False)
        table = rich.table.Table(box=SIMPLE_HEAD, pad_edge=False)
        chosen = [at for at, name in enumerate(self.header) if columns is None or name in columns]
        for at in chosen:
            name, numbers = self.header[at], any(is_number(row[at]) for row in self.rows)
            justify: Literal["left", "right"] = "right" if numbers else "left"
            table.add_column(escape(name), justify=justify, overflow="fold", no_wrap=name in whole)
        for row in self.rows:
            cells = ((row[at], self.header[at] in whole or not is_number(row[at])) for at in chosen)
            table.add_row(*(escape(cell if full else _SPREAD.sub("", cell)) for cell, full in cells))
        console.print(table)
