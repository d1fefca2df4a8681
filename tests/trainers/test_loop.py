"""Training from end to end: metrics, checkpoints, evaluation, and exact resuming of a killed run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import trainers
from lang_envs.files import write_atomically
from trainers import TrainingCollapsed
from trainers.checkpoint import load_checkpoint, save_checkpoint
from trainers.evaluation import evaluate
from trainers.loop import train

Envs = Callable[..., gym.vector.VectorEnv]
ENVIRONMENT = "Overcooked-tomato-salad-v0"

TRAIN = """
import sys
import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
import lang_envs, trainers

torch.set_num_threads(1)
folder, steps, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "resume"
envs = gym.make_vec(
    "Overcooked-tomato-salad-v0", num_envs=2, vectorization_mode="sync",
    vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
)
agent = trainers.make("poad", envs, seed=5)
trainers.train(
    agent, envs, steps, run_dir=folder, seed=7, rollout_steps=16, checkpoint_every=2, resume=resume,
    on_iteration=lambda line: print(line["iteration"], flush=True),
)
"""


def without_timing(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "timing"} for line in lines]


def run(folder: Path, steps: int, resume: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAIN, str(folder), str(steps), resume]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_resumed_run_equals_uninterrupted_run_bit_for_bit(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", 512).wait(timeout=120) == 0
    killed = run(tmp_path / "killed", 512)
    assert killed.stdout is not None
    for line in killed.stdout:
        if int(line) == 9:  # between two checkpoints, so that iteration 9 must be repeated
            os.kill(killed.pid, signal.SIGKILL)
            break
    assert killed.wait(timeout=60) == -signal.SIGKILL
    assert len(without_timing(tmp_path / "killed" / "metrics.jsonl")) < 16
    assert run(tmp_path / "killed", 512, "resume").wait(timeout=120) == 0
    whole = without_timing(tmp_path / "whole" / "metrics.jsonl")
    resumed = without_timing(tmp_path / "killed" / "metrics.jsonl")
    assert len(whole) == 16
    assert resumed == whole
    resumed_adapter, whole_adapter = (
        (tmp_path / name / "checkpoints" / "last" / "adapter" / "adapter_model.safetensors").read_bytes()
        for name in ("killed", "whole")
    )
    assert resumed_adapter == whole_adapter


def test_train_writes_metrics_events_and_the_adapter(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make("poad", envs, seed=1)
    seen: list[dict[str, Any]] = []
    lines = train(agent, envs, 96, run_dir=tmp_path / "run", rollout_steps=16, on_iteration=seen.append)
    assert [line["step"] for line in lines] == [32, 64, 96]
    assert seen == lines
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert written == lines
    assert {"policy_loss", "value_loss", "entropy", "approximate_kl", "skipped_actor_steps"} <= set(lines[0])
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
    adapter = tmp_path / "run" / "checkpoints" / "last" / "adapter"
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {file.name for file in adapter.iterdir()}


def test_tensorboard_events_contain_the_metrics(tmp_path: Path, make_envs: Envs) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    envs = make_envs(2)
    lines = train(trainers.make("poad", envs, seed=1), envs, 64, run_dir=tmp_path / "run", rollout_steps=16)
    events = accumulator.EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    entropies = [(event.step, event.value) for event in events.Scalars("entropy")]
    assert entropies == [(line["step"], pytest.approx(line["entropy"])) for line in lines]


def test_reset_steps_are_not_counted(make_envs: Envs) -> None:
    envs = make_envs(2, autoreset_mode=AutoresetMode.NEXT_STEP)
    (line,) = train(trainers.make("random", envs), envs, 400, rollout_steps=250)
    assert line["episodes"] > 4
    pending_resets = line["step"] + line["episodes"] - 500  # of episodes that end with the last step
    assert 0 <= pending_resets <= 2


def test_train_does_not_overwrite_a_run(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    train(trainers.make("random", envs), envs, 8, run_dir=tmp_path / "run", rollout_steps=4)
    with pytest.raises(FileExistsError, match="resume=True"):
        train(trainers.make("random", envs), envs, 8, run_dir=tmp_path / "run", rollout_steps=4)


def test_run_without_a_checkpoint_starts_from_the_beginning(tmp_path: Path, make_envs: Envs) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 8}\n{"st')
    envs = make_envs(2)
    train(trainers.make("random", envs), envs, 16, run_dir=tmp_path, rollout_steps=4, resume=True)
    assert [line["step"] for line in without_timing(tmp_path / "metrics.jsonl")] == [8, 16]


def test_resume_raises_if_metrics_are_missing(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    train(trainers.make("random", envs), envs, 16, run_dir=tmp_path, rollout_steps=4)
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=r"metrics\.jsonl has lost lines"):
        train(trainers.make("random", envs), envs, 32, run_dir=tmp_path, rollout_steps=4, resume=True)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path, make_envs: Envs) -> None:
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process is using"):
            train(trainers.make("random", make_envs(1)), make_envs(1), 8, run_dir=tmp_path / "run")


def test_time_limit_wrapper_is_resumed(tmp_path: Path, make_envs: Envs) -> None:
    for folder, parts in (("whole", (96,)), ("parts", (32, 96))):
        for number, steps in enumerate(parts):
            envs = make_envs(2, max_episode_steps=13)
            agent = trainers.make("random", envs, seed=4)
            train(agent, envs, steps, run_dir=tmp_path / folder, rollout_steps=8, resume=number > 0)
    assert without_timing(tmp_path / "parts" / "metrics.jsonl") == without_timing(tmp_path / "whole" / "metrics.jsonl")


def test_load_of_another_agents_checkpoint_raises(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(1)
    trainers.make("poad", envs).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="contains a POAD, expected a NTPO"):
        trainers.make("ntpo", envs).load(tmp_path / "saved")


def test_resume_without_a_run_raises(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(trainers.make("random", envs), envs, 8, run_dir=tmp_path, resume=True)
    with pytest.raises(ValueError, match="run_dir"):
        train(trainers.make("random", envs), envs, 8, resume=True)


class Learner:
    """An agent that returns given metrics."""

    def __init__(self, metrics: list[dict[str, float]]) -> None:
        self.metrics = iter(metrics)
        self.saves = 0

    def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[trainers.Action]:
        return [trainers.Action(info["available_actions"][-1]) for info in infos]

    def learn(self, rollout: trainers.Rollout) -> dict[str, float]:
        return next(self.metrics)

    def save(self, folder: Path) -> None:
        self.saves += 1
        folder.mkdir(parents=True)
        (folder / "saves.txt").write_text(str(self.saves))

    def load(self, folder: Path) -> None: ...


def test_collapsed_training_stops_and_keeps_the_last_checkpoint(tmp_path: Path, make_envs: Envs) -> None:
    agent = Learner([{"loss": 1.0}, {"loss": 0.5}, {"loss": float("nan")}, {"loss": 0.1}])
    with pytest.raises(TrainingCollapsed, match="loss is nan in iteration 3"):
        train(agent, make_envs(1), 100, run_dir=tmp_path, rollout_steps=4, checkpoint_every=2)
    assert (tmp_path / "checkpoints" / "last" / "saves.txt").read_text() == "1"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_only_the_last_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    def save(step: int, best: bool) -> None:
        def agent(folder: Path) -> None:
            folder.mkdir()
            (folder / "weights").write_text(str(step))

        save_checkpoint(tmp_path, step, agent, {"step": step}, best=best)

    for step, best in ((1, True), (2, True), (3, False), (4, False)):
        save(step, best)
    assert (tmp_path / "best" / "weights").read_text() == "2"
    assert (tmp_path / "last" / "weights").read_text() == "4"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "last", "step-0000000002", "step-0000000004"]
    assert load_checkpoint(tmp_path, lambda folder: None) == {"step": 4}
    for name in ("last", "best"):
        (tmp_path / name).unlink()
    assert load_checkpoint(tmp_path, lambda folder: None) == {"step": 4}, "in a copy without links"
    shutil.copytree(tmp_path / "step-0000000004", tmp_path / "last")
    save(5, False)
    assert load_checkpoint(tmp_path, lambda folder: None) == {"step": 5}, "in a copy that followed links"
    (tmp_path / "step-0000000005" / "progress.json").write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-0000000005 cannot be loaded: .* delete"):
        load_checkpoint(tmp_path, lambda folder: None)


def test_interrupted_save_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    def whole(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text("whole")

    def interrupted(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text("unfinished")
        raise KeyboardInterrupt

    save_checkpoint(tmp_path, 1, whole, 1, best=True)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, interrupted, 2, best=True)
    assert (tmp_path / "last" / "weights").read_text() == "whole"
    assert load_checkpoint(tmp_path, lambda folder: None) == 1
    save_checkpoint(tmp_path, 2, whole, 2, best=False)
    assert not list(tmp_path.glob(".unfinished*"))


def test_write_atomically_replaces_files(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "first")
    write_atomically(tmp_path / "a.json", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "second"


def test_evaluation_runs_the_requested_number_of_episodes(make_envs: Envs) -> None:
    class Waiter:
        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[trainers.Action]:
            return [trainers.Action("chop") for _ in infos]

    evaluation = evaluate(Waiter(), ENVIRONMENT, 5, num_envs=2)
    idle_return = -0.001 * (1 - 0.99**200) / (1 - 0.99)
    np.testing.assert_allclose(evaluation.returns, [idle_return] * 5)
    assert evaluation.mean_return == pytest.approx(idle_return)
    assert evaluation.success_rate == 0


def test_equal_seeds_give_equal_evaluations(make_envs: Envs) -> None:
    first, second = (evaluate(trainers.make("random", make_envs(1), seed=3), ENVIRONMENT, 8).returns for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_asynchronous_environments_resume_exactly(tmp_path: Path) -> None:
    def envs() -> gym.vector.VectorEnv:
        kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
        return gym.make_vec(ENVIRONMENT, num_envs=2, vectorization_mode="async", vector_kwargs=kwargs)

    whole = envs()
    agent = trainers.make("random", whole, seed=2)
    train(agent, whole, 64, run_dir=tmp_path / "whole", rollout_steps=8, checkpoint_every=1)
    whole.close()
    for resume, steps in ((False, 32), (True, 64)):
        part = envs()
        agent = trainers.make("random", part, seed=2)
        train(agent, part, steps, run_dir=tmp_path / "parts", rollout_steps=8, resume=resume)
        part.close()
    assert without_timing(tmp_path / "parts" / "metrics.jsonl") == without_timing(tmp_path / "whole" / "metrics.jsonl")


def test_timing_is_separate_from_reproducible_metrics(make_envs: Envs) -> None:
    started = time.perf_counter()
    envs = make_envs(1)
    (line,) = train(trainers.make("random", envs), envs, 8, rollout_steps=8)
    assert set(line["timing"]) == {"rollout_seconds", "learn_seconds", "steps_per_second"}
    assert 0 < line["timing"]["rollout_seconds"] < time.perf_counter() - started
