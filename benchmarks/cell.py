"""One agent, one world, one seed: trained in a process of its own, and never trained twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

import lang_envs
import trainers
from benchmarks.config import BenchmarkConfig, parse_variant, variant_folder
from lang_envs.files import write_atomically
from trainers.checkpoint import LAST
from trainers.loop import CHECKPOINTS_FOLDER

RESULT_FILE = "result.json"
_TRANSFER_ENVS = 20  # few episodes in each: what is asked of the model is much the same in all


@dataclass(frozen=True)
class Cell:
    """A run within a benchmark's folder."""

    folder: Path
    algo: str
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / variant_folder(self.algo) / f"seed-{self.seed}"

    @property
    def result(self) -> dict[str, Any] | None:
        """What the finished run came to; None while it is not finished."""
        file = self.path / RESULT_FILE
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def transfer(self) -> dict[str, dict[str, Any]]:
        """What the agent did in worlds it was not trained in: ``untrained`` and ``trained``, by world."""
        stages = ("untrained", "trained")
        return {stage: json.loads(self.transfer_file(stage).read_text()) for stage in stages}

    def transfer_file(self, stage: str) -> Path:
        return self.path / f"transfer-{stage}.json"


def make_envs(config: BenchmarkConfig) -> gym.vector.VectorEnv:
    return lang_envs.make_vec(config.env, config.usual.num_envs, **config.env_options)


def make_agent(config: BenchmarkConfig, cell: Cell, envs: Any) -> Any:
    return trainers.make(parse_variant(cell.algo)[0], envs, **config.agent_options(cell.algo, cell.seed))


def run_cell(config: BenchmarkConfig, cell: Cell, threads: int) -> None:
    """Train from the beginning or from the last checkpoint, evaluate, and write the result."""
    torch.set_num_threads(threads)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    resume = (cell.path / CHECKPOINTS_FOLDER / LAST).exists()
    if not resume:
        shutil.rmtree(cell.path, ignore_errors=True)
        cell.path.mkdir(parents=True)
    envs = make_envs(config)
    if not resume and config.transfer:
        _play_elsewhere(make_agent(config, cell, envs), config, cell, "untrained")
    agent = make_agent(config, cell, envs)
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
    envs.close()
    result = {way: _evaluate(agent, config, greedy) for way, greedy in (("sampled", False), ("greedy", True))}
    if config.transfer:
        _play_elsewhere(agent, config, cell, "trained")
    write_atomically(cell.path / RESULT_FILE, json.dumps(result, indent=2) + "\n")


def _die_with(parent: int) -> None:
    """End this process when the one that began it is gone, so that nothing trains on unseen."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _evaluate(agent: Any, config: BenchmarkConfig, greedy: bool) -> dict[str, Any]:
    options = {"greedy": greedy, "num_envs": config.usual.num_envs, **config.env_options}
    played = trainers.evaluate(agent, config.env, config.eval_episodes, **options)
    return {"return": played.mean_return, "success": played.success_rate, "episodes": len(played.returns)}


def _play_elsewhere(agent: Any, config: BenchmarkConfig, cell: Cell, stage: str) -> None:
    """Let an agent, which learns nothing from it, play the worlds of ``transfer``; keeps every episode."""
    found: dict[str, Any] = {}
    for env in config.transfer:
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
