"""Parity of Overcooked: every recorded transition of the source environment replays exactly."""

import gzip
import json
from pathlib import Path

import gymnasium as gym
import pytest

import lang_envs  # noqa: F401  (registers the ids)

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "parity"
FILES = sorted(RECORDINGS.glob("overcooked-*.json.gz"))
NO_FILES = pytest.param(
    None, marks=pytest.mark.skip(reason="no ../shared/parity/overcooked-*.json.gz beside the checkout"), id="none"
)


def phrase_of(recorded_name: str, action_names: tuple[str, ...]) -> str:
    """Our phrase for a macro-action of the recordings, by its noun and number."""
    boards = [name for name in action_names if name.startswith("go to")]
    if recorded_name.startswith("go to knife"):
        return boards[int(recorded_name.split()[-1]) - 1]
    return {"get plate 1": "get the bowl", "deliver": "deliver the dish", "chop": "chop"}.get(
        recorded_name, recorded_name.replace("get ", "get the ")
    )


@pytest.mark.parametrize("file", FILES or [NO_FILES], ids=lambda path: path.name.split(".")[0])
def test_recording_replays_without_a_mismatch(file: Path) -> None:
    recording = json.loads(gzip.decompress(file.read_bytes()))
    dish = file.name.removeprefix("overcooked-").removesuffix("-salad.json.gz")
    env = gym.make(f"Overcooked-{dish}-salad-v0", interface="text")
    environment = env.unwrapped
    names = environment.action_names
    assert names == tuple(phrase_of(name, names) for name in recording["macro_actions"]), "same order of the actions"

    steps = 0
    for number, episode in enumerate(recording["episodes"]):
        env.reset(seed=number)
        assert environment.symbolic_observation().tolist() == episode["init"], f"episode {number}, start"
        for at, (action, reward, over, primitive_steps, observation) in enumerate(episode["steps"]):
            _, ours, terminated, truncated, info = env.step(names[action])
            where = f"episode {number}, step {at}, {names[action]!r}"
            assert environment.symbolic_observation().tolist() == observation, where
            assert ours == pytest.approx(reward, abs=1e-9), where
            assert (terminated or truncated) == over, where
            assert info["primitive_steps"] == primitive_steps, where
            assert len(info["available_actions"]) == len(names), where
            steps += 1
    assert steps > 1000


def test_recordings_contain_both_ways_an_episode_ends() -> None:
    if not FILES:
        pytest.skip("no ../shared/parity/overcooked-*.json.gz beside the checkout")
    last_rewards = [
        episode["steps"][-1][1]
        for file in FILES
        for episode in json.loads(gzip.decompress(file.read_bytes()))["episodes"]
        if episode["steps"][-1][2]
    ]
    assert any(reward > 0.5 for reward in last_rewards), "no delivery recorded"
    assert any(reward < 0 for reward in last_rewards), "no step limit recorded"
