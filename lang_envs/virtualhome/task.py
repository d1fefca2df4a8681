"""Household tasks: their definition, and the checks that a task is valid.

A *condition* is a line such as ``"hold_chips or not see_chips"``: names of symbolic fields, each with or without
``not``, joined by ``or``. A list of conditions holds if each of them holds.
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

_NOT_GRABBABLE = ("surface", "container", "seat", "screen")
"""Properties of things that cannot be grabbed."""
_LONGEST_NAME = 60
_NAME = re.compile(r"(?!(open|closed|switched-on|switched-off)\b)[A-Za-z0-9]+([ -][A-Za-z0-9]+)*")


@dataclass(frozen=True)
class HouseholdTask:
    """A task in a household: things, a goal and the available actions.

    Conditions consist of *symbolic fields*. These are named after things, in lower case and without spaces
    (``coffeetable``):

    ==================================  ======================================================================
    field                               true when
    ==================================  ======================================================================
    ``in_livingroom``                   the person is in that room
    ``see_x``, ``close_to_x``           the person sees x, is near x
    ``hold_x``, ``x_on_y``, ``x_in_y``  the grabbable thing x is in hand, on the surface y, in the container y
    ``is_x_open``, ``is_x_on``          the container x is open, the switch x is on
    ``is_sit_x``, ``is_face_x``         the person sits on the seat x, sits in the room of the screen x
    ==================================  ======================================================================

    Parameters
    ----------
    instruction : str
        The first sentence of every observation; ends with ``.``, ``!`` or ``?``.
    things : sequence of Thing
        The things of the household, in the order of the sentences about them.
    goal : sequence of str
        Conditions; the task is done when all of them hold, whether the person sees it or not.
    start : str
        The room in which the person starts.
    menu : mapping of str to sequence of str
        For a phrase, the conditions under which it is available. They are evaluated on what the person sees; an empty
        list means always. A phrase that is not in the menu is available if it would change something.

    Raises
    ------
    ValueError
        If a field is invalid; the message names the field, its value and the possible values.
    """

    instruction: str
    things: tuple[Thing, ...]
    goal: Conditions
    start: str = "kitchen"
    menu: tuple[tuple[str, Conditions], ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__  # the class is frozen; given lists and mappings become tuples here
        _check_name("instruction", self.instruction)
        if self.instruction[-1] not in ".!?":
            raise ValueError(
                f"instruction: {self.instruction!r} does not end with '.', '!' or '?': other sentences follow it"
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
                raise ValueError(f"things: two things have the {what} {twice[0]!r} in common: rename one of them")
        put(self, "goal", _conditions("goal", self.goal, known))
        if not self.goal:
            raise ValueError("goal: it has no condition, expected at least one")
        menu = self.menu.items() if isinstance(self.menu, Mapping) else _items("menu", self.menu)
        rows: list[tuple[str, Conditions]] = []
        for row in menu:
            if not isinstance(row, list | tuple) or len(row) != 2:
                raise ValueError(f"menu: {row!r} is not a pair of a phrase and its conditions")
            phrase, conditions = row
            _check_choice("menu", phrase, phrases)
            if phrase in dict(rows):
                raise ValueError(f"menu: {phrase!r} occurs twice")
            rows.append((phrase, _conditions(f"menu[{phrase!r}]", conditions, known)))
        put(self, "menu", tuple(rows))
        if self.is_done(self.household.initial_state()):
            raise ValueError(f"goal: {list(self.goal)} holds at the start, so the task is done before the first step")

    @cached_property
    def household(self) -> Household:
        """The rules of this task's household."""
        return Household(self.things, self.start)

    def is_done(self, state: State) -> bool:
        """Return whether the goal holds in a state."""
        return _all_hold(self.goal, self.household.true_fields(state))

    def available_actions(self, state: State) -> tuple[int, ...]:
        """Return the indices of the available actions; they are the same in states with the same observation."""
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
        raise ValueError(f"{where}: {thing!r} is not a Thing or a mapping with name, place and properties")
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
    for one, other in (("surface", "container"), *(("grabbable", other) for other in _NOT_GRABBABLE)):
        if made.can(one) and made.can(other):
            raise ValueError(f"{where}.properties: {thing.name!r} cannot be both {one} and {other}")
    return made


def _check_places(things: Sequence[Thing]) -> None:
    if not things:
        raise ValueError("things: there are none, expected at least one")
    names = [*ROOMS, *(thing.name for thing in things)]
    called = [identifier(name) for name in names]
    for i, thing in enumerate(things):
        first = called.index(thing.identifier)
        if first != len(ROOMS) + i:
            raise ValueError(f"things[{i}].name: {thing.name!r} is the same name as {names[first]!r}: rename it")
        receptacles = [other.name for other in things if other.holds_things]
        if thing.place in receptacles and not thing.can("grabbable"):
            raise ValueError(f"things[{i}].place: {thing.name!r} is in or on the {thing.place}, but is not grabbable")
        _check_choice(f"things[{i}].place", thing.place, (*ROOMS, *receptacles))


def _conditions(where: str, given: Any, known: Sequence[str]) -> Conditions:
    conditions = tuple(_items(where, given))
    for i, condition in enumerate(conditions):
        if not isinstance(condition, str) or not condition.strip():
            raise ValueError(f"{where}[{i}]: {condition!r} is not a condition such as 'not {known[0]}'")
        if " and " in condition:
            raise ValueError(f"{where}[{i}]: {condition!r} is two conditions: make each one an item of the list")
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
    """Return a mapping as arguments of a class; raise ValueError if a field is unknown or missing."""
    for name in given:
        _check_choice(where, name, [field.name for field in fields(made)])
    needed = ("name", "place") if made is Thing else ("instruction", "things", "goal")
    for name in needed:
        if name not in given:
            raise ValueError(f"{where}.{name} is missing")
    return dict(given)
