"""An environment as a table of states, and the exact values of a policy in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import lang_envs  # noqa: F401 — registers the environments
from lang_envs import planner
from trainers.prefix_tree import PrefixTree


class Outcome(NamedTuple):
    """An action's reward and the number of the next state; None where the episode ends."""

    reward: float
    after: int | None


@dataclass(frozen=True)
class State:
    """A state's text, and what each available action leads to."""

    text: str
    outcomes: dict[str, Outcome]


def explore(env_id: str) -> list[State]:
    """Return every state that can be reached, the first state first, without a step limit."""
    environment: Any = gym.make(env_id, interface="text").unwrapped
    graph = planner.explore(environment)
    return [
        State(
            text,
            {
                environment.action_names[edge.phrase]: Outcome(edge.reward, None if edge.after < 0 else edge.after)
                for edge in edges
            },
        )
        for text, edges in zip(graph.texts, graph.edges, strict=True)
    ]


def follow(states: Sequence[State], actions: Sequence[str]) -> int:
    """Return the number of the state that actions lead to from the first one."""
    at = 0
    for action in actions:
        after = states[at].outcomes[action].after
        assert after is not None
        at = after
    return at


def exact_values(
    states: Sequence[State],
    trees: Sequence[PrefixTree],
    log_probs: Sequence[np.ndarray],
    *,
    gamma: float,
    gamma_token: float,
) -> list[np.ndarray]:
    """Solve the Bellman equations of a policy for the values of all prefixes (arXiv 2405.15821, eqs. 9, 10, 13, 14).

    Parameters
    ----------
    trees : sequence of PrefixTree
        The actions of each state, in their order.
    log_probs : sequence of float arrays (K, L)
        Log-probability of each token of each action, given those before it.
    gamma, gamma_token : float
        Discount of an action (γ_a) and of each of its tokens but the last (γ_w).

    Returns
    -------
    list of float64 arrays (M,)
        For each state the values at the nodes of its tree, the root first.
    """
    count = len(states)
    weights, constants = np.zeros((count, count)), np.zeros(count)
    lengths = [tree.mask.sum(1) for tree in trees]
    for i, state in enumerate(states):
        chances = np.exp(log_probs[i].sum(1)) * gamma_token ** (lengths[i] - 1)
        for chance, outcome in zip(chances, state.outcomes.values(), strict=True):
            constants[i] += chance * outcome.reward
            if outcome.after is not None:
                weights[i, outcome.after] += chance * gamma
    roots = np.linalg.solve(np.eye(count) - weights, constants)

    values = []
    for i, state in enumerate(states):
        ends = np.array([worth_of(outcome, roots, gamma) for outcome in state.outcomes.values()])
        nodes = np.zeros(len(trees[i].node_tokens))
        for k, end in enumerate(ends):
            for depth, node in enumerate(trees[i].path_nodes[k, : lengths[i][k]]):
                chance = np.exp(log_probs[i][k, depth : lengths[i][k]].sum())
                nodes[node] += chance * gamma_token ** (lengths[i][k] - 1 - depth) * end
        values.append(nodes)
    return values


def worth_of(outcome: Outcome, roots: np.ndarray, gamma: float) -> float:
    """Return the reward plus the discounted value of the next state; ``roots`` are the values of all states."""
    return outcome.reward + (0.0 if outcome.after is None else gamma * float(roots[outcome.after]))


def token_advantages(
    tree: PrefixTree, choice: int, nodes: np.ndarray, worth: float, *, gamma_token: float
) -> np.ndarray:
    """Return the one-step advantage (λ = 0) of each token of an action.

    ``nodes`` are the values at the tree's nodes; ``worth`` is the action's reward plus the discounted value of the next
    state.
    """
    path = tree.path_nodes[choice, : int(tree.mask[choice].sum())]
    after = np.append(gamma_token * nodes[path[1:]], worth)
    return after - nodes[path]
