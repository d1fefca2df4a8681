"""The text of Overcooked: a phrase for each macro-action, sentences for what the cook sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from lang_envs.overcooked.kitchen import CHOPS_NEEDED, DISHES, SIZE, Cell, Kitchen, is_next_to

_CONDITIONS = ("raw", *("partly chopped",) * (CHOPS_NEEDED - 1), "chopped")
_UNSEEN: Cell = (0, 0)


def action_phrases(kitchen: Kitchen) -> tuple[str, ...]:
    """Return a phrase for each macro-action, in the order of :func:`macro_actions`."""
    return (
        *(f"get the {food}" for food in kitchen.foods),
        "get the bowl",
        *(f"go to {board}" for board in _board_names(kitchen)),
        "deliver the dish",
        "chop",
    )


@lru_cache(maxsize=65536)
def narrate(kitchen: Kitchen, observation: tuple[int, ...]) -> str:
    """Return the text of a symbolic observation; see :meth:`Kitchen.symbolic_observation`."""
    foods, values = [], list(observation)
    for name in kitchen.foods:
        x, y, chops = values[:3]
        del values[:3]
        foods.append(((x, y), name, chops))
    cells = [(values[i], values[i + 1]) for i in range(0, 2 * (3 + len(kitchen.boards)), 2)]
    bowl, *boards, delivery, cook = cells

    def seen_at(cell: Cell) -> str | None:
        """Return the name of what is in a cell; a bowl includes the foods in it."""
        here = [f"{_CONDITIONS[chops]} {name}" for place, name, chops in foods if place == cell]
        if bowl == cell:
            return _bowl(here)
        return f"a {here[0]}" if here else None

    sentences = [_task(kitchen.dish), _stand(kitchen, cook, delivery), _hands(seen_at(cook))]
    for name, board in zip(_board_names(kitchen), boards, strict=True):
        sentences.append(_board_sentence(name, board != _UNSEEN, seen_at(board)))
    mentioned = {_UNSEEN, cook, *boards}
    for place, name, chops in foods:
        if place not in mentioned and place != bowl:
            sentences.append(_on_counter(f"a {_CONDITIONS[chops]} {name}"))
    if bowl not in mentioned:
        sentences.append(_on_counter(str(seen_at(bowl))))
    return "".join(sentences).strip()


def text_parts(kitchen: Kitchen) -> tuple[tuple[str, ...], ...]:
    """Return the parts of :attr:`LanguageEnv.text_parts`."""
    conditions = tuple(dict.fromkeys(_CONDITIONS))
    loose = [f"a {condition} {food}" for food in kitchen.foods for condition in conditions]
    bowls = [
        _bowl([f"chopped {food}" for food in contents])
        for size in range(len(kitchen.foods) + 1)
        for contents in combinations(kitchen.foods, size)
    ]
    things = [*loose, *bowls]
    return (
        tuple(_task(dish) for dish in DISHES),
        tuple(_standing_places(kitchen)),
        tuple(_hands(thing) for thing in (None, *things)),
        *(
            (_board_sentence(name, False, None), *(_board_sentence(name, True, thing) for thing in (None, *things)))
            for name in _board_names(kitchen)
        ),
        *(("", *(_on_counter(f"a {condition} {food}") for condition in conditions)) for food in kitchen.foods),
        ("", *(_on_counter(bowl) for bowl in bowls)),
    )


def _task(dish: tuple[str, ...]) -> str:
    article = "an" if dish[0] == "onion" else "a"
    return f"Make {article} {_listed(dish)} salad."


def _stand(kitchen: Kitchen, cook: Cell, delivery: Cell) -> str:
    if delivery != _UNSEEN and is_next_to(cook, delivery):
        place = "at the delivery counter"
    else:
        boards = zip(_board_names(kitchen), kitchen.boards, strict=True)
        place = next((f"at {name}" for name, board in boards if is_next_to(cook, board)), "")
    if not place:
        by_the_wall = cook[0] in (1, SIZE - 2) or cook[1] in (1, SIZE - 2)
        place = "at a counter" if by_the_wall else "in the middle of the kitchen"
    return f" You stand {place}."


def _standing_places(kitchen: Kitchen) -> Iterator[str]:
    for place in ("the delivery counter", "a counter", *_board_names(kitchen)):
        yield f" You stand at {place}."
    yield " You stand in the middle of the kitchen."


def _hands(thing: str | None) -> str:
    return f" You carry {thing}." if thing else " Your hands are empty."


def _board_names(kitchen: Kitchen) -> tuple[str, ...]:
    ordinals = ("first ", "second ") if len(kitchen.boards) > 1 else ("",)
    return tuple(f"the {ordinal}cutting board" for ordinal in ordinals)


def _board_sentence(name: str, seen: bool, thing: str | None) -> str:
    if not seen:
        return ""
    return f" On {name} is {thing}." if thing else f" {name.capitalize()} is empty."


def _on_counter(thing: str) -> str:
    return f" On a counter is {thing}."


def _bowl(contents: Sequence[str]) -> str:
    return f"a bowl with {_listed(contents)}" if contents else "an empty bowl"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
