"""`make gpu-check` without a GPU: what it says, and its parts on a CPU with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.throughput import gpu_check
from benchmarks.throughput.gpu_check import PARTS, Part, Setup

ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.throughput.gpu_check", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_parts_are_listed_and_the_exit_code_is_2() -> None:
    done = command()
    assert done.returncode == 2
    assert all(name in done.stdout and part.what in done.stdout for name, part in PARTS.items())


def test_the_parts_measure_on_a_cpu(tmp_path: Path) -> None:
    """Those that say most; `--device cpu --shape tiny` without `--only` runs all."""
    chosen = ("machine", "bf16", "adapter gain", "killed worker")
    done = command("--device", "cpu", "--shape", "tiny", "--output", str(tmp_path), "--only", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert list(found["parts"]) == [name for name in PARTS if name in (*chosen, "model")]
    results = {name: outcome["result"] for name, outcome in found["parts"].items()}
    training = results["bf16"]
    assert training["packs"] is True
    assert all(training[name] > 0 for name in ("steps/s", "tokens/s", "peak memory, GiB", "estimated memory, GiB"))
    assert results["adapter gain"]["gain of 1 steps of 5e-7"] == pytest.approx(1, abs=0.1), "float32 loses nothing"
    assert set(results["killed worker"]) >= {"GPU memory held, GiB", "seconds until it was free"}
    assert "| bf16 | packs | True |" in (tmp_path / "gpu-check.md").read_text()


def refuse(setup: Setup) -> dict[str, Any]:
    raise RuntimeError("CUDA out of memory, or so")


@pytest.mark.parametrize(
    ("part", "outcome"),
    [
        (Part(refuse, ""), {"failed": "RuntimeError: CUDA out of memory, or so"}),
        (
            Part(refuse, "", needs=("no_such_package",)),
            {"skipped": "a package is missing: No module named 'no_such_package'"},
        ),
    ],
)
def test_a_part_that_cannot_run_says_why(
    part: Part, outcome: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, "machine", part)
    gpu_check.work("machine", Setup("cpu", "tiny", tmp_path / "model", tmp_path))
    assert json.loads((tmp_path / "outcome.json").read_text()) == outcome


def test_a_part_that_takes_too_long_is_ended_and_where_no_time_is_left_none_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(gpu_check, "start", lambda *_, **__: subprocess.Popen(endless, start_new_session=True))
    (tmp_path / "stderr").touch()
    setup = Setup("cpu", "tiny", tmp_path / "model", tmp_path)
    assert gpu_check.run_part("machine", setup, seconds=1)["failed"] == "not done after 1 s"
    assert gpu_check.run_part("machine", setup, seconds=0.5) == {"skipped": "no time is left"}
