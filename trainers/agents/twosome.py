"""TWOSOME (arXiv 2401.14151): PPO on whole actions, chosen by normalised likelihood; GLAM with no normalisation."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from trainers.agents.common import ActionRecord, PPOAgent
from trainers.agents.settings import Settings, TwosomeSettings
from trainers.credit import action_gae
from trainers.policy import Scores
from trainers.prefix_tree import Tokens


class TWOSOME(PPOAgent):
    """PPO whose units are actions: one ratio, one value, one advantage for each."""

    settings_type: ClassVar[type[Settings]] = TwosomeSettings
    level: ClassVar[str] = "action"

    def credit(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        next_values: np.ndarray,
        episode_ends: np.ndarray,
        gamma: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        advantages, returns = action_gae(
            rewards, values[..., 0], next_values, episode_ends, gamma=gamma, gae_lambda=self.settings.gae_lambda
        )
        return advantages[..., None], returns[..., None]

    def units_of(self, memory: ActionRecord) -> tuple[Tokens, np.ndarray]:
        return (), memory.output.action_log_probs[[memory.choice]]

    def unit_log_probs(self, scores: Scores, rows: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        return scores.action_log_probs[rows, choices][:, None]
