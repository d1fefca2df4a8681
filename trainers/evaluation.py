"""Evaluation: whole episodes of an agent that does not learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from lang_envs import make_vec
from trainers.agent import Episode, Player
from trainers.rollout import begin, collect, env_attribute


@dataclass(frozen=True)
class Evaluation:
    """Results of E episodes: discounted returns, float64 array (E,), and successes, bool array (E,)."""

    returns: np.ndarray
    successes: np.ndarray

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def success_rate(self) -> float:
        return float(self.successes.mean())


def evaluate(
    agent: Player,
    env: str | Callable[[], gym.Env],
    episodes: int,
    *,
    seed: int = 10_000,
    greedy: bool = False,
    num_envs: int = 4,
    on_episodes: Callable[[int], object] | None = None,
    env_options: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate an agent on whole episodes of an environment.

    Every parallel environment plays the same number of episodes, so that short episodes are not counted more often than
    long ones. If ``episodes`` is not divisible by ``num_envs``, surplus episodes are dropped.

    Parameters
    ----------
    agent : Player
        Sampling advances its random generator.
    env : str or callable
        An environment id, or a function that makes an environment.
    episodes : int
    seed : int
        Environment n is seeded with ``seed + n``.
    greedy : bool
        Take the most probable action instead of sampling.
    num_envs : int
        Number of parallel environments.
    on_episodes : callable, optional
        Receives the number of finished episodes each time that some end.
    env_options : mapping, optional
        Keyword arguments of ``gym.make``. By default the environment uses the agent's tokenizer.

    Raises
    ------
    ValueError
        If ``env`` is a function and ``env_options`` are given: they would have no effect.
    """
    if callable(env) and env_options:
        raise ValueError("env_options are for environments that are named by an id; here env is a function")
    options = dict(env_options or {})
    if tokenizer := getattr(agent, "tokenizer", None):
        options.setdefault("tokenizer", tokenizer)
    make = env if callable(env) else partial(gym.make, env, **options)
    num_envs = min(num_envs, episodes)
    share = math.ceil(episodes / num_envs)
    played: list[list[Episode]] = [[] for _ in range(num_envs)]
    with closing(make_vec(make, num_envs)) as envs:
        discount = float(env_attribute(envs, "discount"))
        state = begin(envs, seed)
        while min(map(len, played)) < share:
            rollout = collect(agent, envs, state, 1, discount=discount, greedy=greedy)
            for n, episode in zip(np.flatnonzero(rollout.episode_ends[0]), rollout.episodes, strict=True):
                played[n].append(episode)
            if rollout.episodes and on_episodes is not None:
                on_episodes(sum(min(len(own), share) for own in played))
    counted = [episode for row in zip(*(own[:share] for own in played), strict=True) for episode in row][:episodes]
    return Evaluation(
        np.array([episode.discounted_return for episode in counted]),
        np.array([episode.success for episode in counted]),
    )
