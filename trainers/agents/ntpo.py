"""NTPO: naive token-level policy optimisation (arXiv 2405.15821, eqs. 9 and 10)."""

from __future__ import annotations

from typing import ClassVar

from trainers.agents.settings import NtpoSettings, Settings
from trainers.agents.token_level import TokenLevelAgent


class NTPO(TokenLevelAgent):
    """Token-level PPO that takes every token for a step of time, so that long actions look worse than short ones."""

    settings_type: ClassVar[type[Settings]] = NtpoSettings
    settings: NtpoSettings

    @property
    def gamma_token(self) -> float:
        return self.gamma if self.settings.gamma_token is None else self.settings.gamma_token
