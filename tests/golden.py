"""Golden metrics: short training runs whose metrics must stay equal when the code is restructured.

Each run trains, stops, resumes from its checkpoint with a new agent, and continues. All metrics except timing are
stored at full precision.

    python tests/golden.py write FILE       run all runs and write their metrics to FILE
    python tests/golden.py compare COMMIT   run them at COMMIT and in this tree; print every difference

Floating-point results differ between processors, so test_golden.py compares with ``golden.json`` with a tolerance.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

ALGORITHMS = ("poad", "ntpo", "twosome")
SEEDS = (0, 1)
ENVIRONMENTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "Overcooked-tomato-salad-v0": (4, 16, {}),
    "VirtualHome-food-preparation-v0": (16, 32, {}),
    "DataSciCoding-balance-scale-v0": (4, 2, {"max_action_tokens": 48, "temperature": 0.7}),
}
"""For each environment: number of parallel environments, environment steps of a rollout, settings of the agent."""
ROLLOUTS_BEFORE_RESUME, ROLLOUTS = 2, 4
STORED = Path(__file__).with_name("golden.json")


def run(algorithm: str, environment: str, seed: int) -> list[dict[str, Any]]:
    """Train one agent, resuming once; return one dict of metrics for each rollout."""
    import lang_envs
    import trainers

    num_envs, rollout_steps, settings = ENVIRONMENTS[environment]
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for rollouts in (ROLLOUTS_BEFORE_RESUME, ROLLOUTS):
            with closing(lang_envs.make_vec(environment, num_envs)) as envs:
                lines += trainers.train(
                    trainers.make(algorithm, envs, seed=seed, **settings),
                    envs,
                    rollouts * num_envs * rollout_steps,
                    run_dir=folder,
                    seed=1000 * seed,
                    rollout_steps=rollout_steps,
                    resume=rollouts == ROLLOUTS,
                )
    return [{name: value for name, value in line.items() if isinstance(value, int | float)} for line in lines]


def run_all() -> dict[str, list[dict[str, Any]]]:
    """Return the metrics of all runs; the keys are ``"algorithm environment seed"``."""
    import torch

    torch.set_num_threads(1)
    return {
        f"{algorithm} {environment} {seed}": run(algorithm, environment, seed)
        for environment in ENVIRONMENTS
        for algorithm in ALGORITHMS
        for seed in SEEDS
    }


def differences(before: Any, after: Any, *, relative: float = 0.0) -> list[str]:
    """Return one line for each metric that differs by more than ``relative``, relatively and absolutely."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, []), after.get(name, [])
        if len(old) != len(new):
            lines.append(f"{name}: {len(old)} rollouts, now {len(new)}")
        for number, (was, now) in enumerate(zip(old, new, strict=False), start=1):
            for metric in sorted(was.keys() | now.keys()):
                a, b = was.get(metric), now.get(metric)
                same = a is not None and b is not None and math.isclose(a, b, rel_tol=relative, abs_tol=relative)
                if not same:
                    lines.append(f"{name}, rollout {number}: {metric} was {a!r}, is {b!r}")
    return lines


def compare(commit: str) -> list[str]:
    """Run this script at ``commit`` and in this tree; return the differences."""
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        subprocess.run(["git", "-C", here, "worktree", "add", "--detach", "--quiet", tree, commit], check=True)
        try:
            results = []
            for number, code in enumerate((tree, here)):
                file = Path(temporary) / f"{number}.json"
                environment = os.environ | {"PYTHONPATH": str(code)}
                subprocess.run([sys.executable, __file__, "write", file], check=True, cwd=code, env=environment)
                results.append(json.loads(file.read_text()))
        finally:
            subprocess.run(["git", "-C", here, "worktree", "remove", "--force", tree], check=True)
    return differences(*results)


def main() -> None:
    match sys.argv[1:]:
        case ["write", file]:
            Path(file).write_text(json.dumps(run_all(), indent=1) + "\n")
        case ["compare", commit]:
            lines = compare(commit)
            print("\n".join(lines) or f"All metrics are equal to those at {commit}, bit for bit.")
            sys.exit(bool(lines))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
