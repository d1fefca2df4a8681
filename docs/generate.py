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
from lang_envs.datascicoding import DATASETS
from trainers import AGENTS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ALGORITHMS = ("poad", "ntpo", "twosome")
Row = tuple[str, ...]


def write(folder: Path) -> None:
    """Write all parts: ``folder/parts`` is included by other pages, ``folder/results`` holds pages."""
    parts = {}
    for name in families():
        parts[f"{name}-summary.md"], parts[f"{name}.md"] = manual(name)
    parts |= {f"{name}-ids.md": environments_table(name) for name in families()}
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


def environments_table(family: str) -> str:
    """Return a table of the ids of a family: with phrases and optimal return, or with the source of the data."""
    rows: list[Row] = []
    for name, environment in ENVIRONMENTS.items():
        if not name.lower().startswith(f"{family}-"):
            continue
        discount = str(load_env_creator(environment.entry_point).discount)
        if environment.finite:
            env: Any = gym.make(name, interface="text").unwrapped
            about = str(len(env.action_names)), f"{env.optimal_return:.4f}"
        else:
            about = (f"`{DATASETS[environment.kwargs['dataset']].source}`",)
        rows.append((f"`{name}`", discount, *about, environment.summary))
    about = ("data",) if len(rows[0]) == 4 else ("phrases", "optimal return")
    return _table(("id", "γ", *about, "task"), rows)


def manual(family: str) -> tuple[str, str]:
    """Return the class docstring of a family as Markdown: its first paragraph, and its sections."""
    entry_point = next(env.entry_point for name, env in ENVIRONMENTS.items() if name.lower().startswith(family))
    text = inspect.cleandoc(load_env_creator(entry_point).__doc__ or "")
    text = re.sub(r"^(.+)\n-{3,}$", r"## \1", text, flags=re.MULTILINE)  # NumPy's headings
    text = re.sub(r"^([\w, ]+) : (.+)\n {4}", r"\n`\1` : \2\n: ", text, flags=re.MULTILINE)  # NumPy's parameters
    text = re.sub(r"^([\w.]+)\n {4}", r"\n`\1`\n: ", text, flags=re.MULTILINE)  # what is raised
    summary, _, sections = re.sub(r":(\w+):`([^`]+)`", r"{py:\1}`\2`", text).partition("\n\n")
    return f"{summary}\n", f"{sections}\n"


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
