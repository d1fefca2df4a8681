"""The rules of the Overcooked kitchen: one cook, one bowl, one or three foods, primitive steps of one cell.

There is no text and no Gymnasium here. A :class:`Kitchen` is the constant part (layout and dish), a :class:`State` the
part that changes, and every rule is a pure function from one state to the next, so results can be cached and searched.

The source gives the cook a memory of where it last saw each item. With one cook this memory is always right: items move
only in the cook's hands, and an item that leaves them out of view returns to its start, which is also the default of
the memory. So the memory is not part of the state here.

Source: the single-agent Overcooked of gym-macro-overcooked (map A), as used by TWOSOME (arXiv:2401.14151) and POAD
(arXiv:2405.15821).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from lang_envs.storage import storable

Cell = tuple[int, int]

HELD: Cell = (-1, -1)
"""Location of the item in the cook's hands."""
IN_BOWL: Cell = (-2, -2)
"""Location of a food inside the bowl."""

NOTHING = -1
"""In place of the index of an item."""
SIZE = 7
"""Cells in each direction, counters included."""
VIEW_RADIUS = 2
"""Rows and columns that the cook sees in each direction."""
CHOPS_NEEDED = 3

STEP_REWARD = -0.001
CHOPPED_REWARD = 0.2
DELIVERED_REWARD = 1.0
WRONG_DELIVERY_REWARD = -0.1

DISHES: tuple[tuple[str, ...], ...] = (
    ("tomato",),
    ("lettuce",),
    ("onion",),
    ("tomato", "lettuce"),
    ("tomato", "onion"),
    ("lettuce", "onion"),
    ("tomato", "lettuce", "onion"),
)
"""The ingredients of each dish, in the order of the symbolic observation's one-hot."""


@storable
class State(NamedTuple):
    """Everything that changes in a kitchen; hashable."""

    cook: Cell
    locations: tuple[Cell, ...]
    """For each food, and last for the bowl: a cell, ``HELD`` or ``IN_BOWL``."""
    chops: tuple[int, ...]
    """For each food, 0 to ``CHOPS_NEEDED``."""

    @property
    def held(self) -> int:
        """Index of the item in the cook's hands, or ``NOTHING``."""
        return self.locations.index(HELD) if HELD in self.locations else NOTHING


@dataclass(frozen=True)
class Kitchen:
    """A kitchen of 7×7 cells: counters at the border, floor inside. Cells are (row x, column y), counted from 0.

    Raises
    ------
    ValueError
        If the dish is unknown, or needs a food that is not in the kitchen.
    """

    dish: tuple[str, ...]
    foods: tuple[str, ...]
    food_starts: tuple[Cell, ...]
    boards: tuple[Cell, ...]
    bowl_start: Cell = (6, 5)
    delivery: Cell = (3, 0)
    cook_start: Cell = (1, 4)

    def __post_init__(self) -> None:
        if self.dish not in DISHES:
            raise ValueError(f"dish {self.dish} is not one of {DISHES}")
        if missing := set(self.dish) - set(self.foods):
            raise ValueError(f"the dish {self.dish} needs {sorted(missing)}, but the kitchen has only {self.foods}")

    @cached_property
    def starts(self) -> tuple[Cell, ...]:
        """The cells in which the foods, and last the bowl, start."""
        return (*self.food_starts, self.bowl_start)

    @property
    def bowl(self) -> int:
        """Index of the bowl among the items."""
        return len(self.foods)

    @cached_property
    def recipe(self) -> frozenset[int]:
        """Indices of the foods that belong to the dish."""
        return frozenset(self.foods.index(name) for name in self.dish)

    def initial_state(self) -> State:
        """Return the state at the start of an episode."""
        return State(self.cook_start, self.starts, (0,) * len(self.foods))

    # ---------------------------------------------------------------------------------------------- what is where

    def position(self, state: State, item: int) -> Cell:
        """Return the cell of an item, also if it is in the bowl or in the cook's hands."""
        location = state.locations[item]
        if location == IN_BOWL:
            location = state.locations[self.bowl]
        return state.cook if location == HELD else location

    def in_view(self, state: State, cell: Cell) -> bool:
        """Return whether the cook sees a cell."""
        return abs(state.cook[0] - cell[0]) <= VIEW_RADIUS and abs(state.cook[1] - cell[1]) <= VIEW_RADIUS

    def is_seen_in_bowl(self, state: State, item: int) -> bool:
        """Return whether an item is in the bowl and the cook sees the bowl."""
        return state.locations[item] == IN_BOWL and self.in_view(state, self.position(state, self.bowl))

    def item_at(self, state: State, cell: Cell) -> int:
        """Return the index of the item on a counter or board, or ``NOTHING``; a bowl hides the foods in it."""
        return state.locations.index(cell) if cell in state.locations else NOTHING

    def is_chopped(self, state: State, item: int) -> bool:
        """Return whether an item is a food that is completely chopped."""
        return item != self.bowl and state.chops[item] == CHOPS_NEEDED

    def is_unchopped_food(self, state: State, item: int) -> bool:
        """Return whether an item is a food that is not completely chopped."""
        return item not in (NOTHING, self.bowl) and state.chops[item] < CHOPS_NEEDED

    def symbolic_observation(self, state: State) -> tuple[int, ...]:
        """Return what the cook sees as integers, named by :attr:`symbolic_fields`; 0 for what is out of view."""

        def seen(cell: Cell) -> Cell:
            return cell if self.in_view(state, cell) else (0, 0)

        fields: list[int] = []
        for item in range(len(self.foods)):
            cell = seen(self.position(state, item))
            fields += (*cell, state.chops[item] if cell != (0, 0) else 0)
        fields += seen(self.position(state, self.bowl))
        for board in self.boards:
            fields += seen(board)
        fields += (*seen(self.delivery), *state.cook)
        fields += (int(dish == self.dish) for dish in DISHES)
        return tuple(fields)

    @cached_property
    def symbolic_fields(self) -> tuple[str, ...]:
        """Names of the entries of :meth:`symbolic_observation`."""
        names = [f"{food}_{field}" for food in self.foods for field in ("x", "y", "chops")]
        places = ["bowl", *(f"board_{i + 1}" for i in range(len(self.boards))), "delivery", "agent"]
        names += [f"{place}_{axis}" for place in places for axis in "xy"]
        return (*names, *("dish_" + "_".join(dish) for dish in DISHES))

    # --------------------------------------------------------------------------------------------- primitive steps

    def next_cell(self, cook: Cell, target: Cell) -> Cell:
        """Return the next cell on a shortest path to a counter or board; a row step comes before a column step."""
        dx, dy = target[0] - cook[0], target[1] - cook[1]
        if dx:
            row_step = (cook[0] + (1 if dx > 0 else -1), cook[1])
            if row_step == target or is_floor(row_step):
                return row_step
        return (cook[0], cook[1] + (1 if dy > 0 else -1))

    def step_to(self, state: State, cell: Cell) -> tuple[State, float, bool]:
        """Make one primitive step towards a neighbouring cell: move onto floor, or act on what is there.

        Returns
        -------
        state : State
        reward : float
        delivered : bool
            Whether the right dish was delivered, which ends the episode.
        """
        reward, delivered = STEP_REWARD, False
        if is_floor(cell):
            state = state._replace(cook=cell)
        elif cell == self.delivery:
            state, extra, delivered = self._act_on_delivery(state)
            reward += extra
        elif state.held == NOTHING:
            state, extra = self._pick_up_or_chop(state, cell)
            reward += extra
        else:
            state = self._put_down(state, cell)
        return state, reward, delivered

    def wait(self, state: State) -> tuple[State, float, bool]:
        """Make one primitive step in which nothing changes."""
        return state, STEP_REWARD, False

    def _place(self, state: State, item: int, location: Cell) -> State:
        locations = list(state.locations)
        locations[item] = location
        return state._replace(locations=tuple(locations))

    def _pick_up_or_chop(self, state: State, cell: Cell) -> tuple[State, float]:
        item = self.item_at(state, cell)
        if item == NOTHING:
            return state, 0.0
        if cell not in self.boards or not self.is_unchopped_food(state, item):
            return self._place(state, item, HELD), 0.0
        chops = list(state.chops)
        chops[item] += 1
        earns = chops[item] == CHOPS_NEEDED and item in self.recipe
        return state._replace(chops=tuple(chops)), CHOPPED_REWARD if earns else 0.0

    def _put_down(self, state: State, cell: Cell) -> State:
        held, there = state.held, self.item_at(state, cell)
        if there == NOTHING:
            return self._place(state, held, cell)
        if there == self.bowl and self.is_chopped(state, held):
            state = self._place(state, held, IN_BOWL)
            return self._place(state, self.bowl, HELD) if cell in self.boards else state
        if held == self.bowl and self.is_chopped(state, there):
            return self._place(state, there, IN_BOWL)
        return state

    def _act_on_delivery(self, state: State) -> tuple[State, float, bool]:
        held = state.held
        if held == NOTHING:
            return state, 0.0, False
        contents = {i for i, location in enumerate(state.locations) if location == IN_BOWL}
        if held == self.bowl and contents == self.recipe:
            return self._place(state, held, self.delivery), DELIVERED_REWARD, True
        chops = list(state.chops)
        for item in (contents if held == self.bowl else set()) | {held}:
            state = self._place(state, item, self.starts[item])
            if item != self.bowl:
                chops[item] = 0
        return state._replace(chops=tuple(chops)), WRONG_DELIVERY_REWARD, False


@cache
def is_floor(cell: Cell) -> bool:
    """Return whether a cell is floor, not a counter."""
    return 0 < cell[0] < SIZE - 1 and 0 < cell[1] < SIZE - 1


def is_next_to(a: Cell, b: Cell) -> bool:
    """Return whether two cells share an edge."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1


def make_kitchen(dish: tuple[str, ...]) -> Kitchen:
    """Return the kitchen of a dish: one food and one board for tomato salad, three and two for all others."""
    if dish == ("tomato",):
        return Kitchen(dish, ("tomato",), ((0, 5),), ((1, 0),))
    return Kitchen(dish, ("tomato", "lettuce", "onion"), ((0, 5), (1, 6), (2, 6)), ((1, 0), (2, 0)))
