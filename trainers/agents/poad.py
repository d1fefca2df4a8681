"""POAD: policy optimisation with action decomposition (arXiv 2405.15821, eqs. 13 and 14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainers.agents.ppo import PPOAgent, PPOSettings
from trainers.settings import setting


@dataclass(frozen=True)
class POADSettings(PPOSettings):
    """Settings of PPO with credit for each token."""

    gae_lambda_token: float = setting(1.0, least=0, most=1)
    """λ_w of GAE inside an action (the paper's code: 0.95). With 1, credit does not decay inside an action."""


class POAD(PPOAgent):
    """PPO with credit for each token and no discount inside an action.

    Then the temporal differences of the tokens of an action sum to the temporal difference of the action, and the
    token-level optimum is the action-level optimum.
    """

    settings_type: ClassVar[type[POADSettings]] = POADSettings
    settings: POADSettings
    level = "token"

    def token_discounts(self) -> tuple[float, float]:
        return 1.0, self.settings.gae_lambda_token
