"""Reading ARFF and CSV files row by row."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

_MAX_LINE = 1 << 24
"""Bytes of the longest line."""
_ARFF_MISSING = frozenset("?")
_CSV_MISSING = frozenset(
    ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None", "none")
)
_MAX_COLUMNS = 1 << 16
# Possessive quantifiers (*+) do not backtrack, so the time for a line is linear in its length.
_QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_ATTRIBUTE = re.compile(rf"@attribute\s++({_QUOTED}|[^\s{{'\"][^\s{{]*+)\s*+(.+)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*+({_QUOTED}|[^,'\"]*+)\s*+(,|$)")


@dataclass(frozen=True)
class Column:
    """A column and its type, as far as the file declares it."""

    name: str
    categories: tuple[str, ...] | None = None
    """The declared categories, in their order."""
    number: bool = False
    """Whether the column is declared to hold numbers."""


@dataclass(frozen=True)
class Table:
    """A table of text whose rows can be iterated once."""

    origin: str
    """Name of the source in error messages, such as a path."""
    columns: tuple[Column, ...]
    rows: Iterable[tuple[int, Sequence[str]]]
    """Number of the line and values of each row."""
    missing: frozenset[str] = frozenset()
    """Texts that mean a missing value."""

    def fail(self, problem: str, line: int | None = None) -> NoReturn:
        """Raise a ValueError that names the source and the line."""
        raise ValueError(f"{self.origin}{'' if line is None else f', line {line}'}: {problem}")


def read_table(path: Path) -> Table:
    """Open an ARFF file (suffix ``.arff``) or a CSV file with a header, in UTF-8.

    Raises
    ------
    ValueError
        If the file is malformed, here or while the rows are iterated; the message names the file and the line.
    """
    lines = _lines(path)
    return _arff(path, lines) if path.suffix.lower() == ".arff" else _csv(path, lines)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), start=1):
            if len(raw) == _MAX_LINE:
                raise ValueError(
                    f"{path}, line {number}: the line is longer than {_MAX_LINE >> 20} MiB, so this is not a table"
                )
            try:
                yield number, raw.decode()
            except UnicodeDecodeError as error:
                byte = f"byte {raw[error.start]:#04x} at its position {error.start + 1}"
                raise ValueError(f"{path}, line {number}: {byte} is not valid UTF-8: save the file as UTF-8") from None


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    first = file.readline(_MAX_LINE).removeprefix(b"\xef\xbb\xbf")
    return itertools.chain([first] if first else [], iter(lambda: file.readline(_MAX_LINE), b""))


def _csv(path: Path, lines: Iterator[tuple[int, str]]) -> Table:
    reader = csv.reader((text for _, text in lines), skipinitialspace=True, strict=True)

    def records() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None

    def rows() -> Iterator[tuple[int, list[str]]]:
        for line, row in rest:
            if len(row) != len(columns):
                table.fail(f"{len(row)} values, expected {len(columns)} as in the header", line)
            yield line, [value.strip() for value in row]

    rest = records()
    _, header = next(rest, (0, []))
    if len(header) > _MAX_COLUMNS:
        raise ValueError(f"{path}: {len(header):,} columns, expected at most {_MAX_COLUMNS:,}")
    columns = tuple(Column(name.strip()) for name in header)
    table = Table(str(path), columns, rows(), _CSV_MISSING)
    if not columns:
        table.fail("the file is empty")
    if len(columns) == 1:
        table.fail(f"only one column, {columns[0].name!r}: values must be separated by commas", 1)
    return table


def _arff(path: Path, lines: Iterator[tuple[int, str]]) -> Table:
    columns: list[Column] = []
    number = 0
    for number, text in lines:
        line = text.strip()
        word = line.split(None, 1)[0].lower() if line else "%"
        if word == "@data":
            break
        if word == "@attribute":
            columns.append(_attribute(line, f"{path}, line {number}"))
            if len(columns) > _MAX_COLUMNS:
                raise ValueError(f"{path}, line {number}: too many attributes, expected at most {_MAX_COLUMNS:,}")
        elif word != "@relation" and not word.startswith("%"):
            raise ValueError(f"{path}, line {number}: {line[:40]!r}, expected @attribute or @data")
    else:
        problem = f"no @data until its end, line {number}: the file is incomplete" if number else "the file is empty"
        raise ValueError(f"{path}: {problem}")

    def rows() -> Iterator[tuple[int, list[str]]]:
        kinds = [(column.name, column.number, column.categories and frozenset(column.categories)) for column in columns]
        for line, text in lines:
            text = text.strip()
            if not text or text[0] == "%":
                continue
            if text[0] == "{":
                table.fail("a sparse row, which is not supported: write every value", line)
            row = _split(text) if "'" in text or '"' in text else [value.strip() for value in text.split(",")]
            if len(row) != len(kinds):
                table.fail(f"{len(row)} values, expected {len(kinds)}: the row is incomplete or malformed", line)
            for value, (name, number, categories) in zip(row, kinds, strict=True):
                if value == "?":
                    continue
                if categories and value not in categories:
                    table.fail(f"{value!r} is not one of the declared values of {name!r}", line)
                if number:
                    try:
                        float(value)
                    except ValueError:
                        table.fail(f"{value!r} in the column {name!r} is not a number", line)
            yield line, row

    table = Table(str(path), tuple(columns), rows(), _ARFF_MISSING)
    return table


def _attribute(line: str, place: str) -> Column:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise ValueError(f"{place}: {line[:40]!r} is not an attribute with a name and a type")
    name, kind = _unquoted(match[1]), match[2].strip()
    if kind.startswith("{"):
        if not kind.endswith("}"):
            raise ValueError(f"{place}: the values of {name!r} have no closing brace: the file is incomplete")
        return Column(name, categories=tuple(_split(kind[1:-1])))
    word = kind.split()[0].lower()
    if word not in ("numeric", "real", "integer", "string", "date"):
        raise ValueError(
            f"{place}: the attribute {name!r} has the unsupported type {word!r}: expected numeric, real, integer, "
            "string, date or a list of values"
        )
    return Column(name, number=word in ("numeric", "real", "integer"))


def _split(text: str) -> list[str]:
    """Split at commas outside quotes; malformed text is returned as one value."""
    values, place, more = [], 0, True
    while more:
        match = _VALUE.match(text, place)
        if match is None:
            return [text]
        values.append(_unquoted(match[1].strip()))
        place, more = match.end(), match[2] == ","
    return values


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[:1] in ("'", '"') else text
