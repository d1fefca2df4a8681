"""Data sets that follow from a rule, in the order in which their source publishes the rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lang_envs.datascicoding.tables import Column, Table

_THREES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def _scale() -> Iterator[tuple[str, ...]]:
    """All weights and distances from 1 to 5 on both sides; the class is the side that goes down, or balance."""
    for left, left_distance, right, right_distance in itertools.product(range(1, 6), repeat=4):
        turns = left * left_distance - right * right_distance
        side = "L" if turns > 0 else "R" if turns < 0 else "B"
        yield str(left), str(left_distance), str(right), str(right_distance), side


def _boards(winner: str) -> Iterator[tuple[str, ...]]:
    """Every board on which a game that x began ends with this winner, or full and with none."""
    for board in itertools.product("xob", repeat=9):
        winners = {board[a] for a, b, c in _THREES if board[a] == board[b] == board[c] != "b"}
        last_moved = "o" if board.count("x") == board.count("o") else "x"
        turns_alternate = board.count("x") - board.count("o") in (0, 1)
        if not turns_alternate or winners != set(winner):
            continue
        if winner == last_moved or (not winner and "b" not in board):
            yield *board, "positive" if winner == "x" else "negative"


def _square(row: str, column: str) -> Column:
    return Column(f"{row}-{column}-square", categories=("b", "o", "x"))


_COLUMNS = {
    "balance-scale": (
        *(Column(f"{side}-{what}", number=True) for side in ("left", "right") for what in ("weight", "distance")),
        Column("class", categories=("L", "B", "R")),
    ),
    "tic-tac-toe": (
        *itertools.starmap(_square, itertools.product(("top", "middle", "bottom"), ("left", "middle", "right"))),
        Column("Class", categories=("negative", "positive")),
    ),
}
GENERATED = tuple(_COLUMNS)


def generated_table(name: str) -> Table:
    """The whole set ``name`` of `GENERATED`, made anew."""
    rows = _scale() if name == "balance-scale" else itertools.chain.from_iterable(map(_boards, ("x", "o", "")))
    return Table(f"the generated {name}", _COLUMNS[name], enumerate(rows, start=1))
