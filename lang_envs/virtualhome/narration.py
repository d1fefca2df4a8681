"""The text of VirtualHome: a phrase for each action, sentences for what the person sees."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product

from lang_envs.virtualhome.household import ROOMS, Action, Household, Thing, identifier

_VERBS = {
    "enter": "walk to the {}",
    "approach": "walk to the {}",
    "grab": "grab the {}",
    "put": "put the {} {} the {}",
    "open": "open the {}",
    "close": "close the {}",
    "turn on": "turn on the {}",
    "turn off": "turn off the {}",
    "sit": "sit on the {}",
    "stand up": "stand up from the {}",
}


@lru_cache
def action_phrases(household: Household) -> tuple[str, ...]:
    """Return a phrase for each action, in the order of :attr:`Household.actions`."""
    return tuple(_phrase(household, action) for action in household.actions)


def _phrase(household: Household, action: Action) -> str:
    if action.verb == "enter":
        return _VERBS["enter"].format(ROOMS[action.target])
    nouns = [household.things[action.target].name]
    if action.verb == "put":
        receptacle = household.things[action.receptacle]
        nouns += [receptacle.preposition, receptacle.name]
    return _VERBS[action.verb].format(*nouns)


def narrate(household: Household, instruction: str, observation: Mapping[str, bool]) -> str:
    """Return the text of an observation; see :meth:`Household.observe`."""
    (room,) = (room for room in ROOMS if observation[f"in_{identifier(room)}"])
    hands_full = any(observation.get(f"hold_{thing.identifier}", False) for thing in household.things)
    sentences = [instruction, _stand(room), "" if hands_full else _EMPTY_HANDS]
    sentences += [_thing(household, thing, observation) for thing in household.things]
    return "".join(sentences)


def text_parts(household: Household, instruction: str) -> tuple[tuple[str, ...], ...]:
    """Return the parts of :attr:`LanguageEnv.text_parts`."""
    return (
        (instruction,),
        tuple(map(_stand, ROOMS)),
        ("", _EMPTY_HANDS),
        *(_all_about(household, thing) for thing in household.things),
    )


_EMPTY_HANDS = " Your hands are empty."


def _stand(room: str) -> str:
    return f" You are in the {room}."


def _thing(household: Household, thing: Thing, observation: Mapping[str, bool]) -> str:
    name = thing.identifier
    if not observation[f"see_{name}"]:
        return ""
    receptacle = next((other for other in household.things if _is_placed(thing, other, observation)), None)
    return _sentence(
        thing,
        is_open=observation.get(f"is_{name}_open", False),
        is_on=observation.get(f"is_{name}_on", False),
        receptacle=receptacle,
        relation=next(
            (
                kind
                for kind in ("hold", "sit", "face", "near")
                if observation.get(_RELATION_FIELDS[kind].format(name), False)
            ),
            "here",
        ),
    )


_RELATION_FIELDS = {"hold": "hold_{}", "face": "is_face_{}", "sit": "is_sit_{}", "near": "close_to_{}"}


def _is_placed(thing: Thing, receptacle: Thing, observation: Mapping[str, bool]) -> bool:
    field = f"{thing.identifier}_{receptacle.preposition}_{receptacle.identifier}"
    return receptacle.holds_things and observation.get(field, False)


def _all_about(household: Household, thing: Thing) -> tuple[str, ...]:
    """Return every possible sentence about a thing, and the empty text."""
    relations = ["here", "near"]
    relations += [
        kind for kind, needed in (("hold", "grabbable"), ("face", "screen"), ("sit", "seat")) if thing.can(needed)
    ]
    receptacles = [other for other in household.things if other.holds_things] if thing.can("grabbable") else []
    opened = (False, True) if thing.can("container") else (False,)
    switched = (False, True) if thing.can("switch") else (False,)
    sentences = [
        _sentence(thing, is_open, is_on, receptacle, relation)
        for is_open, is_on, receptacle, relation in product(opened, switched, [None, *receptacles], relations)
    ]
    return ("", *dict.fromkeys(sentences))


def _sentence(thing: Thing, is_open: bool, is_on: bool, receptacle: Thing | None, relation: str) -> str:
    states = []
    if thing.can("container"):
        states.append("open" if is_open else "closed")
    if thing.can("switch"):
        states.append("switched-on" if is_on else "switched-off")
    what = f"the {', '.join(states)}{' ' * bool(states)}{thing.name}"
    if relation in ("hold", "face", "sit"):
        return f" You {'sit on' if relation == 'sit' else relation} {what}."
    where = ["here"] if receptacle is None else [f"{receptacle.preposition} the {receptacle.name}"]
    if relation == "near":
        where = [*where[receptacle is None :], "next to you"]
    return f" {what[0].upper()}{what[1:]} {_be(thing)} {', '.join(where)}."


def _be(thing: Thing) -> str:
    return "are" if thing.plural else "is"
