"""The rules of a household: rooms, things, where they are, and what a person can do with them.

An action whose precondition does not hold changes nothing. Nothing here knows of tasks, text or Gymnasium.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lang_envs.storage import storable

ROOMS = ("kitchen", "bathroom", "bedroom", "living room")
HANDS = 2
HELD = -1
NOWHERE = -1

PROPERTIES = {
    "grabbable": "can be taken in a hand and put on surfaces and into containers; it may be a switch and nothing else",
    "surface": "things can be put on it",
    "container": "things can be put into it while it is open; it starts closed",
    "switch": "can be turned on and off; it starts off",
    "seat": "can be sat on",
    "screen": "is faced by whoever sits in its room",
}
"""What a thing can be."""


@dataclass(frozen=True)
class Thing:
    """A thing of the household: ``place`` is a room, or the surface or container that it starts on or in."""

    name: str
    place: str
    properties: tuple[str, ...] = ()
    plural: bool = False

    @property
    def identifier(self) -> str:
        """Its name within the names of symbolic fields."""
        return identifier(self.name)

    def can(self, property_name: str) -> bool:
        return property_name in self.properties

    @property
    def holds_things(self) -> bool:
        return self.can("surface") or self.can("container")

    @property
    def preposition(self) -> str:
        """Things are in a container and on a surface."""
        return "in" if self.can("container") else "on"


def identifier(name: str) -> str:
    """``"coffee table"`` as the recordings of the source environment write it: ``"coffeetable"``."""
    return name.replace(" ", "").lower()


@storable
class State(NamedTuple):
    """A situation; things are counted as in :attr:`Household.things`.

    ``places`` has for each thing the index of its room, ``HELD``, or ``len(ROOMS)`` plus the index of what it is on or
    in. ``near`` leaves out what is near because it is held or because the container that it is in is near.
    """

    room: int
    places: tuple[int, ...]
    near: frozenset[int] = frozenset()
    opened: frozenset[int] = frozenset()
    switched_on: frozenset[int] = frozenset()
    seat: int = NOWHERE


class Action(NamedTuple):
    """``verb`` is what is done, ``target`` a room or a thing, ``receptacle`` where a thing is put."""

    verb: str
    target: int
    receptacle: int = NOWHERE


class Fact(NamedTuple):
    """Something that is true of a state or not; ``field`` is its name in the symbolic observation."""

    field: str
    kind: str
    subject: int
    receptacle: int = NOWHERE


@dataclass(frozen=True)
class Household:
    """Things in rooms, and a person who starts in the room ``start`` with empty hands, near nothing."""

    things: tuple[Thing, ...]
    start: str = "kitchen"

    @cached_property
    def receptacles(self) -> tuple[int, ...]:
        return tuple(i for i, thing in enumerate(self.things) if thing.holds_things)

    def initial_state(self) -> State:
        names = [*ROOMS, *(thing.name for thing in self.things)]
        return State(ROOMS.index(self.start), tuple(names.index(thing.place) for thing in self.things))

    # ------------------------------------------------------------------------------------------- where things are

    def contents(self, state: State, receptacle: int) -> list[int]:
        return [i for i, place in enumerate(state.places) if place == len(ROOMS) + receptacle]

    def container_of(self, state: State, thing: int) -> int:
        """The container that a thing is in, or ``NOWHERE``."""
        receptacle = state.places[thing] - len(ROOMS)
        return receptacle if receptacle >= 0 and self.things[receptacle].can("container") else NOWHERE

    def is_seen(self, state: State, thing: int) -> bool:
        """In the person's room and not inside something closed, or held."""
        place = state.places[thing]
        if place < len(ROOMS):
            return place in (HELD, state.room)
        container = self.container_of(state, thing)
        shut_away = container != NOWHERE and container not in state.opened
        return state.places[place - len(ROOMS)] == state.room and not shut_away

    def is_near(self, state: State, thing: int) -> bool:
        return thing in state.near or state.places[thing] == HELD or self.container_of(state, thing) in state.near

    def has_free_hand(self, state: State) -> bool:
        return state.places.count(HELD) < HANDS

    # ---------------------------------------------------------------------------------------------------- actions

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """Every action: to the rooms, to the things, then what hands do, then sitting and standing."""
        grabbable = self._that_can("grabbable")
        return (
            *(Action("enter", ROOMS.index(room)) for room in ("living room", "kitchen", "bathroom", "bedroom")),
            *(Action("approach", i) for i in range(len(self.things))),
            *(Action("grab", i) for i in grabbable),
            *(Action("put", i, receptacle) for receptacle in self.receptacles for i in grabbable),
            *(Action(verb, i) for i in self._that_can("container") for verb in ("open", "close")),
            *(Action(verb, i) for i in self._that_can("switch") for verb in ("turn on", "turn off")),
            *(Action(verb, i) for i in self._that_can("seat") for verb in ("sit", "stand up")),
        )

    def _that_can(self, property_name: str) -> list[int]:
        return [i for i, thing in enumerate(self.things) if thing.can(property_name)]

    def can_do(self, state: State, action: Action) -> bool:
        """Whether an action's precondition holds, so that it changes something."""
        verb, target, receptacle = action
        if verb == "enter":
            return target != state.room and state.seat == NOWHERE
        if verb == "approach":
            return self.is_seen(state, target) and state.places[target] != HELD and state.seat == NOWHERE
        if verb == "stand up":
            return state.seat == target
        if not (self.is_near(state, target) and self.is_seen(state, target)):
            return False
        if verb == "sit":
            return state.seat == NOWHERE
        if verb == "put":
            at_hand = state.places[target] == HELD and receptacle in state.near
            return at_hand and (self.things[receptacle].can("surface") or receptacle in state.opened)
        if not self.has_free_hand(state):
            return False
        if verb == "grab":
            return state.places[target] != HELD
        switched = state.opened if verb in ("open", "close") else state.switched_on
        return (target in switched) == (verb in ("close", "turn off"))

    def perform(self, state: State, action: Action) -> State:
        """The state after an action; the same state where its precondition does not hold."""
        verb, target, receptacle = action
        if not self.can_do(state, action):
            return state
        if verb == "enter":
            return state._replace(room=target, near=frozenset())
        if verb == "approach":
            container = self.container_of(state, target)
            return state._replace(near=frozenset({target if container == NOWHERE else container}))
        if verb == "grab":
            return state._replace(places=_moved(state, target, HELD), near=state.near - {target})
        if verb == "put":
            near = state.near | {target} if self.things[receptacle].can("surface") else state.near
            return state._replace(places=_moved(state, target, len(ROOMS) + receptacle), near=near)
        if verb in ("open", "close"):
            return state._replace(opened=state.opened ^ {target})
        if verb in ("turn on", "turn off"):
            return state._replace(switched_on=state.switched_on ^ {target})
        return state._replace(seat=target if verb == "sit" else NOWHERE)

    # ------------------------------------------------------------------------------------------------------ facts

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """All that can be true of a state, in the order of the symbolic observation.

        Rooms, then what is known of each thing, those without a state of their own last.
        """
        facts = [Fact(f"in_{identifier(room)}", "in", i) for i, room in enumerate(ROOMS)]
        plain = [i for i, thing in enumerate(self.things) if set(thing.properties) <= {"surface"}]
        for i in [*(i for i in range(len(self.things)) if i not in plain), *plain]:
            thing, name = self.things[i], self.things[i].identifier
            facts += [Fact(f"see_{name}", "see", i), Fact(f"close_to_{name}", "close", i)]
            if thing.can("grabbable"):
                facts.append(Fact(f"hold_{name}", "hold", i))
                facts += [self._placed(i, j) for j in self.receptacles if self.things[j].can("surface")]
            if thing.can("container"):
                facts.append(Fact(f"is_{name}_open", "open", i))
                facts += [self._placed(j, i) for j in self._that_can("grabbable")]
            if thing.can("screen"):
                facts.append(Fact(f"is_face_{name}", "face", i))
            if thing.can("switch"):
                facts.append(Fact(f"is_{name}_on", "on", i))
            if thing.can("seat"):
                facts.append(Fact(f"is_sit_{name}", "sit", i))
        return tuple(facts)

    def _placed(self, thing: int, receptacle: int) -> Fact:
        held, holder = self.things[thing], self.things[receptacle]
        return Fact(f"{held.identifier}_{holder.preposition}_{holder.identifier}", "placed", thing, receptacle)

    def is_true(self, state: State, fact: Fact) -> bool:
        """Whether a fact is true, seen or not."""
        kind, subject = fact.kind, fact.subject
        if kind == "in":
            return state.room == subject
        if kind == "see":
            return self.is_seen(state, subject)
        if kind == "close":
            return self.is_near(state, subject)
        if kind == "hold":
            return state.places[subject] == HELD
        if kind == "placed":
            return state.places[subject] == len(ROOMS) + fact.receptacle
        if kind == "face":
            return state.seat != NOWHERE and state.places[subject] == state.room
        if kind == "sit":
            return state.seat == subject
        return subject in (state.opened if kind == "open" else state.switched_on)

    def true_fields(self, state: State) -> dict[str, bool]:
        """Every fact of a state."""
        return {fact.field: self.is_true(state, fact) for fact in self.facts}

    def observe(self, state: State) -> dict[str, bool]:
        """The facts of a state that the person can see; false of things that are out of sight."""
        return {
            fact.field: self.is_true(state, fact) and (fact.kind == "in" or self.is_seen(state, fact.subject))
            for fact in self.facts
        }


def _moved(state: State, thing: int, place: int) -> tuple[int, ...]:
    return (*state.places[:thing], place, *state.places[thing + 1 :])
