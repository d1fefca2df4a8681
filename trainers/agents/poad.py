"""POAD: policy optimisation with action decomposition (arXiv 2405.15821, eqs. 13 and 14)."""

from __future__ import annotations

from trainers.agents.token_level import TokenLevelAgent


class POAD(TokenLevelAgent):
    """Token-level PPO whose Bellman backup does not discount inside an action, so that its optimum is the action's."""

    @property
    def gamma_token(self) -> float:
        return 1.0
