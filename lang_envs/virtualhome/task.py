"""What a task is, and what is wrong with one that is not.

A condition is a line such as ``"hold_chips or chips_on_coffeetable"``: names of symbolic fields, each perhaps with
``not`` before it, joined by ``or``. Several conditions hold when each of them does.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from lang_envs.virtualhome.household import PROPERTIES, ROOMS, Household, State, Thing, identifier
from lang_envs.virtualhome.narration import action_phrases

Conditions = tuple[str, ...]

_HEAVY = ("surface", "container", "seat", "screen")
_LONGEST_NAME = 60
_NAME = re.compile(r"(?!(open|closed|switched-on|switched-off)\b)[A-Za-z0-9]+([ -][A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Task:
    """Something to be done in a household.

    Symbolic fields are named after things, in lower case and without spaces (``coffeetable``):

    | field | true when |
    |---|---|
    | ``in_livingroom`` | the person is in that room |
    | ``see_x``, ``close_to_x`` | x is seen, near |
    | ``hold_x``, ``x_on_y``, ``x_in_y`` | a grabbable thing is in hand, on a surface, in a container |
    | ``is_x_open``, ``is_x_on`` | a container is open, a switch is on |
    | ``is_sit_x``, ``is_face_x`` | the person sits on a seat, in the room of a screen |

    Parameters
    ----------
    instruction : str
        What the person is told to do: a sentence with its full stop.
    things : sequence of Thing
        What is in the household, in the order in which it is spoken of.
    goal : sequence of str
        Conditions of which all must be true, seen or not, for the task to be done.
    start : str
        The room where the person starts.
    menu : mapping from str to sequence of str
        For a phrase, the conditions under which it is offered, judged by what is seen; an empty list offers it always.
        A phrase that the menu does not name is offered whenever saying it would change something.

    Raises
    ------
    ValueError
        Naming the field, its value, and what is possible there.
    """

    instruction: str
    things: tuple[Thing, ...]
    goal: Conditions
    start: str = "kitchen"
    menu: tuple[tuple[str, Conditions], ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__  # frozen: what was given as lists and mappings becomes tuples, once
        _check_name("instruction", self.instruction)
        if self.instruction[-1] not in ".!?":
            raise ValueError(
                f"instruction: {self.instruction!r} is followed by other sentences, so end it with a full stop"
            )
        put(
            self,
            "things",
            tuple(_thing(f"things[{i}]", thing) for i, thing in enumerate(_items("things", self.things))),
        )
        _check_places(self.things)
        _check_choice("start", self.start, ROOMS)
        known = [fact.field for fact in self.household.facts]
        phrases = action_phrases(self.household)
        for what, names in (("field", known), ("phrase", phrases)):
            if twice := [name for name, times in Counter(names).items() if times > 1]:
                raise ValueError(f"things: two things would share the {what} {twice[0]!r}; give one another name")
        put(self, "goal", _conditions("goal", self.goal, known))
        if not self.goal:
            raise ValueError("goal: there is no condition, so there is nothing to do")
        menu = self.menu.items() if isinstance(self.menu, Mapping) else _items("menu", self.menu)
        rows: list[tuple[str, Conditions]] = []
        for row in menu:
            if not isinstance(row, list | tuple) or len(row) != 2:
                raise ValueError(f"menu: {row!r} is not a phrase with its conditions")
            phrase, conditions = row
            _check_choice("menu", phrase, phrases)
            if phrase in dict(rows):
                raise ValueError(f"menu: {phrase!r} stands there twice")
            rows.append((phrase, _conditions(f"menu[{phrase!r}]", conditions, known)))
        put(self, "menu", tuple(rows))
        if self.is_done(self.household.initial_state()):
            raise ValueError(f"goal: {list(self.goal)} is reached before anything is done")

    @cached_property
    def household(self) -> Household:
        return Household(self.things, self.start)

    def is_done(self, state: State) -> bool:
        return _all_hold(self.goal, self.household.true_fields(state))

    def offered(self, state: State) -> tuple[int, ...]:
        """Indices of the actions that are offered; two states that look alike offer the same."""
        seen, menu = self.household.observe(state), dict(self.menu)
        actions = zip(action_phrases(self.household), self.household.actions, strict=True)
        return tuple(
            i
            for i, (phrase, action) in enumerate(actions)
            if (_all_hold(menu[phrase], seen) if phrase in menu else self.household.perform(state, action) != state)
        )


def _thing(where: str, thing: Thing | Mapping[str, Any]) -> Thing:
    if isinstance(thing, Mapping):
        thing = Thing(**keywords(where, thing, Thing))
    if not isinstance(thing, Thing):
        raise ValueError(f"{where}: {thing!r} is not a thing with a name, a place and properties")
    _check_name(f"{where}.name", thing.name)
    if not _NAME.fullmatch(thing.name) or len(thing.name) > _LONGEST_NAME:
        raise ValueError(
            f"{where}.name: {thing.name!r} is not a name of at most {_LONGEST_NAME} letters, digits, hyphens and "
            "single spaces that does not begin with open, closed, switched-on or switched-off"
        )
    properties = tuple(_items(f"{where}.properties", thing.properties))
    for name in properties:
        _check_choice(f"{where}.properties", name, PROPERTIES)
    if not isinstance(thing.plural, bool):
        raise ValueError(f"{where}.plural: {thing.plural!r} is neither true nor false")
    made = Thing(thing.name, thing.place, properties, thing.plural)
    for one, other in (("surface", "container"), *(("grabbable", heavy) for heavy in _HEAVY)):
        if made.can(one) and made.can(other):
            raise ValueError(f"{where}.properties: {thing.name!r} cannot be both {one} and {other}")
    return made


def _check_places(things: Sequence[Thing]) -> None:
    if not things:
        raise ValueError("things: there is nothing in the household")
    names = [*ROOMS, *(thing.name for thing in things)]
    called = [identifier(name) for name in names]
    for i, thing in enumerate(things):
        first = called.index(thing.identifier)
        if first != len(ROOMS) + i:
            raise ValueError(f"things[{i}].name: {thing.name!r} cannot be told from {names[first]!r}")
        receptacles = [other.name for other in things if other.holds_things]
        if thing.place in receptacles and not thing.can("grabbable"):
            raise ValueError(f"things[{i}].place: only what is grabbable can be on or in the {thing.place}")
        _check_choice(f"things[{i}].place", thing.place, (*ROOMS, *receptacles))


def _conditions(where: str, given: Any, known: Sequence[str]) -> Conditions:
    conditions = tuple(_items(where, given))
    for i, condition in enumerate(conditions):
        if not isinstance(condition, str) or not condition.strip():
            raise ValueError(f"{where}[{i}]: {condition!r} is not a condition such as 'not {known[0]}'")
        if " and " in condition:
            raise ValueError(f"{where}[{i}]: {condition!r} is two conditions; make each an item of the list")
        for literal in condition.split(" or "):
            _check_choice(f"{where}[{i}]", literal.strip().removeprefix("not ").strip(), known)
    return conditions


def _all_hold(conditions: Iterable[str], facts: Mapping[str, bool]) -> bool:
    return all(any(_holds(literal.strip(), facts) for literal in line.split(" or ")) for line in conditions)


def _holds(literal: str, facts: Mapping[str, bool]) -> bool:
    field = literal.removeprefix("not ")
    return facts[field.strip()] != (field != literal)


def _check_name(where: str, value: Any) -> None:
    plain = isinstance(value, str) and value.isascii() and value.isprintable()
    if not plain or not value or value != value.strip():
        quotes = " (YAML reads on, off, yes and no as truth values unless they are quoted)" * isinstance(value, bool)
        raise ValueError(f"{where}: {value!r} is not one line of plain text in ASCII{quotes}")


def _check_choice(where: str, value: Any, choices: Iterable[str]) -> None:
    choices = list(choices)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{where}: {value!r} is not one of {', '.join(choices)}.{hint}")


def _items(where: str, value: Any) -> Iterable[Any]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"{where}: {value!r} is not a list")
    return value


def keywords(where: str, given: Mapping[str, Any], made: type[Any]) -> dict[str, Any]:
    """The fields of a mapping, none unknown and none missing."""
    for name in given:
        _check_choice(where, name, [field.name for field in fields(made)])
    needed = ("name", "place") if made is Thing else ("instruction", "things", "goal")
    for name in needed:
        if name not in given:
            raise ValueError(f"{where}.{name} is missing")
    return dict(given)
