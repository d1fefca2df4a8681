"""All agents on a simulated GPU, in a process of its own: all is on the right device, and little waits for it."""

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
WAITS_OF_A_MINIBATCH = 60
"""Most synchronisations for each minibatch of an update; 29 to 38 were counted, and a minibatch here is one forward."""

PLACEMENTS = ("batch.visible)", "batch.input_ids)", "batch.position_ids)", "batch.mask)", "critic_hidden).to(")
"""Parts of the source lines that put these on the device."""

pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices written in Python",
)


def on_simulated_gpu(*arguments: str) -> list[dict[str, Any]]:
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


def test_every_agent_trains_evaluates_and_resumes_on_a_gpu(trained: list[dict[str, Any]]) -> None:
    """Anything left on the CPU raises there; what resumed goes on as if nothing had happened."""
    assert {"poad", "ntpo", "twosome"} <= {line["algo"] for line in trained} <= set(AGENTS)
    assert all(line["resumed_equals_whole"] for line in trained)


@pytest.mark.parametrize("way", ["waits", "waits_resumed"])
def test_minibatches_have_few_synchronisations(trained: list[dict[str, Any]], way: str) -> None:
    for line in trained:
        count = sum(line[way].values()) / line["minibatches"]
        assert count <= WAITS_OF_A_MINIBATCH, f"{line['algo']}, {line['sampling']}: {count}\n{table(line[way])}"


def test_training_fails_without_a_placement() -> None:
    """Of tensors that CUDA does not take from the CPU. Many other placements are of indices, which it takes."""
    removed = on_simulated_gpu("--remove", *PLACEMENTS)
    assert {part for part in PLACEMENTS for line in removed if part in line["source"]} == set(PLACEMENTS)
    assert not [line for line in removed if line["survives"]]
