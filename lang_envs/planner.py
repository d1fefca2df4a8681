"""Exact planning in a finite, deterministic environment: its states, the shortest solution and the best return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lang_envs.core import LanguageEnv

MAX_STATES = 100_000
_MAX_SWEEPS = 20_000
_TOLERANCE = 1e-12
"""Value iteration stops when no value changes by more than this."""
_TIE = 1e-9
"""Returns that differ by less count as equal."""
END = -1


class PlanningError(ValueError):
    """The planner cannot be used in this environment; the message gives the reason."""


class Solution(NamedTuple):
    """The result of :func:`solve`; step limits of episodes are ignored."""

    states: int
    """Number of reachable states, including the ends of episodes."""
    shortest: tuple[str, ...] | None
    """A sequence of phrases to success that has the fewest phrases; None where none leads to success."""
    best: tuple[str, ...] | None
    """A sequence of phrases that earns ``optimal_return``; None where only an endless one would."""
    optimal_return: float
    """Best discounted return from the start."""


class Edge(NamedTuple):
    """The result of one phrase in one state."""

    phrase: int
    after: int
    """Number of the next state; ``END`` where the episode is over."""
    reward: float
    discount: float


class Graph(NamedTuple):
    """Every reachable state, numbered from 0 (the start), with its edges."""

    edges: list[list[Edge]]
    texts: list[str]
    """Observation text of each state."""
    ends: int
    """Number of states in which episodes end."""
    shortest: list[int] | None


def solve(
    env: LanguageEnv, max_states: int = MAX_STATES, on_state: Callable[[int, int], object] | None = None
) -> Solution:
    """Solve an environment by breadth-first search of all states, then value iteration.

    Parameters
    ----------
    env : LanguageEnv
        An environment with ``action_names`` and :attr:`LanguageEnv.state`, whose fields are hashable. Its state
        afterwards is undefined.
    max_states : int
        Raise an error if there are more states.
    on_state : callable, optional
        Called after each state with the number of states searched and the number known so far.

    Returns
    -------
    Solution

    Raises
    ------
    PlanningError
        If any text is an action, if states cannot be compared, if an action has a random result, if there are more than
        ``max_states`` states, if a state has no available phrase, or if returns are unbounded.
    """
    graph = explore(env, max_states, on_state)
    values, returns = _value_iteration(graph.edges)
    best = _shortest_best(graph.edges, values, returns)
    shortest_phrases, best_phrases = (
        None if way is None else tuple(env.action_names[phrase] for phrase in way) for way in (graph.shortest, best)
    )
    return Solution(len(graph.edges) + graph.ends, shortest_phrases, best_phrases, float(values[0]))


def explore(
    env: LanguageEnv, max_states: int = MAX_STATES, on_state: Callable[[int, int], object] | None = None
) -> Graph:
    """Find every reachable state, breadth first; parameters and errors as in :func:`solve`."""
    if not env.action_names:
        raise PlanningError("any text is an action in this environment, so the planner cannot try all actions")
    _, info = env.reset(seed=0)
    try:
        begin = env.state
        numbers = {_key(env): 0}
    except (AttributeError, TypeError) as error:
        raise PlanningError(f"the states of this environment cannot be compared: {error}") from None
    to_search, texts = [begin], [info["text"]]
    edges: list[list[Edge]] = []
    came_from: dict[int, tuple[int, int]] = {}
    ends = set()
    shortest: list[int] | None = None
    for number, state in enumerate(to_search):  # the list grows meanwhile
        env.state = state
        found = []
        for phrase in env.available_action_ids():
            env.state = state
            _, reward, terminated, _, info = env.step(env.action_names[phrase])
            discount = env.discount ** info.get("primitive_steps", 1)
            after, key = env.state, _key(env)
            if after["random"] != begin["random"]:
                raise PlanningError("an action has a random result in this environment, so no sequence is the best")
            if terminated:
                ends.add(key)
                found.append(Edge(phrase, END, float(reward), discount))
                if shortest is None and info.get("success", terminated):
                    shortest = [*_way_to(number, came_from), phrase]
                continue
            if key not in numbers:
                numbers[key] = len(to_search)
                came_from[len(to_search)] = number, phrase
                to_search.append(_with_clock_of(env, after, begin))
                texts.append(info["text"])
                if len(numbers) > max_states:
                    raise PlanningError(f"this environment has more than {max_states:,} states (max_states)")
            found.append(Edge(phrase, numbers[key], float(reward), discount))
        edges.append(found)
        if on_state is not None:
            on_state(number + 1, len(numbers))
    if not all(edges):
        raise PlanningError("in one state of this environment no phrase is available")
    return Graph(edges, texts, len(ends), shortest)


def _way_to(number: int, came_from: dict[int, tuple[int, int]]) -> list[int]:
    """Return the phrases that led from the start to a state."""
    phrases = []
    while number:
        number, phrase = came_from[number]
        phrases.append(phrase)
    return phrases[::-1]


def _key(env: LanguageEnv) -> tuple[Any, ...]:
    """Return the fields of a state without the clock; raise TypeError if they are not hashable."""
    fields = env.state["fields"]
    key = tuple(value for name, value in fields.items() if name not in (*env.clock_fields, "_running"))
    hash(key)
    return key


def _with_clock_of(env: LanguageEnv, state: dict[str, Any], begin: dict[str, Any]) -> dict[str, Any]:
    clock = {name: begin["fields"][name] for name in (*env.clock_fields, "_running")}
    return state | {"fields": state["fields"] | clock}


def _value_iteration(edges: list[list[Edge]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the best return of every state, and the return of each of its edges (in their order, then -inf)."""
    shape = len(edges), max(map(len, edges))
    after = np.full(shape, END)
    reward = np.full(shape, -np.inf)
    discount = np.zeros(shape)
    for row, found in enumerate(edges):
        for column, edge in enumerate(found):
            after[row, column], reward[row, column], discount[row, column] = edge[1:]
    values = np.zeros(len(edges) + 1)  # the last one, at index END, is the value after the end
    for _ in range(_MAX_SWEEPS):
        returns = reward + discount * values[after]
        improved = returns.max(axis=1)
        change = np.abs(improved - values[:-1]).max()
        values[:-1] = improved
        if change < _TOLERANCE:
            return values[:-1], returns
    raise PlanningError(
        f"the returns of this environment have not converged after {_MAX_SWEEPS:,} sweeps of value iteration: with "
        "this discount, rewards of an endless episode may have no bound"
    )


def _shortest_best(edges: list[list[Edge]], values: np.ndarray, returns: np.ndarray) -> list[int] | None:
    """Return the fewest phrases that lead from the start to an end and earn the best return."""
    came_from: dict[int, tuple[int, int]] = {}
    to_search = [0]
    for number in to_search:
        for edge, earned in zip(edges[number], returns[number], strict=False):
            if earned < values[number] - _TIE:
                continue
            if edge.after == END:
                return [*_way_to(number, came_from), edge.phrase]
            if edge.after and edge.after not in came_from:
                came_from[edge.after] = number, edge.phrase
                to_search.append(edge.after)
    return None
