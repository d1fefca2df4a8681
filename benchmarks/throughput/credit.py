"""Credit on one core, in million tokens a second, against a loop over single tokens of Python lists.

``python -m benchmarks.throughput.credit`` times them by turns in one process, each at its best.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from trainers.credit import action_gae, token_gae

SHAPES = [(128, 4, 8), (128, 64, 16), (32, 64, 128)]  # steps, environments, tokens of an action
ACROSS = {"gamma": 0.99, "gae_lambda": 0.95}
INSIDE = {"gamma_token": 1.0, "gae_lambda_token": 1.0}


def loop(rewards: Any, values: Any, mask: Any, next_values: Any, ends: Any) -> Any:
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


def vectorised(rewards: Any, values: Any, mask: Any, following: Any, ends: Any) -> Any:
    if mask.shape[-1] == 1:
        return action_gae(rewards, values[..., 0], following, ends, **ACROSS)
    return token_gae(rewards, values, mask, following, ends, **ACROSS, **INSIDE)


def main() -> None:
    rng = np.random.default_rng(0)
    kinds: dict[str, Any] = {"loop": np.ndarray.tolist, "numpy": np.asarray, "torch": torch.tensor}
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
        print(f"{'token' if length > 1 else 'action'}_gae {t, n, length}", *columns, sep="   ")


if __name__ == "__main__":
    main()
