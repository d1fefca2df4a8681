"""Agents that learn in language environments."""

import logging

try:
    import torch  # noqa: F401
except ImportError:
    raise ImportError("the trainers need PyTorch and more: pip install 'lang-envs[train]'") from None

# Importing peft imports bitsandbytes, which warns of an optional CPU kernel that nothing here needs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

from trainers.agent import Action, Agent, Episode, Player, Rollout  # noqa: E402
from trainers.agents import AGENTS, make  # noqa: E402
from trainers.check import check_agent  # noqa: E402
from trainers.loop import Evaluation, TrainingCollapsed, evaluate, train  # noqa: E402

__all__ = [
    "AGENTS",
    "Action",
    "Agent",
    "Episode",
    "Evaluation",
    "Player",
    "Rollout",
    "TrainingCollapsed",
    "check_agent",
    "evaluate",
    "make",
    "train",
]
