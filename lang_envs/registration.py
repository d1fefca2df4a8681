"""The one table of ids, and how an id becomes an environment."""

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
class Environment:
    """A row of the table: ``entry_point`` is the text environment's class, ``kwargs`` (JSON-able) make it this id."""

    entry_point: str
    summary: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    finite: bool = True
    """Whether an environment has so many situations and phrases; where text is free, a step may take long, and time out."""


_OVERCOOKED = "lang_envs.overcooked.env:OvercookedEnv"
_VIRTUALHOME = "lang_envs.virtualhome.env:VirtualHomeEnv"
_DATASCICODING = "lang_envs.datascicoding.env:DataSciCodingEnv"

ENVIRONMENTS: dict[str, Environment] = (
    {
        f"Overcooked-{dish}-salad-v0": Environment(
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
    | {f"VirtualHome-{task}-v0": Environment(_VIRTUALHOME, TASKS[task].instruction, {"task": task}) for task in TASKS}
    | {
        f"DataSciCoding-{name}-v0": Environment(
            _DATASCICODING, f"Write a program that classifies {entry.title}.", {"dataset": name}, finite=False
        )
        for name, entry in DATASETS.items()
    }
)

TEMPLATES: dict[str, Environment] = {
    "VirtualHome-v0": Environment(_VIRTUALHOME, "A household task of your own: task=Task(...) or a YAML file."),
    "DataSciCoding-v0": Environment(
        _DATASCICODING, "A data set of your own: dataset=csv:path?target=column, openml:ID, …", finite=False
    ),
}
"""Ids that need an argument to be an environment."""


def make_env(
    *,
    entry_point: str,
    interface: str = "tokens",
    tokenizer: Any = "embedded",
    max_observation_tokens: int | None = None,
    max_action_tokens: int | None = None,
    **kwargs: Any,
) -> gym.Env:
    """Build an environment and, unless ``interface="text"``, the wrapper that speaks token ids around it."""
    if interface not in INTERFACES:
        raise ValueError(f"interface {interface!r} is not one of {INTERFACES}")
    env: gym.Env[str, str] = load_env_creator(entry_point)(**kwargs)  # type: ignore[assignment]
    if interface == "text":
        return env
    return TokenEnv(env, tokenizer, max_observation_tokens, max_action_tokens)


def named_value(text: str) -> tuple[str, Any]:
    """``"max_steps=20"`` as a name and a value, which is a word where it is no Python literal.

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
    for name, environment in (ENVIRONMENTS | TEMPLATES).items():
        gym.register(
            name,
            entry_point="lang_envs.registration:make_env",
            nondeterministic=not environment.finite,
            kwargs={"entry_point": environment.entry_point, **environment.kwargs},
        )
