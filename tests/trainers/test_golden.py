"""Golden metrics: short runs must reproduce the stored metrics (see tests/golden.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import golden

RUNS = [
    (algorithm, environment)
    for environment in golden.ENVIRONMENTS
    for algorithm in golden.ALGORITHMS
    if algorithm == "poad" or not environment.startswith("DataSciCoding")  # the slowest runs
]


@pytest.mark.parametrize(("algorithm", "environment"), RUNS)
def test_metrics_equal_those_of_stored_runs(algorithm: str, environment: str) -> None:
    if environment.startswith("DataSciCoding"):
        pytest.importorskip("sklearn")
    torch.set_num_threads(1)
    name = f"{algorithm} {environment} 0"
    stored = {name: json.loads(golden.STORED.read_text())[name]}
    differences = golden.differences(stored, {name: golden.run(algorithm, environment, 0)}, relative=1e-3)
    assert not differences, "\n".join(differences)


def test_differences_names_run_rollout_and_metric() -> None:
    before = {"poad env 0": [{"return": 0.5, "step": 64}, {"return": 0.6, "step": 128}]}
    assert not golden.differences(before, before)
    after = {"poad env 0": [{"return": 0.5, "step": 64}, {"return": 0.6 + 1e-12, "step": 128}]}
    assert golden.differences(before, after) == [f"poad env 0, rollout 2: return was 0.6, is {0.6 + 1e-12!r}"]
    assert not golden.differences(before, after, relative=1e-6)
    assert golden.differences(before, {"poad env 0": before["poad env 0"][:1]}) == ["poad env 0: 2 rollouts, now 1"]
    assert golden.differences(before, {"poad env 0": [{"step": 64}, before["poad env 0"][1]]}) == [
        "poad env 0, rollout 1: return was 0.5, is None"
    ]
