"""One agent, one environment, one seed: trained in a process of its own, and never trained twice."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from transformers.utils.logging import disable_progress_bar

import lang_envs
import trainers
from benchmarks.config import BenchmarkConfig, made_env, parse_variant, variant_folder
from benchmarks.stored import one_line, require_numbers
from benchmarks.versions import VERSIONS_FILE, versions
from lang_envs import ENVIRONMENTS
from lang_envs.files import at_home, is_number, read_object, read_text, refuse_irregular, write_atomically
from lang_envs.registration import TEMPLATES
from trainers.agents import AGENTS, agent_class
from trainers.agents.common import PPOAgent
from trainers.agents.settings import resolve
from trainers.checkpoint import DamagedRunError, is_checkpoint_link, newest
from trainers.language_model import EMBEDDED, EMBEDDED_FOLDER
from trainers.loop import CHECKPOINTS_FOLDER

CONFIG_FILE = "config.json"
PLAN_FILE = "plan.json"
RESULT_FILE = "result.json"
_OF_THE_MACHINE = ("sandbox", "cache_dir")
"""Arguments of environments that decide how programs are isolated, and where files are written."""
STAGES: dict[str, Callable[[Cell, Any], Any]] = {
    "untrained": lambda cell, envs: cell.make_agent(envs),
    "trained": lambda cell, envs: cell.load_agent(envs),
}
"""When an agent plays environments that it was not trained in."""
_WAYS = ("sampled", "greedy")
_PART = 1 << 16
_TRANSFER_ENVS = 20  # few episodes in each: what is asked of the model is much the same in all


@dataclass(frozen=True)
class Cell:
    """A run within a benchmark's folder."""

    config: BenchmarkConfig
    folder: Path
    algo: str
    seed: int
    imports: tuple[str, ...] | None = None
    """As in :class:`Benchmark`."""

    @property
    def path(self) -> Path:
        return self.folder / variant_folder(self.algo) / f"seed-{self.seed}"

    @property
    def name(self) -> str:
        return f"{self.algo} seed {self.seed}"

    @property
    def result(self) -> dict[str, Any] | None:
        """What the trained agent came to; None while it is not trained."""
        file = self.path / RESULT_FILE
        if not file.exists():
            return None
        found = read_object(file, *_WAYS)
        for way in _WAYS:
            require_numbers(found[way], ("return", "success", "episodes"), f"{file}: {way}")
        return found

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.result is not None and not any(self.unplayed(stage) for stage in STAGES)

    def played(self, stage: str) -> dict[str, Any]:
        """By environment, what the agent did in those it was not trained in, ``untrained`` or ``trained``."""
        file = self.transfer_file(stage)
        found = read_object(file) if file.exists() else {}
        for env, ways in found.items():
            for way, measure in ((way, measure) for way in _WAYS for measure in ("return", "success")):
                values = ways[way].get(measure) if isinstance(ways, dict) and isinstance(ways.get(way), dict) else None
                if not isinstance(values, list) or not values or not all(map(_is_outcome, values)):
                    raise ValueError(f"{file} is damaged: {env!r:.80} has no list of numbers {way} {measure}")
        return found

    def unplayed(self, stage: str) -> list[str]:
        if stage == "untrained" and self.algo != self.config.algos[0]:
            return []  # what is shown of untrained agents is the first one
        played = self.played(stage)
        return [env for env in self.config.transfer if env not in played]

    def transfer_file(self, stage: str) -> Path:
        return self.path / f"transfer-{stage}.json"

    @property
    def plan(self) -> dict[str, Any]:
        """Whatever decides how this run goes, wherever its folder is."""
        config, usual = self.config, self.config.usual
        kind = self.kind
        options = config.agent_options(self.algo, self.seed)
        model = options.pop("model", EMBEDDED)
        if (settings_type := getattr(kind, "settings_type", None)) is not None:
            options = asdict(resolve(settings_type, model, options))
        plan = {
            "env": config.env,
            "env_options": {name: _with_content(value) for name, value in config.env_arguments.items()},
            "steps": usual.steps,
            "num_envs": usual.num_envs,
            "rollout_steps": usual.rollout_steps,
            "eval_episodes": config.eval_episodes,
            "model": _identity(model),
            **options,
        }
        return json.loads(json.dumps(plan, default=str))

    @property
    def kind(self) -> type[Any] | None:
        """The agent's class; None where its module must not be imported."""
        name, _ = parse_variant(self.algo)
        return agent_class(name) if name in AGENTS or may_import(name, self.imports) else None

    def check(self) -> None:
        """Refuse to go on with, or to count, a run that was begun with another plan.

        Raises
        ------
        ValueError
            Naming what differs.
        """
        file = self.path / PLAN_FILE
        if not file.exists():
            if (self.path / CHECKPOINTS_FOLDER).exists():
                raise ValueError(f"{self.path} does not say how it was begun (no {PLAN_FILE}): delete it")
            return
        begun, asked = read_object(file), self.plan
        if self.kind is None:  # what was not given to the agent, only its class knows
            begun = {key: value for key, value in begun.items() if key in asked}
        refuse_another(self.path, begun, asked)

    def add_versions(self) -> None:
        """Note what this run is made with, from now on."""
        file, own = self.path / VERSIONS_FILE, "\n".join(versions())
        before = read_text(file).strip() if file.exists() else ""
        if not before.endswith(own):
            write_atomically(file, f"{before}\n\nthen:\n{own}\n" if before else f"{own}\n")

    def make_agent(self, envs: Any) -> Any:
        """The agent as it starts."""
        return trainers.make(parse_variant(self.algo)[0], envs, **self.config.agent_options(self.algo, self.seed))

    @property
    def checkpoint(self) -> Path:
        """The last one.

        Raises
        ------
        ValueError
            If there is none.
        """
        if (found := newest(self.path / CHECKPOINTS_FOLDER)) is None:
            raise ValueError(f"{self.path} holds no checkpoint: delete it and run it again")
        return found

    def load_agent(self, envs: Any) -> Any:
        """The agent as it was left.

        Raises
        ------
        ValueError
            If its last checkpoint is damaged.
        """
        checkpoint = self.checkpoint
        try:
            agent = self.make_agent(envs)
            agent.load(checkpoint)
        except Exception as error:  # a third party's agent may say it in its own way
            raise DamagedRunError(f"{checkpoint} cannot be loaded: {error}") from error
        return agent


@dataclass(frozen=True)
class Benchmark:
    """The runs of several agents in one environment, whether they are done or not."""

    config: BenchmarkConfig
    folder: Path
    imports: tuple[str, ...] | None = None
    """Modules that may be imported because the configuration names them; None for any, where the user gave the
    configuration and did not read it from a folder."""

    @classmethod
    def load(cls, folder: Path, imports: tuple[str, ...] = ()) -> Benchmark:
        """What a benchmark's folder says of it. Of what it names, nothing is imported but ``imports``.

        Raises
        ------
        ValueError
            If the folder is not that of a benchmark, or holds links or other things that are no regular files.
        """
        if not (folder / CONFIG_FILE).is_file():
            raise ValueError(f"{folder} is no benchmark's folder: it has no {CONFIG_FILE}")
        refuse_irregular(folder, is_checkpoint_link)
        return cls(BenchmarkConfig.load(folder / CONFIG_FILE), folder, imports)

    @classmethod
    def finished(cls, folder: Path, imports: tuple[str, ...] = ()) -> Benchmark:
        """The same of one that is done.

        Raises
        ------
        ValueError
            If it is not, or a run of it was begun with another plan.
        """
        benchmark = cls.load(folder, imports)
        for cell in benchmark.cells:
            cell.check()
        if unfinished := [cell.path for cell in benchmark.cells if not cell.finished]:
            raise ValueError(f"{unfinished[0]} is not finished: make bench RESUME={folder}")
        return benchmark

    @property
    def title(self) -> str:
        """Its environment, its model where that is not the embedded one, and the settings that all its agents share."""
        config = self.config
        environment = config.env if config.embedded else f"{config.env} in {Path(str(config.model)).name}"
        (settings, *others) = {algo.partition("[")[2].removesuffix("]") for algo in config.algos}
        return environment if others or not settings else f"{environment}, {settings}"

    @property
    def cells(self) -> list[Cell]:
        return [cell for algo in self.config.algos for cell in self.of(algo)]

    @property
    def learners(self) -> list[str]:
        """Those of its agents that are language models with a critic, as the suite's own are."""
        classes = {algo: self.of(algo)[0].kind for algo in self.config.algos}
        return [algo for algo, kind in classes.items() if isinstance(kind, type) and issubclass(kind, PPOAgent)]

    def environment(self, env: str, options: dict[str, Any]) -> gym.Env | None:
        """An environment to be asked what it is; None where its module must not be imported, or where it starts a sandbox.

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
        """Refuse a configuration from a folder that names modules which the user did not name.

        Raises
        ------
        ValueError
            Naming them, and the option that allows it.
        """
        for name, value in self.config.env_arguments.items():
            if name in _OF_THE_MACHINE and self.imports is not None and f"{name}={value}" not in self.imports:
                raise ValueError(
                    f"{self.folder / CONFIG_FILE} sets {name}={value}, which is yours to decide; if you trust it: "
                    f"--allow-import {name}={value}"
                )
        if refused := [name for name in self.config.modules if not may_import(name, self.imports)]:
            module = self.config.modules[refused[0]]
            raise ValueError(
                f"{self.folder / CONFIG_FILE} names {refused[0]!r}, and to import {module!r} runs its code; if you "
                f"trust it: --allow-import {module}"
            )

    def check_seeds(self) -> None:
        """Refuse what no interval can be had of.

        Raises
        ------
        ValueError
            If there is one seed alone.
        """
        if self.config.seeds < 2:
            raise ValueError(f"{self.folder} has one seed, and an interval needs two: run it with --seeds 3 or more")

    def check_learners(self) -> None:
        """Refuse runs whose agents have neither a language model nor a critic, or one seed alone.

        Raises
        ------
        ValueError
            Naming the agents, or the folder.
        """
        self.check_seeds()
        if not self.learners:
            hidden = [name for name in self.config.modules if not may_import(name, self.imports)]
            raise ValueError(
                f"no agent of {self.folder} has a model and a critic: {', '.join(self.config.algos)}"
                + f" ({', '.join(hidden)} not imported: --allow-import)" * bool(hidden)
            )

    def of(self, algo: str) -> list[Cell]:
        """The runs of one agent, by seed."""
        seeds = range(self.config.first_seed, self.config.first_seed + self.config.seeds)
        return [Cell(self.config, self.folder, algo, seed, self.imports) for seed in seeds]


def may_import(name: str, imports: tuple[str, ...] | None) -> bool:
    """Whether what ``name`` says, ``"package.module:Class"``, may be imported: where all may (None), or where its
    module or a package around it is among ``imports``."""
    module, named, _ = name.partition(":")
    return imports is None or not named or any(module == own or module.startswith(f"{own}.") for own in imports)


def _is_outcome(value: Any) -> bool:
    return is_number(value) or isinstance(value, bool)


def refuse_another(folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to take what lies in a folder for what is asked for; the error names what differs."""
    for key in (key for key in {**begun, **asked} if begun.get(key) != asked.get(key)):
        raise ValueError(
            f"{folder} was begun with {key}={begun.get(key)!r}, and {asked.get(key)!r} is asked for: take another "
            "folder, or delete that one"
        )


def _identity(model: str) -> str:
    """The name of a model; of one that lies in a folder, with a hash of its weights and its tokenizer."""
    folder = EMBEDDED_FOLDER if model == EMBEDDED else Path(model)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return model
    digest = "".join(map(_digest, (*weights, *folder.glob("tokenizer.json"))))
    return f"{model if model == EMBEDDED else folder.name} {hashlib.sha256(digest.encode()).hexdigest()[:16]}"


def _with_content(option: Any) -> Any:
    """An option of an environment; one that names a file, such as a task's or a data set's, with a hash of what it holds."""
    if not isinstance(option, str):
        return option
    file = at_home(option.partition("?")[0].removeprefix("csv:"))
    return f"{option} {_digest(file)}" if file.is_file() else option


def _digest(file: Path) -> str:
    """A hash of a file as it is now: of 256 parts of 64 KiB all over a large one, of everything in a small one."""
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


def make_envs(config: BenchmarkConfig) -> gym.vector.VectorEnv:
    return lang_envs.make_vec(config.env, config.usual.num_envs, **config.env_options)


def run_cell(cell: Cell, threads: int) -> None:
    """Train from the beginning or from the last checkpoint, evaluate, play elsewhere: whatever is not yet done."""
    torch.set_num_threads(threads)
    disable_progress_bar()  # of loading: it would be drawn into the display of all runs
    threading.Thread(target=_die_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    config = cell.config
    try:
        with closing(make_envs(config)) as envs:
            if cell.result is None:
                _train(cell, envs)
            for stage, agent_of in STAGES.items():
                if cell.unplayed(stage):
                    _play_elsewhere(agent_of(cell, envs), cell, stage)
    except DamagedRunError as error:
        sys.exit(f"error: {one_line(str(error))}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(f"error: {cell.name}: {one_line(str(error))}; make room and go on from the last checkpoint")


def _train(cell: Cell, envs: gym.vector.VectorEnv) -> None:
    config = cell.config
    resume = newest(cell.path / CHECKPOINTS_FOLDER) is not None
    if not resume:
        shutil.rmtree(cell.path, ignore_errors=True)
        cell.path.mkdir(parents=True)
        write_atomically(cell.path / PLAN_FILE, json.dumps(cell.plan, indent=2) + "\n")
    cell.add_versions()
    agent = cell.make_agent(envs)
    if not resume:
        write_atomically(cell.path / "agent.json", json.dumps(_describe(agent, cell), indent=2, default=str) + "\n")
    trainers.train(
        agent,
        envs,
        config.usual.steps,
        run_dir=cell.path,
        seed=1000 * cell.seed,
        rollout_steps=config.usual.rollout_steps,
        checkpoint_every=config.checkpoint_every,
        resume=resume,
    )
    result = {way: _evaluate(agent, config, greedy) for way, greedy in (("sampled", False), ("greedy", True))}
    write_atomically(cell.path / RESULT_FILE, json.dumps(result, indent=2) + "\n")


def _die_with(parent: Any) -> None:
    """End this process when the one that began it is gone, so that nothing trains on unseen. Its parent by pid is the
    server that forked it, which lives as long as it does."""
    if parent is not None:
        parent.join()
        os._exit(1)


def _evaluate(agent: Any, config: BenchmarkConfig, greedy: bool) -> dict[str, Any]:
    options = {"greedy": greedy, "num_envs": config.usual.num_envs, **config.env_options}
    played = trainers.evaluate(agent, config.env, config.eval_episodes, **options)
    return {"return": played.mean_return, "success": played.success_rate, "episodes": len(played.returns)}


def _play_elsewhere(agent: Any, cell: Cell, stage: str) -> None:
    """Let an agent, which learns nothing from it, play the environments of ``transfer``; keeps every episode."""
    config, found = cell.config, cell.played(stage)
    for env in cell.unplayed(stage):
        found[env] = {}
        for way, greedy in (("sampled", False), ("greedy", True)):
            options = {"greedy": greedy, "num_envs": _TRANSFER_ENVS, **config.tokenizer_options}
            played = trainers.evaluate(agent, env, config.eval_episodes, **options)
            found[env][way] = {"return": played.returns.tolist(), "success": played.successes.tolist()}
    write_atomically(cell.transfer_file(stage), json.dumps(found) + "\n")


def _describe(agent: Any, cell: Cell) -> dict[str, Any]:
    """The agent as it starts: its resolved settings, and a hash of its fresh adapter."""
    description: dict[str, Any] = {"algo": cell.algo, "seed": cell.seed, "class": type(agent).__qualname__}
    if hasattr(agent, "settings"):
        description["settings"] = asdict(agent.settings)
    if hasattr(agent, "language_model"):
        digest = hashlib.sha256()
        for parameter in agent.language_model.trainable_parameters():
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
        description["initial_adapter_sha256"] = digest.hexdigest()
        description["packs"] = agent.language_model.packs
    return description
