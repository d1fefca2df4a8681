"""What the fast way is timed beside must be the same agent, or its speed says nothing."""

from __future__ import annotations

import numpy as np
import pytest

import lang_envs
from benchmarks.presets import preset_settings
from benchmarks.throughput.large import SHAPES, NaivePOAD, parameters_of_layers
from benchmarks.throughput.scoring import naive_features
from trainers.agents.poad import POAD
from trainers.rollout import begin, collect

ENVIRONMENT = "Overcooked-tomato-lettuce-salad-v0"


def test_the_naive_agent_decides_and_values_as_the_fast_one_does() -> None:
    envs = lang_envs.make_vec(ENVIRONMENT, 2)
    settings = preset_settings("paper", ENVIRONMENT, "poad") | {"lora_targets": ("all-linear",)}
    fast, naive = (kind(envs, **settings) for kind in (POAD, NaivePOAD))
    for value in (fast.policy.critic, naive.policy.critic):
        value[-1].weight.data.fill_(0.05)  # an untrained critic says 0 of everything
    found = [collect(agent, envs, begin(envs, seed=3), 12, discount=1.0) for agent in (fast, naive)]
    assert np.array_equal(*(rollout.rewards for rollout in found))
    for ours, theirs in zip(*(rollout.actions for rollout in found), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.token_ids == b.token_ids
            before, after = a.record.output, b.memory.output
            assert before.token_log_probs == pytest.approx(after.token_log_probs, abs=1e-4)
            assert before.action_log_probs == pytest.approx(after.action_log_probs, abs=1e-4)
    taken = [d.record for row in found[0].actions for d in row]
    rows = [(memory.query[0], memory.tokens) for memory in taken]
    features = naive_features(naive.language_model, rows)
    values = naive.policy.critic(features)[..., 0].detach().numpy()
    asked = fast.policy.values([memory.query for memory in taken])
    for memory, own, others in zip(taken, asked, values, strict=True):
        nodes = memory.query[1].path_nodes[memory.choice, : memory.length]
        assert own[nodes] == pytest.approx(others[: memory.length], abs=1e-4)
    ours, theirs = (agent._batch(rollout) for agent, rollout in zip((fast, naive), found, strict=True))
    assert ours.advantages.numpy() == pytest.approx(theirs.advantages.numpy(), abs=1e-3)
    assert np.isfinite(naive.learn(found[1])["policy_loss"])


def test_the_large_shape_is_that_of_llama_2() -> None:
    """32 layers of 4 · 4096² + 3 · 4096 · 11008 + 2 · 4096 numbers (arXiv 2307.09288)."""
    assert parameters_of_layers(SHAPES["7b"]) == 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
