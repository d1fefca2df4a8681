"""Training from end to end: logs, checkpoints, resuming, evaluating; a run that is killed goes on as if it had not."""

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


def test_a_run_killed_in_the_middle_goes_on_bit_by_bit(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", 512).wait(timeout=120) == 0
    killed = run(tmp_path / "killed", 512)
    assert killed.stdout is not None
    for line in killed.stdout:
        if int(line) == 9:  # between two checkpoints: iteration 9's line is written and will be made again
            os.kill(killed.pid, signal.SIGKILL)
            break
    assert killed.wait(timeout=60) == -signal.SIGKILL
    assert len(without_timing(tmp_path / "killed" / "metrics.jsonl")) < 16
    assert run(tmp_path / "killed", 512, "resume").wait(timeout=120) == 0
    whole = without_timing(tmp_path / "whole" / "metrics.jsonl")
    resumed = without_timing(tmp_path / "killed" / "metrics.jsonl")
    assert len(whole) == 16
    assert resumed == whole
    ours, theirs = (
        (tmp_path / name / "checkpoints" / "last" / "adapter" / "adapter_model.safetensors").read_bytes()
        for name in ("killed", "whole")
    )
    assert ours == theirs


def test_a_run_leaves_metrics_events_and_the_adapter(tmp_path: Path, make_envs: Envs) -> None:
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


def test_tensorboard_reads_what_was_written(tmp_path: Path, make_envs: Envs) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    envs = make_envs(2)
    lines = train(trainers.make("poad", envs, seed=1), envs, 64, run_dir=tmp_path / "run", rollout_steps=16)
    events = reading.EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    entropies = [(event.step, event.value) for event in events.Scalars("entropy")]
    assert entropies == [(line["step"], pytest.approx(line["entropy"])) for line in lines]


def test_steps_that_only_reset_are_not_counted(make_envs: Envs) -> None:
    envs = make_envs(2, autoreset_mode=AutoresetMode.NEXT_STEP)
    (line,) = train(trainers.make("random", envs), envs, 400, rollout_steps=250)
    assert line["episodes"] > 4
    resets_still_to_come = 500 - line["step"] - line["episodes"]
    assert -2 <= resets_still_to_come <= 0


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    train(trainers.make("random", envs), envs, 8, run_dir=tmp_path / "run", rollout_steps=4)
    with pytest.raises(FileExistsError, match="resume=True"):
        train(trainers.make("random", envs), envs, 8, run_dir=tmp_path / "run", rollout_steps=4)


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(tmp_path: Path, make_envs: Envs) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 8}\n{"st')
    envs = make_envs(2)
    train(trainers.make("random", envs), envs, 16, run_dir=tmp_path, rollout_steps=4, resume=True)
    assert [line["step"] for line in without_timing(tmp_path / "metrics.jsonl")] == [8, 16]


def test_a_run_that_has_lost_metrics_is_not_gone_on_with(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    train(trainers.make("random", envs), envs, 16, run_dir=tmp_path, rollout_steps=4)
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=r"metrics\.jsonl has lost lines"):
        train(trainers.make("random", envs), envs, 32, run_dir=tmp_path, rollout_steps=4, resume=True)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path, make_envs: Envs) -> None:
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process is using"):
            train(trainers.make("random", make_envs(1)), make_envs(1), 8, run_dir=tmp_path / "run")


def test_a_step_limit_put_around_a_environment_is_resumed_too(tmp_path: Path, make_envs: Envs) -> None:
    for folder, parts in (("whole", (96,)), ("parts", (32, 96))):
        for number, steps in enumerate(parts):
            envs = make_envs(2, max_episode_steps=13)
            agent = trainers.make("random", envs, seed=4)
            train(agent, envs, steps, run_dir=tmp_path / folder, rollout_steps=8, resume=number > 0)
    assert without_timing(tmp_path / "parts" / "metrics.jsonl") == without_timing(tmp_path / "whole" / "metrics.jsonl")


def test_another_agents_checkpoint_is_refused(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(1)
    trainers.make("poad", envs).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="contains a POAD, expected a NTPO"):
        trainers.make("ntpo", envs).load(tmp_path / "saved")


def test_resuming_nothing_is_refused(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(trainers.make("random", envs), envs, 8, run_dir=tmp_path, resume=True)
    with pytest.raises(ValueError, match="run_dir"):
        train(trainers.make("random", envs), envs, 8, resume=True)


class Learner:
    """Reports whatever it is told to."""

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


def test_training_that_collapses_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path, make_envs: Envs) -> None:
    agent = Learner([{"loss": 1.0}, {"loss": 0.5}, {"loss": float("nan")}, {"loss": 0.1}])
    with pytest.raises(TrainingCollapsed, match="loss is nan in iteration 3"):
        train(agent, make_envs(1), 100, run_dir=tmp_path, rollout_steps=4, checkpoint_every=2)
    assert (tmp_path / "checkpoints" / "last" / "saves.txt").read_text() == "1"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_last_and_best_checkpoints_are_kept_and_no_others(tmp_path: Path) -> None:
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
    assert load_checkpoint(tmp_path, lambda folder: None) == {"step": 4}, "a copy may have lost its links"
    shutil.copytree(tmp_path / "step-0000000004", tmp_path / "last")
    save(5, False)
    assert load_checkpoint(tmp_path, lambda folder: None) == {"step": 5}, "or followed them"
    (tmp_path / "step-0000000005" / "progress.json").write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-0000000005 cannot be loaded: .* delete"):
        load_checkpoint(tmp_path, lambda folder: None)


def test_a_death_while_saving_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def whole(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text("whole")

    def dying(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text("ha")
        raise KeyboardInterrupt

    save_checkpoint(tmp_path, 1, whole, 1, best=True)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, dying, 2, best=True)
    assert (tmp_path / "last" / "weights").read_text() == "whole"
    assert load_checkpoint(tmp_path, lambda folder: None) == 1
    save_checkpoint(tmp_path, 2, whole, 2, best=False)
    assert not list(tmp_path.glob(".unfinished*"))


def test_files_are_replaced_in_one_piece(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "first")
    write_atomically(tmp_path / "a.json", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "second"


def test_evaluation_plays_as_many_whole_episodes_as_asked(make_envs: Envs) -> None:
    class Waiter:
        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[trainers.Action]:
            return [trainers.Action("chop") for _ in infos]

    played = evaluate(Waiter(), ENVIRONMENT, 5, num_envs=2)
    idle_forever = -0.001 * (1 - 0.99**200) / (1 - 0.99)
    np.testing.assert_allclose(played.returns, [idle_forever] * 5)
    assert played.mean_return == pytest.approx(idle_forever)
    assert played.success_rate == 0


def test_evaluation_is_the_same_for_the_same_seed(make_envs: Envs) -> None:
    first, second = (evaluate(trainers.make("random", make_envs(1), seed=3), ENVIRONMENT, 8).returns for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_environments_in_processes_of_their_own_train_and_resume_alike(tmp_path: Path) -> None:
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


def test_time_is_measured_beside_what_is_reproducible(make_envs: Envs) -> None:
    started = time.perf_counter()
    envs = make_envs(1)
    (line,) = train(trainers.make("random", envs), envs, 8, rollout_steps=8)
    assert set(line["timing"]) == {"rollout_seconds", "learn_seconds", "steps_per_second"}
    assert 0 < line["timing"]["rollout_seconds"] < time.perf_counter() - started
