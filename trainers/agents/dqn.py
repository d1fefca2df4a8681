"""Deep Q-learning over tokens with action decomposition: soft Q-learning at β → 0 with ε-greedy exploration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from trainers.agents.soft_q import SoftQ, SoftQSettings
from trainers.policy import PolicyOutput
from trainers.replay import Trees
from trainers.settings import setting


@dataclass(frozen=True)
class DQNSettings(SoftQSettings):
    """Settings of DQN; ``beta`` has no effect."""

    epsilon_end: float = setting(0.05, least=0, most=1)
    """Probability ε of a random action in the end; it starts at 1."""
    epsilon_steps: int = setting(2_000, least=1)
    """Environment steps over which ε falls linearly."""


class DQN(SoftQ):
    """Q-learning over tokens. With probability ε it takes a uniformly random action.

    Random *tokens* would break long actions with probability 1 − (1 − ε)^n.
    """

    settings_type: ClassVar[type[DQNSettings]] = DQNSettings
    settings: DQNSettings

    def backup(self, prior: torch.Tensor, q: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
        """Return the largest Q of each group."""
        return q.new_full((count,), -torch.inf).scatter_reduce(0, groups, q, "amax")

    def edge_log_probs(self, trees: Trees, q: torch.Tensor) -> torch.Tensor:
        """Return log π of the greedy policy: 0 for the largest Q at each node, shared where several are equal."""
        best = q >= self.backup(q, q, trees.nodes, len(trees.features))[trees.nodes]
        ties = q.new_zeros(len(trees.features)).index_add(0, trees.nodes, best.to(q.dtype))
        return torch.where(best, -ties.log()[trees.nodes], -torch.inf)

    def select(self, output: PolicyOutput, *, greedy: bool) -> int:
        """Return the greedy candidate, or with probability ε one drawn uniformly."""
        own = self.settings
        left = max(0.0, 1 - self.steps_learnt / own.epsilon_steps)
        epsilon = own.epsilon_end + (1 - own.epsilon_end) * left
        if not greedy and self.random.random() < epsilon:
            return int(self.random.integers(len(output.action_log_probs)))
        return int(np.argmax(output.action_log_probs))
