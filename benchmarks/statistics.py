"""Confidence intervals and significance tests of few runs.

Aggregates over tasks follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(arXiv 2108.13264). All intervals are percentile bootstraps; with few seeds they are too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import PermutationMethod, mannwhitneyu

SIGNIFICANT = 0.05
"""Level of the tests."""
_RESAMPLES = 10_000

Values = Sequence[float] | np.ndarray
"""One number for each seed."""


class Interval(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def shown(self, form: str = "{:.3f}") -> str:
        """Format as ``"0.750 [0.700, 0.800]"``."""
        return f"{form.format(self.value)} [{form.format(self.low)}, {form.format(self.high)}]"


def interquartile_mean(tasks: Sequence[Values]) -> Interval:
    """Mean of the middle half of all runs of one or more tasks; one outlier changes it less than the mean."""
    return _interval(lambda *runs: _trimmed_mean(np.concatenate(runs, -1)), tasks)


def mean(tasks: Sequence[Values]) -> Interval:
    """Mean over tasks of the mean over seeds."""
    return _interval(lambda *runs: np.mean([run.mean(-1) for run in runs], 0), tasks)


def mean_difference(ours: Values, theirs: Values) -> Interval:
    """Our mean minus theirs; the runs of both are resampled independently."""
    return _interval(lambda a, b: a.mean(-1) - b.mean(-1), [ours, theirs])


def probability_of_improvement(ours: Sequence[Values], theirs: Sequence[Values]) -> Interval:
    """Probability that a run of ours has a higher value than one of theirs, ties counting half; mean over tasks.

    0.5 means no difference.

    Raises
    ------
    ValueError
        If both sides have different numbers of tasks.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} tasks of ours and {len(theirs)} of theirs: both sides need the same tasks")

    def statistic(*runs: np.ndarray) -> np.ndarray:
        wins = []
        for a, b in zip(runs[: len(ours)], runs[len(ours) :], strict=True):
            difference = a[..., :, None] - b[..., None, :]
            wins.append((0.5 + 0.5 * np.sign(difference)).mean((-2, -1)))
        return np.mean(wins, 0)

    return _interval(statistic, [*ours, *theirs])


def rank_tests(ours: Values, others: Mapping[str, Values]) -> dict[str, float]:
    """p-values of the difference between our runs and those of each of several others, corrected for their number.

    Mann and Whitney's rank test, two-sided, by permutation (exact up to seven runs each, ties included), with Holm's
    correction: below 0.05, all significant differences together are wrong with a probability of at most 0.05.
    """
    values = {}
    for name, theirs in others.items():
        method = PermutationMethod(n_resamples=_RESAMPLES, rng=np.random.default_rng(0))
        values[name] = float(mannwhitneyu(ours, theirs, method=method).pvalue)
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(values, key=lambda name: values[name])):
        largest = corrected[name] = max(largest, min(1.0, values[name] * (len(values) - rank)))
    return {name: corrected[name] for name in others}


def enough_runs(runs: int, others: int, level: float = SIGNIFICANT) -> bool:
    """Whether so many runs of each agent can make :func:`rank_tests` against so many others significant at all."""
    return 0 < 2 / math.comb(2 * runs, runs) * others < level


def compare_intervals(pairs: Mapping[str, tuple[Interval, Interval]]) -> str:
    """Say where the first of two intervals is entirely above the second, where below, and where they overlap."""
    found: dict[str, list[str]] = {"higher": [], "lower": [], "overlapping intervals": []}
    for name, (ours, theirs) in pairs.items():
        way = "higher" if ours.low > theirs.high else "lower" if ours.high < theirs.low else "overlapping intervals"
        found[way].append(name)
    return "; ".join(f"{way} on {', '.join(names)}" for way, names in found.items() if names)


def performance_profile(tasks: Sequence[Values], thresholds: Sequence[float]) -> list[Interval]:
    """Fraction of runs above each threshold, mean over tasks."""
    return [
        _interval(lambda *runs, at=at: np.mean([(run > at).mean(-1) for run in runs], 0), tasks) for at in thresholds
    ]


def _trimmed_mean(values: np.ndarray) -> np.ndarray:
    """Mean without the lowest and the highest quarter, each rounded down."""
    cut = values.shape[-1] // 4
    return np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)


def _interval(statistic: Callable[..., np.ndarray], samples: Sequence[Values]) -> Interval:
    """Percentile bootstrap, stratified: seeds are resampled within each task.

    Raises
    ------
    ValueError
        If there is no task, or one with fewer than two runs.
    """
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    if not arrays or min(map(len, arrays)) < 2:
        raise ValueError(
            f"an interval needs two runs of every task; runs of the tasks: {[len(array) for array in arrays]}"
        )
    rng = np.random.default_rng(0)
    drawn = [array[rng.integers(len(array), size=(_RESAMPLES, len(array)))] for array in arrays]
    low, high = np.quantile(statistic(*drawn), (0.025, 0.975))
    return Interval(float(statistic(*arrays)), float(low), float(high))


def interval_of_means(curves: np.ndarray) -> np.ndarray:
    """95 % interval of the mean over seeds at every point of their curves.

    Parameters
    ----------
    curves : float array (seeds, points)

    Returns
    -------
    float array (2, points)
    """
    drawn = np.random.default_rng(0).integers(len(curves), size=(_RESAMPLES // 10, len(curves)))
    return np.quantile(curves[drawn].mean(1), (0.025, 0.975), axis=0)


def bootstrap_mean(seeds: Sequence[Sequence[float]]) -> Interval:
    """Mean over seeds of the means over their episodes, with a percentile bootstrap of two levels.

    Seeds are resampled, then episodes within each resampled seed, so that the interval contains the randomness of
    training and of evaluation.

    Parameters
    ----------
    seeds : sequence of sequences of float
        Values of the episodes of each seed, at least one.
    """
    values = [np.array(own, dtype=float) for own in seeds]
    rng = np.random.default_rng(0)
    count = len(values)
    # Resample a seed's episodes for each time that the seed is drawn.
    drawn = rng.integers(count, size=(_RESAMPLES, count))
    means = np.empty((_RESAMPLES, count))
    for seed in range(count):
        chosen = drawn == seed
        means[chosen] = rng.choice(values[seed], size=(int(chosen.sum()), len(values[seed]))).mean(1)
    low, high = np.quantile(means.mean(1), (0.025, 0.975))
    return Interval(float(np.mean([own.mean() for own in values])), float(low), float(high))
