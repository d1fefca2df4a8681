"""Tests of ``make``: its variables reach the commands unchanged, and only those of the command line are used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
PYTHON = f"""#!{shutil.which("python3")}
import json, sys
with open("words.jsonl", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
"""
HOSTILE = (
    "a'; touch ran; '",
    'a"; touch ran; "',
    "`touch ran`",
    "$$(touch ran)",
    "a; touch ran",
    "a\ntouch ran #",
    "a & touch ran",
    "a > ran",
    "*",
    "a\\",
    "-n",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout whose Python writes its arguments to a file."""
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


def make(folder: Path, *arguments: str, **environment: str) -> list[list[str]]:
    """Run make; return the arguments of each call of Python."""
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(["make", *arguments], cwd=folder, env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = folder / "words.jsonl"
    found = [json.loads(line) for line in words.read_text().splitlines()]
    words.unlink()
    assert not (folder / "ran").exists(), "the value of a variable was run as a command"
    return found


@pytest.mark.parametrize("value", HOSTILE)
def test_values_of_variables_are_arguments_and_not_commands(value: str, folder: Path) -> None:
    word = value.replace("$$", "$")
    (called,) = make(folder, "bench", f"MODEL={value}", f"ALGO={value}", f"DEVICE={value}", f"ENV={value}")
    options = [called[at + 1] for name in ("--model", "--algo", "--device", "--env") for at in [called.index(name)]]
    assert options == [word] * 4
    (called,) = make(folder, "bench", f"RESUME={value}")
    assert called == ["-m", "benchmarks", "resume", word]
    (called,) = make(folder, "bench", f"ARGS={value}")
    assert called == ["-m", "benchmarks", "run", *word.split()]
    called, _ = make(folder, "bench-datascicoding", f"SETS={value}")[-2:]
    make(folder, "report", f"RUNS={value}")
    make(folder, "paper", f"ARGS={value}")


def test_environment_variables_are_ignored(folder: Path) -> None:
    names = ("ALGO", "ENV", "MODEL", "SEEDS", "STEPS", "DEVICE", "QUANTIZE", "ARGS", "RESUME", "RUNS", "SETS")
    planted = dict.fromkeys((*names, "PYTHON", "PIP_OPTIONS"), "$(shell touch ran)")
    assert make(folder, "bench", **planted) == [["-m", "benchmarks", "run"]]
    assert make(folder, "-e", "bench", **planted) == [["-m", "benchmarks", "run"]]
    *_, called = make(folder, "bench-generalization", **planted)
    assert called[-4:] == ["--algo", "poad,ntpo,twosome", "--env", "VirtualHome-food-preparation-v0"]
    assert len(make(folder, "bench-datascicoding", **planted)) == 7
    (called,) = make(folder, "bench", "STEPS=8", "ARGS=--actor-lr 1e-4", **planted)
    assert called == ["-m", "benchmarks", "run", "--steps", "8", "--actor-lr", "1e-4"]


def test_resume_accepts_arguments(folder: Path) -> None:
    assert make(folder, "bench", "RESUME=runs/a b", "ARGS=--allow-import my_module") == [
        ["-m", "benchmarks", "resume", "runs/a b", "--allow-import", "my_module"]
    ]


def test_resuming_refuses_options_that_would_be_ignored(folder: Path) -> None:
    done = subprocess.run(
        ["make", "bench", "RESUME=runs/a", "STEPS=9", "SEEDS=2"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode != 0 and not (folder / "words.jsonl").exists()
    assert "error: RESUME keeps the options of the stopped benchmark: omit SEEDS STEPS" in done.stderr


@pytest.mark.parametrize("value", HOSTILE)
def test_gpu_check_passes_python_and_arguments_unchanged(folder: Path, value: str) -> None:
    own = shutil.copy(folder / ".venv" / "bin" / "python", folder / "own python")
    shutil.rmtree(folder / ".venv")
    assert make(folder, "gpu-check", f"PYTHON={own}", f"ARGS={value}") == [
        ["-m", "benchmarks.throughput.gpu_check", *value.replace("$$", "$").split()]
    ]
