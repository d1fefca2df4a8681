"""Which optimum each backup finds, checked exactly in small decision processes over words.

An action is a word; an agent writes it token by token. Value iteration over single tokens is
compared with value iteration over whole actions: without a discount inside an action (BAD;
arXiv:2405.15821, eqs. 13 and 14) the two optima are one; with it (NTPO; eqs. 9 to 12) long actions
look worse than they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

from trainers.credit import gae

ALPHABET = "abc"
END = "."  # the token that ends an action where words may begin one another
EXACT = 1e-10  # what value iteration and rounding leave

State = int
Word = str
Prefix = tuple[State, Word]
Policy = dict[State, Word]


@dataclass(frozen=True)
class Transition:
    """What an action leads to; what `chances` lack to 1 is the chance that the episode ends."""

    reward: float
    chances: np.ndarray  # (states,)


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache below
class WordMDP:
    """In each state, the available words and what they lead to."""

    actions: list[dict[Word, Transition]]

    @property
    def states(self) -> range:
        return range(len(self.actions))


def random_mdp(seed: int, *, deterministic: bool, end_token: bool, states: int = 4) -> WordMDP:
    """Draw words of 1 to 4 letters, prefix-free or with an end token behind each."""
    rng = np.random.default_rng(seed)
    all_words = ["".join(word) for n in range(1, 5) for word in product(ALPHABET, repeat=n)]
    actions = []
    for _ in range(states):
        # Weighted so that each length is as likely: words of four letters are far more numerous.
        weights = np.array([float(len(ALPHABET)) ** -len(word) for word in all_words])
        words = list(rng.choice(all_words, size=8, replace=False, p=weights / weights.sum()))
        if end_token:
            words = [word + END for word in words]
        else:
            words = [w for w in words if not any(w != v and w.startswith(v) for v in words)]
        transitions = {}
        for word in words:
            if deterministic:
                chances = np.eye(states + 1)[rng.integers(states + 1)]
            else:
                chances = rng.dirichlet(np.ones(states + 1))
            transitions[word] = Transition(rng.normal(), chances[:states])
        actions.append(transitions)
    return WordMDP(actions)


def best(candidates: dict[str, float]) -> str:
    return max(candidates, key=candidates.__getitem__)


# Whole actions


def action_value_iteration(mdp: WordMDP, gamma: float, gamma_token: float = 1.0) -> np.ndarray:
    """Iterate V(s) = max_a gamma_token^(|a| - 1) (r + gamma E V(s')) to its fixed point."""
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
    outcome = transition.reward + gamma * transition.chances @ values
    return float(gamma_token ** (len(word) - 1) * outcome)


def greedy_actions(mdp: WordMDP, values: np.ndarray, gamma: float) -> Policy:
    return {s: best({word: action_value(mdp, values, s, word, gamma) for word in mdp.actions[s]}) for s in mdp.states}


def evaluate(mdp: WordMDP, policy: Policy, gamma: float) -> np.ndarray:
    """Solve V = r + gamma P V, the value of a policy counted in whole actions."""
    chosen = [mdp.actions[s][policy[s]] for s in mdp.states]
    chances = np.array([transition.chances for transition in chosen])
    rewards = np.array([transition.reward for transition in chosen])
    return np.linalg.solve(np.eye(len(rewards)) - gamma * chances, rewards)


# Single tokens


@cache
def token_value_iteration(mdp: WordMDP, gamma: float, gamma_token: float) -> dict[Prefix, float]:
    """Iterate the token-level backup over every prefix of every available word."""
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
    """Back up from the token just written: to a longer prefix, or out of the action."""
    if written not in mdp.actions[state]:
        return gamma_token * values[state, written]
    transition = mdp.actions[state][written]
    expected = sum(transition.chances[s] * values[s, ""] for s in mdp.states)
    return transition.reward + gamma * float(expected)


def next_tokens(mdp: WordMDP, state: State, prefix: Word) -> list[str]:
    n = len(prefix)
    return sorted({word[n] for word in mdp.actions[state] if word[:n] == prefix})


def greedy_tokens(mdp: WordMDP, values: dict[Prefix, float], gamma: float, gamma_token: float) -> Policy:
    """Write a word in each state, the best token at a time."""
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
def test_bad_finds_the_values_of_the_action_level_optimum(mdp: WordMDP, gamma: float) -> None:
    optimum = action_value_iteration(mdp, gamma)
    values = token_value_iteration(mdp, gamma, gamma_token=1.0)
    np.testing.assert_allclose([values[s, ""] for s in mdp.states], optimum, rtol=0, atol=EXACT)


@every_mdp
@every_gamma
def test_bad_values_a_prefix_as_its_best_completion(mdp: WordMDP, gamma: float) -> None:
    optimum = action_value_iteration(mdp, gamma)
    for (s, prefix), value in token_value_iteration(mdp, gamma, gamma_token=1.0).items():
        completions = [word for word in mdp.actions[s] if word.startswith(prefix)]
        best = max(action_value(mdp, optimum, s, word, gamma) for word in completions)
        assert value == pytest.approx(best, rel=0, abs=EXACT)


@every_mdp
@every_gamma
def test_bad_writes_the_optimal_actions_greedily(mdp: WordMDP, gamma: float) -> None:
    optimum = action_value_iteration(mdp, gamma)
    values = token_value_iteration(mdp, gamma, gamma_token=1.0)
    policy = greedy_tokens(mdp, values, gamma, gamma_token=1.0)
    assert policy == greedy_actions(mdp, optimum, gamma)
    np.testing.assert_allclose(evaluate(mdp, policy, gamma), optimum, rtol=0, atol=EXACT)


# NTPO


@every_mdp
@pytest.mark.parametrize(("gamma", "gamma_token"), [(0.5, 0.5), (0.9, 0.9), (0.9, 0.7)])
def test_naive_backup_discounts_an_action_by_its_length(mdp: WordMDP, gamma: float, gamma_token: float) -> None:
    closed_form = action_value_iteration(mdp, gamma, gamma_token)
    values = token_value_iteration(mdp, gamma, gamma_token)
    np.testing.assert_allclose([values[s, ""] for s in mdp.states], closed_form, rtol=0, atol=EXACT)


@every_gamma
def test_naive_greedy_policy_is_never_better_and_often_worse(gamma: float) -> None:
    worse = 0
    for mdp in MDPS.values():
        optimum = action_value_iteration(mdp, gamma)
        values = token_value_iteration(mdp, gamma, gamma_token=gamma)
        policy = greedy_tokens(mdp, values, gamma, gamma_token=gamma)
        achieved = evaluate(mdp, policy, gamma)
        assert (achieved <= optimum + EXACT).all()
        worse += int((achieved < optimum - 0.01).any())
    assert worse >= len(MDPS) // 4


def test_naive_backup_prefers_a_short_bad_action_to_a_long_good_one() -> None:
    # Serving the dish as it is ("a") pays 1 and ends the episode. Cooking it ("bbbb") pays nothing
    # and leads to where serving ("a") pays 1.5. With gamma = 0.9, counted in actions:
    #     serve:       1                            cook, serve:  0.9 * 1.5         = 1.35
    # NTPO has three more discounts in "bbbb":      cook, serve:  0.9^3 * 1.35      = 0.98415 < 1
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


# The estimator under the optimal values


def play(
    mdp: WordMDP, policy: Policy, values: dict[Prefix, float], *, steps: int = 12
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Roll a deterministic MDP out, an environment for each first state, as gae takes it."""
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
            ends[t, n] = not transition.chances.any()
            state = n if ends[t, n] else int(transition.chances.argmax())
            next_values[t, n] = 0 if ends[t, n] else values[state, ""]
    return rewards, token_values, mask, next_values, ends


@every_deterministic_mdp
@pytest.mark.parametrize("gae_lambda", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("gae_lambda_token", [0.0, 0.8, 1.0])
def test_optimal_tokens_have_no_advantage_under_bad(mdp: WordMDP, gae_lambda: float, gae_lambda_token: float) -> None:
    values = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    policy = greedy_tokens(mdp, values, gamma=0.9, gamma_token=1.0)
    rollout = play(mdp, policy, values)
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
def test_a_token_is_blamed_for_what_it_forgoes_under_bad(mdp: WordMDP) -> None:
    values = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    optimum = action_value_iteration(mdp, gamma=0.9)
    policy = {s: max(mdp.actions[s]) for s in mdp.states}  # the last word of the alphabet
    rollout = play(mdp, policy, values, steps=1)
    blame, _ = gae(*rollout, gamma=0.9, gae_lambda=0, gamma_token=1, gae_lambda_token=0)
    assert (blame <= EXACT).all()
    forgone = [action_value(mdp, optimum, s, policy[s], 0.9) - optimum[s] for s in mdp.states]
    np.testing.assert_allclose(blame[0].sum(axis=-1), forgone, rtol=0, atol=EXACT)


@every_deterministic_mdp
def test_a_discount_inside_actions_finds_fault_with_optimal_tokens(mdp: WordMDP) -> None:
    values = token_value_iteration(mdp, gamma=0.9, gamma_token=1.0)
    policy = greedy_tokens(mdp, values, gamma=0.9, gamma_token=1.0)
    advantages, _ = gae(*play(mdp, policy, values), gamma=0.9, gae_lambda=1, gamma_token=0.9, gae_lambda_token=1)
    assert np.abs(advantages).max() > 0.01
