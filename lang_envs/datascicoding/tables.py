"""ARFF and CSV files, read row by row."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

_MAX_LINE = 1 << 24
_ARFF_MISSING = frozenset("?")
_CSV_MISSING = frozenset(
    ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None", "none")
)
_MAX_COLUMNS = 1 << 16
# Possessive (*+): what is matched is not given back and tried again, so that a line takes time linear in its length.
_QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_ATTRIBUTE = re.compile(rf"@attribute\s++({_QUOTED}|[^\s{{'\"][^\s{{]*+)\s*+(.+)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*+({_QUOTED}|[^,'\"]*+)\s*+(,|$)")


@dataclass(frozen=True)
class Column:
    """A column and what its file says about it: its categories, or that it is a number, or neither."""

    name: str
    categories: tuple[str, ...] | None = None
    number: bool = False


@dataclass(frozen=True)
class Table:
    """Rows as texts, each with its line in the file ``origin``; they can be gone through once."""

    origin: str
    columns: tuple[Column, ...]
    rows: Iterable[tuple[int, Sequence[str]]]
    missing: frozenset[str] = frozenset()

    def fail(self, problem: str, line: int | None = None) -> NoReturn:
        raise ValueError(f"{self.origin}{'' if line is None else f', line {line}'}: {problem}")


def read_table(path: Path) -> Table:
    """Open an ARFF file (by its suffix) or a CSV file with a header; both in UTF-8.

    Raises
    ------
    ValueError
        Here or while the rows are gone through, if the file is malformed: it names the file and the line.
    """
    lines = _lines(path)
    return _arff(path, lines) if path.suffix.lower() == ".arff" else _csv(path, lines)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), start=1):
            if len(raw) == _MAX_LINE:
                raise ValueError(f"{path}, line {number}: longer than {_MAX_LINE >> 20} MiB, so this is no table")
            try:
                yield number, raw.decode()
            except UnicodeDecodeError as error:
                byte = f"byte {raw[error.start]:#04x} at its position {error.start + 1}"
                raise ValueError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8") from None


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
                table.fail(f"{len(row)} values, but the header names {len(columns)} columns", line)
            yield line, [value.strip() for value in row]

    rest = records()
    _, header = next(rest, (0, []))
    if len(header) > _MAX_COLUMNS:
        raise ValueError(f"{path}: {len(header):,} columns, and more than {_MAX_COLUMNS:,} are not read")
    columns = tuple(Column(name.strip()) for name in header)
    table = Table(str(path), columns, rows(), _CSV_MISSING)
    if not columns:
        table.fail("the file is empty")
    if len(columns) == 1:
        table.fail(f"one column only, {columns[0].name!r}; values have to be separated by commas", 1)
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
                raise ValueError(f"{path}, line {number}: more than {_MAX_COLUMNS:,} attributes are not read")
        elif word != "@relation" and not word.startswith("%"):
            raise ValueError(f"{path}, line {number}: {line[:40]!r} stands where @attribute or @data should")
    else:
        problem = f"no @data up to its end, line {number}; it is cut off" if number else "the file is empty"
        raise ValueError(f"{path}: {problem}")

    def rows() -> Iterator[tuple[int, list[str]]]:
        kinds = [(column.name, column.number, column.categories and frozenset(column.categories)) for column in columns]
        for line, text in lines:
            text = text.strip()
            if not text or text[0] == "%":
                continue
            if text[0] == "{":
                table.fail("a sparse row; only rows that write every value are read", line)
            row = _split(text) if "'" in text or '"' in text else [value.strip() for value in text.split(",")]
            if len(row) != len(kinds):
                table.fail(f"{len(row)} values for {len(kinds)} attributes; the row is cut off or malformed", line)
            for value, (name, number, categories) in zip(row, kinds, strict=True):
                if value == "?":
                    continue
                if categories and value not in categories:
                    table.fail(f"{value!r} is not among the declared values of {name!r}", line)
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
        raise ValueError(f"{place}: {line[:40]!r} is no attribute with a name and a type")
    name, kind = _unquoted(match[1]), match[2].strip()
    if kind.startswith("{"):
        if not kind.endswith("}"):
            raise ValueError(f"{place}: the values of {name!r} have no closing brace; the file is cut off")
        return Column(name, categories=tuple(_split(kind[1:-1])))
    word = kind.split()[0].lower()
    if word not in ("numeric", "real", "integer", "string", "date"):
        raise ValueError(f"{place}: the attribute {name!r} has the type {word!r}, which is not read here")
    return Column(name, number=word in ("numeric", "real", "integer"))


def _split(text: str) -> list[str]:
    """Values between commas, where quotes may hold a comma; malformed text comes back as one value."""
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
