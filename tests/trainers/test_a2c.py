"""A2C of the documentation: its gradient is the one of an advantage actor-critic, computed here without our scoring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainers
from trainers import Rollout
from trainers.rollout import begin, collect

Envs = Callable[..., gym.vector.VectorEnv]
Tokens = tuple[int, ...]
NAME = "docs.examples.a2c:A2C"


def test_a2c_passes_check_agent() -> None:
    env = gym.make("Overcooked-tomato-salad-v0")
    trainers.check_agent(trainers.make(NAME, env, seed=1), env)


def test_a2c_learns_with_free_text(make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make(NAME, envs, sampling="free", max_action_tokens=8)
    metrics = agent.learn(collect(agent, envs, begin(envs, seed=0), 4, discount=0.99))
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["entropy"] > 0


@pytest.mark.parametrize("tokens_per_forward", [16384, 200], ids=["one group", "several groups"])
def test_gradient_is_that_of_advantage_actor_critic(tokens_per_forward: int, make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make(NAME, envs, seed=2, max_grad_norm=1e9, tokens_per_forward=tokens_per_forward)
    state = begin(envs, seed=0)
    agent.learn(collect(agent, envs, state, 8, discount=0.99))  # the adapter begins without effect
    torch.nn.init.normal_(agent.critic[-1].weight)
    rollout = collect(agent, envs, state, 8, discount=0.99)
    expected = torch.autograd.grad(loss(agent, rollout), agent.adapter)
    agent.learn(rollout)
    assert max(gradient.abs().max() for gradient in expected) > 1e-3
    for parameter, gradient in zip(agent.adapter, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def loss(agent: Any, rollout: Rollout) -> torch.Tensor:
    """Return −Σ A log π / number of tokens − 0.01 · mean entropy. Every text is a forward pass of its own."""
    log_probs, entropies, weights = [], [], []
    for n in range(rollout.rewards.shape[1]):
        records = [row[n].record for row in rollout.actions]
        for record in records:
            prompt, candidates = record.query.prompt, record.query.tree.candidates
            each = [token_log_probs(agent, prompt, candidates, candidate) for candidate in candidates]
            of_actions = torch.stack([own.sum() for own in each])
            entropies.append(-(of_actions.exp() * of_actions).sum())
            log_probs.append(each[record.choice])
        weights += token_advantages(agent, rollout, n, records)
    advantages = np.array(weights)
    advantages = (advantages - advantages.mean()) / max(advantages.std(), 0.05)
    chosen = torch.cat(log_probs)
    assert len(chosen) == len(advantages)
    return -(torch.from_numpy(advantages).float() * chosen).sum() / len(chosen) - 0.01 * torch.stack(entropies).mean()


def token_log_probs(agent: Any, prompt: Tokens, candidates: Sequence[Tokens], action: Tokens) -> torch.Tensor:
    """Return the log-probability of each token of an action among the tokens that continue a candidate."""
    logits = agent.language_model.model(input_ids=torch.tensor([[*prompt, *action]])).logits[0]
    log_probs = []
    for j, token in enumerate(action):
        allowed = sorted({other[j] for other in candidates if other[:j] == action[:j]})
        distribution = logits[len(prompt) - 1 + j, allowed].log_softmax(-1)
        log_probs.append(distribution[allowed.index(token)])
    return torch.stack(log_probs)


def token_advantages(agent: Any, rollout: Rollout, n: int, records: list[Any]) -> list[float]:
    """Return the advantages of all tokens of environment n, in order: POAD's equations, one token after the other."""

    def values(prompt: Tokens, action: Tokens) -> list[float]:
        with torch.no_grad(), agent.language_model.model.disable_adapter():
            inputs = torch.tensor([[*prompt, *action]])
            hidden = agent.language_model.model(input_ids=inputs, output_hidden_states=True).hidden_states[-1][0]
            return agent.critic(hidden[len(prompt) - 1 :])[:, 0].tolist()

    following = values(agent.prompt(rollout.last_observations[n]), ())[0]
    later = 0.0  # the advantage of the next action's first token
    reversed_advantages = []
    for t in reversed(range(len(records))):
        if rollout.terminated[t, n]:
            following = later = 0.0
        gamma = 0.99 ** rollout.durations[t, n]
        before = values(records[t].query.prompt, records[t].tokens[:-1])  # of each token
        after = [*before[1:], rollout.rewards[t, n] + gamma * following]
        decays = [*[1.0] * (len(before) - 1), gamma * 0.95]
        for j in reversed(range(len(before))):
            later = after[j] - before[j] + decays[j] * later
            reversed_advantages.append(later)
        following = before[0]
    return reversed_advantages[::-1]
