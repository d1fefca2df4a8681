"""The interface of an agent: what it observes, what it returns, what it learns from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Action:
    """One action of an agent in one environment.

    Attributes
    ----------
    text : str
        The phrase or the free text.
    token_ids : tuple of int
        The same in the environment's tokens, with the end token if the agent sampled it. Empty: the text is encoded.
    record : Any
        Whatever the agent needs of this action in ``learn``.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    record: Any = None


@dataclass(frozen=True)
class Episode:
    """A finished episode; ``discounted_return`` is discounted by environment time, ``length`` counts its steps."""

    discounted_return: float
    total_reward: float
    length: int
    success: bool


class NextObservation(NamedTuple):
    """What follows environment step (t, n) of a rollout.

    Attributes
    ----------
    t, n : int
        Index of the step and of the environment.
    observation : int64 array (L,) or None
        The next observation of the same episode; None after a termination.
    info : dict
        Its info, with its available actions; empty after a termination.
    truncated : bool
        Whether the episode was truncated there. The observation is then the final one, and no action is taken on it.
    """

    t: int
    n: int
    observation: np.ndarray | None
    info: dict[str, Any]
    truncated: bool


@dataclass
class Rollout:
    """T steps in N environments.

    Attributes
    ----------
    observations : int64 array (T, N, L)
        The observation before each action.
    infos, actions : list of T lists of N
    rewards : float64 array (T, N)
    durations : float64 array (T, N)
        Units of environment time of each step: its primitive steps, or 1.
    terminated, truncated : bool array (T, N)
        Whether the episode ended with this step, and how.
    valid : bool array (T, N)
        False where a vector environment in NEXT_STEP mode used the step to reset: the action had no effect there.
    final : dict
        For every truncated (t, n) the final observation and info of the episode.
    outcomes : list of T lists of N
        The info that each step returned; at the end of an episode its final info.
    last_observations : int64 array (N, L)
        The observations after the last step; ``last_infos`` likewise.
    episodes : list of Episode
        Episodes that ended in this rollout, in the order in which they ended.
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
        """Steps after which nothing flows back from the next row: bool array (T, N)."""
        return self.terminated | self.truncated | ~self.valid

    def next_observations(self) -> Iterator[NextObservation]:
        """Yield what follows each valid step, by time, then by environment."""
        for t, n in np.argwhere(self.valid).tolist():
            if self.terminated[t, n]:
                yield NextObservation(t, n, None, {}, False)
            elif self.truncated[t, n]:
                yield NextObservation(t, n, *self.final[t, n], True)
            elif t + 1 < len(self.rewards):
                yield NextObservation(t, n, self.observations[t + 1, n], self.infos[t + 1][n], False)
            else:
                yield NextObservation(t, n, self.last_observations[n], self.last_infos[n], False)

    def last_of_episodes(self, *, with_truncated: bool) -> dict[tuple[int, int], np.ndarray]:
        """Return observations that follow a step (t, n) and on which this rollout takes no action.

        These are the observations after the rollout's last step and, with ``with_truncated``, the final ones of
        truncated episodes: int64 arrays (L,).
        """
        return {
            (after.t, after.n): after.observation
            for after in self.next_observations()
            if after.observation is not None
            and (with_truncated if after.truncated else after.t == len(self.rewards) - 1)
        }


@runtime_checkable
class Player(Protocol):
    """An agent that acts and does not learn."""

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        """Return one action for each of N observations, an int64 array (N, L) of token ids followed by padding."""
        ...


@runtime_checkable
class Agent(Player, Protocol):
    """An agent that learns, and that can be saved and restored."""

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout of the agent's own actions; return metrics, all of them finite numbers."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that :meth:`load` needs to continue exactly as if nothing had been saved."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote."""
        ...
