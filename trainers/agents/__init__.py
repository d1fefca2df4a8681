"""The agents of the suite by name, and agents of third parties by module and class."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

AGENTS: dict[str, str] = {
    "poad": "trainers.agents.poad:POAD",
    "ntpo": "trainers.agents.ntpo:NTPO",
    "twosome": "trainers.agents.twosome:TWOSOME",
    "reinforce": "trainers.agents.critic_free:REINFORCE",
    "grpo": "trainers.agents.critic_free:GRPO",
    "rloo": "trainers.agents.critic_free:RLOO",
    "gigpo": "trainers.agents.critic_free:GiGPO",
    "adrl-archer": "trainers.agents.adrl_archer:ADRLArcher",
    "frozen": "trainers.agents.frozen:Frozen",
    "softq": "trainers.agents.soft_q:SoftQ",
    "dqn": "trainers.agents.dqn:DQN",
    "random": "trainers.agents.random:RandomAgent",
}
"""Name of each agent of the suite, and its class as ``"module:Class"``."""


def agent_class(name: str) -> type[Any]:
    """Return the class of an agent: a name of :data:`AGENTS`, or ``"package.module:Class"``.

    Raises
    ------
    ValueError
        If there is no such agent.
    """
    path = AGENTS.get(name, name)
    module, separator, attribute = path.partition(":")
    if not separator:
        near = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"unknown agent {name!r}{hint} Use {', '.join(AGENTS)}, or 'package.module:Class'")
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ValueError(f"unknown agent {name!r}: Python finds no module {error.name!r}; set PYTHONPATH") from error
    except AttributeError:
        raise ValueError(f"unknown agent {name!r}: the module {module!r} has no {attribute!r}") from None
    return found


def make(name: str, envs: Any, **config: Any) -> Any:
    """Make an agent for an environment or a vector environment.

    Parameters
    ----------
    name : str
        A name of :data:`AGENTS`, such as ``"poad"``, or ``"package.module:Class"`` of a third party, whose class is
        called as ``Class(envs, **config)``.
    envs : gymnasium.vector.VectorEnv or gymnasium.Env
    **config
        For learning agents of the suite: ``model`` (``"embedded"``, a Hugging Face name or folder, or a model object),
        ``tokenizer``, and any field of the class's ``settings_type``.

    Raises
    ------
    ValueError
        If the name or a setting is unknown, or the environments use another tokenizer than the model.
    """
    return agent_class(name)(envs, **config)
