"""Critic-free agents: episodes that span rollouts, exact resume, and what each learns from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import lang_envs
import trainers
from trainers.groups import normalised
from trainers.rollout import begin, collect

Envs = Callable[..., gym.vector.VectorEnv]
NAMES = ("reinforce", "grpo", "rloo", "gigpo")


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_learns_a_chain(name: str, make_chains: Envs) -> None:
    envs = make_chains(16)
    agent = trainers.make(name, envs, seed=0, actor_lr=3e-3, kl_threshold=None)
    lines = trainers.train(agent, envs, 16 * 6 * 20, rollout_steps=6)
    first, last = lines[0]["return"], lines[-1]["return"]
    assert first < 0.4 and last > 0.9 * 0.9**4


def test_returns_count_the_environments_time_or_not(make_chains: Envs) -> None:
    found = []
    for discounted in (True, False):
        envs = make_chains(8)
        agent = trainers.make("grpo", envs, seed=1, discount_returns=discounted)
        seen: list[np.ndarray] = []
        agent.advantages = lambda to_go, prompts, seen=seen: seen.extend(to_go) or np.zeros(sum(map(len, to_go)))
        rollout = collect(agent, envs, begin(envs, seed=0), 3, discount=0.9)
        agent.learn(rollout)
        found.append((sorted(own[0] for own in seen), rollout))
    (discounted_returns, rollout), (sums, _) = found
    expected = sorted(episode.discounted_return for episode in rollout.episodes)
    np.testing.assert_allclose(discounted_returns, expected)
    assert sums == sorted(episode.total_reward for episode in rollout.episodes)


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_episodes_are_whole_however_rollouts_cut_them(cut: int, make_chains: Envs) -> None:
    """Actions are taken by one policy (learning rate ~0), so that credit must not depend on the cuts."""
    found = []
    for steps in (6, cut):
        envs = make_chains(4)
        agent = trainers.make("reinforce", envs, seed=2, actor_lr=1e-30)
        lengths: list[int] = []
        agent.advantages = lambda to_go, prompts, lengths=lengths: (
            lengths.extend(map(len, to_go)) or np.zeros(sum(map(len, to_go)))
        )
        state = begin(envs, seed=0)
        for _ in range(30 // steps):
            agent.learn(collect(agent, envs, state, steps, discount=0.9))
        found.append(lengths)
    assert found[0] == found[1] == [3] * 40


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_run_has_the_same_metrics(name: str, tmp_path: Path, make_chains: Envs) -> None:
    def run(folder: str, *totals: int) -> list[dict[str, Any]]:
        lines = []
        for i, total in enumerate(totals):
            envs = make_chains(4)
            agent = trainers.make(name, envs, seed=3, actor_lr=1e-3)
            lines += trainers.train(agent, envs, total, run_dir=tmp_path / folder, rollout_steps=4, resume=i > 0)
        return [{k: v for k, v in line.items() if k != "timing"} for line in lines]

    assert run("whole", 80) == run("cut", 32, 80)  # rollouts of 4 steps cut episodes of 3


def test_without_a_finished_episode_nothing_is_learnt(make_chains: Envs) -> None:
    envs = make_chains(2)
    agent = trainers.make("grpo", envs, seed=4)
    before = [parameter.clone() for parameter in agent.adapter]
    assert agent.learn(collect(agent, envs, begin(envs, seed=0), 2, discount=0.9)) == {"finished_episodes": 0.0}
    assert all(map(torch.equal, before, agent.adapter))


def test_equal_returns_move_the_policy_by_the_entropy_bonus_alone(make_chains: Envs) -> None:
    envs = make_chains(4)
    agent = trainers.make("grpo", envs, seed=5, entropy_coefficient=0.0, actor_lr=0.1)
    before = [parameter.clone() for parameter in agent.adapter]
    rollout = collect(agent, envs, begin(envs, seed=0), 3, discount=0.9)
    rollout.rewards[:] = 0.0
    assert agent.learn(rollout)["equal_returns"] == 1.0
    assert all(map(torch.equal, before, agent.adapter))


def test_grpo_gives_all_tokens_of_an_episode_its_normalised_return(make_chains: Envs) -> None:
    envs = make_chains(8)
    agent = trainers.make("grpo", envs, seed=6)
    batches = []
    agent.update = lambda batch: batches.append(batch) or {}
    rollout = collect(agent, envs, begin(envs, seed=0), 3, discount=0.9)
    rollout.rewards[-1] = np.arange(8)
    agent.learn(rollout)
    (batch,) = batches
    returns = np.arange(8) * 0.9**4  # two steps of two units of time
    expected = np.repeat(normalised(returns, 0.05), 3)
    mask = batch.mask.numpy()
    assert mask.sum() == sum(len(record.tokens) for record in batch.records)
    for advantages, row, value in zip(batch.advantages.numpy(), mask, expected, strict=True):
        np.testing.assert_allclose(advantages[row], value, rtol=1e-6)
        assert not advantages[~row].any()


@pytest.mark.parametrize("name", NAMES)
def test_free_text_is_learnt_from(name: str) -> None:
    pytest.importorskip("sklearn")
    envs = lang_envs.make_vec("DataSciCoding-balance-scale-v0", 4)
    agent = trainers.make(name, envs, seed=1, max_action_tokens=24, epochs=1, minibatches=2)
    state = begin(envs, seed=0)
    for _ in range(3):
        metrics = agent.learn(collect(agent, envs, state, 2, discount=0.95))
        assert np.isfinite(list(metrics.values())).all()
    envs.close()
