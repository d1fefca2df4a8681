"""An environment's decision process as a table, and the exact values of a policy in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import lang_envs  # noqa: F401 — registers the environments
from trainers.prefix_tree import PrefixTree


class Outcome(NamedTuple):
    """What an action leads to: its reward, and the situation after it, or None where the episode ends."""

    reward: float
    after: int | None


@dataclass(frozen=True)
class Situation:
    """A state of the environment: what is seen of it, and what each available action leads to."""

    text: str
    outcomes: dict[str, Outcome]


def explore(env_id: str) -> list[Situation]:
    """Every state of a household that can be reached, the first one first; the limit of steps does not count."""
    environment: Any = gym.make(env_id, interface="text").unwrapped
    text, info = environment.reset(seed=0)
    start = environment.state
    known, seen = {_key(start): 0}, [(start, text, info["available_actions"])]
    found: list[Situation] = []
    while len(found) < len(seen):
        state, text, actions = seen[len(found)]
        outcomes = {}
        for action in actions:
            environment.state = state
            after, reward, terminated, _, info = environment.step(action)
            if terminated:
                outcomes[action] = Outcome(float(reward), None)
                continue
            reached = {"fields": environment.state["fields"] | {"steps": 0}, "random": start["random"]}
            if _key(reached) not in known:
                known[_key(reached)] = len(seen)
                seen.append((reached, after, info["available_actions"]))
            outcomes[action] = Outcome(float(reward), known[_key(reached)])
        found.append(Situation(text, outcomes))
    return found


def _key(state: dict[str, Any]) -> Any:
    return state["fields"]["household_state"]


def follow(situations: Sequence[Situation], actions: Sequence[str]) -> int:
    """The situation that actions lead to from the first one."""
    at = 0
    for action in actions:
        after = situations[at].outcomes[action].after
        assert after is not None
        at = after
    return at


def exact_values(
    situations: Sequence[Situation],
    trees: Sequence[PrefixTree],
    log_probs: Sequence[np.ndarray],
    *,
    gamma: float,
    gamma_token: float,
) -> list[np.ndarray]:
    """Values of all prefixes under a policy, from its Bellman equations (arXiv 2405.15821, eqs. 9, 10 and 13, 14).

    Parameters
    ----------
    trees : sequence of PrefixTree
        The actions of each situation, in its order.
    log_probs : sequence of float arrays (K, L)
        Of each token of each action, given those before it.
    gamma, gamma_token : float
        Discount of a decision (γ_a) and of a token that is not its last (γ_w).

    Returns
    -------
    list of float64 arrays (M,)
        For each situation the values at the nodes of its tree, the root first.
    """
    count = len(situations)
    weights, constants = np.zeros((count, count)), np.zeros(count)
    lengths = [tree.mask.sum(1) for tree in trees]
    for i, situation in enumerate(situations):
        chances = np.exp(log_probs[i].sum(1)) * gamma_token ** (lengths[i] - 1)
        for chance, outcome in zip(chances, situation.outcomes.values(), strict=True):
            constants[i] += chance * outcome.reward
            if outcome.after is not None:
                weights[i, outcome.after] += chance * gamma
    roots = np.linalg.solve(np.eye(count) - weights, constants)

    values = []
    for i, situation in enumerate(situations):
        ends = np.array([worth_of(outcome, roots, gamma) for outcome in situation.outcomes.values()])
        nodes = np.zeros(len(trees[i].node_tokens))
        for k, end in enumerate(ends):
            for depth, node in enumerate(trees[i].path_nodes[k, : lengths[i][k]]):
                chance = np.exp(log_probs[i][k, depth : lengths[i][k]].sum())
                nodes[node] += chance * gamma_token ** (lengths[i][k] - 1 - depth) * end
        values.append(nodes)
    return values


def worth_of(outcome: Outcome, roots: np.ndarray, gamma: float) -> float:
    """Its reward, and the discounted value of what follows; ``roots`` are the values of all situations."""
    return outcome.reward + (0.0 if outcome.after is None else gamma * float(roots[outcome.after]))


def token_advantages(
    tree: PrefixTree, choice: int, nodes: np.ndarray, worth: float, *, gamma_token: float
) -> np.ndarray:
    """Advantage of each token of an action: what its own step gains over what was expected before it (λ = 0).

    ``nodes`` are the values at the tree's nodes, ``worth`` what the whole action is: its reward, and the discounted
    value of what follows.
    """
    path = tree.path_nodes[choice, : int(tree.mask[choice].sum())]
    after = np.append(gamma_token * nodes[path[1:]], worth)
    return after - nodes[path]
