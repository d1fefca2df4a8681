"""Benchmark runs where torch sees a CUDA GPU: here one that is pretended, by ``cuda_visible/sitecustomize.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRETENCE = Path(__file__).parent / "cuda_visible"

FORK = """
import os, sys, torch
import benchmarks.__main__
if (child := os.fork()) == 0:
    try:
        torch.cuda.init()
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def with_gpu_visible(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{PRETENCE}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=240, env=environment
    )


def test_a_run_on_the_cpu_trains_where_torch_sees_a_gpu(tmp_path: Path) -> None:
    arguments = ["--steps", "128", "--seeds", "1", "--eval-episodes", "2", "--rollout-steps", "16", "--device", "cpu"]
    done = with_gpu_visible("-m", "benchmarks", "run", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("runs/*/poad/seed-0/result.json")
    assert json.loads(result.read_text())["sampled"]["episodes"] == 2


def test_cuda_does_not_work_in_a_fork_of_a_process_that_has_imported_the_benchmarks(tmp_path: Path) -> None:
    """The reason for `spawn`, and the proof that the pretended GPU can make the test above fail."""
    pytest.importorskip("bitsandbytes")
    done = with_gpu_visible("-c", FORK, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stdout


def test_what_is_imported_before_the_forks_leaves_cuda_alone() -> None:
    script = """
import torch

def trap(name):
    def touched(*_, **__):
        raise AssertionError(f"torch.cuda.{name} is called")
    return touched

for name in ("init", "_lazy_init", "current_device", "get_device_capability", "get_device_properties", "set_device"):
    setattr(torch.cuda, name, trap(name))
from benchmarks.processes import PRELOADED
for name in PRELOADED:
    __import__(name)
assert not torch.cuda.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
