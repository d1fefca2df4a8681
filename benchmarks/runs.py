"""The runs of a benchmark as files: a run is one agent, in one environment, with one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym

import lang_envs
import trainers
from benchmarks.agent_spec import AgentSpec, setting_labels
from benchmarks.config import BenchmarkConfig, made_env
from benchmarks.stored import require_numbers
from lang_envs import ENVIRONMENTS
from lang_envs.files import MIB, at_home, is_number, parse_json, read_bytes, read_object, refuse_irregular
from lang_envs.registration import TEMPLATES
from trainers.agents import AGENTS, agent_class
from trainers.agents.ppo import PPOAgent
from trainers.checkpoint import DamagedRunError, is_checkpoint_link, newest
from trainers.language_model import EMBEDDED, EMBEDDED_FOLDER
from trainers.loop import CHECKPOINTS_FOLDER
from trainers.metrics import METRICS_FILE
from trainers.settings import resolve

CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
"""A run's configuration."""
RESULT_FILE = "result.json"
STAGES = ("untrained", "trained")
"""When an agent is evaluated on the environments of ``transfer``."""
MODES = ("sampled", "greedy")
_OF_THE_MACHINE = ("sandbox", "cache_dir")
"""Arguments of environments that decide how programs are isolated and where files are written."""
_MAX_METRICS = 1024 * MIB
_PART = 1 << 16
READ_METRICS = frozenset(
    {"step", "episodes", "recent_return", "recent_success", "approximate_kl", "skipped_actor_steps"}
    | {"reward", "works", "score", "best_score", "best_score_step"}
)
"""Metrics that analyses and the display read. An environment may log others, and its values may be words."""


@dataclass(frozen=True)
class Run:
    """One agent in one environment with one seed, in a folder of its own."""

    config: BenchmarkConfig
    folder: Path
    """The folder of the benchmark."""
    agent: AgentSpec
    seed: int
    imports: tuple[str, ...] | None = None
    """As in :class:`Benchmark`."""

    @property
    def path(self) -> Path:
        """The folder of this run."""
        return self.folder / self.agent.folder / f"seed-{self.seed}"

    @property
    def name(self) -> str:
        """The run in messages."""
        return f"{self.agent.label} (seed {self.seed})"

    @property
    def result(self) -> dict[str, Any] | None:
        """Final evaluation: return, success and number of episodes, sampled and greedy; None before it."""
        file = self.path / RESULT_FILE
        if not file.exists():
            return None
        found = read_object(file, *MODES)
        for mode in MODES:
            require_numbers(found[mode], ("return", "success", "episodes"), f"{file}: {mode}")
        return found

    @property
    def finished(self) -> bool:
        """Whether training and all evaluations are done."""
        return self.result is not None and not any(self.missing_transfer(stage) for stage in STAGES)

    def transfer_results(self, stage: str) -> dict[str, Any]:
        """Returns and successes of every episode on the environments of ``transfer``, by environment and mode."""
        file = self.transfer_file(stage)
        found = read_object(file) if file.exists() else {}
        for env, mode, measure in product(found, MODES, ("return", "success")):
            try:
                values = found[env][mode][measure]
            except (KeyError, TypeError):
                values = None
            known = isinstance(values, list) and all(is_number(own) or isinstance(own, bool) for own in values)
            if not (known and values):
                raise ValueError(f"{file} is damaged: {env!r:.80} has no list of numbers {mode} {measure}")
        return found

    def missing_transfer(self, stage: str) -> list[str]:
        """Environments of ``transfer`` on which the agent is still to be evaluated."""
        if stage == "untrained" and self.agent != self.config.agents[0]:
            return []  # tables show the first agent untrained
        found = self.transfer_results(stage)
        return [env for env in self.config.transfer if env not in found]

    def transfer_file(self, stage: str) -> Path:
        """File of :meth:`transfer_results`."""
        return self.path / f"transfer-{stage}.json"

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that decides the course of this run, independent of where its folder is."""
        config, size = self.config, self.config.run_defaults
        options = config.agent_options(self.agent, self.seed)
        model = options.pop("model", EMBEDDED)
        if (settings_type := getattr(self.kind, "settings_type", None)) is not None:
            options = asdict(resolve(settings_type, model, options))
        found = {
            "env": config.env,
            "env_options": {name: _with_content(value) for name, value in config.env_arguments.items()},
            "steps": size.steps,
            "num_envs": size.num_envs,
            "rollout_steps": size.rollout_steps,
            "eval_episodes": config.eval_episodes,
            "model": _identity(model),
            **options,
        }
        return json.loads(json.dumps(found, default=str))

    @property
    def kind(self) -> type[Any] | None:
        """The agent's class; None if its module must not be imported."""
        name = self.agent.algorithm
        return agent_class(name) if name in AGENTS or may_import(name, self.imports) else None

    def check(self) -> None:
        """Refuse to resume or to count a run that was started with another configuration.

        Raises
        ------
        ValueError
            Naming what differs.
        """
        file = self.path / RUN_FILE
        if not file.exists():
            if (self.path / CHECKPOINTS_FOLDER).exists():
                raise ValueError(f"{self.path} has checkpoints but no {RUN_FILE} with their configuration: delete it")
            return
        begun, asked = read_object(file), self.configuration
        if self.kind is None:  # only the class knows settings that were not given
            begun = {key: value for key, value in begun.items() if key in asked}
        refuse_another(self.path, begun, asked)

    def make_agent(self, envs: Any) -> Any:
        """Make the untrained agent."""
        return trainers.make(self.agent.algorithm, envs, **self.config.agent_options(self.agent, self.seed))

    def load_agent(self, envs: Any) -> Any:
        """Make the agent of the last checkpoint.

        Raises
        ------
        ValueError
            If there is no checkpoint, or it is damaged.
        """
        if (checkpoint := newest(self.path / CHECKPOINTS_FOLDER)) is None:
            raise ValueError(f"{self.path} has no checkpoint: delete it and run it again")
        try:
            agent = self.make_agent(envs)
            agent.load(checkpoint)
        except Exception as error:  # agents of third parties raise what they like
            raise DamagedRunError(f"{checkpoint} cannot be loaded: {error}") from error
        return agent

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of the finished run's metrics, one for each iteration.

        Raises
        ------
        ValueError
            If the file is damaged, lacks lines, or ends before the run did.
        """
        file, again = self.path / METRICS_FILE, f"delete {self.path} and run it again"
        lines = read_bytes(file, _MAX_METRICS).splitlines() if file.exists() else []
        found = [parse_json(line, f"line {number} of {file}") for number, line in enumerate(lines, 1)]
        for number, line in enumerate(found, 1):
            if not isinstance(line, dict) or line.get("iteration") != number or not {"step", "timing"} <= line.keys():
                raise ValueError(f"line {number} of {file} is not that of iteration {number}: {again}")
            require_numbers(line, tuple(line.keys() & READ_METRICS), f"line {number} of {file}")
            timing = ("rollout_seconds", "learn_seconds")
            require_numbers(line["timing"], timing, f"line {number} of {file}: timing")
        steps, last = self.config.run_defaults.steps, found[-1]["step"] if found else 0
        if last < steps:
            raise ValueError(f"{file} ends at step {last:,} of {steps:,}: {again}")
        return found

    @property
    def training_hours(self) -> float:
        """Time of rollouts and updates, without start and evaluation."""
        timings = [line["timing"] for line in self.metrics()]
        return sum(timing["rollout_seconds"] + timing["learn_seconds"] for timing in timings) / 3600


@dataclass(frozen=True)
class Benchmark:
    """The runs of several agents in one environment, finished or not."""

    config: BenchmarkConfig
    folder: Path
    imports: tuple[str, ...] | None = None
    """Modules that may be imported because the configuration names them; None for any (the user gave the configuration
    on the command line)."""

    @classmethod
    def load(cls, folder: Path, imports: tuple[str, ...] = ()) -> Benchmark:
        """Read a benchmark's folder. Of the modules that it names, only ``imports`` are imported.

        Raises
        ------
        ValueError
            If the folder is not that of a benchmark, or holds links or other things that are no regular files.
        """
        if not (folder / CONFIG_FILE).is_file():
            raise ValueError(f"{folder} is not the folder of a benchmark: it has no {CONFIG_FILE}")
        refuse_irregular(folder, is_checkpoint_link)
        return cls(BenchmarkConfig.load(folder / CONFIG_FILE), folder, imports)

    @classmethod
    def finished(cls, folder: Path, imports: tuple[str, ...] = ()) -> Benchmark:
        """Read the folder of a finished benchmark.

        Raises
        ------
        ValueError
            If a run is not finished, or was started with another configuration.
        """
        benchmark = cls.load(folder, imports)
        for run in benchmark.runs:
            run.check()
        if unfinished := [run.path for run in benchmark.runs if not run.finished]:
            raise ValueError(f"{unfinished[0]} is not finished: make bench RESUME={folder}")
        return benchmark

    @property
    def shared_settings(self) -> dict[str, Any]:
        """Settings that all agents were given alike in brackets."""
        first, *others = (spec.settings for spec in self.config.agents)
        return {name: value for name, value in first.items() if all(own.get(name) == value for own in others)}

    @property
    def title(self) -> str:
        """Environment, model unless it is the embedded one, and the settings that all agents share."""
        model = [] if self.config.embedded else [f"model {Path(str(self.config.model)).name}"]
        return ", ".join([self.config.env, *model, *setting_labels(self.shared_settings)])

    @property
    def runs(self) -> list[Run]:
        """All runs, agent by agent."""
        return [run for spec in self.config.agents for run in self.of(spec)]

    def of(self, spec: AgentSpec) -> list[Run]:
        """The runs of one agent, by seed."""
        seeds = range(self.config.first_seed, self.config.first_seed + self.config.seeds)
        return [Run(self.config, self.folder, spec, seed, self.imports) for seed in seeds]

    @property
    def learners(self) -> list[AgentSpec]:
        """Agents that are language models with a critic."""
        kinds = {spec: self.of(spec)[0].kind for spec in self.config.agents}
        return [spec for spec, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, PPOAgent)]

    def environment(self, env: str, options: dict[str, Any]) -> gym.Env | None:
        """Make an environment for its properties; None if its module must not be imported or it starts a sandbox.

        Raises
        ------
        ValueError
            If there is no such environment.
        """
        known = ENVIRONMENTS.get(env) or TEMPLATES.get(env)
        if not (known.finite if known else may_import(env, self.imports)):
            return None
        try:
            return made_env(env, options)
        except ValueError as error:
            raise ValueError(f"{self.folder / CONFIG_FILE}: {error}") from error

    def check_imports(self) -> None:
        """Refuse a configuration read from a folder that names modules which the user did not allow.

        Raises
        ------
        ValueError
            Naming them, and the option that allows them.
        """
        if self.imports is None:
            return
        file, trust = self.folder / CONFIG_FILE, "if you trust it: --allow-import"
        for name, value in self.config.env_arguments.items():
            if name in _OF_THE_MACHINE and (pair := f"{name}={value}") not in self.imports:
                raise ValueError(f"{file} sets {pair}, which only you may decide; {trust} {pair}")
        for name, module in self.config.modules.items():
            if not may_import(name, self.imports):
                raise ValueError(f"{file} names {name!r}; importing {module!r} runs its code; {trust} {module}")


def may_import(name: str, imports: tuple[str, ...] | None) -> bool:
    """Whether ``"package.module:Class"`` may be imported: its module or a package around it is in ``imports``."""
    module, named, _ = name.partition(":")
    return imports is None or not named or any(module == own or module.startswith(f"{own}.") for own in imports)


def refuse_another(folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise ValueError if a folder was started with another configuration; names the first difference."""
    for key in (key for key in {**begun, **asked} if begun.get(key) != asked.get(key)):
        raise ValueError(
            f"{folder} was started with {key}={begun.get(key)!r}; {key}={asked.get(key)!r} is asked for. Choose "
            "another folder, or delete that one"
        )


def optimal_return(environment: gym.Env | None) -> float | None:
    """Best discounted return in an environment; None if unknown."""
    return getattr(environment and environment.unwrapped, "optimal_return", None)


def make_envs(config: BenchmarkConfig) -> gym.vector.VectorEnv:
    """Make the training environments of a run."""
    return lang_envs.make_vec(partial(gym.make, config.env, **config.env_options), config.run_defaults.num_envs)


def _identity(model: str) -> str:
    """The model's name; for a folder, its last part with a hash of weights and tokenizer."""
    folder = EMBEDDED_FOLDER if model == EMBEDDED else Path(model)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return model
    digest = "".join(map(_digest, (*weights, *folder.glob("tokenizer.json"))))
    return f"{model if model == EMBEDDED else folder.name} {hashlib.sha256(digest.encode()).hexdigest()[:16]}"


def _with_content(option: Any) -> Any:
    """An environment's argument; with a hash of the content if it names a file (a task, a data set)."""
    if not isinstance(option, str):
        return option
    file = at_home(option.partition("?")[0].removeprefix("csv:"))
    return f"{option} {_digest(file)}" if file.is_file() else option


def _digest(file: Path) -> str:
    """A hash of the file: of 256 parts of 64 KiB of a large one, of everything in a small one."""
    stat = file.stat()
    return _digest_of(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _digest_of(file: Path, size: int, changed: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        for start in range(0, size, max(_PART, size // 256)):
            opened.seek(start)
            digest.update(opened.read(_PART))
    return digest.hexdigest()[:16]
