"""A table pruned to the few rows, and the numbers, that a data set keeps of it."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lang_envs.datascicoding.catalog import Entry
from lang_envs.datascicoding.tables import Column, Table

MAX_ROWS = 2000
MAX_CLASSES = 50
"""A target with more values than this counts as a quantity, not as classes."""
_SEED = 0


def prune(table: Table, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """Drop columns and rows that lack a value, shuffle, keep what ``entry`` keeps, and make numbers of it.

    Categories become their place among the declared ones or, where none are declared, among those of the rows kept.
    The rows that stay depend on the file alone. ActionRecord is needed for the rows kept, not for the file.

    Returns
    -------
    x, y
        ``(rows, features)`` float64 and ``(rows,)`` int64, the classes from 0.

    Raises
    ------
    ValueError
        If the table can't be used so, or what is left is not what ``entry`` says.
    """
    names = [column.name for column in table.columns]
    if entry.target is None:
        table.fail(f"which column is the target? Add target=COLUMN to {entry.name!r}; the columns are {_listed(names)}")
    for name in (entry.target, *entry.drop):
        if names.count(name) != 1:
            problem = "no column" if name not in names else "more than one column"
            table.fail(f"{problem} {name!r}; the columns are {_listed(names)}")
    target = names.index(entry.target)
    features = [k for k, name in enumerate(names) if k != target and name not in entry.drop]
    if not features:
        table.fail(f"no column is left beside the target {entry.target!r}")
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
                f"{found} {noun} are left of {entry.name} after pruning, but it is known to have {expected}; "
                "its source has changed, or this is part of it or another file"
            )
    return x, y


def _sample(table: Table, used: list[int], one_in: int) -> list[tuple[int, list[str]]]:
    """Complete rows in random order: each draws a number, and those with the smallest stay."""
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
        candidate = (-next(draws), line, values)  # the heap's first is the one to go
        if len(kept) < MAX_ROWS:
            heapq.heappush(kept, candidate)
        elif candidate > kept[0]:
            heapq.heapreplace(kept, candidate)
    if not whole:
        table.fail("there is no row in it")
    if not complete:
        column, rows = lacking.most_common(1)[0]
        table.fail(f"every one of its {whole} rows lacks a value, {rows} of them {table.columns[column].name!r}")
    kept.sort(reverse=True)
    return [(line, row) for _, line, row in kept[: max(whole // one_in, 1)]]


def _draws() -> Iterator[float]:
    generator = np.random.default_rng(_SEED)
    while True:
        yield from generator.random(4096).tolist()


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
            table.fail(f"{value!r} in the target column {column.name!r} is no class but a quantity", line)
        values = [
            (line, value if n is None else _whole(value)) for (line, value), n in zip(values, numbers, strict=True)
        ]
    present = {value for _, value in values}
    order = [value for value in column.categories if value in present] if column.categories else _ordered(present)
    if len(order) == 1:
        table.fail(f"the target column {column.name!r} holds one class only, {order[0]!r}")
    if len(order) > MAX_CLASSES:
        table.fail(
            f"the target column {column.name!r} holds {len(order)} different values in {len(values)} rows; "
            f"more than {MAX_CLASSES} are no classes"
        )
    codes = {value: code for code, value in enumerate(order)}
    return np.array([codes[value] for _, value in values], dtype=np.int64)


def _whole(text: str) -> str:
    """A whole number in its usual form, however large."""
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
    """Different values, numbers by their size before other texts by the alphabet."""
    pairs = [(_number(value), value) for value in set(values)]
    return [value for _, value in sorted(pairs, key=lambda pair: (pair[0] is None, pair[0] or 0.0, pair[1]))]


def _listed(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > 20 else ""
    return ", ".join(map(repr, names[:20])) + more
