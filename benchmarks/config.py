"""The options of a benchmark, from the command line or from the folder of its runs."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import docstring_parser
import gymnasium as gym
import tyro

from benchmarks.agent_spec import AgentSpec
from benchmarks.presets import WIDE, RunDefaults, preset_settings, run_defaults
from benchmarks.stored import typed
from lang_envs import ENVIRONMENTS, load_tokenizer
from lang_envs.files import read_json, write_atomically
from lang_envs.registration import TEMPLATES, named_value
from trainers.agents import AGENTS, agent_class
from trainers.language_agent import LanguageAgent
from trainers.language_model import resolve_device
from trainers.rollout import token_space
from trainers.settings import resolve

_MAXIMA = {
    "seeds": 10_000,
    "steps": 10**12,
    "num_envs": 65_536,
    "rollout_steps": 10**9,
    "eval_episodes": 10**6,
    "checkpoint_every": 10**9,
    "workers": 4_096,
}
"""Larger numbers are refused as typing errors."""


def _agent_options_type() -> type[Any]:
    """Make a dataclass of all settings of the agents in :data:`AGENTS`, each unset (None) unless given."""
    hints: dict[str, Any] = {}
    helps: dict[str, str] = {}
    defaults: dict[str, dict[str, tuple[Any, Any]]] = {}
    kinds = {name: getattr(agent_class(name), "settings_type", None) for name in AGENTS}
    for name, kind in ((name, kind) for name, kind in kinds.items() if kind is not None):
        for parent in kind.__mro__[:-1]:
            documented = docstring_parser.parse_from_object(parent).params
            helps = {own.arg_name: " ".join(own.description.split()) for own in documented if own.description} | helps
        hints |= get_type_hints(kind)
        embedded, other = resolve(kind, "embedded", {}), resolve(kind, "a model", {})
        for own in dataclasses.fields(kind):
            defaults.setdefault(own.name, {})[name] = getattr(embedded, own.name), getattr(other, own.name)
    learners = {name for of_setting in defaults.values() for name in of_setting}
    fields = [
        (
            name,
            Annotated[
                hints[name] | None,
                tyro.conf.arg(
                    help=helps[name] + _agents_text(own, learners),
                    help_behavior_hint=_default_text(own),
                    metavar=_metavar(hints[name]),
                ),
            ],
            field(default=None),
        )
        for name, own in defaults.items()
        if name not in ("seed", "device")  # options of all runs
    ]
    made = dataclasses.make_dataclass("AgentOptions", fields, frozen=True)
    made.__module__ = __name__  # where pickle looks for it
    return made


def _agents_text(having: Iterable[str], agents: Iterable[str]) -> str:
    """Name the agents that have a setting, or those that do not, whichever are fewer; nothing if all have it."""
    missing = [name for name in AGENTS if name in {*agents} - {*having}]
    if not missing:
        return ""
    has = [name for name in AGENTS if name in {*having}]
    return f" Only for {', '.join(has)}." if len(has) <= len(missing) else f" Not for {', '.join(missing)}."


def _default_text(defaults: dict[str, tuple[Any, Any]]) -> str:
    """Describe a setting's default: by agent and by model, where they differ."""

    if all(value is None for pair in defaults.values() for value in pair):
        return ""  # the help text says what None means

    def by_agent(model: int) -> str:
        agents: dict[str, list[str]] = {}
        for agent, pair in defaults.items():
            shown = " ".join(map(str, pair[model])) if isinstance(pair[model], tuple) else str(pair[model])
            agents.setdefault(shown, []).append(agent)
        most = max(agents, key=lambda shown: len(agents[shown]))
        others = [f"{' '.join(names)}: {shown}" for shown, names in agents.items() if shown != most]
        return most + f" ({', '.join(others)})" * bool(others)

    embedded, other = by_agent(0), by_agent(1)
    return f"(default: {embedded})" if embedded == other else f"(default: {embedded}; other models: {other})"


def _metavar(hint: Any) -> str:
    """Name a setting's type in --help."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind not in (type(None), Ellipsis)]
    name = "|".join("{True,False}" if kind is bool else kind.__name__.upper() for kind in kinds)
    return f"{name} [{name} ...]" if get_origin(hint) is tuple else name


if TYPE_CHECKING:
    AgentOptions = Any
else:
    AgentOptions = _agent_options_type()


OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
"""Types of options whose help text says what the default is."""


@dataclass(frozen=True)
class BenchmarkConfig:
    """Compare agents in one environment."""

    algo: str = "poad"
    """Agents, separated by commas: poad, ntpo, twosome, reinforce, grpo, rloo, gigpo, adrl-archer, frozen, softq, dqn,
    random, or package.module:Class. Settings of one agent follow it in brackets:
    poad[sampling=candidates],ntpo[gamma_token=0.9]."""
    env: str = "Overcooked-tomato-salad-v0"
    """Id of the environment (list: python -m lang_envs list), or module:Id if a module of yours registers it."""
    env_set: tuple[str, ...] = ()
    """Arguments of the environment, each name=value, such as task=chores.yaml for VirtualHome-v0."""
    model: OptionalText = None
    """embedded (default), a Hugging Face name, or a folder."""
    seeds: int = 3
    """Number of runs of each agent; each run has its own seed."""
    first_seed: int = 0
    """Seed of the first run; the next run has the next number."""
    steps: OptionalInt = None
    """Environment steps of each run, summed over its parallel environments; rounded up to whole rollouts (default:
    depends on the environment, mostly 16,384)."""
    num_envs: OptionalInt = None
    """Parallel environments of each run (default: depends on the environment, mostly 4)."""
    rollout_steps: OptionalInt = None
    """Steps in each environment between two updates (default: depends on the environment, mostly 64)."""
    eval_episodes: int = 100
    """Evaluation episodes of each trained agent, sampled and greedy each."""
    transfer: tuple[str, ...] = ()
    """Ids of further environments. Every agent is evaluated on them before and after training; it is not trained on
    them."""
    checkpoint_every: int = 1
    """Updates between two checkpoints."""
    preset: Literal["default", "paper", "paper-wide"] = "default"
    """Hyper-parameters: default (this project's), paper (the paper's for 7B models), or paper-wide (the paper's, with
    rollouts of 128 environments and 1 step; DataSciCoding only)."""
    device: OptionalText = None
    """auto (default: a GPU if there is one), cpu, cuda, cuda:N."""
    workers: OptionalInt = None
    """Runs at the same time (default: one for each CPU core; one on a GPU)."""
    runs_dir: Path = Path("runs")
    """Where the folder of this benchmark is made."""
    agent: AgentOptions = field(default_factory=AgentOptions)
    """Settings of all agents; agents without a setting of that name refuse it."""

    def check(self) -> None:
        """Refuse what cannot be run, before anything runs.

        Raises
        ------
        ValueError
            Naming the option, its value, and what was expected.
        """
        if not self.embedded:
            load_tokenizer(self.model)
        resolve_device(self.device or "auto")
        self.check_values()
        for spec in self.agents:
            self._check_agent(spec, agent_class(spec.algorithm))
        made = made_env(self.env, self.env_options)
        for spec in self.agents:
            self._check_agent_in(made, spec, agent_class(spec.algorithm))
        for env in self.transfer:
            made_env(env, self.tokenizer_options)

    def check_values(self) -> None:
        """Refuse values out of range, without making or importing what they name.

        Raises
        ------
        ValueError
            Naming the option, its value, and what was expected.
        """
        if self.first_seed < 0:
            raise ValueError(f"first_seed={self.first_seed} must not be negative")
        if not self.agents:
            raise ValueError("algo='' names no agent; expected for example algo='poad,ntpo'")
        folders = [spec.folder for spec in self.agents]
        if twice := {folder for folder in folders if folders.count(folder) > 1}:
            raise ValueError(f"algo={self.algo!r} names {', '.join(sorted(twice))} more than once")
        for spec in self.agents:
            if spec.algorithm in AGENTS:
                self._check_agent(spec, agent_class(spec.algorithm))
        for name, most in _MAXIMA.items():
            if (value := getattr(self, name)) is not None and not 1 <= value <= most:
                raise ValueError(f"{name}={value} must be at least 1" + f" and at most {most:,}" * (value > most))
        _ = self.env_arguments

    def _check_agent(self, spec: AgentSpec, kind: type[Any]) -> None:
        options = self.agent_options(spec, self.first_seed)
        name = spec.algorithm
        if settings_type := getattr(kind, "settings_type", None):
            resolve(settings_type, options.pop("model", "embedded"), options)
        elif name in AGENTS and (given := options.keys() - {"seed"}):
            raise ValueError(f"agent {name!r} has no setting {', '.join(sorted(given))}")
        elif name not in AGENTS and callable(kind):
            methods = ("act", "learn", "save", "load")
            if isinstance(kind, type) and (missing := [own for own in methods if not hasattr(kind, own)]):
                raise ValueError(
                    f"agent {name!r} has no method {', '.join(missing)}; expected: {', '.join(methods)} "
                    "(python -m pydoc trainers.Agent)"
                )
            parameters = inspect.signature(kind).parameters
            takes_all = any(own.kind is own.VAR_KEYWORD for own in parameters.values())
            if not takes_all and (given := options.keys() - parameters.keys() - {"seed"}):
                raise ValueError(
                    f"agent {name!r} takes no {', '.join(sorted(given))}; put settings of one agent in brackets after "
                    "it: poad[epochs=2]"
                )

    def _check_agent_in(self, env: gym.Env, spec: AgentSpec, kind: type[Any]) -> None:
        """Refuse an agent that cannot act in an environment, such as a Q function of phrases where there are none."""
        if isinstance(kind, type) and issubclass(kind, LanguageAgent):
            options = self.agent_options(spec, self.first_seed)
            try:
                kind.settings_for(env, options.pop("model", "embedded"), options)
            except ValueError as error:
                raise ValueError(f"agent {spec.name!r} in {self.env}: {error}") from None

    @property
    def embedded(self) -> bool:
        """Whether the model is the embedded one."""
        return self.model in (None, "embedded")

    @property
    def run_defaults(self) -> RunDefaults:
        """Length and size of a run: as given, else the environment's defaults; steps in whole rollouts."""
        found = WIDE if self.preset == "paper-wide" else RunDefaults()
        if self.preset == "default" and self.embedded:
            found = run_defaults(self.env)
        given = {name: getattr(self, name) for name in ("steps", "num_envs", "rollout_steps")}
        found = found._replace(**{name: value for name, value in given.items() if value is not None})
        rollout = found.num_envs * found.rollout_steps
        return found._replace(steps=-(-found.steps // rollout) * rollout)

    @cached_property
    def agents(self) -> tuple[AgentSpec, ...]:
        """The agents that ``algo`` names."""
        return AgentSpec.parse_list(self.algo)

    def agent_options(self, spec: AgentSpec, seed: int) -> dict[str, Any]:
        """Return keyword arguments of an agent's class: the preset, options of all agents, its own, the seed."""
        if spec.algorithm == "random":
            return {**spec.settings, "seed": seed}
        given = {option: value for option, value in asdict(self.agent).items() if value is not None}
        given |= {option: getattr(self, option) for option in ("model", "device") if getattr(self, option) is not None}
        preset: dict[str, Any] = {}
        if spec.algorithm in AGENTS:
            preset = preset_settings(self.preset, self.env, spec.algorithm)
            known = agent_class(spec.algorithm).settings_type.__dataclass_fields__
            preset |= {name: value for name, value in self.run_defaults.settings.items() if name in known}
        return {**preset, **given, **spec.settings, "seed": seed}

    @property
    def tokenizer_options(self) -> dict[str, Any]:
        """Environments use the model's tokenizer."""
        return {} if self.embedded else {"tokenizer": self.model}

    @property
    def env_options(self) -> dict[str, Any]:
        """Keyword arguments of the training environment."""
        return self.tokenizer_options | self.env_arguments

    @property
    def env_arguments(self) -> dict[str, Any]:
        """Keyword arguments of the training environment without the tokenizer.

        Raises
        ------
        ValueError
            If an argument is not one of the environment, but of how its class is imported.
        """
        options = dict(map(named_value, self.env_set))
        if "entry_point" in options:  # of make_env: names a module to import
            raise ValueError(f"entry_point={options['entry_point']!r} is no argument of an environment")
        return options

    @property
    def modules(self) -> dict[str, str]:
        """Modules that must be imported for agents and environments, by the name that needs them."""
        names = [*(spec.algorithm for spec in self.agents), self.env, *self.transfer]
        return {name: name.partition(":")[0] for name in names if ":" in name}

    def save(self, path: Path) -> None:
        """Write the configuration as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def load(cls, path: Path) -> BenchmarkConfig:
        """Read a configuration; nothing that it names is made or imported.

        Raises
        ------
        ValueError
            If the file is damaged, or of another version; names the file.
        """
        config = typed(cls, read_json(path), str(path), optional=("transfer", "env_set"))
        try:
            config.check_values()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return config


def made_env(env: str, options: dict[str, Any]) -> gym.Env:
    """Make an environment and close it, for its properties or its error.

    Raises
    ------
    ValueError
        If it cannot be made, or has no token action space.
    """
    try:
        made = gym.make(env, **options)
        made.close()
        token_space(made.action_space)
        return made
    except ImportError as error:
        module = env.partition(":")[0]
        raise ValueError(
            f"env={env!r}: the module {module!r} cannot be imported: {error.__cause__ or error} (for a module of your "
            "own, set PYTHONPATH to its folder: PYTHONPATH=. make bench ...)"
        ) from error
    except (gym.error.Error, TypeError, FileNotFoundError) as error:
        if env in ENVIRONMENTS or env in TEMPLATES or ":" in env:
            raise ValueError(f"env={env!r}: {error}") from None
        near = difflib.get_close_matches(env, ENVIRONMENTS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no environment {env!r}.{hint} List all: python -m lang_envs list") from None
