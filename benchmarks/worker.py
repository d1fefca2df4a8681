"""Train and evaluate one run, in a process of its own."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from contextlib import closing
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import torch
from transformers.utils.logging import disable_progress_bar

import trainers
from benchmarks.runs import MODES, RESULT_FILE, RUN_FILE, STAGES, Run, make_envs
from benchmarks.stored import one_line
from benchmarks.versions import VERSIONS_FILE, versions
from lang_envs.files import read_text, write_atomically
from trainers.checkpoint import DamagedRunError, newest
from trainers.loop import CHECKPOINTS_FOLDER

EVALUATION_FILE = ".evaluation"
"""While an agent is evaluated: how many episodes are finished."""
_SECONDS_BETWEEN_WRITES = 0.5
_TRANSFER_ENVS = 20  # few episodes in each: all ask the model much the same queries


def execute(run: Run, threads: int) -> None:
    """Do what is left of a run: train from the start or the last checkpoint, evaluate, evaluate on ``transfer``."""
    torch.set_num_threads(threads)
    disable_progress_bar()  # loading bars would be drawn into the display of all runs
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    try:
        with closing(make_envs(run.config)) as envs:
            if run.result is None:
                _train(run, envs)
            for stage in STAGES:
                if run.missing_transfer(stage):
                    agent = run.make_agent(envs) if stage == "untrained" else run.load_agent(envs)
                    _evaluate_transfer(agent, run, stage)
    except DamagedRunError as error:
        sys.exit(f"error: {one_line(str(error))}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(f"error: {run.name}: {one_line(str(error))}; free some space, then resume from the last checkpoint")


def _train(run: Run, envs: gym.vector.VectorEnv) -> None:
    config = run.config
    resume = newest(run.path / CHECKPOINTS_FOLDER) is not None
    if not resume:
        shutil.rmtree(run.path, ignore_errors=True)
        run.path.mkdir(parents=True)
        write_atomically(run.path / RUN_FILE, json.dumps(run.configuration, indent=2) + "\n")
    _add_versions(run)
    agent = run.make_agent(envs)
    if not resume:
        write_atomically(run.path / "agent.json", json.dumps(_describe(agent, run), indent=2, default=str) + "\n")
    trainers.train(
        agent,
        envs,
        config.run_defaults.steps,
        run_dir=run.path,
        seed=1000 * run.seed,
        rollout_steps=config.run_defaults.rollout_steps,
        checkpoint_every=config.checkpoint_every,
        resume=resume,
    )
    result = {}
    for mode in MODES:
        found = _evaluate(agent, config.env, run, mode, config.run_defaults.num_envs, config.env_options)
        result[mode] = {"return": found.mean_return, "success": found.success_rate, "episodes": len(found.returns)}
    write_atomically(run.path / RESULT_FILE, json.dumps(result, indent=2) + "\n")


def _add_versions(run: Run) -> None:
    """Note the packages of this process; of a resumed run, after those of the earlier ones."""
    file, own = run.path / VERSIONS_FILE, "\n".join(versions())
    before = read_text(file).strip() if file.exists() else ""
    if not before.endswith(own):
        write_atomically(file, f"{before}\n\nthen:\n{own}\n" if before else f"{own}\n")


def _end_with(parent: Any) -> None:
    """End this process when the benchmark's process ends. The operating system's parent is the fork server, which
    outlives it."""
    if parent is not None:
        parent.join()
        os._exit(1)


def _evaluate(
    agent: Any, env: str, run: Run, mode: str, num_envs: int, env_options: dict[str, Any]
) -> trainers.Evaluation:
    """Evaluate on an environment, and write the progress to a file that the display reads."""
    file, episodes, last = run.path / EVALUATION_FILE, run.config.eval_episodes, 0.0

    def progress(finished: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_WRITES:
            last = time.monotonic()
            file.write_text(f"evaluating on {env}, {mode}: {min(finished, episodes)}/{episodes} episodes")

    found = trainers.evaluate(
        agent,
        env,
        episodes,
        greedy=mode == "greedy",
        num_envs=num_envs,
        on_episodes=progress,
        env_options=env_options,
    )
    file.unlink(missing_ok=True)
    return found


def _evaluate_transfer(agent: Any, run: Run, stage: str) -> None:
    """Evaluate on the environments of ``transfer`` without learning; keeps every episode."""
    found = run.transfer_results(stage)
    for env in run.missing_transfer(stage):
        found[env] = {}
        for mode in MODES:
            result = _evaluate(agent, env, run, mode, _TRANSFER_ENVS, run.config.tokenizer_options)
            found[env][mode] = {"return": result.returns.tolist(), "success": result.successes.tolist()}
    write_atomically(run.transfer_file(stage), json.dumps(found) + "\n")


def _describe(agent: Any, run: Run) -> dict[str, Any]:
    """The untrained agent: its resolved settings, and a hash of its adapter."""
    description: dict[str, Any] = {"algo": run.agent.name, "seed": run.seed, "class": type(agent).__qualname__}
    if hasattr(agent, "settings"):
        description["settings"] = asdict(agent.settings)
    if hasattr(agent, "language_model"):
        digest = hashlib.sha256()
        for parameter in agent.language_model.trainable_parameters():
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
        description["initial_adapter_sha256"] = digest.hexdigest()
        description["packs"] = agent.language_model.packs
    return description
