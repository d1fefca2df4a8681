"""Critic-free credit against plain loops, identities, and exact gradients of enumerated decision processes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trainers.credit import gae
from trainers.groups import against_same_observation, leave_one_out, normalised, returns_to_go


def test_returns_to_go_are_gae_without_a_critic() -> None:
    rng = np.random.default_rng(0)
    rewards, discounts = rng.normal(size=7), rng.random(7)
    zeros = np.zeros((7, 1))
    ends = zeros.astype(bool)
    ends[-1] = True
    advantages, _ = gae(
        rewards[:, None],
        zeros[..., None],
        np.ones((7, 1, 1), bool),
        zeros,
        ends,
        gamma=discounts[:, None],
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(returns_to_go(rewards, discounts), advantages[:, 0, 0], atol=1e-12)
    by_hand = [sum(np.prod(discounts[t:k]) * rewards[k] for k in range(t, 7)) for t in range(7)]
    np.testing.assert_allclose(returns_to_go(rewards, discounts), by_hand, atol=1e-12)


def test_leave_one_out_is_the_difference_to_the_mean_of_the_others() -> None:
    returns = np.array([0.0, 1.0, 0.25, 4.0])
    expected = [r - np.mean(np.delete(returns, i)) for i, r in enumerate(returns)]
    np.testing.assert_allclose(leave_one_out(returns), expected, atol=1e-12)
    # RLOO = G / (G − 1) × (R − mean), which is Dr. GRPO's advantage
    np.testing.assert_allclose(leave_one_out(returns), 4 / 3 * (returns - returns.mean()), atol=1e-12)
    assert leave_one_out(np.array([3.0])).tolist() == [0.0]


def test_normalised_returns_of_two_episodes_are_plus_and_minus_one() -> None:
    assert normalised(np.array([0.0, 1.0]), 0.05).tolist() == [-1.0, 1.0]
    np.testing.assert_allclose(normalised(np.array([0.0, 1.0]) + 7, 0.05), [-1.0, 1.0])
    assert not normalised(np.zeros(5), 0.05).any()
    assert not normalised(np.full(5, 3.0), 0.0).any()
    small = normalised(np.array([0.0, 0.001]), 0.05)
    assert np.abs(small).max() == pytest.approx(0.01)  # the floor: noise stays small


def test_a_permutation_of_episodes_permutes_credit() -> None:
    rng = np.random.default_rng(1)
    returns, order = rng.normal(size=6), rng.permutation(6)
    for function in (leave_one_out, lambda r: normalised(r, 0.05)):
        np.testing.assert_allclose(function(returns[order]), function(returns)[order])


def test_observations_are_compared_with_other_episodes_only() -> None:
    rng = np.random.default_rng(2)
    observations = [int(x) for x in rng.integers(3, size=20)]
    episodes = np.sort(rng.integers(4, size=20))
    returns = rng.normal(size=20)
    expected = []
    for i in range(20):
        others = [returns[k] for k in range(20) if observations[k] == observations[i] and episodes[k] != episodes[i]]
        expected.append(returns[i] - np.mean(others) if others else 0.0)
    np.testing.assert_allclose(against_same_observation(returns, observations, episodes), expected, atol=1e-12)


def bandit_paths() -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]], np.ndarray]:
    """Two steps of two actions each under a softmax policy per state: probabilities, scores, paths, rewards.

    The first action leads to state 1 or 2. Scores are the gradients of log π of each path's two steps with respect to
    the six logits: (4, 2, 6).
    """
    logits = np.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.8])
    policy = {s: np.exp(logits[2 * s : 2 * s + 2]) / np.exp(logits[2 * s : 2 * s + 2]).sum() for s in range(3)}
    paths = list(itertools.product(range(2), range(2)))
    probabilities, scores = [], np.zeros((4, 2, 6))
    for i, (a, b) in enumerate(paths):
        second = 1 + a
        probabilities.append(policy[0][a] * policy[second][b])
        for step, (state, action) in enumerate([(0, a), (second, b)]):
            scores[i, step, 2 * state : 2 * state + 2] = np.eye(2)[action] - policy[state]
    rewards = np.array([[0.2, 1.0], [0.2, -0.5], [0.0, 0.3], [0.0, 2.0]])
    return np.array(probabilities), scores, paths, rewards


def exact_gradient() -> np.ndarray:
    probabilities, scores, _, rewards = bandit_paths()
    return np.einsum("p,p,psl->l", probabilities, rewards.sum(1), scores)


def mean_over_groups(credit: str, size: int) -> np.ndarray:
    """The expected estimate, with γ = 1: enumerate all groups of independent episodes."""
    probabilities, scores, _, rewards = bandit_paths()
    total = np.zeros(6)
    for group in itertools.product(range(4), repeat=size):
        chance = np.prod(probabilities[list(group)])
        to_go = np.array([returns_to_go(rewards[i], np.ones(2)) for i in group])
        if credit == "rloo":
            advantages = np.repeat(leave_one_out(to_go[:, 0])[:, None], 2, axis=1)
        else:
            first, second = zip(*(bandit_paths()[2][i] for i in group), strict=True)
            states = [state for a in first for state in (0, 1 + a)]
            episodes = np.repeat(np.arange(size), 2)
            advantages = against_same_observation(to_go.ravel(), states, episodes).reshape(size, 2)
            # where no other episode met the state, the plain return is unbiased
            alone = [
                [
                    len({e for s, e in zip(states, episodes, strict=True) if s == states[2 * i + k]}) == 1
                    for k in range(2)
                ]
                for i in range(size)
            ]
            advantages = np.where(alone, to_go, advantages)
            assert len(second) == size
        estimate = np.einsum("gs,gsl->l", advantages, scores[list(group)]) / size
        total += chance * estimate
    return total


@pytest.mark.parametrize("credit", ["rloo", "same observation"])
def test_estimates_are_unbiased(credit: str) -> None:
    np.testing.assert_allclose(mean_over_groups(credit, 3), exact_gradient(), atol=1e-12)
