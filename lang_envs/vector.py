"""Vector environments whose slow steps run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from lang_envs.core import LanguageEnv


class LanguageVectorEnv(SyncVectorEnv):
    """Gymnasium's ``SyncVectorEnv`` that calls :meth:`LanguageEnv.prefetch` of every environment before any ``step``.

    The programs of all DataSciCoding environments therefore run in parallel, in up to ``max_workers`` processes.
    Results are the same as with ``gym.make_vec``, whose vector environments run one program after another.

    Parameters
    ----------
    *arguments, **keywords
        Those of ``gymnasium.vector.SyncVectorEnv``.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._prefetching = [
            (n, env.get_wrapper_attr("prefetch")) for n, env in enumerate(self.envs) if _prefetches(env)
        ]

    def step(self, actions: Any) -> Any:
        """Step all environments; see ``gymnasium.vector.SyncVectorEnv.step``."""
        if self._prefetching:
            separate = list(iterate(self.action_space, actions))
            for n, prefetch in self._prefetching:
                if not (self._autoreset_envs[n] and self.autoreset_mode is AutoresetMode.NEXT_STEP):
                    prefetch(separate[n])
        return super().step(actions)


def _prefetches(env: gym.Env) -> bool:
    """Return whether an environment implements ``prefetch``, and no wrapper around it changes its actions."""
    unwrapped = env.unwrapped
    if not isinstance(unwrapped, LanguageEnv) or type(unwrapped).prefetch is LanguageEnv.prefetch:
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
    """Make a vector of equal environments.

    Parameters
    ----------
    env : str or callable
        An id, or a function without arguments that returns an environment.
    num_envs : int
        Number of environments.
    autoreset_mode : AutoresetMode
        When an environment is reset after its episode has ended; by default in the same step.
    **options
        Arguments of ``gym.make``, if ``env`` is an id.

    Returns
    -------
    LanguageVectorEnv
    """
    make = partial(gym.make, env, **options) if isinstance(env, str) else env
    return LanguageVectorEnv([make] * num_envs, autoreset_mode=autoreset_mode)
