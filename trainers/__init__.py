"""Agents that learn in language worlds."""

from trainers.agent import Agent, Decision, Episode, Player, Rollout
from trainers.agents import AGENTS, make
from trainers.check import check_agent
from trainers.loop import Evaluation, TrainingCollapsed, evaluate, train

__all__ = [
    "AGENTS",
    "Agent",
    "Decision",
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
