"""Agents on a simulated GPU: tensors are on the right device, and there are few synchronisations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainers.agents import AGENTS

ROOT = Path(__file__).parents[2]
MAX_WAITS = 60
"""Limit of synchronisations for each minibatch of an update (measured: 29 to 38, with one forward pass each)."""

PLACEMENTS = ("batch.visible)", "batch.input_ids)", "batch.position_ids)", "batch.mask)", "critic.to(")
"""Parts of source lines that place tensors which CUDA does not accept from the CPU."""

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch does not support devices written in Python",
)


def on_simulated_gpu(*arguments: str) -> list[dict[str, Any]]:
    """Run on_simulated_gpu.py in a new process; return the JSON lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("on_simulated_gpu.py")), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(waits: dict[str, int]) -> str:
    return "\n".join(f"{count:5} {line}" for line, count in sorted(waits.items(), key=lambda item: -item[1]))


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Any]]:
    return on_simulated_gpu()


def test_agents_train_evaluate_and_resume_on_a_gpu(trained: list[dict[str, Any]]) -> None:
    """Operations on tensors of both devices raise there; a resumed run equals an uninterrupted one."""
    assert {"poad", "ntpo", "twosome", "grpo", "softq"} <= {line["algo"] for line in trained} <= set(AGENTS)
    assert all(line["resumed_equals_whole"] for line in trained)


@pytest.mark.parametrize("waits", ["waits", "waits_resumed"])
def test_minibatches_have_few_synchronisations(trained: list[dict[str, Any]], waits: str) -> None:
    for line in trained:
        count = sum(line[waits].values()) / line["minibatches"]
        assert count <= MAX_WAITS, f"{line['algo']}, {line['sampling']}: {count}\n{table(line[waits])}"


def test_training_fails_without_a_placement() -> None:
    """The simulated GPU detects a missing placement. Placements of indices are not tested: CUDA accepts CPU indices."""
    removed = on_simulated_gpu("--remove", *PLACEMENTS)
    assert {part for part in PLACEMENTS for line in removed if part in line["source"]} == set(PLACEMENTS)
    assert not [line for line in removed if line["trains"]]
