"""What can be reached in a finite environment, the shortest way to success, and the best return: by trying everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lang_envs.core import LanguageEnv

MAX_STATES = 100_000
_SWEEPS = 20_000
_TOLERANCE = 1e-12
_TIE = 1e-9


class PlanningError(ValueError):
    """An environment that cannot be planned in; says why."""


class Solution(NamedTuple):
    """What a search has found; step limits play no part in it.

    ``states`` counts the ends of episodes too. ``shortest`` has the fewest phrases that lead to success, None where
    none do. ``best`` is a sequence of phrases that earns ``optimal_return``, None where it would go on forever.
    """

    states: int
    shortest: tuple[str, ...] | None
    best: tuple[str, ...] | None
    optimal_return: float


class Outcome(NamedTuple):
    """What a phrase leads to in a state."""

    phrase: int
    after: int
    """Number of the next state; -1 where the episode is over."""
    reward: float
    discount: float


class State(NamedTuple):
    """A state of the environment: its text, and what each available phrase leads to."""

    text: str
    outcomes: list[Outcome]


class StateSpace(NamedTuple):
    """All states that can be reached, the first state first; the clock plays no part in them.

    ``ends`` counts the states that end an episode. ``shortest`` has the numbers of the fewest phrases that lead to
    success, None where none do.
    """

    states: list[State]
    ends: int
    shortest: list[int] | None


def solve(
    environment: LanguageEnv, max_states: int = MAX_STATES, on_state: Callable[[int, int], object] | None = None
) -> Solution:
    """Search a deterministic environment from its start: breadth first, then value iteration over all that was found.

    Parameters
    ----------
    environment : LanguageEnv
        One with phrases and :attr:`LanguageEnv.state`, whose fields must be hashable. It is used up.
    max_states : int
        Give up where there are more states than that.
    on_state : callable, optional
        Told, after each state, how many have been searched and how many are known.

    Raises
    ------
    PlanningError
        If any text is an action, chance plays a part, there are too many states, or returns have no bound.
    """
    found = explore(environment, max_states, on_state)
    outcomes = [state.outcomes for state in found.states]
    values, returns = _value_iteration(outcomes)
    best = _shortest_best(outcomes, values, returns)
    shortest_phrases, best_phrases = (
        None if way is None else tuple(environment.action_names[phrase] for phrase in way)
        for way in (found.shortest, best)
    )
    return Solution(len(outcomes) + found.ends, shortest_phrases, best_phrases, float(values[0]))


def explore(
    environment: LanguageEnv, max_states: int = MAX_STATES, on_state: Callable[[int, int], object] | None = None
) -> StateSpace:
    """Search all states of a deterministic environment breadth first; parameters and errors as in :func:`solve`."""
    if not environment.action_names:
        raise PlanningError("in this environment any text is an action: there is no trying all of them")
    _, info = environment.reset(seed=0)
    try:
        begin = environment.state
        numbers = {_situation(environment): 0}
    except (AttributeError, TypeError) as error:
        raise PlanningError(f"the situations of this environment cannot be told apart: {error}") from None
    to_search = [(begin, info["text"])]
    states: list[State] = []
    came_from: dict[int, tuple[int, int]] = {}
    ends = set()
    shortest: list[int] | None = None

    for at, (state, text) in enumerate(to_search):  # which grows meanwhile
        environment.state = state
        found = []
        for phrase in environment.available_action_ids():
            environment.state = state
            _, reward, terminated, _, info = environment.step(environment.action_names[phrase])
            discount = environment.discount ** info.get("primitive_steps", 1)
            after, situation = environment.state, _situation(environment)
            if after["random"] != begin["random"]:
                raise PlanningError("chance plays a part in this environment: there is no best sequence of phrases")
            if terminated:
                ends.add(situation)
                found.append(Outcome(phrase, -1, float(reward), discount))
                if shortest is None and info.get("success", terminated):
                    shortest = [*_way_to(at, came_from), phrase]
                continue
            if situation not in numbers:
                numbers[situation] = len(to_search)
                came_from[len(to_search)] = at, phrase
                to_search.append((_with_clock_of(environment, after, begin), info["text"]))
                if len(numbers) > max_states:
                    raise PlanningError(f"there are more than {max_states:,} situations in this environment")
            found.append(Outcome(phrase, numbers[situation], float(reward), discount))
        states.append(State(text, found))
        if on_state is not None:
            on_state(at + 1, len(numbers))
    if not all(state.outcomes for state in states):
        raise PlanningError("in one of the situations of this environment nothing can be said")
    return StateSpace(states, len(ends), shortest)


def _way_to(number: int, came_from: dict[int, tuple[int, int]]) -> list[int]:
    """The phrases that led from the start to a situation."""
    phrases = []
    while number:
        number, phrase = came_from[number]
        phrases.append(phrase)
    return phrases[::-1]


def _situation(environment: LanguageEnv) -> tuple[Any, ...]:
    """All that changes but the clock; hashable, or a TypeError."""
    fields = environment.state["fields"]
    situation = tuple(value for name, value in fields.items() if name not in (*environment.clock_fields, "_running"))
    hash(situation)
    return situation


def _with_clock_of(environment: LanguageEnv, state: dict[str, Any], begin: dict[str, Any]) -> dict[str, Any]:
    clock = {name: begin["fields"][name] for name in (*environment.clock_fields, "_running")}
    return state | {"fields": state["fields"] | clock}


def _value_iteration(outcomes: list[list[Outcome]]) -> tuple[np.ndarray, np.ndarray]:
    """Best return of every situation, and the return of each of its outcomes (in their order, then -inf)."""
    shape = len(outcomes), max(map(len, outcomes))
    after = np.full(shape, -1)
    reward = np.full(shape, -np.inf)
    discount = np.zeros(shape)
    for row, found in enumerate(outcomes):
        for column, outcome in enumerate(found):
            after[row, column], reward[row, column], discount[row, column] = outcome[1:]
    values = np.zeros(len(outcomes) + 1)  # the last is that of an episode that is over
    for _ in range(_SWEEPS):
        returns = reward + discount * values[after]
        improved = returns.max(axis=1)
        change = np.abs(improved - values[:-1]).max()
        values[:-1] = improved
        if change < _TOLERANCE:
            return values[:-1], returns
    raise PlanningError(
        f"returns in this environment have not settled after {_SWEEPS:,} sweeps: with so little discount, "
        "reward or cost can go on forever"
    )


def _shortest_best(outcomes: list[list[Outcome]], values: np.ndarray, returns: np.ndarray) -> list[int] | None:
    """The fewest phrases that lead from the start to an end and earn the best return."""
    came_from: dict[int, tuple[int, int]] = {}
    to_search = [0]
    for at in to_search:
        for outcome, earned in zip(outcomes[at], returns[at], strict=False):
            if earned < values[at] - _TIE:
                continue
            if outcome.after < 0:
                return [*_way_to(at, came_from), outcome.phrase]
            if outcome.after and outcome.after not in came_from:
                came_from[outcome.after] = at, outcome.phrase
                to_search.append(outcome.after)
    return None
