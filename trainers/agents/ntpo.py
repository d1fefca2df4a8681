"""NTPO: naive token-level policy optimisation (arXiv 2405.15821, eqs. 9 and 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainers.agents.poad import POAD, POADSettings
from trainers.settings import setting


@dataclass(frozen=True)
class NTPOSettings(POADSettings):
    """Settings of NTPO."""

    gamma_token: float | None = setting(None, least=0, most=1)
    """γ_w, the discount from a token to the next token of its action; by default gamma. With 1, NTPO is POAD."""


class NTPO(POAD):
    """PPO with credit for each token that discounts every token as if it were a step of time.

    An action of n tokens is then discounted by γ_w to the n − 1 as well: the longer an action, the lower its value.
    """

    settings_type: ClassVar[type[NTPOSettings]] = NTPOSettings
    settings: NTPOSettings

    def token_discounts(self) -> tuple[float, float]:
        own = self.settings
        return self.gamma if own.gamma_token is None else own.gamma_token, own.gae_lambda_token
