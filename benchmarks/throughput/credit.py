"""Speed of generalised advantage estimation on one core, compared with a Python loop over tokens.

``python -m benchmarks.throughput.credit`` prints million credit steps per second, the best of nine repetitions.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from trainers.credit import gae

SHAPES = [(128, 4, 8), (128, 64, 16), (32, 64, 128)]
"""Steps, environments, maximum number of tokens of an action."""


def loop(rewards: Any, values: Any, mask: Any, next_values: Any, ends: Any) -> Any:
    """Return token-level advantages of nested lists."""
    advantages = [[[0.0] * len(row) for row in step] for step in values]
    for n in range(len(rewards[0])):
        advantage = 0.0
        for t in reversed(range(len(rewards))):
            backup = rewards[t][n] + 0.99 * next_values[t][n]
            advantage = 0.0 if ends[t][n] else 0.99 * 0.95 * advantage
            for j in reversed(range(sum(mask[t][n]))):
                advantages[t][n][j] = advantage = backup - values[t][n][j] + advantage
                backup = values[t][n][j]
    return advantages


def vectorised(rewards: Any, values: Any, mask: Any, next_values: Any, ends: Any) -> Any:
    """Return advantages and returns of arrays."""
    return gae(rewards, values, mask, next_values, ends, gamma=0.99, gae_lambda=0.95)


def main() -> None:
    """Print a line for each shape."""
    rng = np.random.default_rng(0)
    kinds: dict[str, Any] = {"loop": np.ndarray.tolist, "numpy": np.asarray}
    for t, n, length in [*SHAPES, *((t, n, 1) for t, n, _ in SHAPES)]:
        mask = np.arange(length) < rng.integers(1, length + 1, (t, n, 1))
        rewards, following = rng.normal(size=(2, t, n)).astype(np.float32)
        values = rng.normal(size=mask.shape).astype(np.float32)
        rollout = (rewards, values, mask, following, rng.random((t, n)) < 0.1)
        best = dict.fromkeys(kinds, float("inf"))
        for kind in [*kinds] * 9:
            arguments = [kinds[kind](array) for array in rollout]
            start = time.perf_counter()
            (loop if kind == "loop" else vectorised)(*arguments)
            best[kind] = min(best[kind], time.perf_counter() - start)
        columns = (f"{k} {mask.sum() / s / 1e6:4.1f} (x{best['loop'] / s:4.1f})" for k, s in best.items())
        print(f"{'token' if length > 1 else 'action'} level {t, n, length}", *columns, sep="   ")


if __name__ == "__main__":
    main()
