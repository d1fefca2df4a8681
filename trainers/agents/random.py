"""An agent that acts at random: the baseline of every comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.files import read_json
from trainers.agent import Action, Rollout
from trainers.rollout import env_attribute


class RandomAgent:
    """Take a uniformly random available phrase, or the environment's random text; never learn.

    Parameters
    ----------
    envs : gymnasium.vector.VectorEnv or gymnasium.Env
    seed : int
    """

    def __init__(self, envs: Any, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        # With free text, the environment (a copy, if it runs in another process) generates random text.
        self._env = None if env_attribute(envs, "action_names") else env_attribute(envs, "unwrapped")

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        if self._env is not None:
            return [Action(self._env.random_text(self.random)) for _ in infos]
        return [Action(self.random.choice(info["available_actions"]).item()) for info in infos]

    def learn(self, rollout: Rollout) -> dict[str, float]:
        return {}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "random.json").write_text(json.dumps(self.random.bit_generator.state))

    def load(self, folder: Path) -> None:
        self.random.bit_generator.state = read_json(folder / "random.json")
