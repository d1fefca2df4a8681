"""The algorithm that the POAD paper's figures call ARCHER, against its closed form; the frozen model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainers
from trainers.agents import agent_class
from trainers.credit import gae
from trainers.rollout import begin, collect

Envs = Callable[..., gym.vector.VectorEnv]


def test_its_values_discount_one_action_and_do_not_compound() -> None:
    """At V(o, w_<j) = γ_w^(n − j) Q(o, a) every one-step advantage is 0, where Q is the value of whole actions."""
    rng = np.random.default_rng(0)
    gamma, gamma_token, lengths = 0.9, 0.8, np.array([3, 1, 5, 2])
    rewards = rng.normal(size=4)
    q = np.array([sum(gamma ** (k - t) * rewards[k] for k in range(t, 4)) for t in range(4)])
    mask = np.arange(5) < lengths[:, None]
    exponents = np.where(mask, lengths[:, None] - 1 - np.arange(5), 0)
    values = np.where(mask, gamma_token**exponents * q[:, None], 0.0)[:, None]
    mask = mask[:, None]
    next_values = np.append(agent_class("adrl-archer").bootstrap_values(None, values, mask)[1:], [[0.0]], axis=0)
    ends = np.array([[False], [False], [False], [True]])
    credit = {"gamma": gamma, "gae_lambda": 0.0, "gamma_token": gamma_token, "gae_lambda_token": 0.0}
    advantages, _ = gae(rewards[:, None], values, mask, next_values, ends, **credit)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-12)
    naive, _ = gae(rewards[:, None], values, mask, np.append(values[1:, :, 0], [[0.0]], axis=0), ends, **credit)
    assert np.abs(naive).max() > 0.05  # NTPO has another fixed point


def test_it_is_ntpo_where_actions_have_one_token() -> None:
    values, mask = np.arange(6.0).reshape(3, 2, 1), np.ones((3, 2, 1), dtype=bool)
    adrl, ntpo = map(agent_class, ("adrl-archer", "ntpo"))
    np.testing.assert_array_equal(adrl.bootstrap_values(None, values, mask), ntpo.bootstrap_values(None, values, mask))


@pytest.mark.parametrize("name", ["adrl-archer", "frozen"])
def test_it_acts_and_learns_as_an_agent(name: str, make_envs: Envs) -> None:
    envs = make_envs(2)
    agent: Any = trainers.make(name, envs, seed=1)
    before = [parameter.clone() for parameter in agent.language_model.trainable_parameters()]
    metrics = agent.learn(collect(agent, envs, begin(envs, seed=0), 8, discount=0.99))
    unchanged = all(map(torch.equal, before, agent.language_model.trainable_parameters()))
    assert unchanged == (name == "frozen") == (metrics == {})
