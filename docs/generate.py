"""Write the parts of the site that follow from the code: manuals and tables of environments, settings, results."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym
from docstring_parser import parse_from_object
from gymnasium.envs.registration import load_env_creator

from lang_envs import ENVIRONMENTS
from trainers import AGENTS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ALGORITHMS = [name for name, path in AGENTS.items() if hasattr(resolve_name(path), "settings_type")]
Row = tuple[str, ...]


def write(folder: Path) -> None:
    """Write all parts: ``folder/parts`` is included by other pages, ``folder/results`` holds pages."""
    parts = {"environments.md": environments_table()} | {f"{name}.md": manual(name) for name in families()}
    parts |= {f"{name}-settings.md": settings_table(name) for name in ALGORITHMS}
    pages = {path.name: results_page(path) for path in sorted(RESULTS.glob("*.md"))}
    for place, files in (("parts", parts), ("results", pages)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / place / name
            if not path.exists() or path.read_text() != text:  # so that Sphinx rebuilds only what changed
                path.write_text(text)


def families() -> list[str]:
    """Return the families of environments: "overcooked", …"""
    return list(dict.fromkeys(name.partition("-")[0].lower() for name in ENVIRONMENTS))


def environments_table() -> str:
    """Return a table of all environments: id, phrases, discount, optimal return, task."""
    rows: list[Row] = []
    for name, environment in ENVIRONMENTS.items():
        discount = str(load_env_creator(environment.entry_point).discount)
        phrases, optimum = "any text", ""
        if environment.finite:  # the others cannot be made without their data
            env: Any = gym.make(name, interface="text").unwrapped
            phrases, optimum = str(len(env.action_names)), f"{env.optimal_return:.4f}"
        rows.append((f"`{name}`", phrases, discount, optimum, environment.summary))
    return _table(("id", "phrases", "γ", "optimal return", "task"), rows)


def manual(family: str) -> str:
    """Return the class docstring of a family: reStructuredText, with its sections as Markdown headings of level 2."""
    entry_point = next(env.entry_point for name, env in ENVIRONMENTS.items() if name.lower().startswith(family))
    text = inspect.cleandoc(load_env_creator(entry_point).__doc__ or "")
    introduction, *sections = re.split(r"^(.+)\n-{3,}\n", text, flags=re.MULTILINE)
    headings = ["", *(f"## {title}\n\n" for title in sections[::2])]
    bodies = [introduction, *sections[1::2]]
    return "".join(
        f"{heading}```{{eval-rst}}\n{body.strip()}\n```\n\n" for heading, body in zip(headings, bodies, strict=True)
    )


def settings_table(algorithm: str) -> str:
    """Return a table of an algorithm's settings: name, default, default with the embedded model, meaning."""
    settings = resolve_name(AGENTS[algorithm]).settings_type
    known = {field.name: field for field in fields(settings)}
    classes = [base for base in settings.__mro__ if is_dataclass(base)]
    meanings: dict[str, str] = {}
    for base in reversed(classes):
        for parameter in parse_from_object(base).params:
            if parameter.description:
                meanings[parameter.arg_name] = " ".join(parameter.description.split())
    rows = []
    for name in dict.fromkeys(name for base in classes for name in base.__annotations__):  # the algorithm's own first
        default, embedded = known[name].default, known[name].metadata.get("embedded")
        other = "" if embedded in (None, default) else f"`{value_text(embedded)}`"
        rows.append((f"`{name}`", f"`{value_text(default)}`", other, meanings[name].replace("|", r"\|")))
    return _table(("setting", "default", "with the embedded model", "meaning"), rows)


def results_page(path: Path) -> str:
    """Return a page that includes a page of published results."""
    return f"```{{include}} ../../../benchmarks/results/{path.name}\n:relative-images:\n```\n"


def _table(header: Row, rows: list[Row]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def value_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
