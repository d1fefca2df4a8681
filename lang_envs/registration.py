"""The registry: every id, and how an id becomes an environment."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from lang_envs.datascicoding.catalog import DATASETS
from lang_envs.tokens import TokenEnv
from lang_envs.virtualhome.tasks import TASKS

INTERFACES = ("tokens", "text")


@dataclass(frozen=True)
class RegistryEntry:
    """What the registry knows about one id."""

    entry_point: str
    """Class of the text environment, as ``module:class``."""
    summary: str
    """One sentence for people."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the class, as JSON types."""
    finite: bool = True
    """Whether states and phrases are finitely many, and a step always has the same result. False where any text is an
    action: its program may then exceed a time limit."""


_OVERCOOKED = "lang_envs.overcooked.env:OvercookedEnv"
_VIRTUALHOME = "lang_envs.virtualhome.env:VirtualHomeEnv"
_DATASCICODING = "lang_envs.datascicoding.env:DataSciCodingEnv"

ENVIRONMENTS: dict[str, RegistryEntry] = (
    {
        f"Overcooked-{dish}-salad-v0": RegistryEntry(
            _OVERCOOKED, f"Chop, assemble and deliver a salad of {dish.replace('-', ', ')}.", {"dish": dish.split("-")}
        )
        for dish in (
            "tomato",
            "lettuce",
            "onion",
            "tomato-lettuce",
            "tomato-onion",
            "lettuce-onion",
            "tomato-lettuce-onion",
        )
    }
    | {f"VirtualHome-{task}-v0": RegistryEntry(_VIRTUALHOME, TASKS[task].instruction, {"task": task}) for task in TASKS}
    | {
        f"DataSciCoding-{name}-v0": RegistryEntry(
            _DATASCICODING, f"Write a program that classifies {entry.title}.", {"dataset": name}, finite=False
        )
        for name, entry in DATASETS.items()
    }
)
"""Every environment, by its id."""

TEMPLATES: dict[str, RegistryEntry] = {
    "VirtualHome-v0": RegistryEntry(
        _VIRTUALHOME, "A household task of your own: task=HouseholdTask(...) or a YAML file."
    ),
    "DataSciCoding-v0": RegistryEntry(
        _DATASCICODING, "A data set of your own: dataset=csv:path?target=column, openml:ID, …", finite=False
    ),
}
"""Ids that need an argument: ``task`` or ``dataset``."""


def make_env(
    *,
    entry_point: str,
    interface: str = "tokens",
    tokenizer: Any = "embedded",
    max_observation_tokens: int | None = None,
    max_action_tokens: int | None = None,
    **kwargs: Any,
) -> gym.Env:
    """Make an environment of the suite; ``gym.make`` calls this.

    Parameters
    ----------
    entry_point : str
        Class of the text environment, as ``module:class``.
    interface : str
        ``"tokens"``: observations and actions are token ids (:class:`lang_envs.TokenEnv`). ``"text"``: they are str.
    tokenizer : str, Path, Tokenizer or transformers.PreTrainedTokenizerFast
        See :func:`lang_envs.load_tokenizer`.
    max_observation_tokens, max_action_tokens : int, optional
        Lengths of the spaces, see :class:`lang_envs.TokenEnv`.
    **kwargs
        Arguments of the text environment.

    Returns
    -------
    gymnasium.Env

    Raises
    ------
    ValueError
        If ``interface`` is unknown, or another argument has an invalid value.
    TypeError
        If the text environment does not have one of the arguments.
    """
    if interface not in INTERFACES:
        raise ValueError(f"interface {interface!r} is not one of {INTERFACES}")
    env: gym.Env[str, str] = load_env_creator(entry_point)(**kwargs)  # type: ignore[assignment]
    if interface == "text":
        return env
    return TokenEnv(env, tokenizer, max_observation_tokens, max_action_tokens)


def named_value(text: str) -> tuple[str, Any]:
    """Parse an argument of the command line such as ``max_steps=20``.

    Parameters
    ----------
    text : str
        A name, an equals sign and a value.

    Returns
    -------
    name : str
    value : Any
        The value of a Python literal; otherwise the text itself.

    Raises
    ------
    ValueError
        If there is no name before an equals sign.
    """
    name, separator, value = (part.strip() for part in text.partition("="))
    if not separator or not name:
        raise ValueError(f"{text!r} is not of the form name=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return name, value


def register_environments() -> None:
    """Register every id with Gymnasium."""
    for name, entry in (ENVIRONMENTS | TEMPLATES).items():
        gym.register(
            name,
            entry_point="lang_envs.registration:make_env",
            nondeterministic=not entry.finite,
            kwargs={"entry_point": entry.entry_point, **entry.kwargs},
        )
