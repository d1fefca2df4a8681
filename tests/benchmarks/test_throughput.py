"""The naive agent, whose speed is compared, is the same agent."""

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


def test_the_naive_agent_has_the_same_actions_values_and_advantages() -> None:
    envs = lang_envs.make_vec(ENVIRONMENT, 2)
    settings = preset_settings("paper", ENVIRONMENT, "poad") | {"lora_targets": ("all-linear",)}
    fast, naive = (kind(envs, **settings) for kind in (POAD, NaivePOAD))
    for critic in (fast.critic, naive.critic):
        critic[-1].weight.data.fill_(0.05)  # the values of an untrained critic are 0
    found = [collect(agent, envs, begin(envs, seed=3), 12, discount=1.0) for agent in (fast, naive)]
    assert np.array_equal(*(rollout.rewards for rollout in found))
    for ours, theirs in zip(*(rollout.actions for rollout in found), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.token_ids == b.token_ids
            before, after = a.record.output, b.record.output
            assert before.token_log_probs == pytest.approx(after.token_log_probs, abs=1e-4)
            assert before.action_log_probs == pytest.approx(after.action_log_probs, abs=1e-4)
    taken = [action.record for row in found[0].actions for action in row]
    rows = [(record.query.prompt, record.tokens) for record in taken]
    features = naive_features(naive.language_model, rows)
    values = naive.critic(features)[..., 0].detach().numpy()
    asked = fast.values([record.query for record in taken])
    for record, own, others in zip(taken, asked, values, strict=True):
        length = len(record.tokens)
        nodes = record.query.tree.path_nodes[record.choice, :length]
        assert own[nodes] == pytest.approx(others[:length], abs=1e-4)
    ours, theirs = (agent.assign_credit(rollout) for agent, rollout in zip((fast, naive), found, strict=True))
    assert ours.advantages.numpy() == pytest.approx(theirs.advantages.numpy(), abs=1e-3)
    assert np.isfinite(naive.learn(found[1])["policy_loss"])


def test_the_large_shape_is_that_of_llama_2() -> None:
    """32 layers of 4 · 4096² + 3 · 4096 · 11008 + 2 · 4096 numbers (arXiv 2307.09288)."""
    assert parameters_of_layers(SHAPES["7b"]) == 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
