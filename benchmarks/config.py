"""What a benchmark is told, from the command line or from a run's folder."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import docstring_parser
import gymnasium as gym
import tyro

from benchmarks.presets import WIDE, Usual, preset_settings, usual
from benchmarks.stored import typed
from lang_envs import ENVIRONMENTS, load_tokenizer
from lang_envs.files import read_json, write_atomically
from lang_envs.registration import TEMPLATES, named_value
from trainers.agents import AGENTS, agent_class
from trainers.agents.settings import Settings, TokenLevelSettings, resolve
from trainers.language_model import resolve_device
from trainers.rollout import token_space

_MOST = {
    "seeds": 10_000,
    "steps": 10**12,
    "num_envs": 65_536,
    "rollout_steps": 10**9,
    "eval_episodes": 10**6,
    "checkpoint_every": 10**9,
    "workers": 4_096,
}
"""The largest numbers that are taken for meant."""
_ENTRY_POINT = "entry_point"
"""With this argument of ``make_env``, an option would name a module to import."""


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
    """Compare agents in one environment."""

    algo: str = "poad"
    """Agents, separated by commas: poad, ntpo, twosome, random, or package.module:Class; settings of one of them alone
    stand behind it in brackets: poad[sampling=candidates],ntpo[gamma_token=0.9]."""
    env: str = "Overcooked-tomato-salad-v0"
    """Id of the environment (python -m lang_envs list), or module:Id of one that a module registers."""
    env_set: tuple[str, ...] = ()
    """Arguments of the environment, each name=value, such as task=chores.yaml for VirtualHome-v0."""
    model: str | None = None
    """embedded (the default), a Hugging Face name, or a folder."""
    seeds: int = 3
    """How many runs of each agent, each with a seed of its own."""
    first_seed: int = 0
    """The first of these seeds; the others follow it."""
    steps: int | None = None
    """Decisions of each run, over all its environments, rounded up to whole rollouts (by default what the environment takes:
    mostly 16,384)."""
    num_envs: int | None = None
    """Environments of each run (by default what suits the environment: mostly 4)."""
    rollout_steps: int | None = None
    """Decisions in each environment between two updates (by default what suits the environment: mostly 64)."""
    eval_episodes: int = 100
    """Episodes that each trained agent plays at the end."""
    transfer: tuple[str, ...] = ()
    """Ids of further environments, which every agent plays before and after its training, learning nothing in them."""
    checkpoint_every: int = 1
    """Updates between two checkpoints."""
    preset: Literal["default", "paper", "paper-wide"] = "default"
    """Hyper-parameters: the suite's own, the paper's for 7B models, or, for DataSciCoding, the paper's with rollouts of
    128 environments × 1 step, whose texts are generated in one batch."""
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
        if not self.embedded:
            load_tokenizer(self.model)
        resolve_device(self.device or "auto")
        self.check_values()
        for algo in self.algos:
            self._check_agent(algo, agent_class(parse_variant(algo)[0]))
        made_env(self.env, self.env_options)
        for env in self.transfer:
            made_env(env, self.tokenizer_options)

    def check_values(self) -> None:
        """Refuse values that make no sense, without making or importing anything that they name.

        Raises
        ------
        ValueError
            Naming the option and its value.
        """
        if self.first_seed < 0:
            raise ValueError(f"first_seed={self.first_seed} must not be negative")
        if not self.algos:
            raise ValueError("algo='' names no agent")
        folders = [variant_folder(algo) for algo in self.algos]
        if twice := {folder for folder in folders if folders.count(folder) > 1}:
            raise ValueError(f"algo={self.algo!r} names {', '.join(sorted(twice))} more than once")
        for algo in self.algos:
            name, _ = parse_variant(algo)
            if name in AGENTS:
                self._check_agent(algo, agent_class(name))
        for name, most in _MOST.items():
            if (value := getattr(self, name)) is not None and not 1 <= value <= most:
                raise ValueError(f"{name}={value} must be at least 1" + f" and at most {most:,}" * (value > most))
        _ = self.env_arguments

    def _check_agent(self, algo: str, kind: type[Any]) -> None:
        name, _ = parse_variant(algo)
        if settings := getattr(kind, "settings_type", None):
            options = self.agent_options(algo, self.first_seed)
            resolve(settings, options.pop("model", "embedded"), options)
        elif name in AGENTS and (given := self.agent_options(algo, 0).keys() - {"seed"}):
            raise ValueError(f"the agent {name!r} has no {', '.join(sorted(given))}")
        elif name not in AGENTS and callable(kind):
            parameters = inspect.signature(kind).parameters
            takes_all = any(own.kind is own.VAR_KEYWORD for own in parameters.values())
            if not takes_all and (given := self.agent_options(algo, 0).keys() - parameters.keys() - {"seed"}):
                raise ValueError(
                    f"the agent {name!r} takes no {', '.join(sorted(given))}; settings of one agent stand behind it in "
                    "brackets: poad[epochs=2]"
                )

    @property
    def embedded(self) -> bool:
        """Whether the model is the embedded one."""
        return self.model in (None, "embedded")

    @property
    def usual(self) -> Usual:
        """How long and over how many environments: as given, or as the environment takes with the embedded model."""
        suited = WIDE if self.preset == "paper-wide" else Usual()
        if self.preset == "default" and self.embedded:
            suited = usual(self.env)
        given = {name: getattr(self, name) for name in ("steps", "num_envs", "rollout_steps")}
        found = suited._replace(**{name: value for name, value in given.items() if value is not None})
        rollout = found.num_envs * found.rollout_steps
        return found._replace(steps=-(-found.steps // rollout) * rollout)

    @property
    def algos(self) -> tuple[str, ...]:
        """Agents with their own settings, as they were given; commas in brackets separate nothing."""
        return tuple(found.strip() for found in _split_outside_brackets(self.algo) if found.strip())

    def agent_options(self, algo: str, seed: int) -> dict[str, Any]:
        """What an agent's class is called with: the preset, what was given for all, what was given for it, the seed."""
        name, own = parse_variant(algo)
        if name == "random":
            return own | {"seed": seed}
        given = {option: value for option, value in dataclasses.asdict(self.agent).items() if value is not None}
        given |= {option: getattr(self, option) for option in ("model", "device") if getattr(self, option) is not None}
        preset = preset_settings(self.preset, self.env, name) | self.usual.settings if name in AGENTS else {}
        return preset | given | own | {"seed": seed}

    @property
    def tokenizer_options(self) -> dict[str, Any]:
        """The environments speak the model's tokenizer."""
        return {} if self.embedded else {"tokenizer": self.model}

    @property
    def env_options(self) -> dict[str, Any]:
        """What the environment that is trained in is made with."""
        return self.tokenizer_options | self.env_arguments

    @property
    def env_arguments(self) -> dict[str, Any]:
        """The same without the tokenizer.

        Raises
        ------
        ValueError
            If an option is not one of the environment, but of how its class is found.
        """
        options = dict(map(named_value, self.env_set))
        if _ENTRY_POINT in options:
            raise ValueError(f"{_ENTRY_POINT}={options[_ENTRY_POINT]!r} is no argument of an environment")
        return options

    @property
    def modules(self) -> dict[str, str]:
        """Modules that are imported to make agents and environments, by the names that ask for them."""
        names = [*(parse_variant(algo)[0] for algo in self.algos), self.env, *self.transfer]
        return {name: name.partition(":")[0] for name in names if ":" in name}

    def save(self, path: Path) -> None:
        write_atomically(path, json.dumps(dataclasses.asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def load(cls, path: Path) -> BenchmarkConfig:
        """A configuration from a run's folder, of which nothing is made or imported.

        Raises
        ------
        ValueError
            If it is damaged, or of another version; names the file.
        """
        config = typed(cls, read_json(path), str(path), optional=("transfer", "env_set"))
        try:
            config.check_values()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return config


def parse_variant(algo: str) -> tuple[str, dict[str, Any]]:
    """An agent's name, and the settings in brackets behind it.

    Raises
    ------
    ValueError
        If what stands in brackets is not of the form name=value,name=value.
    """
    name, bracket, inside = algo.partition("[")
    if bool(bracket) != algo.endswith("]"):
        raise ValueError(f"in {algo!r} a bracket is missing")
    own: dict[str, Any] = {}
    for pair in filter(None, _split_outside_brackets(inside[:-1])):
        try:
            setting, value = named_value(pair)
        except ValueError as error:
            raise ValueError(f"in {algo!r}, {error}") from None
        if setting in own:
            raise ValueError(f"in {algo!r}, {setting} is set twice")
        own[setting] = value
    if elsewhere := own.keys() & {"seed", "model", "tokenizer", "device"}:
        raise ValueError(f"{', '.join(elsewhere)} in {algo!r} is set for all agents alike, not in brackets")
    return name.strip(), own


def _split_outside_brackets(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def variant_folder(algo: str) -> str:
    """The folder of an agent's runs."""
    return re.sub(r"[^\w.=,-]+", ".", algo).strip(".")


def made_env(env: str, options: dict[str, Any]) -> gym.Env:
    """An environment that was made and closed again, to be asked what it is and to hear what is wrong with it.

    Raises
    ------
    ValueError
        If it cannot be made, or has no token space.
    """
    try:
        made = gym.make(env, **options)
        made.close()
        token_space(made.action_space)
        return made
    except ImportError as error:
        module = env.partition(":")[0]
        raise ValueError(
            f"env={env!r}: the module {module!r} cannot be imported: {error.__cause__ or error} (one of your own is "
            "found where PYTHONPATH names its folder: PYTHONPATH=. make bench ...)"
        ) from error
    except (gym.error.Error, TypeError, FileNotFoundError) as error:
        known = env in ENVIRONMENTS or env in TEMPLATES
        raise ValueError(
            f"env={env!r}: {error}" if known or ":" in env else unknown("environment", env, ENVIRONMENTS)
        ) from None


def unknown(kind: str, name: str, known: Any) -> str:
    """An error text that names the nearest of the known names, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"no {kind} {name!r}.{hint} Known are: {', '.join(known)}"
