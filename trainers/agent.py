"""All that a third party has to know to plug in an agent: what it is asked, what it answers, what it learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Action:
    """What an agent says in one environment.

    Attributes
    ----------
    text : str
        The phrase or the free text.
    token_ids : tuple of int
        The same in the environment's tokens, the end token included where the agent said it. Left empty, the text is encoded.
    record : Any
        Whatever the agent wants back in ``learn``.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    record: Any = None


@dataclass(frozen=True)
class Episode:
    """An episode that ended: ``discounted_return`` counts time in the environment's own units, ``length`` in decisions."""

    discounted_return: float
    total_reward: float
    length: int
    success: bool


@dataclass
class Rollout:
    """T steps in N environments.

    Attributes
    ----------
    observations : int64 array (T, N, L)
        What each decision was taken on.
    infos, actions : list of T lists of N
    rewards : float64 array (T, N)
    durations : float64 array (T, N)
        How much of the environment's time each step took: its primitive steps, or 1.
    terminated, truncated : bool array (T, N)
        Whether the episode ended with this step, and how.
    valid : bool array (T, N)
        False where a vector environment in NEXT_STEP mode used the step to reset: no decision counts there.
    final : dict
        For every truncated (t, n) the observation and info that the episode ended in.
    outcomes : list of T lists of N
        What the environment said of each step: its info, or the final info of an episode that ended with it.
    last_observations : int64 array (N, L)
        What follows the last step; ``last_infos`` likewise.
    episodes : list of Episode
        Those that ended in this rollout, in the order in which they ended.
    """

    observations: np.ndarray
    infos: list[list[dict[str, Any]]]
    actions: list[list[Action]]
    rewards: np.ndarray
    durations: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    last_observations: np.ndarray
    last_infos: list[dict[str, Any]]
    final: dict[tuple[int, int], tuple[np.ndarray, dict[str, Any]]] = field(default_factory=dict)
    outcomes: list[list[dict[str, Any]]] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)

    @property
    def episode_ends(self) -> np.ndarray:
        """Where nothing flows back from the next row: bool array (T, N)."""
        return self.terminated | self.truncated | ~self.valid


@runtime_checkable
class Player(Protocol):
    """An agent that only plays."""

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        """One decision for each of N observations, an int64 array (N, L) of token ids then padding."""
        ...


@runtime_checkable
class Agent(Player, Protocol):
    """An agent that learns, and whose learning can be put down and taken up again."""

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout of the agent's own decisions; returns metrics."""
        ...

    def save(self, folder: Path) -> None:
        """Write all that :meth:`load` needs to go on exactly as if nothing had happened."""
        ...

    def load(self, folder: Path) -> None: ...
