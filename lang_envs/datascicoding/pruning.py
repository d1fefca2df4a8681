"""Pruning: from a table of text to at most 2000 rows of numbers."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lang_envs.datascicoding.catalog import DatasetEntry
from lang_envs.datascicoding.tables import Column, Table

MAX_ROWS = 2000
MAX_CLASSES = 50
"""A target column with more values is not accepted as classes."""
_SEED = 0
_DRAWN_AT_ONCE = 4096
_COLUMNS_SHOWN = 20
"""Number of column names in an error message."""


def prune(table: Table, entry: DatasetEntry) -> tuple[np.ndarray, np.ndarray]:
    """Drop columns and incomplete rows, shuffle, keep a sample of rows, and convert values to numbers.

    A category becomes its position among the declared categories; where none are declared, among the sorted categories
    of the kept rows. The sample depends on the file only. Memory is needed for the kept rows, not for the whole file.

    Parameters
    ----------
    table : Table
    entry : DatasetEntry
        The target, the columns to drop, the share of rows to keep, and the expected size.

    Returns
    -------
    x : float64 array of shape ``(rows, features)``
    y : int64 array of shape ``(rows,)``
        Classes from 0.

    Raises
    ------
    ValueError
        If a column is missing, a value is invalid, or the result does not have the expected size.
    """
    names = [column.name for column in table.columns]
    if entry.target is None:
        table.fail(f"no target column is given: add target=COLUMN to {entry.name!r}. The columns are {_listed(names)}")
    for name in (entry.target, *entry.drop):
        if names.count(name) != 1:
            problem = "there is no column" if name not in names else "there is more than one column"
            table.fail(f"{problem} {name!r}; the columns are {_listed(names)}")
    target = names.index(entry.target)
    features = [k for k, name in enumerate(names) if k != target and name not in entry.drop]
    if not features:
        table.fail(f"there is no feature column besides the target {entry.target!r}")
    kept = _sample(table, [*features, target], entry.one_in)
    x = np.empty((len(kept), len(features)))
    for k, feature in enumerate(features):
        x[:, k] = _numbers(table, table.columns[feature], [(line, row[k]) for line, row in kept])
    y = _classes(table, table.columns[target], [(line, row[-1]) for line, row in kept])
    for found, expected, noun in (
        (x.shape[0], entry.rows, "rows"),
        (x.shape[1], entry.features, "features"),
        (int(y.max()) + 1, entry.classes, "classes"),
    ):
        if expected not in (None, found):
            table.fail(
                f"{entry.name} has {found} {noun} after pruning, expected {expected}: the source has changed, or this "
                "is another file or a part of it"
            )
    return x, y


def _sample(table: Table, used: list[int], one_in: int) -> list[tuple[int, list[str]]]:
    """Return a sample of the complete rows in random order: the rows with the smallest random numbers."""
    draws = _draws()
    whole = complete = 0
    lacking: Counter[int] = Counter()
    kept: list[tuple[float, int, list[str]]] = []
    for line, row in table.rows:
        whole += 1
        values = [row[k] for k in used]
        if not table.missing.isdisjoint(values):
            lacking.update(k for k, value in zip(used, values, strict=True) if value in table.missing)
            continue
        complete += 1
        candidate = (-next(draws), line, values)  # the first of the heap is removed next
        if len(kept) < MAX_ROWS:
            heapq.heappush(kept, candidate)
        elif candidate > kept[0]:
            heapq.heapreplace(kept, candidate)
    if not whole:
        table.fail("it has no rows")
    if not complete:
        column, rows = lacking.most_common(1)[0]
        table.fail(
            f"each of its {whole} rows has a missing value, {rows} of them in the column {table.columns[column].name!r}"
        )
    kept.sort(reverse=True)
    return [(line, row) for _, line, row in kept[: max(whole // one_in, 1)]]


def _draws() -> Iterator[float]:
    generator = np.random.default_rng(_SEED)
    while True:
        yield from generator.random(_DRAWN_AT_ONCE).tolist()


def _numbers(table: Table, column: Column, values: list[tuple[int, str]]) -> list[float]:
    if column.categories:
        codes = {category: float(code) for code, category in enumerate(column.categories)}
        return [codes[value] for _, value in values]
    numbers = [_number(value) for _, value in values]
    if all(number is not None for number in numbers):
        for (line, value), number in zip(values, numbers, strict=True):
            if not math.isfinite(number or 0):
                table.fail(f"{value!r} in the column {column.name!r} is not finite", line)
        return [number or 0.0 for number in numbers]
    codes = {value: float(code) for code, value in enumerate(_ordered(value for _, value in values))}
    return [codes[value] for _, value in values]


def _classes(table: Table, column: Column, values: list[tuple[int, str]]) -> np.ndarray:
    if not column.categories:
        numbers = [_number(value) for _, value in values]
        if fractions := [k for k, number in enumerate(numbers) if number is not None and not number.is_integer()]:
            line, value = values[fractions[0]]
            table.fail(f"{value!r} in the target column {column.name!r} is a fraction, not a class", line)
        values = [
            (line, value if n is None else _whole(value)) for (line, value), n in zip(values, numbers, strict=True)
        ]
    present = {value for _, value in values}
    order = [value for value in column.categories if value in present] if column.categories else _ordered(present)
    if len(order) == 1:
        table.fail(f"the target column {column.name!r} has only one class, {order[0]!r}")
    if len(order) > MAX_CLASSES:
        table.fail(
            f"the target column {column.name!r} has {len(order)} different values in {len(values)} rows, expected at "
            f"most {MAX_CLASSES} classes"
        )
    codes = {value: code for code, value in enumerate(order)}
    return np.array([codes[value] for _, value in values], dtype=np.int64)


def _whole(text: str) -> str:
    """Return a whole number of any size in its standard form."""
    try:
        return str(int(text))
    except ValueError:  # 1.0, 1e3
        return str(int(float(text)))


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _ordered(values: Iterable[str]) -> list[str]:
    """Return the different values: first numbers in ascending order, then other texts in alphabetical order."""
    pairs = [(_number(value), value) for value in set(values)]
    return [value for _, value in sorted(pairs, key=lambda pair: (pair[0] is None, pair[0] or 0.0, pair[1]))]


def _listed(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in total)" if len(names) > _COLUMNS_SHOWN else ""
    return ", ".join(map(repr, names[:_COLUMNS_SHOWN])) + more
