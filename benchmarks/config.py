"""What a benchmark is told, from the command line or from a run's folder."""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import docstring_parser
import gymnasium as gym
import tyro

from benchmarks.presets import preset_settings
from lang_envs import WORLDS
from trainers.agents import AGENTS, agent_class
from trainers.agents.settings import Settings, TokenLevelSettings


def _overrides_type() -> type[Any]:
    """Every setting of every agent as an option, unset unless given."""
    documented = docstring_parser.parse_from_object(Settings).params + (
        docstring_parser.parse_from_object(TokenLevelSettings).params
    )
    help_of = {parameter.arg_name: parameter.description for parameter in documented}
    set_elsewhere = ("seed", "device")
    fields = [
        (
            setting.name,
            Annotated[
                eval(str(setting.type)) | None,
                tyro.conf.arg(help=help_of.get(setting.name), help_behavior_hint="(default: the agent's)"),
            ],
            field(default=None),
        )
        for setting in dataclasses.fields(TokenLevelSettings)
        if setting.name not in set_elsewhere
    ]
    made = dataclasses.make_dataclass("AgentOverrides", fields, frozen=True)
    made.__module__ = __name__  # where pickle finds it
    return made


if TYPE_CHECKING:
    AgentOverrides = Any
else:
    AgentOverrides = _overrides_type()


@dataclass(frozen=True)
class BenchmarkConfig:
    """Compare agents in one world."""

    algo: str = "poad"
    """Agents, separated by commas: poad, ntpo, twosome, random, or package.module:Class."""
    env: str = "Overcooked-tomato-salad-v0"
    """Id of the world (python -m lang_envs list)."""
    model: str | None = None
    """embedded (the default), a Hugging Face name, or a folder."""
    seeds: int = 3
    """How many runs of each agent, each with a seed of its own."""
    first_seed: int = 0
    """The first of these seeds; the others follow it."""
    steps: int = 10_240
    """Decisions of each run, over all its environments."""
    num_envs: int = 4
    """Environments of each run."""
    rollout_steps: int = 64
    """Decisions in each environment between two updates."""
    eval_episodes: int = 100
    """Episodes that each trained agent plays at the end."""
    checkpoint_every: int = 10
    """Updates between two checkpoints."""
    preset: Literal["default", "paper"] = "default"
    """Hyper-parameters: the suite's own, or the paper's for 7B models."""
    device: str | None = None
    """auto (the default: a GPU where there is one), cpu, cuda, cuda:N."""
    workers: int | None = None
    """Runs at the same time; by default one for each core, or one on a GPU."""
    runs_dir: Path = Path("runs")
    """Where the run's folder is made."""
    agent: AgentOverrides = field(default_factory=AgentOverrides)
    """Settings of the agents."""

    def check(self) -> None:
        """Refuse what cannot be run, before anything is.

        Raises
        ------
        ValueError
            Naming the option, its value, and what is known.
        """
        if self.env not in gym.registry:
            raise ValueError(unknown("world", self.env, WORLDS))
        for name in self.algos:
            agent_class(name)
        for name in ("seeds", "steps", "num_envs", "rollout_steps", "eval_episodes", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.first_seed < 0:
            raise ValueError(f"first_seed={self.first_seed} must not be negative")

    @property
    def algos(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.algo.split(",") if name.strip())

    def agent_options(self, algo: str, seed: int) -> dict[str, Any]:
        """What the agent's class is called with: the preset, then what was given, then the seed."""
        learns = algo in AGENTS and algo != "random"
        given = {name: value for name, value in dataclasses.asdict(self.agent).items() if value is not None}
        given |= {name: getattr(self, name) for name in ("model", "device") if getattr(self, name) is not None}
        if not learns and algo in AGENTS:
            return {"seed": seed}
        preset = preset_settings(self.preset, self.env, algo) if learns else {}
        return preset | given | {"seed": seed}

    @property
    def env_options(self) -> dict[str, Any]:
        """The worlds speak the model's tokenizer."""
        return {} if self.model in (None, "embedded") else {"tokenizer": self.model}

    def save(self, path: Path) -> None:
        from trainers.checkpoint import write_atomically

        write_atomically(path, json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def load(cls, path: Path) -> BenchmarkConfig:
        saved = json.loads(path.read_text())
        lists = {name: tuple(value) for name, value in saved["agent"].items() if isinstance(value, list)}
        return cls(**saved | {"runs_dir": Path(saved["runs_dir"]), "agent": AgentOverrides(**saved["agent"] | lists)})


def unknown(kind: str, name: str, known: Any) -> str:
    """An error text that names the nearest of the known names, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"no {kind} {name!r}.{hint} Known are: {', '.join(known)}"
