"""Optima of token-level backups, computed exactly in small Markov decision processes (MDPs) whose actions are words.

Value iteration over single tokens is compared with value iteration over whole actions. Without a discount inside an
action (Bellman backup with action decomposition, BAD; arXiv 2405.15821, eqs. 13 and 14), both have the same optimum.
With one (NTPO; eqs. 9 to 12), long actions are undervalued.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

from trainers.credit import gae

ALPHABET = "abc"
END = "."  # the token that ends an action if words may be prefixes of others
EXACT = 1e-10  # tolerance for rounding and the remaining error of value iteration

State = int
Word = str
Prefix = tuple[State, Word]
Policy = dict[State, Word]


@dataclass(frozen=True)
class Transition:
    """Reward of an action, and the probability of each next state; the rest to 1 is that of termination."""

    reward: float
    probabilities: np.ndarray  # (states,)


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache below
class WordMDP:
    """The available words of each state and their transitions."""

    actions: list[dict[Word, Transition]]

    @property
    def states(self) -> range:
        return range(len(self.actions))


def random_mdp(seed: int, *, deterministic: bool, end_token: bool, states: int = 4) -> WordMDP:
    """Return an MDP with random words of 1 to 4 letters, which are prefix-free or followed by an end token."""
    rng = np.random.default_rng(seed)
    all_words = ["".join(word) for n in range(1, 5) for word in product(ALPHABET, repeat=n)]
    actions = []
    for _ in range(states):
        # Weighted so that each length is equally likely, although most words have four letters.
        weights = np.array([float(len(ALPHABET)) ** -len(word) for word in all_words])
        words = list(rng.choice(all_words, size=8, replace=False, p=weights / weights.sum()))
        if end_token:
            words = [word + END for word in words]
        else:
            words = [w for w in words if not any(w != v and w.startswith(v) for v in words)]
        transitions = {}
        for word in words:
            if deterministic:
                probabilities = np.eye(states + 1)[rng.integers(states + 1)]
            else:
                probabilities = rng.dirichlet(np.ones(states + 1))
            transitions[word] = Transition(rng.normal(), probabilities[:states])
        actions.append(transitions)
    return WordMDP(actions)


def best(candidates: dict[str, float]) -> str:
    return max(candidates, key=candidates.__getitem__)


# Whole actions


def action_value_iteration(mdp: WordMDP, gamma: float, gamma_token: float = 1.0) -> np.ndarray:
    """Return the fixed point of V(s) = max_a gamma_token^(|a| - 1) (r + gamma E V(s'))."""
    values = np.zeros(len(mdp.states))
    while True:
        backup = np.array(
            [max(action_value(mdp, values, s, w, gamma, gamma_token) for w in mdp.actions[s]) for s in mdp.states]
        )
        if np.abs(backup - values).max() < EXACT / 1000:
            return backup
        values = backup


def action_value(
    mdp: WordMDP,
    values: np.ndarray,
    state: State,
    word: Word,
    gamma: float,
    gamma_token: float = 1.0,
) -> float:
    transition = mdp.actions[state][word]
    outcome = transition.reward + gamma * transition.probabilities @ values
    return float(gamma_token ** (len(word) - 1) * outcome)


def greedy_actions(mdp: WordMDP, values: np.ndarray, gamma: float) -> Policy:
    return {s: best({word: action_value(mdp, values, s, word, gamma) for word in mdp.actions[s]}) for s in mdp.states}


def evaluate(mdp: WordMDP, policy: Policy, gamma: float) -> np.ndarray:
    """Return the action-level value of a policy: the solution of V = r + gamma P V."""
    chosen = [mdp.actions[s][policy[s]] for s in mdp.states]
    probabilities = np.array([transition.probabilities for transition in chosen])
    rewards = np.array([transition.reward for transition in chosen])
    return np.linalg.solve(np.eye(len(rewards)) - gamma * probabilities, rewards)


# Single tokens


@cache
def token_value_iteration(mdp: WordMDP, gamma: float, gamma_token: float) -> dict[Prefix, float]:
    """Return the fixed point of the token-level backup: the value of every prefix of every available word."""
    values = {(s, w[:n]): 0.0 for s in mdp.states for w in mdp.actions[s] for n in range(len(w))}
    while True:
        backup = {
            (s, prefix): max(
                token_value(mdp, values, s, prefix + token, gamma, gamma_token) for token in next_tokens(mdp, s, prefix)
            )
            for s, prefix in values
        }
        if max(abs(backup[prefix] - values[prefix]) for prefix in values) < EXACT / 1000:
            return backup
        values = backup


def token_value(
    mdp: WordMDP,
    values: dict[Prefix, float],
    state: State,
    written: Word,
    gamma: float,
    gamma_token: float,
) -> float:
    """Return the backup of the last token of ``written``: the value of the prefix, or of the complete action."""
    if written not in mdp.actions[state]:
        return gamma_token * values[state, written]
    transition = mdp.actions[state][written]
    expected = sum(transition.probabilities[s] * values[s, ""] for s in mdp.states)
    return transition.reward + gamma * float(expected)


def next_tokens(mdp: WordMDP, state: State, prefix: Word) -> list[str]:
    n = len(prefix)
    return sorted({word[n] for word in mdp.actions[state] if word[:n] == prefix})


def greedy_tokens(mdp: WordMDP, values: dict[Prefix, float], gamma: float, gamma_token: float) -> Policy:
    """Return the word of each state that consists of the best token at each prefix."""
    policy = {}
    for s in mdp.states:
        word = ""
        while word not in mdp.actions[s]:
            word += best(
                {
                    token: token_value(mdp, values, s, word + token, gamma, gamma_token)
                    for token in next_tokens(mdp, s, word)
                }
            )
        policy[s] = word
    return policy


MDPS = {
    f"{dynamics}-{ending}-{seed}": random_mdp(
        seed, deterministic=dynamics == "deterministic", end_token=ending == "end token"
    )
    for dynamics in ("deterministic", "stochastic")
    for ending in ("prefix-free", "end token")
    for seed in range(3)
}
DETERMINISTIC_MDPS = {name: mdp for name, mdp in MDPS.items() if name.startswith("deterministic")}
every_mdp = pytest.mark.parametrize("mdp", MDPS.values(), ids=MDPS)
every_deterministic_mdp = pytest.mark.parametrize("mdp", DETERMINISTIC_MDPS.values(), ids=DETERMINISTIC_MDPS)
every_gamma = pytest.mark.parametrize("gamma", [0.5, 0.9])


# BAD


@every_mdp
@every_gamma
def test_bad_values_equal_the_action_level_optimum(mdp: WordMDP, gamma: float) -> None:
    optimum = action_value_iteration(mdp, gamma)
    values = token_value_iteration(mdp, gamma, gamma_token=1.0)
    np.testing.assert_allclose([values[s, ""] for s in mdp.states], optimum, rtol=0, atol=EXACT)


@every_mdp
@every_gamma
def test_bad_value_of_a_prefix_is_that_of_its_best_completion(mdp: WordMDP, gamma: float) -> None:
    optimum = action_value_iteration(mdp, gamma)
    for (s, prefix), value in token_value_iteration(mdp, gamma, gamma_token=1.0).items():
        completions = [word for word in mdp.actions[s] if word.startswith(prefix)]
        best = max(action_value(mdp, optimum, s, word, gamma) for word in completions)
        assert value == pytest.approx(best, rel=0, abs=EXACT)


@every_mdp
@every_gamma
def test_bad_greedy_tokens_give_the_optimal_actions(mdp: WordMDP, gamma: float) -> None:
    optimum = action_value_iteration(mdp, gamma)
    values = token_value_iteration(mdp, gamma, gamma_token=1.0)
    policy = greedy_tokens(mdp, values, gamma, gamma_token=1.0)
    assert policy == greedy_actions(mdp, optimum, gamma)
    np.testing.assert_allclose(evaluate(mdp, policy, gamma), optimum, rtol=0, atol=EXACT)


# NTPO


@every_mdp
@pytest.mark.parametrize(("gamma", "gamma_token"), [(0.5, 0.5), (0.9, 0.9), (0.9, 0.7)])
def test_ntpo_backup_discounts_an_action_by_its_length(mdp: WordMDP, gamma: float, gamma_token: float) -> None:
    closed_form = action_value_iteration(mdp, gamma, gamma_token)
    values = token_value_iteration(mdp, gamma, gamma_token)
    np.testing.assert_allclose([values[s, ""] for s in mdp.states], closed_form, rtol=0, atol=EXACT)


@every_gamma
def test_ntpo_greedy_policy_is_never_better_and_often_worse(gamma: float) -> None:
    worse = 0
    for mdp in MDPS.values():
        optimum = action_value_iteration(mdp, gamma)
        values = token_value_iteration(mdp, gamma, gamma_token=gamma)
        policy = greedy_tokens(mdp, values, gamma, gamma_token=gamma)
        achieved = evaluate(mdp, policy, gamma)
        assert (achieved <= optimum + EXACT).all()
        worse += int((achieved < optimum - 0.01).any())
    assert worse >= len(MDPS) // 4


def test_ntpo_prefers_a_short_worse_action_to_a_long_better_one() -> None:
    # Serving the dish at once ("a") has reward 1 and ends the episode. Cooking it ("bbbb") has reward 0 and leads to a
    # state in which serving ("a") has reward 1.5. With gamma = 0.9, the action-level values are:
    #     serve:       1                            cook, serve:  0.9 * 1.5         = 1.35
    # NTPO discounts three more times in "bbbb":    cook, serve:  0.9^3 * 1.35      = 0.98415 < 1
    end, cooked = np.array([0.0, 0.0]), np.array([0.0, 1.0])
    mdp = WordMDP(
        [
            {"a": Transition(1.0, end), "bbbb": Transition(0.0, cooked)},
            {"a": Transition(1.5, end)},
        ]
    )
    bad = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    naive = token_value_iteration(mdp, gamma=0.9, gamma_token=0.9)
    assert bad[0, ""] == pytest.approx(1.35)
    assert naive[0, ""] == pytest.approx(1.0)
    assert 0.9 * naive[0, "b"] == pytest.approx(0.98415)

    bad_policy = greedy_tokens(mdp, bad, gamma=0.9, gamma_token=1.0)
    naive_policy = greedy_tokens(mdp, naive, gamma=0.9, gamma_token=0.9)
    assert bad_policy == {0: "bbbb", 1: "a"}
    assert naive_policy == {0: "a", 1: "a"}
    np.testing.assert_allclose(evaluate(mdp, bad_policy, gamma=0.9), [1.35, 1.5])
    np.testing.assert_allclose(evaluate(mdp, naive_policy, gamma=0.9), [1.0, 1.5])


# GAE with the optimal values


def rollout_of(
    mdp: WordMDP, policy: Policy, values: dict[Prefix, float], *, steps: int = 12
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a rollout of a deterministic MDP, with one environment for each first state: the arguments of ``gae``."""
    shape = (steps, len(mdp.states))
    rewards, next_values, ends = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    length = max(map(len, policy.values()))
    token_values = np.full((*shape, length), np.nan)
    mask = np.zeros((*shape, length), dtype=bool)
    for n in mdp.states:
        state = n
        for t in range(steps):
            word = policy[state]
            transition = mdp.actions[state][word]
            token_values[t, n, : len(word)] = [values[state, word[:j]] for j in range(len(word))]
            mask[t, n, : len(word)] = True
            rewards[t, n] = transition.reward
            ends[t, n] = not transition.probabilities.any()
            state = n if ends[t, n] else int(transition.probabilities.argmax())
            next_values[t, n] = 0 if ends[t, n] else values[state, ""]
    return rewards, token_values, mask, next_values, ends


@every_deterministic_mdp
@pytest.mark.parametrize("gae_lambda", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("gae_lambda_token", [0.0, 0.8, 1.0])
def test_bad_advantages_of_optimal_tokens_are_zero(mdp: WordMDP, gae_lambda: float, gae_lambda_token: float) -> None:
    values = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    policy = greedy_tokens(mdp, values, gamma=0.9, gamma_token=1.0)
    rollout = rollout_of(mdp, policy, values)
    advantages, returns = gae(
        *rollout,
        gamma=0.9,
        gae_lambda=gae_lambda,
        gamma_token=1.0,
        gae_lambda_token=gae_lambda_token,
    )
    np.testing.assert_allclose(advantages, 0, atol=EXACT)
    _, token_values, mask, _, _ = rollout
    np.testing.assert_allclose(returns[mask], token_values[mask], atol=EXACT)


@every_deterministic_mdp
def test_bad_token_advantages_sum_to_the_action_advantage(mdp: WordMDP) -> None:
    values = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    optimum = action_value_iteration(mdp, gamma=0.9)
    policy = {s: max(mdp.actions[s]) for s in mdp.states}  # the last word in alphabetical order
    rollout = rollout_of(mdp, policy, values, steps=1)
    advantages, _ = gae(*rollout, gamma=0.9, gae_lambda=0, gamma_token=1, gae_lambda_token=0)
    assert (advantages <= EXACT).all()
    action_advantages = [action_value(mdp, optimum, s, policy[s], 0.9) - optimum[s] for s in mdp.states]
    np.testing.assert_allclose(advantages[0].sum(axis=-1), action_advantages, rtol=0, atol=EXACT)


@every_deterministic_mdp
def test_discount_inside_actions_gives_optimal_tokens_nonzero_advantage(mdp: WordMDP) -> None:
    values = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    policy = greedy_tokens(mdp, values, gamma=0.9, gamma_token=1.0)
    advantages, _ = gae(*rollout_of(mdp, policy, values), gamma=0.9, gae_lambda=1, gamma_token=0.9, gae_lambda_token=1)
    assert np.abs(advantages).max() > 0.01
