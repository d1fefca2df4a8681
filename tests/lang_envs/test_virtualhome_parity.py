"""Parity of VirtualHome: every recorded transition of the source environment replays exactly."""

import gzip
import json
from pathlib import Path

import gymnasium as gym
import pytest

import lang_envs  # noqa: F401  (registers the ids)

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "parity"
FILES = sorted(RECORDINGS.glob("virtualhome-*.json.gz"))
NO_FILES = pytest.param(
    None, marks=pytest.mark.skip(reason="no ../shared/parity/virtualhome-*.json.gz beside the checkout"), id="none"
)


@pytest.mark.parametrize("file", FILES or [NO_FILES], ids=lambda path: path.name.split(".")[0])
def test_recording_replays_without_a_mismatch(file: Path) -> None:
    recording = json.loads(gzip.decompress(file.read_bytes()))
    task = file.name.removeprefix("virtualhome-").removesuffix(".json.gz")
    env = gym.make(f"VirtualHome-{task}-v0", interface="text")
    environment = env.unwrapped
    assert environment.action_names == tuple(recording["actions"])
    assert environment.symbolic_fields == tuple(recording["fields"])
    assert environment.max_steps == recording["max_episode_steps"]

    steps, successes, time_outs = 0, 0, 0
    for number, episode in enumerate(recording["episodes"]):
        _, info = env.reset(seed=number)
        assert environment.symbolic_observation().tolist() == episode["init"], f"episode {number}, start"
        assert list(info["available_action_ids"]) == episode["available"], f"episode {number}, start"
        for at, (action, reward, over, observation, available) in enumerate(episode["steps"]):
            _, ours, terminated, truncated, info = env.step(environment.action_names[action])
            where = f"episode {number}, step {at}, {environment.action_names[action]!r}"
            assert environment.symbolic_observation().tolist() == observation, where
            assert ours == pytest.approx(reward, abs=1e-9), where
            assert (terminated or truncated) == over, where
            assert info["action_valid"], where
            if available is not None:
                assert list(info["available_action_ids"]) == available, where
            steps += 1
            successes += terminated
            time_outs += truncated
    assert steps > 1000
    assert successes > 0
    assert time_outs > 0
