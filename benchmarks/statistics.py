"""Numbers about numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES = 10_000


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def bootstrap_mean(seeds: Sequence[Sequence[float]], rng: np.random.Generator | None = None) -> Interval:
    """Mean over seeds of the means over their episodes, with a percentile bootstrap of two levels.

    Seeds are drawn with replacement, then episodes within each drawn seed, so that both what training and what playing
    leave to chance is in the interval. Few seeds make it too narrow.

    Parameters
    ----------
    seeds : sequence of sequences of float
        Values of the episodes of each seed, equally many of each.
    """
    values = np.array(seeds, dtype=float)
    rng = rng or np.random.default_rng(0)
    count, episodes = values.shape
    # Drawing episodes of a seed anew for each time it is drawn: (resamples, seeds, episodes).
    drawn = rng.integers(count, size=(_RESAMPLES, count))
    means = np.empty((_RESAMPLES, count))
    for seed in range(count):
        chosen = drawn == seed
        means[chosen] = rng.choice(values[seed], size=(int(chosen.sum()), episodes)).mean(1)
    low, high = np.quantile(means.mean(1), (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))
