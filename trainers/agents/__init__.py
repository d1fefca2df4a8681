"""The agents by name, and any other by where it is defined."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

AGENTS: dict[str, str] = {
    "poad": "trainers.agents.poad:POAD",
    "ntpo": "trainers.agents.ntpo:NTPO",
    "twosome": "trainers.agents.twosome:TWOSOME",
    "random": "trainers.agents.random:RandomAgent",
}
"""Names of the suite's own agents."""


def agent_class(name: str) -> type[Any]:
    """The class of an agent: a name of :data:`AGENTS`, or ``"package.module:Class"``.

    Raises
    ------
    ValueError
        If there is no such agent; names the known ones and the nearest.
    """
    path = AGENTS.get(name, name)
    module, separator, attribute = path.partition(":")
    if not separator:
        near = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"no agent {name!r}{hint} Known are {', '.join(AGENTS)}, and any 'package.module:Class'")
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ValueError(f"no agent {name!r}: there is no module {error.name!r} on the path") from error
    except AttributeError:
        raise ValueError(f"no agent {name!r}: the module {module!r} has no {attribute!r}") from None
    return found


def make(name: str, envs: Any, **config: Any) -> Any:
    """An agent for these environments.

    Parameters
    ----------
    name : str
        ``"poad"``, ``"ntpo"``, ``"twosome"``, ``"random"``, or ``"package.module:Class"`` of a third party, whose
        class is called as ``Class(envs, **config)``.
    envs : gymnasium.vector.VectorEnv or gymnasium.Env
    **config
        For the suite's own learning agents ``model`` (``"embedded"``, a Hugging Face name or folder, or a model
        object), ``tokenizer``, and any field of its ``settings_type``.

    Raises
    ------
    ValueError
        If the name or a setting is not known, or the environments speak other tokens than the model.
    """
    return agent_class(name)(envs, **config)
