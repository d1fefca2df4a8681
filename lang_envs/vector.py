"""Several environments stepped together, of which none waits for another to begin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from lang_envs.core import LanguageEnv


class LanguageVectorEnv(SyncVectorEnv):
    """Gymnasium's ``SyncVectorEnv``, in which every environment first hears its action and may begin with what takes long.

    So the programs of all DataSciCoding environments run side by side, on as many processes as ``max_workers`` says. Nothing
    else differs. ``gym.make_vec`` makes Gymnasium's own vector environments, which score one program after another.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._listening = [(n, env.get_wrapper_attr("prefetch")) for n, env in enumerate(self.envs) if _listens(env)]

    def step(self, actions: Any) -> Any:
        if self._listening:
            separate = list(iterate(self.action_space, actions))
            for n, prefetch in self._listening:
                if not (self._autoreset_envs[n] and self.autoreset_mode is AutoresetMode.NEXT_STEP):
                    prefetch(separate[n])
        return super().step(actions)


def _listens(env: gym.Env) -> bool:
    """Whether an environment begins with what it is told, and no wrapper around it changes its actions."""
    environment = env.unwrapped
    if not isinstance(environment, LanguageEnv) or type(environment).prefetch is LanguageEnv.prefetch:
        return False
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.ActionWrapper):
            return False
        env = env.env
    return True


def make_vec(
    env: str | Callable[[], gym.Env],
    num_envs: int = 1,
    *,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    **options: Any,
) -> LanguageVectorEnv:
    """Environments of one id, or of one function that makes them; ``options`` go to ``gym.make``."""
    make = partial(gym.make, env, **options) if isinstance(env, str) else env
    return LanguageVectorEnv([make] * num_envs, autoreset_mode=autoreset_mode)
