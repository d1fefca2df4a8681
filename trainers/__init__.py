"""Agents that learn in text environments."""

import logging

try:
    import torch  # noqa: F401
except ImportError:
    raise ImportError("trainers needs PyTorch and other packages: pip install 'lang-envs[train]'") from None

# peft imports bitsandbytes, which warns about an optional CPU kernel that is not needed here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

from trainers.agent import Action, Agent, Episode, Player, Rollout  # noqa: E402
from trainers.agents import AGENTS, make  # noqa: E402
from trainers.check import check_agent  # noqa: E402
from trainers.evaluation import Evaluation, evaluate  # noqa: E402
from trainers.loop import TrainingCollapsed, train  # noqa: E402

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
