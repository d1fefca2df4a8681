"""The rules of a household: rooms, things, their places, and what a person can do with them.

An action whose precondition does not hold changes nothing. There are no tasks, no text and no Gymnasium here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lang_envs.storage import storable

ROOMS = ("kitchen", "bathroom", "bedroom", "living room")
HANDS = 2
HELD = -1
"""Place of a thing in the person's hands."""
NOWHERE = -1
"""In place of the index of a thing."""

PROPERTIES = {
    "grabbable": "can be taken in a hand and put on surfaces and into containers; it may be a switch and nothing else",
    "surface": "things can be put on it",
    "container": "things can be put into it while it is open; it starts closed",
    "switch": "can be turned on and off; it starts off",
    "seat": "can be sat on",
    "screen": "is faced by whoever sits in its room",
}
"""The properties of things, and what each one means."""


@dataclass(frozen=True)
class Thing:
    """A thing in the household."""

    name: str
    place: str
    """A room, or the name of the surface or container on or in which it starts."""
    properties: tuple[str, ...] = ()
    """Keys of ``PROPERTIES``."""
    plural: bool = False
    """Whether the name is plural, as in "the chips are here"."""

    @property
    def identifier(self) -> str:
        """Its name in symbolic fields."""
        return identifier(self.name)

    def can(self, property_name: str) -> bool:
        """Return whether the thing has a property."""
        return property_name in self.properties

    @property
    def holds_things(self) -> bool:
        """Whether other things can be put on it or into it."""
        return self.can("surface") or self.can("container")

    @property
    def preposition(self) -> str:
        """``in`` for a container, ``on`` for a surface."""
        return "in" if self.can("container") else "on"


def identifier(name: str) -> str:
    """Return a name as symbolic fields write it: ``"coffeetable"`` for ``"coffee table"``, as in the source."""
    return name.replace(" ", "").lower()


@storable
class State(NamedTuple):
    """Everything that changes in a household; hashable. Things are numbered as in :attr:`Household.things`."""

    room: int
    """Index of the person's room."""
    places: tuple[int, ...]
    """For each thing: the index of its room, ``HELD``, or ``len(ROOMS)`` plus the index of what it is on or in."""
    near: frozenset[int] = frozenset()
    """Things near the person, except those that are held and those in a container that is near."""
    opened: frozenset[int] = frozenset()
    switched_on: frozenset[int] = frozenset()
    seat: int = NOWHERE


class Action(NamedTuple):
    """Something that the person can try to do."""

    verb: str
    target: int
    """Index of a room (for ``enter``) or of a thing."""
    receptacle: int = NOWHERE
    """Index of the thing that the target is put on or into."""


class Fact(NamedTuple):
    """A statement that is true or false in a state."""

    field: str
    """Its name in the symbolic observation."""
    kind: str
    subject: int
    receptacle: int = NOWHERE


@dataclass(frozen=True)
class Household:
    """The rules for given things and a person who starts in a given room, near nothing, with empty hands.

    Parameters
    ----------
    things : tuple of Thing
        The things of the household.
    start : str
        The room in which the person starts.
    """

    things: tuple[Thing, ...]
    start: str = "kitchen"

    @cached_property
    def receptacles(self) -> tuple[int, ...]:
        """Indices of the surfaces and containers."""
        return tuple(i for i, thing in enumerate(self.things) if thing.holds_things)

    def initial_state(self) -> State:
        """Return the state at the start of an episode."""
        names = [*ROOMS, *(thing.name for thing in self.things)]
        return State(ROOMS.index(self.start), tuple(names.index(thing.place) for thing in self.things))

    # ------------------------------------------------------------------------------------------- where things are

    def contents(self, state: State, receptacle: int) -> list[int]:
        """Return the indices of the things on or in a receptacle."""
        return [i for i, place in enumerate(state.places) if place == len(ROOMS) + receptacle]

    def container_of(self, state: State, thing: int) -> int:
        """Return the index of the container of a thing, or ``NOWHERE``."""
        receptacle = state.places[thing] - len(ROOMS)
        return receptacle if receptacle >= 0 and self.things[receptacle].can("container") else NOWHERE

    def is_seen(self, state: State, thing: int) -> bool:
        """Return whether a thing is held, or is in the person's room and not in a closed container."""
        place = state.places[thing]
        if place < len(ROOMS):
            return place in (HELD, state.room)
        container = self.container_of(state, thing)
        is_hidden = container != NOWHERE and container not in state.opened
        return state.places[place - len(ROOMS)] == state.room and not is_hidden

    def is_near(self, state: State, thing: int) -> bool:
        """Return whether a thing is near the person, held, or in a container that is near."""
        return thing in state.near or state.places[thing] == HELD or self.container_of(state, thing) in state.near

    def has_free_hand(self, state: State) -> bool:
        """Return whether the person holds fewer things than it has hands."""
        return state.places.count(HELD) < HANDS

    # ---------------------------------------------------------------------------------------------------- actions

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """Every action: walking to rooms, walking to things, actions of the hands, sitting down and standing up."""
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
        """Return whether the precondition of an action holds, so that it changes something."""
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
        """Return the state after an action: the same state if its precondition does not hold."""
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
        """Every fact, in the order of the symbolic observation.

        First the rooms, then each thing; things without properties other than ``surface`` come last.
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
        """Return whether a fact is true, whether the person sees it or not."""
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
        """Return the value of every fact."""
        return {fact.field: self.is_true(state, fact) for fact in self.facts}

    def observe(self, state: State) -> dict[str, bool]:
        """Return the value of every fact as the person sees it: False for things that it does not see."""
        return {
            fact.field: self.is_true(state, fact) and (fact.kind == "in" or self.is_seen(state, fact.subject))
            for fact in self.facts
        }


def _moved(state: State, thing: int, place: int) -> tuple[int, ...]:
    return (*state.places[:thing], place, *state.places[thing + 1 :])
