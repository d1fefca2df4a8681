"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import trainers
from lang_envs import ENVIRONMENTS

README = (Path(__file__).parents[1] / "README.md").read_text()
(SOCKS,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def block(containing: str) -> str:
    (found,) = [text for text in BLOCKS if containing in text]
    return found


def test_the_environment_is_played_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block('print(info["available_actions"])'), {})
    shown = capsys.readouterr().out
    assert "Make a tomato salad. You stand at a counter." in shown
    assert "('get the tomato', 'get the bowl'" in shown


def test_a_program_is_scored_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    code = block("DataSciCoding-balance-scale-v0")
    exec(code, {})
    assert capsys.readouterr().out.splitlines()[-1] == re.findall(r"print\(f.*?# (0\.\d+)", code)[0]


def test_the_readmes_agent_passes_the_check_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_module.py").write_text(block("class Favourites"))
    monkeypatch.syspath_prepend(str(tmp_path))
    env = gym.make("Overcooked-tomato-salad-v0")
    agent = trainers.make("my_module:Favourites", env)
    trainers.check_agent(agent, env)
    assert agent.scores
    sys.modules.pop("my_module")


def test_training_goes_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block("trainers.train(agent")
    assert "total_steps=10_000" in code
    exec(code.replace("10_000", "256").replace("episodes=100", "episodes=2"), {})
    float(capsys.readouterr().out)
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "best" / "adapter" / "adapter_config.json").exists()


def test_the_table_of_environments_is_complete() -> None:
    listed = set(re.findall(r"^\| `([A-Za-z]+-[a-z0-9-]+-v\d+)`", README, flags=re.MULTILINE))
    assert listed == set(ENVIRONMENTS)


def test_every_make_target_that_is_shown_exists() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)(?=[ `\n])", README)) <= targets | {"it", "an"}


def test_pictures_that_are_shown_exist() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (Path(__file__).parents[1] / picture).read_bytes().startswith(b"\x89PNG")


def test_intervals_that_are_shown_are_those_of_the_published_results() -> None:
    shown = README[README.index("## What it shows") : README.index("### All of it again")]
    _, *found = re.split(r"\]\((benchmarks/results/[a-z]+\.md)", shown)
    counted = 0
    for file, text in zip(found[::2], found[1::2], strict=True):
        published = (Path(__file__).parents[1] / file).read_text()
        for interval in re.findall(r"[-\d.,]+%? \[[^\]]+\](?!\()", text):
            assert interval in published, f"{interval} is not in {file}"
            counted += 1
    assert counted > 20


def test_the_readmes_environment_keeps_gymnasiums_contract_and_is_learnt(
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


def test_the_readmes_household_is_solved_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lang_envs.__main__ import main

    (tmp_path / "socks.yaml").write_text(SOCKS)
    monkeypatch.chdir(tmp_path)
    assert main(["solve", "VirtualHome-v0", "--set", "task=socks.yaml"]) == 0
    assert "Shortest solution, 6 actions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "environment", [["--env", "my_doors:Doors-v0"], ["--env", "VirtualHome-v0", "--env-set", "task=socks.yaml"]]
)
def test_the_readmes_own_environments_are_trained_in_as_shown(environment: list[str], tmp_path: Path) -> None:
    (tmp_path / "my_doors.py").write_text(block("class Doors"))
    (tmp_path / "socks.yaml").write_text(SOCKS)
    small = ["--steps", "128", "--num-envs", "4", "--seeds", "1", "--eval-episodes", "4", "--rollout-steps", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "run", *environment, *small],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "optimum" in done.stdout


def test_the_readmes_table_of_unseen_tasks_has_all_of_them() -> None:
    from lang_envs.virtualhome import UNSEEN_TASKS

    rows = re.findall(r"^\| ([a-z-]+) \| \d+% \[", README, flags=re.MULTILINE)
    assert tuple(rows) == UNSEEN_TASKS
