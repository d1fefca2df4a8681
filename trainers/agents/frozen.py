"""A language model that acts and never learns: the baseline of learning, and of "best program of k"."""

from __future__ import annotations

from trainers.agent import Rollout
from trainers.language_agent import LanguageAgent


class Frozen(LanguageAgent):
    """The base model as it is. In DataSciCoding it sees the error of its last program ("Reflection" of ETPO's figures,
    arXiv 2402.06700).
    """

    def learn(self, rollout: Rollout) -> dict[str, float]:
        return {}
