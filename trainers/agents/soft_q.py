"""Soft Q-learning and DQN over tokens, with action decomposition (arXiv 2405.15821, appendix B.3; arXiv 2402.06700).

The language model is frozen: no pass of it has a gradient. It gives features and a prior ρ. A small network predicts
Q of each edge of a candidate tree, that is of each token after a prefix. With one temperature β and no discount inside
an action::

    V(node)           = β log Σ_w ρ(w | node) exp(Q(node, w) / β)
    Q(node, w)        = V(node after w)                        inside an action
    Q(last node, w)   = r + γ V(root of the next observation)  at its last token
    π(w | node)       ∝ ρ(w | node) exp(Q(node, w) / β)

As β → 0 this is DQN, with a maximum over tokens in the place of the soft value. Inside an action, values are backed up
from the last tokens of all candidates at once ("collapsed"): a backup of one token at a time has the same fixed point,
but needs one refresh of the target network for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from trainers.agent import Rollout
from trainers.critic import hidden_layers
from trainers.groups import returns_to_go
from trainers.language_agent import LanguageAgent
from trainers.metrics import Metrics
from trainers.policy import PolicyOutput, log_sum_exp
from trainers.prefix_tree import Query
from trainers.replay import QueryTable, Replay, Trees, transitions_of
from trainers.settings import LanguageAgentSettings, setting


@dataclass(frozen=True)
class SoftQSettings(LanguageAgentSettings):
    """Settings of soft Q-learning."""

    truncation_is_termination: bool = False
    """Treat truncated episodes as terminated; False bootstraps from V(final observation)."""
    beta: float = setting(0.01, above=0)
    """Temperature β in units of reward: the larger, the closer the policy stays to the base model."""
    critic_lr: float = setting(1e-3, above=0)
    """Learning rate of Q."""
    critic_hidden: tuple[int, ...] = setting((128, 128))
    """Widths of Q's hidden layers."""
    batch_size: int = setting(128, least=1)
    """Transitions of one update."""
    updates_per_step: float = setting(1.0, above=0)
    """Updates for each environment step."""
    target_rate: float = setting(0.02, above=0, most=1)
    """Share τ by which the target network moves towards Q in each update."""
    replay_capacity: int = setting(50_000, least=1)
    """Number of transitions that are kept."""
    max_grad_norm: float = setting(10.0, above=0)
    """Scale gradients down to this norm."""


class EdgeQ(nn.Module):
    """Q of edges: an MLP of a node's features times one vector for each token. The vectors start at 0, and so does Q.

    Parameters
    ----------
    features : int
        Width of a feature vector.
    hidden : sequence of int
        Widths of the hidden layers; the last one is the width of the vectors of tokens.
    vocabulary : int
        Number of tokens.
    """

    def __init__(self, features: int, hidden: Sequence[int], vocabulary: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*hidden_layers(features, hidden))
        self.tokens = nn.Embedding(vocabulary, [features, *hidden][-1])
        nn.init.zeros_(self.tokens.weight)

    def forward(self, trees: Trees) -> torch.Tensor:
        """Return Q of each edge: float32 tensor (E,)."""
        return (self.body(trees.features)[trees.nodes] * self.tokens(trees.tokens)).sum(-1)


class SoftQ(LanguageAgent):
    """Soft Q-learning over tokens with the frozen language model as prior."""

    settings_type: ClassVar[type[SoftQSettings]] = SoftQSettings
    settings: SoftQSettings

    @classmethod
    def settings_for(cls, envs: Any, model: Any, given: dict[str, Any]) -> SoftQSettings:
        settings = super().settings_for(envs, model, given)
        if settings.sampling != "trie":
            raise ValueError(
                f"sampling={settings.sampling!r}: {cls.__name__} learns Q of the tokens of phrases; "
                "it needs an environment with phrases and sampling='trie'"
            )
        return settings

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        super().__init__(envs, model, tokenizer, **settings)
        own = self.settings
        with self.random_stream.active():
            self.q = EdgeQ(self.language_model.hidden_size, own.critic_hidden, self.tokenizer.vocab_size)
        self.target = deepcopy(self.q)
        self.q.to(self.language_model.device)
        self.target.to(self.language_model.device)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=own.critic_lr)
        self.saved |= {"q": self.q, "target": self.target, "optimizer": self.optimizer}
        self.table = QueryTable(self)
        self.replay = Replay(own.replay_capacity)
        self._running: list[list[tuple[int, float, float]]] = []

    def backup(self, prior: torch.Tensor, q: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
        """Return the value of each group of choices from their prior log-probabilities and Q: β log Σ ρ exp(Q / β)."""
        return self.settings.beta * log_sum_exp(prior + q / self.settings.beta, groups, count)

    def edge_log_probs(self, trees: Trees, q: torch.Tensor) -> torch.Tensor:
        """Return log π of each edge: the prior, reweighted by exp(Q / β) and normalised at each node; (E,)."""
        scores = trees.prior + q / self.settings.beta
        return scores - log_sum_exp(scores, trees.nodes, len(trees.features))[trees.nodes]

    def root_values(self, trees: Trees, q: torch.Tensor) -> torch.Tensor:
        """Return V of each query's root from Q of the last edges of its candidates: (Q,)."""
        return self.backup(_prior_of(trees, 0), q[trees.last_edges], trees.queries, len(trees.first_candidates))

    def inner_targets(self, trees: Trees, q: torch.Tensor) -> torch.Tensor:
        """Return what Q of each edge should be: V of the node after it, or Q itself for last edges; (E,)."""
        targets = q.clone()
        for depth in range(trees.paths.shape[1] - 1):
            below = trees.paths[:, depth + 1] >= 0  # candidates whose token at this depth is not the last one
            edges, distinct = torch.unique(trees.paths[below, depth], return_inverse=True)[::-1]
            prior = _prior_of(trees, depth + 1)[below]
            targets[distinct] = self.backup(prior, q[trees.last_edges[below]], edges, len(distinct))
        return targets

    @torch.no_grad()
    def policy_outputs(self, queries: Sequence[Query]) -> list[PolicyOutput]:
        new = [query for query in dict.fromkeys(queries) if query not in self._outputs]
        if new:
            trees = self.table.trees(self.table.numbers(new))
            edges = self.edge_log_probs(trees, self.q(trees))
            paths = torch.where(trees.paths >= 0, edges[trees.paths], 0.0).double().cpu().numpy()
            for query, first in zip(new, trees.first_candidates, strict=True):
                k, length = query.tree.mask.shape
                tokens = paths[first : first + k, :length]
                self._outputs[query] = PolicyOutput(tokens, tokens.sum(-1))
        return [self._outputs[query] for query in queries]

    def learn(self, rollout: Rollout) -> dict[str, float]:
        own, metrics = self.settings, Metrics()
        discounts = self.discounts(rollout)
        transitions = transitions_of(
            rollout, self, self.table, discounts, truncation_is_termination=own.truncation_is_termination
        )
        self._bound(rollout, discounts, self.replay.add(transitions))
        self.forget_outputs()
        before = self.steps_learnt
        self.steps_learnt += len(transitions.query)
        updates = int(self.steps_learnt * own.updates_per_step) - int(before * own.updates_per_step)
        for _ in range(updates):
            self._update(metrics)
        return metrics.means() | {"updates": float(updates), "replay": float(len(self.replay))}

    def _bound(self, rollout: Rollout, discounts: np.ndarray, places: np.ndarray) -> None:
        """Give the transitions of terminated episodes their returns as lower bounds of Q."""
        place = np.zeros(rollout.rewards.shape, dtype=np.int64)
        place[rollout.valid] = places
        self._running = self._running or [[] for _ in range(rollout.rewards.shape[1])]
        for t, n in np.argwhere(rollout.valid).tolist():
            episode = self._running[n]
            episode.append((int(place[t, n]), float(rollout.rewards[t, n]), float(discounts[t, n])))
            if rollout.terminated[t, n]:
                own, rewards, gammas = map(np.array, zip(*episode, strict=True))
                self.replay.set_bounds(own, returns_to_go(rewards, gammas))
            if rollout.terminated[t, n] or rollout.truncated[t, n]:
                self._running[n] = []

    def _update(self, metrics: Metrics) -> None:
        """Take one step of Q on a minibatch: the last edges of taken actions, and all inner edges of their trees."""
        own = self.settings
        batch = self.replay.sample(own.batch_size, self.random)
        query, next_query = batch.query, batch.next_query
        if len(self.table) <= own.batch_size:
            trees = self.table.all_trees()
        else:
            numbers = np.unique(np.concatenate([query, next_query[next_query >= 0]]))
            trees = self.table.trees(numbers)
            query = np.searchsorted(numbers, query)
            next_query = np.where(next_query < 0, -1, np.searchsorted(numbers, next_query))
        place = torch.from_numpy(np.concatenate([query, next_query])).to(trees.prior.device)
        with torch.no_grad():
            target_q = self.target(trees)
            values = torch.cat([self.root_values(trees, target_q), torch.zeros(1, device=target_q.device)])
            inner = self.inner_targets(trees, target_q)
        size = own.batch_size
        reward, discount = (
            torch.from_numpy(column).float().to(target_q.device) for column in (batch.reward, batch.discount)
        )
        outcome = reward + discount * torch.where(place[size:] < 0, 0.0, values[place[size:]])
        outcome = torch.maximum(outcome, torch.from_numpy(batch.bound).float().to(outcome.device))
        first = torch.from_numpy(trees.first_candidates).to(place.device)
        taken = first[place[:size]] + torch.from_numpy(batch.choice).to(place.device)
        q = self.q(trees)
        loss = nn.functional.huber_loss(q[trees.last_edges[taken]], outcome, reduction="mean")
        is_inner = torch.ones_like(q, dtype=torch.bool)
        is_inner[trees.last_edges] = False
        if is_inner.any():
            loss = loss + nn.functional.huber_loss(q[is_inner], inner[is_inner], reduction="mean")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.q.parameters(), own.max_grad_norm)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(fast, own.target_rate)
        metrics.add(q_loss=loss.item(), q_mean=outcome.mean().item(), critic_grad_norm=float(norm))

    def state(self) -> dict[str, Any]:
        own = {"queries": self.table.state_dict(), "replay": self.replay.state_dict(), "running": self._running}
        return super().state() | own

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.table.load_state_dict(state["queries"])
        self.replay.load_state_dict(state["replay"])
        self._running = state["running"]


def _prior_of(trees: Trees, depth: int) -> torch.Tensor:
    """Return the prior log-probability of each candidate's tokens from ``depth`` on: (C,)."""
    rest = trees.paths[:, depth:]
    return torch.where(rest >= 0, trees.prior[rest], 0.0).sum(-1)
