"""TWOSOME (arXiv 2401.14151): PPO on whole actions. With ``normalisation="none"`` it is GLAM (arXiv 2302.02662)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainers.agents.ppo import PPOAgent, PPOSettings
from trainers.settings import setting


@dataclass(frozen=True)
class TWOSOMESettings(PPOSettings):
    """Settings of TWOSOME: it samples whole candidates and uses each rollout once."""

    sampling: str = setting("candidates", choices=("trie", "candidates", "free"))
    epochs: int = setting(1, embedded=4, least=1)
    minibatches: int = setting(4, least=1)


class TWOSOME(PPOAgent):
    """PPO with one ratio, one value and one advantage for each action."""

    settings_type: ClassVar[type[TWOSOMESettings]] = TWOSOMESettings
    settings: TWOSOMESettings
    level = "action"
