"""Rendering of a household: a floor plan as text and as a picture."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from lang_envs.pictures import INK, PAPER, WHITE, Picture, Place, Sprite
from lang_envs.virtualhome.household import HELD, NOWHERE, ROOMS, Household, State, Thing
from lang_envs.virtualhome.task import HouseholdTask

PLAN = (("kitchen", "living room"), ("bathroom", "bedroom"))
"""Positions of the rooms in the floor plan, row by row."""
CELL = 60
"""Side of a cell, in pixels."""
ROWS, COLUMNS = 4, 5
"""Size of a room, in cells."""
CAPTION = 56
"""Height of the caption, in pixels."""

_ABREAST = 3
"""Things in a row of a room."""
_LABEL = 22
"""Greatest number of characters of a label."""
_LEAST_LINES, _LEAST_WIDTH = 2, 34
"""Smallest size of a room in text, in lines and characters."""
_LIT, _DARK, _WALL = "#f6ecd4", "#b9b2a6", "#5b5148"
_GRABBABLE = ("#d9a066", "#8fb8de", "#e2725b", "#8fbf6b", "#c58fd0", "#f2c14e")
_PERSON: Sprite = [
    ("polygon", "#4a6fa5", INK, -0.2, 0.08, 0.2, 0.08, 0.28, 0.2, 0.28, 0.47, -0.28, 0.47, -0.28, 0.2),
    ("ellipse", "#f1c9a5", INK, -0.2, -0.3, 0.2, 0.12),
    (
        "polygon",
        "#6b4a2b",
        INK,
        -0.21,
        -0.08,
        -0.17,
        -0.27,
        0.0,
        -0.36,
        0.17,
        -0.27,
        0.21,
        -0.08,
        0.12,
        -0.2,
        -0.12,
        -0.2,
    ),
    *(("ellipse", INK, None, x - 0.03, -0.12, x + 0.03, -0.06) for x in (-0.08, 0.08)),
]
_TABLE: Sprite = [
    ("rectangle", "#8a5a33", INK, -0.36, 0.08, -0.28, 0.42),
    ("rectangle", "#8a5a33", INK, 0.28, 0.08, 0.36, 0.42),
    ("rectangle", "#c68d52", INK, -0.44, -0.04, 0.44, 0.1),
]
_SEAT: Sprite = [
    ("rectangle", "#8e4585", INK, -0.4, -0.3, 0.4, 0.2),
    ("rectangle", "#a965a0", INK, -0.32, 0.02, 0.32, 0.24),
    ("rectangle", "#8e4585", INK, -0.46, -0.1, -0.32, 0.32),
    ("rectangle", "#8e4585", INK, 0.32, -0.1, 0.46, 0.32),
]
_BOX: Sprite = [("rectangle", "#dfe5e8", INK, -0.42, -0.36, 0.42, 0.36)]
_DOOR: Sprite = [
    ("rectangle", "#6f8390", INK, -0.34, -0.28, 0.2, 0.28),
    ("rectangle", INK, None, 0.1, -0.14, 0.14, 0.14),
]
_INSIDE: Sprite = [
    ("rectangle", "#3c474e", INK, -0.34, -0.28, 0.2, 0.28),
    ("polygon", "#6f8390", INK, -0.34, -0.28, -0.47, -0.2, -0.47, 0.4, -0.34, 0.28),
]
_BUTTONS: Sprite = [("ellipse", WHITE, INK, 0.27, y, 0.35, y + 0.08) for y in (-0.22, -0.06)]
_STAND: Sprite = [("rectangle", INK, None, -0.05, 0.2, 0.05, 0.36), ("rectangle", INK, None, -0.25, 0.32, 0.25, 0.37)]
_SHINE = ("ellipse", WHITE, None, -0.16, -0.14, -0.06, -0.06)
_LAMP: dict[bool, Sprite] = {
    lit: [("ellipse", colour, INK, 0.26, 0.2, 0.36, 0.3)] for lit, colour in ((True, "#6fdc5a"), (False, "#8b8276"))
}
_SCREEN: dict[bool, Sprite] = {
    lit: [("rectangle", colour, INK, -0.44, -0.3, 0.44, 0.22), *_STAND]
    for lit, colour in ((True, "#7fd1ff"), (False, "#2f3437"))
}


def write(task: HouseholdTask, state: State) -> str:
    """Return a floor plan as text: the place of each thing, whether it is open, on or near, and the person's place."""
    rooms = {room: _lines(task.household, state, room) for room in ROOMS}
    width = max(_LEAST_WIDTH, *(len(line) for lines in rooms.values() for line in lines)) + 2
    plan = [task.instruction]
    for row in PLAN:
        plan.append("+" + "+".join(f"- {room} ".ljust(width, "-") for room in row) + "+")
        lines = zip_longest(*(rooms[room] for room in row), [""] * _LEAST_LINES, fillvalue="")
        plan += ["|" + "|".join(f" {cell}".ljust(width) for cell in cells[:-1]) + "|" for cells in lines]
    plan.append("+" + "+".join("-" * width for _ in PLAN[0]) + "+")
    return "\n".join([*plan, _hands(task.household, state), "@ the person  > near"])


def _lines(household: Household, state: State, room: str) -> list[str]:
    index = ROOMS.index(room)
    lines = []
    if state.room == index:
        posture = f", sitting on the {household.things[state.seat].name}" if state.seat != NOWHERE else ""
        lines.append(f"@ the person{posture}")
    for i, thing in enumerate(household.things):
        if state.places[i] != index:
            continue
        lines.append(f"{_mark(household, state, i):2}{_described(thing, i, state)}")
        where = f"{thing.preposition} it"
        lines += [
            f"{_mark(household, state, inner):2}  {where}: {_described(household.things[inner], inner, state)}"
            for inner in household.contents(state, i)
        ]
    return lines


def _mark(household: Household, state: State, i: int) -> str:
    return "> " if household.is_seen(state, i) and household.is_near(state, i) else ""


def _described(thing: Thing, index: int, state: State) -> str:
    states = []
    if thing.can("container"):
        states.append("open" if index in state.opened else "closed")
    if thing.can("switch"):
        states.append("on" if index in state.switched_on else "off")
    return f"{thing.name} ({', '.join(states)})" if states else thing.name


def _hands(household: Household, state: State) -> str:
    held = [_described(thing, i, state) for i, thing in enumerate(household.things) if state.places[i] == HELD]
    return f"In hand: {', '.join(held) or 'nothing'}"


def draw(task: HouseholdTask, state: State) -> np.ndarray:
    """Return a floor plan as a picture, a uint8 array of shape (height, width, 3).

    The person's room is light, the others are dark. Things near the person have a mark before their name. Things in a
    closed container are drawn small on its door: the picture shows the whole state, not only what the person sees.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    """
    household = task.household
    picture = Picture(ROWS * len(PLAN), COLUMNS * len(PLAN[0]), CELL, CAPTION)
    for row, rooms in enumerate(PLAN):
        for column, room in enumerate(rooms):
            here = ROOMS.index(room) == state.room
            top, left = row * ROWS, column * COLUMNS
            picture.fill(top, left, top + ROWS, left + COLUMNS, _LIT if here else _DARK, _WALL)
            picture.write(room, top + 0.08, left + 0.12, 0.24, _WALL)
            _furnish(picture, household, state, ROOMS.index(room), (top, left))
    for line, text in enumerate((task.instruction, _hands(household, state))):
        height = min(0.25, 19 / len(text))  # so that it fits into the picture's width
        picture.write(text, ROWS * len(PLAN) + 0.1 + 0.38 * line, 0.15, height)
    return picture.array()


def _furnish(picture: Picture, household: Household, state: State, room: int, corner: Place) -> None:
    """Draw furniture along the upper wall, grabbable things below, and the person next to what is near."""
    things = household.things
    here = [i for i, place in enumerate(state.places) if place == room]
    furniture = [i for i in here if not things[i].can("grabbable")]
    loose = [i for i in here if things[i].can("grabbable")]
    rows = [group[k : k + _ABREAST] for group in (furniture, loose) for k in range(0, max(len(group), 1), _ABREAST)]
    row_height = (ROWS - 0.5) / len(rows)
    size = min(1.0, row_height / 1.5)
    at: dict[int, Place] = {}
    for k, row in enumerate(rows):
        at |= {i: (corner[0] + 0.45 + row_height * k, corner[1] + 0.8 + 1.45 * n) for n, i in enumerate(row)}
    for i, place in at.items():
        _put(picture, things[i], i, state, place, size)
        contents = household.contents(state, i)
        on_top = things[i].can("surface")
        shown = on_top or i in state.opened
        for k, inner in enumerate(contents):
            apart = min(0.3, 0.9 / len(contents))
            across = place[1] + (apart * (k - (len(contents) - 1) / 2) - (0 if on_top else 0.07)) * size
            spot = place[0] - (0.18 if on_top else -0.05) * size, across
            _put(picture, things[inner], inner, state, spot, size * (0.5 if shown else 0.25))
    if state.room == room:
        focus = state.seat if state.seat != NOWHERE else next((i for i in at if i in state.near), None)
        if focus is None:
            person = corner[0] + 1.6, corner[1] - 0.05
        else:
            beside = 0.0 if state.seat != NOWHERE else 0.68 * size
            person = at[focus][0] + beside / 5, at[focus][1] - beside
        picture.stamp(_PERSON, person, 0.9 * size)
        held = [i for i, place in enumerate(state.places) if place == HELD]
        for side, i in zip((0.3, -0.3), held, strict=False):
            _put(picture, things[i], i, state, (person[0] + 0.22 * size, person[1] + side * size), 0.5 * size)
    for i, place in at.items():
        shown = things[i].can("surface") or i in state.opened
        names = [_mark(household, state, inner) + things[inner].name for inner in household.contents(state, i) if shown]
        for line, text in enumerate((_mark(household, state, i) + things[i].name, ", ".join(names))):
            label = text if len(text) <= _LABEL else f"{text[: _LABEL - 3]}..."
            picture.write(label, place[0] + 0.5 + (0.44 + 0.2 * line) * size, place[1] + 0.5, 0.19 * size, anchor="mt")


def _put(picture: Picture, thing: Thing, i: int, state: State, at: Place, size: float = 1) -> None:
    on = i in state.switched_on
    if thing.can("container"):
        sprite = [*_BOX, *(_INSIDE if i in state.opened else _DOOR), *_BUTTONS]
    elif thing.can("seat"):
        sprite = _SEAT
    elif thing.can("surface"):
        sprite = _TABLE
    elif thing.can("screen"):
        sprite = _SCREEN[on]
    elif thing.can("grabbable"):
        sprite = [("ellipse", _GRABBABLE[i % len(_GRABBABLE)], INK, -0.3, -0.24, 0.3, 0.26), _SHINE]
    else:
        sprite = [("rectangle", PAPER, INK, -0.3, -0.3, 0.3, 0.3)]
    picture.stamp(sprite, at, size)
    if thing.can("switch") and not thing.can("screen"):
        picture.stamp(_LAMP[on], at, size)
