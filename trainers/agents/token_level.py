"""Credit for every token: what NTPO and POAD share, and that is all but one number."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch

from trainers.agents.common import ActionRecord, PPOAgent
from trainers.agents.settings import Settings, TokenLevelSettings
from trainers.credit import token_gae
from trainers.policy import Scores
from trainers.prefix_tree import Tokens


class TokenLevelAgent(PPOAgent):
    """PPO whose units are tokens: each has its own ratio, value and advantage."""

    settings_type: ClassVar[type[Settings]] = TokenLevelSettings
    settings: TokenLevelSettings
    level: ClassVar[str] = "token"

    @property
    @abstractmethod
    def gamma_token(self) -> float:
        """γ_w: the discount from one token to the next inside an action."""

    def credit(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        next_values: np.ndarray,
        episode_ends: np.ndarray,
        gamma: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        return token_gae(
            rewards,
            values,
            mask,
            next_values,
            episode_ends,
            gamma=gamma,
            gae_lambda=self.settings.gae_lambda,
            gamma_token=self.gamma_token,
            gae_lambda_token=self.settings.gae_lambda_token,
        )

    def units_of(self, memory: ActionRecord) -> tuple[Tokens, np.ndarray]:
        return memory.tokens[:-1], memory.output.token_log_probs[memory.choice, : memory.length]

    def unit_log_probs(self, scores: Scores, rows: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        return scores.token_log_probs[rows, choices]
