"""Q-learning over tokens: backups against recursion, the token level against the action level, replay and resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import lang_envs
import trainers
from trainers.agents.dqn import DQN
from trainers.agents.soft_q import SoftQ
from trainers.replay import Trees
from trainers.rollout import begin, collect

Envs = Callable[..., gym.vector.VectorEnv]
PHRASES = ("get the tomato", "get the bowl", "go to the cutting board", "go to the delivery counter", "chop")


def agent_and_trees(name: str, make_envs: Envs, **settings: Any) -> tuple[Any, Trees, torch.Tensor]:
    """An agent, the trees of two queries, and random float64 Q of their edges."""
    envs = make_envs(2)
    agent = trainers.make(name, envs, seed=1, **settings)
    observations, _ = envs.reset(seed=0)
    numbers = agent.table.numbers([agent.query(observations[0], PHRASES), agent.query(observations[1], PHRASES[1:])])
    trees = agent.table.trees(numbers)
    trees = trees._replace(prior=trees.prior.double())
    q = torch.from_numpy(np.random.default_rng(0).normal(size=len(trees.tokens)) * 0.05)
    return agent, trees, q


def children(trees: Trees) -> dict[int, int]:
    """The node after each inner edge."""
    after = {}
    for path in trees.paths.tolist():
        edges = [edge for edge in path if edge >= 0]
        for edge, following in itertools.pairwise(edges):
            after[edge] = int(trees.nodes[following])
    return after


def values_by_recursion(trees: Trees, q: torch.Tensor, value: Callable[[Any, Any], float]) -> dict[int, float]:
    """V of each node, one token at a time from the end: ``value(log ρ, Q)`` of its edges."""
    after, edges_of = children(trees), {}
    for edge, node in enumerate(trees.nodes.tolist()):
        edges_of.setdefault(node, []).append(edge)

    def of(node: int) -> float:
        own = edges_of[node]
        below = [of(after[edge]) if edge in after else float(q[edge]) for edge in own]
        return value(trees.prior[own].numpy(), np.array(below))

    return {node: of(node) for node in edges_of}


@pytest.mark.parametrize("beta", [0.003, 0.05, 1.0])
def test_collapsed_backups_are_those_of_one_token_at_a_time(beta: float, make_envs: Envs) -> None:
    agent, trees, q = agent_and_trees("softq", make_envs, beta=beta)

    def soft(prior: Any, below: Any) -> float:
        largest = (prior + below / beta).max()
        return float(beta * (largest + np.log(np.exp(prior + below / beta - largest).sum())))

    values = values_by_recursion(trees, q, soft)
    targets = agent.inner_targets(trees, q)
    for edge, node in children(trees).items():
        assert targets[edge] == pytest.approx(values[node], abs=1e-9)
    last = trees.last_edges
    assert torch.equal(targets[last], q[last])
    roots = [values[int(trees.nodes[trees.paths[first, 0]])] for first in trees.first_candidates]
    np.testing.assert_allclose(agent.root_values(trees, q), roots, atol=1e-9)


def test_dqn_backs_up_the_largest_value_below(make_envs: Envs) -> None:
    agent, trees, q = agent_and_trees("dqn", make_envs)
    values = values_by_recursion(trees, q, lambda prior, below: float(below.max()))
    targets = agent.inner_targets(trees, q)
    for edge, node in children(trees).items():
        assert targets[edge] == values[node]
    # greedy token by token on consistent values is greedy among actions
    log_probs = agent.edge_log_probs(trees, targets)
    actions = torch.where(trees.paths >= 0, log_probs[trees.paths], 0.0).sum(-1)
    for index in range(2):
        own = trees.queries == index
        assert int(actions[own].argmax()) == int(q[trees.last_edges[own]].argmax())


@pytest.mark.parametrize("beta", [0.01, 0.3])
def test_the_policy_over_tokens_is_the_boltzmann_policy_over_actions(beta: float, make_envs: Envs) -> None:
    """With no discount inside an action, Π_j π(w_j) = ρ(a) exp(Q(a) / β) / Z, whatever the shape of the tree."""
    agent, trees, q = agent_and_trees("softq", make_envs, beta=beta)
    log_probs = agent.edge_log_probs(trees, agent.inner_targets(trees, q))
    actions = torch.where(trees.paths >= 0, log_probs[trees.paths], 0.0).sum(-1)
    prior = torch.where(trees.paths >= 0, trees.prior[trees.paths], 0.0).sum(-1)
    for index in range(2):
        own = trees.queries == index
        expected = (prior[own] + q[trees.last_edges[own]] / beta).log_softmax(0)
        torch.testing.assert_close(actions[own], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["softq", "dqn"])
def test_an_untrained_agent_acts_as_its_prior_says(name: str, make_envs: Envs) -> None:
    envs = make_envs(2)
    agent, base = trainers.make(name, envs, seed=1), trainers.make("poad", envs, seed=1)
    observations, _ = envs.reset(seed=0)
    query = agent.query(observations[0], PHRASES)
    (own,), (theirs,) = agent.policy_outputs([query]), base.policy_outputs([query])
    if name == "softq":
        np.testing.assert_allclose(own.action_log_probs, theirs.action_log_probs, atol=1e-5)
    else:  # all Q are equal
        nodes = query.tree.path_nodes
        siblings = np.bincount(query.tree.edge_nodes)
        expected = [-np.log(siblings[row[keep]]).sum() for row, keep in zip(nodes, query.tree.mask, strict=True)]
        np.testing.assert_allclose(own.action_log_probs, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["softq", "dqn"])
def test_an_agent_learns_a_chain(name: str, make_chains: Envs) -> None:
    envs = make_chains(4)
    settings = {"epsilon_steps": 400} if name == "dqn" else {}
    agent = trainers.make(name, envs, seed=0, **settings)
    trainers.train(agent, envs, 800, rollout_steps=5)
    rollout = collect(agent, envs, begin(envs, seed=9), 3, discount=0.9, greedy=True)
    assert all(episode.success or episode.total_reward == 1.0 for episode in rollout.episodes)
    # γ = 0.9 for each of two units of time: V = 0.9^4, 0.9^2, 1 before the three steps
    trees = agent.table.trees(
        agent.table.numbers([action.record.query for action in (row[0] for row in rollout.actions)])
    )
    with torch.no_grad():
        values = agent.root_values(trees, agent.q(trees))
    np.testing.assert_allclose(values, [0.9**4, 0.9**2, 1.0], atol=0.06)


@pytest.mark.parametrize("name", ["softq", "dqn"])
def test_an_interrupted_run_has_the_same_metrics(name: str, tmp_path: Path, make_chains: Envs) -> None:
    def run(folder: str, *totals: int) -> list[dict[str, Any]]:
        lines = []
        for i, total in enumerate(totals):
            envs = make_chains(4)
            agent = trainers.make(name, envs, seed=3)
            lines += trainers.train(agent, envs, total, run_dir=tmp_path / folder, rollout_steps=4, resume=i > 0)
        return [{k: v for k, v in line.items() if k != "timing"} for line in lines]

    assert run("whole", 96) == run("cut", 32, 96)


@pytest.mark.parametrize("truncated", [False, True])
def test_replay_continues_after_a_truncation_and_not_after_a_termination(truncated: bool, make_chains: Envs) -> None:
    for ends in (False, True):
        envs = make_chains(2, truncated=truncated)
        agent = trainers.make("softq", envs, seed=0, truncation_is_termination=ends)
        agent.learn(collect(agent, envs, begin(envs, seed=0), 4, discount=0.9))
        rows = agent.replay.sample(500, np.random.default_rng(0))
        at_end = rows.next_query < 0
        if truncated and not ends:
            assert not at_end.any()
        else:
            assert at_end.any()
        assert np.isneginf(rows.bound).all() == truncated
        np.testing.assert_allclose(rows.discount, 0.9**2)


def test_returns_of_terminated_episodes_bound_q_from_below(make_chains: Envs) -> None:
    envs = make_chains(1)
    agent = trainers.make("softq", envs, seed=0)
    rollout = collect(agent, envs, begin(envs, seed=0), 3, discount=0.9)
    rollout.rewards[:, 0] = [0.25, 0.0, 1.0]
    agent.learn(rollout)
    rows = agent.replay.sample(100, np.random.default_rng(0))
    assert set(np.round(rows.bound, 6)) == set(np.round([0.25 + 0.9**4, 0.9**2, 1.0], 6))


def test_free_text_is_refused() -> None:
    pytest.importorskip("sklearn")
    envs = lang_envs.make_vec("DataSciCoding-balance-scale-v0", 1)
    for name in ("softq", "dqn"):
        with pytest.raises(ValueError, match="needs an environment with phrases and sampling='trie'"):
            trainers.make(name, envs)


def test_without_reward_everything_stays_finite(make_envs: Envs) -> None:
    for kind in (SoftQ, DQN):
        envs = make_envs(2)
        agent = kind(envs, seed=0)
        state = begin(envs, seed=0)
        for _ in range(3):
            metrics = agent.learn(collect(agent, envs, state, 8, discount=0.99))
            assert np.isfinite(list(metrics.values())).all()
