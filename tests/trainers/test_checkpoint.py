"""Checkpoints: no code in them runs, damaged ones raise, and random generators of GPUs are restored."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from safetensors import SafetensorError

import trainers
from lang_envs import LanguageEnv, TokenEnv, Transition
from lang_envs.storage import decode, encode
from trainers.agent_state import load_optimizer, load_state, save_state
from trainers.checkpoint import load_checkpoint, newest, save_checkpoint
from trainers.loop import train

Envs = Callable[..., gym.vector.VectorEnv]


def make_folder(folder: Path) -> None:
    folder.mkdir()


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Trap:
    """Content of a malicious pickle: reading it makes a folder."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["TRAP"],)


@pytest.mark.parametrize("name", ["progress.pkl", "agent.pt"])
def test_pickles_of_earlier_versions_raise_and_are_not_read(
    name: str, tmp_path: Path, make_envs: Envs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    envs = make_envs(1)
    agent = trainers.make("poad", envs)
    save_checkpoint(tmp_path, 1, agent.save, {}, best=True)
    (tmp_path / "last" / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=rf"{name} is a pickle.*lang-envs 0\.1\.0 at commit 4dc5cab is the last"):
        load_checkpoint(tmp_path, agent.load)
    assert not (tmp_path / "trap").exists()


def test_adam_steps_stay_on_the_cpu_and_moments_move_to_their_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    on_cpu, on_meta = (torch.nn.Parameter(torch.ones(2, 3, device=device)) for device in ("cpu", "meta"))
    saved = torch.optim.Adam([on_cpu], lr=0.5, betas=(0.8, 0.9))
    for _ in range(3):
        on_cpu.grad = torch.randn(2, 3)
        saved.step()
    save_state(tmp_path, {"optimizer": saved.state_dict(), "n": 3})
    state = load_state(tmp_path)
    moved = torch.optim.Adam([on_meta], lr=0.1)
    load_optimizer(moved, state["optimizer"])
    moments = moved.state[on_meta]
    assert (moments["step"].device.type, moments["exp_avg"].device.type) == ("cpu", "meta")
    loaded = torch.optim.Adam([on_cpu])
    load_optimizer(loaded, state["optimizer"])
    assert loaded.state_dict()["param_groups"] == saved.state_dict()["param_groups"] and state["n"] == 3
    for name, value in saved.state[on_cpu].items():
        assert torch.equal(value, loaded.state[on_cpu][name]) and value.dtype == loaded.state[on_cpu][name].dtype
    for other in (torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(6))):
        with pytest.raises(ValueError, match="moments of other parameters"):
            load_optimizer(torch.optim.Adam([other]), state["optimizer"])
    with pytest.raises(ValueError, match="other options"):
        load_optimizer(torch.optim.SGD([on_cpu]), state["optimizer"])


def test_loaded_agent_has_equal_moments_and_adam_steps_on_the_cpu(tmp_path: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make("poad", envs, seed=1)
    train(agent, envs, 16, rollout_steps=8)
    agent.save(tmp_path / "saved")
    before = agent.critic_optimizer.state_dict()
    other = trainers.make("poad", envs, seed=2)
    other.load(tmp_path / "saved")
    after = other.critic_optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"] and len(after["state"]) == 6
    for number, state in before["state"].items():
        assert after["state"][number]["step"].device.type == "cpu"
        assert all(torch.equal(value, after["state"][number][name]) for name, value in state.items())


# CUDA's random generators


def cuda(monkeypatch: pytest.MonkeyPatch, devices: int | None) -> list[tuple[int, int]]:
    """Pretend that torch has ``devices`` GPUs; with None, any use of CUDA raises.

    Returns a list to which each restored generator is added, as (device, first byte of the state).
    """
    restored: list[tuple[int, int]] = []

    def trap(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("this opens a CUDA context")

    def get_rng_state_all() -> list[torch.Tensor]:
        return [torch.full((16,), n, dtype=torch.uint8) for n in range(devices or 0)]

    def set_rng_state(state: torch.Tensor, device: int) -> None:
        if device >= (devices or 0):
            raise IndexError("tuple index out of range")
        restored.append((device, int(state[0])))

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: devices is not None)
    for name, replacement in (
        ("get_rng_state_all", get_rng_state_all),
        ("set_rng_state", set_rng_state),
        ("device_count", lambda: devices),
        ("set_rng_state_all", trap),
        ("is_available", trap),
    ):
        monkeypatch.setattr(torch.cuda, name, trap if devices is None else replacement)
    return restored


def test_checkpoints_of_a_run_on_the_cpu_do_not_use_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, None)
    save_checkpoint(tmp_path, 1, make_folder, 1, best=True)
    assert load_checkpoint(tmp_path, lambda folder: None) == 1


@pytest.mark.parametrize(("now", "restored"), [(4, [0, 1, 2]), (3, [0, 1, 2]), (1, [0]), (None, [])])
def test_resuming_with_fewer_gpus_restores_their_generators_and_warns(
    now: int | None,
    restored: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cuda(monkeypatch, 3)
    save_checkpoint(tmp_path, 1, make_folder, 1, best=True)
    restored_now = cuda(monkeypatch, now)
    assert load_checkpoint(tmp_path, lambda folder: None) == 1
    assert restored_now == [(n, n) for n in restored]
    warned = f"random generators of 3 GPUs, and {now or 0} are in use" in caplog.text
    assert warned == (len(restored) < 3)


def test_checkpoint_restores_global_random_generators(tmp_path: Path) -> None:
    import random

    def draw() -> list[float]:
        return [random.random(), random.gauss(), float(np.random.normal()), float(torch.rand(()))]  # noqa: NPY002

    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    draw()  # random.gauss() and numpy's normal() keep a second number
    save_checkpoint(tmp_path, 1, make_folder, 1, best=True)
    expected = draw(), draw()
    load_checkpoint(tmp_path, lambda folder: None)
    assert (draw(), draw()) == expected


# Errors while saving


def test_full_disk_raises_os_error_and_leaves_no_unfinished_checkpoint(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        make_folder(folder)
        (folder / "weights").write_text("unfinished")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    save_checkpoint(tmp_path, 1, make_folder, 1, best=True)
    with pytest.raises(OSError, match="No space left on device") as failed:
        save_checkpoint(tmp_path, 2, full, 2, best=True)
    assert failed.value.errno == errno.ENOSPC
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "last", "step-0000000001"]
    assert load_checkpoint(tmp_path, lambda folder: None) == 1


# Invalid or unstorable content


def finished_run(folder: Path, make_envs: Envs) -> None:
    envs = make_envs(2)
    train(trainers.make("random", envs, seed=4), envs, 16, run_dir=folder, rollout_steps=8)


def change(file: Path, changes: dict[str, Any]) -> None:
    saved = decode(json.loads(file.read_text()))
    for path, value in changes.items():
        *parents, last = path.split(".")
        container = saved
        for name in parents:
            container = container[name]
        container[last] = value
    file.write_text(json.dumps(encode(saved)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("progress.step", "many", "step is 'many'"),
        ("progress.step", -1, "step is -1"),
        ("progress.metrics_bytes", 1 << 60, "metrics_bytes is 1152921504606846976"),
        ("progress.best", float("nan"), "best is nan"),
        ("progress.best_score", [], r"best_score is \[\]"),
        ("progress.recent", [(1.0,)], "TypeError"),
        ("progress.recent", [("x", 1.0, 2, True)], "not a number"),
        ("progress", None, "TypeError"),
        ("progress.environments.collector.observations", np.zeros((2, 3), dtype=np.int64), "observations is"),
        ("progress.environments.collector.lengths", np.zeros(2), "lengths is"),
        ("progress.environments.collector.infos", [{}], "saved with 1 environments, there are 2"),
        ("progress.environments.collector.infos", ["a", "b"], "an info is not a dict"),
        ("progress.environments.states", {"step": [1, 2]}, "states {'step'}"),
        ("progress.environments.states.state", [1, 2], "TypeError"),
        ("progress.environments.states.state", [], "ValueError"),
        ("random.torch", np.zeros(3, dtype=np.uint8), "cannot be loaded"),
        ("random.python", (1, 2), "cannot be loaded"),
        ("random.numpy", None, "cannot be loaded"),
    ],
)
def test_invalid_progress_raises(path: str, value: Any, message: str, tmp_path: Path, make_envs: Envs) -> None:
    finished_run(tmp_path, make_envs)
    change(tmp_path / "checkpoints" / "last" / "progress.json", {path: value})
    envs = make_envs(2)
    with pytest.raises(ValueError, match=message) as refused:
        train(trainers.make("random", envs), envs, 32, run_dir=tmp_path, rollout_steps=8, resume=True)
    assert str(tmp_path / "checkpoints") in str(refused.value)


def test_resume_with_another_number_of_environments_raises(tmp_path: Path, make_envs: Envs) -> None:
    finished_run(tmp_path, make_envs)
    envs = make_envs(3)
    with pytest.raises(ValueError, match="does not fit these environments"):
        train(trainers.make("random", envs), envs, 32, run_dir=tmp_path, rollout_steps=8, resume=True)


class UnstorableState(gym.Wrapper):
    """A wrapper whose state is of a type that cannot be stored."""

    @property
    def state(self) -> Any:
        return OrderedDict(self.env.get_wrapper_attr("state"))


def test_state_that_cannot_be_stored_warns_and_resuming_starts_new_episodes(
    tmp_path: Path, make_envs: Envs, caplog: pytest.LogCaptureFixture
) -> None:
    envs = make_envs(2, wrappers=[UnstorableState])
    with pytest.warns(UserWarning, match=r"states'\]\['state'\]\[0\] is a collections.OrderedDict, .* new episodes"):
        train(trainers.make("random", envs), envs, 16, run_dir=tmp_path, rollout_steps=8)
    envs = make_envs(2, wrappers=[UnstorableState])
    with pytest.warns(UserWarning):
        train(trainers.make("random", envs), envs, 32, run_dir=tmp_path, rollout_steps=8, resume=True)
    assert "the checkpoint has no environment states" in caplog.text
    assert steps_of(tmp_path) == [16, 32]


class Coin(LanguageEnv):
    """An environment without ``state_fields``, so it has no state."""

    action_names = ("heads", "tails")
    text_parts = (("Say heads or tails.",),)

    def __init__(self) -> None:
        super().__init__(max_text_length=20)

    def start(self, options: dict[str, Any]) -> None: ...

    def advance(self, action: int | str | None) -> Transition:
        return Transition(1.0, True, False, {})

    def narrate(self) -> str:
        return self.text_parts[0][0]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_environments_without_a_state_continue_after_a_checkpoint(kind: Any, tmp_path: Path) -> None:
    envs = kind([lambda: TokenEnv(Coin())] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    train(trainers.make("random", envs), envs, 16, run_dir=tmp_path, rollout_steps=4, checkpoint_every=1)
    assert steps_of(tmp_path) == [8, 16]
    envs.close()


def test_links_in_a_run_folder_are_not_followed(tmp_path: Path, make_envs: Envs) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in (".lock", "metrics.jsonl", "checkpoints/best/random.json", "checkpoints/last/anything"):
        folder = tmp_path / name.replace("/", "-")
        finished_run(folder, make_envs)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
        envs = make_envs(2)
        with pytest.raises(ValueError, match=r"is a symbolic link"):
            train(trainers.make("random", envs), envs, 32, run_dir=folder, rollout_steps=8, resume=True)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").symlink_to(tmp_path / "nowhere")
    envs = make_envs(2)
    with pytest.raises(ValueError, match="is a symbolic link"):
        train(trainers.make("random", envs), envs, 32, run_dir=tmp_path / "new", rollout_steps=8)
    assert victim.read_text() == "kept" and not (tmp_path / "nowhere").exists()


def test_link_to_another_folder_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "own", 1, make_folder, 1, best=True)
    shutil.copytree(tmp_path / "own", tmp_path / "other", symlinks=True)
    assert newest(tmp_path / "own") == tmp_path / "own" / "step-0000000001"
    for target in (tmp_path / "other" / "step-0000000001", Path("../other/step-0000000001"), Path()):
        (tmp_path / "own" / "last").unlink()
        (tmp_path / "own" / "last").symlink_to(target)
        with pytest.raises(ValueError, match="is a link to"):
            newest(tmp_path / "own")
