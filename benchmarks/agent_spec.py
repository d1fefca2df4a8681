"""Which agent is meant: an algorithm with settings of its own, parsed once from ``ALGO=...``."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lang_envs.registration import named_value

COLOURS = {
    "poad": "#0072B2",
    "ntpo": "#D55E00",
    "twosome": "#009E73",
    "reinforce": "#E69F00",
    "grpo": "#882255",
    "rloo": "#B66DFF",
    "gigpo": "#88CCEE",
    "softq": "#4B0092",
    "dqn": "#B2DF8A",
    "adrl-archer": "#924900",
    "frozen": "#661100",
    "random": "#7F7F7F",
}
"""One colour for each algorithm in every figure of the project. They differ for colour-blind readers, too."""
_OTHER_COLOURS = ("#CC79A7", "#F0C000", "#004949", "#000000")
_NAMES = {
    "gigpo": "GiGPO",
    "softq": "Soft Q",
    "frozen": "frozen model",
    "random": "random agent",
}
"""Names for readers that are not the algorithm's name in capital letters."""
_ALGORITHM = re.compile(r"[\w-]+(\.\w+)*(:\w+)?")
_LONGEST_FOLDER = 200
"""Bytes; file systems allow 255."""
_SET_FOR_ALL = {"seed", "model", "tokenizer", "device"}
_LABELS = {
    ("entropy_coefficient", 0.0): "no entropy bonus",
    ("entropy_level", "token"): "token entropy bonus",
    ("sampling", "candidates"): "candidate sampling",
    ("sampling", "trie"): "trie sampling",
    ("sampling", "free"): "free sampling",
    ("truncation_is_termination", True): "truncation as termination",
}
_SYMBOLS = {
    "gamma": "γ",
    "gamma_token": "γ_w",
    "gae_lambda": "λ",
    "gae_lambda_token": "λ_w",
    "actor_lr": "learning rate",
    "beta": "β",
    "step_weight": "ω",
    "entropy_coefficient": "entropy coefficient",
}


@dataclass(frozen=True)
class AgentSpec:
    """An algorithm with settings of its own.

    Parameters
    ----------
    algorithm : str
        A name of :data:`trainers.agents.AGENTS`, or ``"package.module:Class"``.
    settings : mapping
        Settings of this agent alone, by name.
    """

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> AgentSpec:
        """Read ``"ntpo"`` or ``"ntpo[gamma_token=0.9,epochs=2]"``.

        Raises
        ------
        ValueError
            If the name is none of an agent, the text in brackets is not of the form name=value,name=value, or it sets
            what all agents share.
        """
        name, bracket, inside = text.strip().partition("[")
        if not _ALGORITHM.fullmatch(name.strip()):
            raise ValueError(f"agent {text!r}: {name!r} is no name; expected a name like poad or package.module:Class")
        if bool(bracket) != text.strip().endswith("]") or not _balanced(inside[:-1]):
            raise ValueError(
                f"agent {text!r}: a bracket is missing or in the wrong place; expected name[setting=value,...]"
            )
        settings: dict[str, Any] = {}
        for pair in filter(None, _split_outside_brackets(inside[:-1])):
            try:
                setting, value = named_value(pair)
            except ValueError as error:
                raise ValueError(f"agent {text!r}: {error}") from None
            if setting in settings:
                raise ValueError(f"agent {text!r}: {setting} is set twice")
            settings[setting] = value
        if shared := sorted(settings.keys() & _SET_FOR_ALL):
            raise ValueError(f"agent {text!r}: {', '.join(shared)} holds for all agents; set it outside the brackets")
        return cls(name.strip(), settings)

    @classmethod
    def parse_list(cls, text: str) -> tuple[AgentSpec, ...]:
        """Read several agents separated by commas."""
        return tuple(map(cls.parse, filter(str.strip, _split_outside_brackets(text))))

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> AgentSpec:
        """The agent of a stored result."""
        return cls(stored["algorithm"], stored["settings"])

    @property
    def as_json(self) -> dict[str, Any]:
        """What :meth:`of` reads."""
        return {"algorithm": self.algorithm, "settings": dict(self.settings)}

    @property
    def name(self) -> str:
        """The agent as it is typed on the command line."""
        pairs = ",".join(f"{name}={value}".replace(" ", "") for name, value in self.settings.items())
        return f"{self.algorithm}[{pairs}]" if pairs else self.algorithm

    @property
    def label(self) -> str:
        """The agent as readers know it, such as ``"NTPO, γ_w = 0.9"``."""
        return self.label_without({})

    def label_without(self, shared: Mapping[str, Any]) -> str:
        """The label, without settings that a heading names already."""
        name = self.algorithm.upper() if self.algorithm in COLOURS else self.algorithm.rpartition(":")[2]
        own = {name: value for name, value in self.settings.items() if name not in shared}
        return ", ".join([_NAMES.get(self.algorithm, name), *setting_labels(own)])

    @property
    def folder(self) -> str:
        """Name of the folder of this agent's runs; a long name is cut, and a hash is added."""
        name = re.sub(r"[^\w.=,-]+", ".", self.name).strip(".")
        if len(name.encode()) <= _LONGEST_FOLDER:
            return name
        return f"{name[:50]}.{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    @property
    def colour(self) -> str:
        """The algorithm's colour."""
        return COLOURS.get(self.algorithm) or _OTHER_COLOURS[zlib.crc32(self.algorithm.encode()) % 4]


def setting_labels(settings: Mapping[str, Any]) -> list[str]:
    """Describe settings in words for tables and figures."""
    return [
        _LABELS.get((name, value) if isinstance(value, str | float | bool) else ("", ""))
        or f"{_SYMBOLS.get(name, name)} = {value}"
        for name, value in settings.items()
    ]


def _balanced(text: str) -> bool:
    """Whether each bracket is closed by one of its kind."""
    waiting: list[str] = []
    for character in text:
        if character in "[(":
            waiting.append("])"["[(".index(character)])
        elif character in "])" and (not waiting or waiting.pop() != character):
            return False
    return not waiting


def _split_outside_brackets(text: str) -> list[str]:
    """Split at commas that are outside of all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
