"""The code in the README runs and prints what the README shows; its numbers are those of the published results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gymnasium as gym
import pytest

import trainers
from lang_envs import ENVIRONMENTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def block(containing: str) -> str:
    (code,) = [text for text in BLOCKS if containing in text]
    return code


def test_readme_has_at_most_200_lines() -> None:
    assert len(README.splitlines()) <= 200


def test_environment_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block('print(info["available_actions"])'), {})
    printed = capsys.readouterr().out
    assert "Make a tomato salad. You stand at a counter." in printed
    assert "('get the tomato', 'get the bowl'" in printed


def test_training_works_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block("trainers.train(agent")
    assert "total_steps=10_000" in code
    exec(code.replace("10_000", "256").replace("episodes=100", "episodes=2"), {})
    float(capsys.readouterr().out)
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "best" / "adapter" / "adapter_config.json").exists()


def test_agent_can_be_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_module.py").write_text(block("class LongestPhrase"))
    monkeypatch.syspath_prepend(str(tmp_path))
    agent = trainers.make("my_module:LongestPhrase", gym.make("Overcooked-tomato-salad-v0"))
    assert trainers.evaluate(agent, "Overcooked-tomato-salad-v0", episodes=2).returns.shape == (2,)
    sys.modules.pop("my_module")


def test_own_environment_passes_gymnasiums_check_and_can_be_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium.utils.env_checker import check_env

    (tmp_path / "my_doors.py").write_text(block("class Doors"))
    monkeypatch.syspath_prepend(str(tmp_path))
    env = gym.make("my_doors:Doors-v0")
    check_env(env.unwrapped, skip_render_check=True)
    agent = trainers.make("poad", env)
    trainers.check_agent(agent, env)
    assert trainers.evaluate(agent, "Doors-v0", 4).returns.shape == (4,)
    assert trainers.evaluate(agent, lambda: gym.make("Doors-v0"), 4).returns.shape == (4,)
    sys.modules.pop("my_doors")


def test_benchmark_trains_in_the_own_environment_as_shown(tmp_path: Path) -> None:
    (tmp_path / "my_doors.py").write_text(block("class Doors"))
    small = ["--steps", "128", "--num-envs", "4", "--seeds", "1", "--eval-episodes", "4", "--rollout-steps", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "run", "--env", "my_doors:Doors-v0", *small],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "optimum" in done.stdout


def test_table_of_families_counts_all_environments() -> None:
    shown = dict(re.findall(r"^\| \[(\w+)\]\(docs/environments/\w+\.md\) \| (\d+) \|", README, flags=re.MULTILINE))
    assert {family: int(count) for family, count in shown.items()} == Counter(
        name.partition("-")[0] for name in ENVIRONMENTS
    )
