"""Rendering of a kitchen: a map as text and as a picture."""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np

from lang_envs.overcooked.kitchen import CHOPS_NEEDED, HELD, IN_BOWL, NOTHING, SIZE, Cell, Kitchen, State, is_floor
from lang_envs.pictures import INK, PAPER, WHITE, Picture, Place, Sprite

CELL = 64
"""Side of a cell, in pixels."""
CAPTION = 52
"""Height of the caption, in pixels."""

_GROUND = {(True, True): "#f6ecd4", (True, False): "#aca79f", (False, True): "#c4b59c", (False, False): "#8b8276"}
_GOLD = "#f2c14e"

_CIRCLE = [(sin(k * pi / 5), -cos(k * pi / 5)) for k in range(10)]
_STAR = [(x, y) if k % 2 == 0 else (0.6 * x, 0.6 * y) for k, (x, y) in enumerate(_CIRCLE)]
_SPRITES: dict[str, Sprite] = {
    "board": [
        ("rectangle", "#d9a066", "#7c5230", -0.42, -0.37, 0.42, 0.37),
        *(("rectangle", "#c68d52", None, -0.36, y, 0.2, y + 0.015) for y in (-0.2, 0.0, 0.2)),
        ("rectangle", "#e8eef2", INK, 0.26, -0.31, 0.36, 0.1),
        ("rectangle", INK, None, 0.29, 0.1, 0.34, 0.31),
    ],
    "delivery": [
        ("rectangle", "#3f7cac", "#1f4e73", -0.44, -0.44, 0.44, 0.44),
        ("ellipse", _GOLD, INK, -0.05, -0.29, 0.05, -0.17),
        ("ellipse", _GOLD, INK, -0.28, -0.2, 0.28, 0.36),
        ("rectangle", "#3f7cac", None, -0.3, 0.1, 0.3, 0.38),
        ("rectangle", PAPER, INK, -0.33, 0.08, 0.33, 0.17),
    ],
    "cook": [
        ("polygon", "#4a6fa5", INK, -0.2, 0.08, 0.2, 0.08, 0.28, 0.2, 0.28, 0.47, -0.28, 0.47, -0.28, 0.2),
        ("rectangle", WHITE, None, -0.13, 0.12, 0.13, 0.44),
        ("ellipse", "#f1c9a5", INK, -0.2, -0.24, 0.2, 0.16),
        *(("ellipse", INK, None, x - 0.03, -0.05, x + 0.03, 0.01) for x in (-0.08, 0.08)),
        ("polygon", INK, None, -0.08, 0.06, 0.08, 0.06, 0.0, 0.11),
        *(("ellipse", WHITE, INK, x - 0.13, -0.43, x + 0.13, -0.17) for x in (-0.14, 0.14)),
        ("ellipse", WHITE, INK, -0.13, -0.48, 0.13, -0.22),
        ("rectangle", WHITE, INK, -0.19, -0.28, 0.19, -0.15),
    ],
    "bowl": [
        ("polygon", WHITE, INK, -0.36, 0, 0.36, 0, 0.31, 0.18, 0.17, 0.32, -0.17, 0.32, -0.31, 0.18),
        ("ellipse", "#ccd6dd", INK, -0.36, -0.15, 0.36, 0.15),
    ],
    "cut": [("rectangle", WHITE, None, -0.02, -0.31, 0.02, 0.31)],
    "tomato": [
        ("ellipse", "#d8341f", INK, -0.3, -0.27, 0.3, 0.29),
        ("ellipse", "#ff9c7d", None, -0.18, -0.12, -0.07, -0.01),
        ("polygon", "#3f9a35", INK, *(v for x, y in _STAR for v in (0.18 * x, 0.12 * y - 0.23))),
    ],
    "lettuce": [
        ("ellipse", fill, "#2d7327", far * x - leaf, far * y - leaf, far * x + leaf, far * y + leaf)
        for fill, far, leaf in (("#3f9a35", 0.24, 0.1), ("#6cbf4b", 0.15, 0.09), ("#b5e48c", 0.06, 0.07))
        for x, y in _CIRCLE
    ],
    "onion": [
        ("polygon", "#8e4585", INK, -0.15, -0.2, 0, -0.4, 0.15, -0.2),
        ("ellipse", "#8e4585", INK, -0.3, -0.27, 0.3, 0.27),
        *(("ellipse", None, "#f3dcef", -x, -0.25, x, 0.25) for x in (0.08, 0.2)),
    ],
    "chopped tomato": [
        ("ellipse", "#d8341f", INK, -0.17, -0.17, 0.17, 0.17),
        ("ellipse", "#ff9c7d", None, -0.13, -0.13, 0.13, 0.13),
        *(("ellipse", "#ffe08a", None, x - 0.03, y - 0.03, x + 0.03, y + 0.03)
          for x, y in ((0, -0.07), (-0.06, 0.05), (0.06, 0.05))),
    ],
    "chopped lettuce": [
        ("polygon", "#b5e48c", "#2d7327", *(0.18 * v for point in _STAR for v in point)),
        ("rectangle", "#3f9a35", None, -0.1, -0.015, 0.1, 0.015),
    ],
    "chopped onion": [
        ("ellipse", fill, None, -radius, -radius, radius, radius)
        for fill, radius in ((INK, 0.17), ("#8e4585", 0.155), ("#f3dcef", 0.125), ("#8e4585", 0.08), ("#f3dcef", 0.05))
    ],
}  # fmt: skip


def write(kitchen: Kitchen, state: State) -> str:
    """Return a map of the kitchen as text, with a frame around the cells that the cook sees."""
    canvas = [[" "] * (7 * SIZE + 4) for _ in range(2 * SIZE + 2)]
    for x in range(SIZE):
        canvas[0][7 * x + 6], canvas[2 * x + 2][1] = str(x), str(x)
        for y in range(SIZE):
            canvas[2 * x + 2][7 * y + 4 : 7 * y + 10] = f"{_symbol(kitchen, state, (x, y)):^6}"
    seen = [(x, y) for x in range(SIZE) for y in range(SIZE) if kitchen.in_view(state, (x, y))]
    top, left, bottom, right = (2 * seen[0][0] + 1, 7 * seen[0][1] + 3, 2 * seen[-1][0] + 3, 7 * seen[-1][1] + 10)
    for line in range(top, bottom + 1):
        canvas[line][left] = canvas[line][right] = "+" if line in (top, bottom) else "|"
    for line in (top, bottom):
        canvas[line][left + 1 : right] = "-" * (right - left - 1)
    letters = " ".join(food[0] for food in kitchen.foods)
    dish, hands = _caption(kitchen, state)
    return "\n".join(
        (
            dish,
            *("".join(line).rstrip() for line in canvas),
            hands,
            "C cook  # counter  . floor  [ ] cutting board  D delivery counter  frame: what the cook sees",
            f"{letters.upper()} raw (digit: number of chops)  {letters} chopped  U bowl, with its content",
        )
    )


def draw(kitchen: Kitchen, state: State) -> np.ndarray:
    """Return a picture of the kitchen, a uint8 array of shape (height, width, 3).

    Cells that the cook sees are light, the others are dark.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    """
    picture = Picture(SIZE, SIZE, CELL, CAPTION)
    for x, y in ((x, y) for x in range(SIZE) for y in range(SIZE)):
        picture.fill(x, y, x + 1, y + 1, _GROUND[is_floor((x, y)), kitchen.in_view(state, (x, y))], "#6a6258")
    for board in kitchen.boards:
        picture.stamp(_SPRITES["board"], board)
    picture.stamp(_SPRITES["delivery"], kitchen.delivery)
    for item, location in enumerate(state.locations):
        if location not in (HELD, IN_BOWL):
            _draw_item(picture, kitchen, state, item, location)
    picture.stamp(_SPRITES["cook"], state.cook)
    if state.held != NOTHING:
        _draw_item(picture, kitchen, state, state.held, (state.cook[0] + 0.22, state.cook[1] + 0.22), 0.7)
    for line, text in enumerate(_caption(kitchen, state)):
        picture.write(text, SIZE + 0.08 + 0.36 * line, 1 / 6, 0.25)
    return picture.array()


def _draw_item(picture: Picture, kitchen: Kitchen, state: State, item: int, at: Place, size: float = 1) -> None:
    if item == kitchen.bowl:
        picture.stamp(_SPRITES["bowl"], at, size)
        contents = _in_bowl(kitchen, state)
        for place, food in enumerate(contents):
            middle = 0.2 * (place - (len(contents) - 1) / 2)
            for dx, dy in ((-0.03, -0.06), (-0.05, 0.06), (-0.14, 0.0)):
                scattered = at[0] + dx * size, at[1] + (middle + dy) * size
                picture.stamp(_SPRITES[f"chopped {food}"], scattered, 0.65 * size)
    elif kitchen.is_chopped(state, item):
        for dx, dy in ((-0.16, 0.0), (0.1, -0.17), (0.1, 0.17)):
            picture.stamp(_SPRITES[f"chopped {kitchen.foods[item]}"], (at[0] + dx * size, at[1] + dy * size), size)
    else:
        picture.stamp(_SPRITES[kitchen.foods[item]], at, size)
        for cut in range(state.chops[item]):
            picture.stamp(_SPRITES["cut"], (at[0], at[1] + 0.2 * (cut - 0.5) * size), size)


def _caption(kitchen: Kitchen, state: State) -> tuple[str, str]:
    hands = "nothing"
    if state.held == kitchen.bowl:
        hands = f"bowl with chopped {', '.join(contents)}" if (contents := _in_bowl(kitchen, state)) else "empty bowl"
    elif state.held != NOTHING:
        hands = f"{'chopped' if kitchen.is_chopped(state, state.held) else 'raw'} {kitchen.foods[state.held]}"
    return f"Dish: {', '.join(kitchen.dish)} salad", f"In hand: {hands}"


def _in_bowl(kitchen: Kitchen, state: State) -> list[str]:
    return [food for item, food in enumerate(kitchen.foods) if state.locations[item] == IN_BOWL]


def _symbol(kitchen: Kitchen, state: State, cell: Cell) -> str:
    if cell == state.cook:
        return f"C({_item_symbol(kitchen, state, state.held)})" if state.held != NOTHING else "C"
    item = kitchen.item_at(state, cell)
    symbol = "" if item == NOTHING else _item_symbol(kitchen, state, item)
    if cell in kitchen.boards:
        return f"[{symbol or ' '}]"
    if cell == kitchen.delivery:
        return "D" + symbol
    return symbol or ("." if is_floor(cell) else "#")


def _item_symbol(kitchen: Kitchen, state: State, item: int) -> str:
    if item == kitchen.bowl:
        return "U" + "".join(food[0] for food in _in_bowl(kitchen, state))
    letter, chops = kitchen.foods[item][0], state.chops[item]
    return letter if chops == CHOPS_NEEDED else letter.upper() + (str(chops) if chops else "")
