"""Numbers about numbers.

Few seeds make every interval too narrow. What is said of several tasks at once, and why the mean alone says too little,
follows Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import PermutationMethod, mannwhitneyu

_RESAMPLES = 10_000

Values = Sequence[float] | np.ndarray
"""One number of each seed."""


class Interval(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def shown(self, form: str = "{:.3f}") -> str:
        """As text, ``"0.750 [0.700, 0.800]"``."""
        return f"{form.format(self.value)} [{form.format(self.low)}, {form.format(self.high)}]"


def interquartile_mean(tasks: Sequence[Values]) -> Interval:
    """Mean of the middle half of all runs of one or more tasks: less moved by one lucky seed than the mean, and by more
    seeds than the median."""
    return _interval(lambda *runs: _trimmed_mean(np.concatenate(runs, -1)), tasks)


def mean(tasks: Sequence[Values]) -> Interval:
    """Mean over tasks of the mean over seeds."""
    return _interval(lambda *runs: np.mean([run.mean(-1) for run in runs], 0), tasks)


def mean_difference(ours: Values, theirs: Values) -> Interval:
    """How much our mean is above theirs; the runs of the two are drawn anew apart from each other."""
    return _interval(lambda a, b: a.mean(-1) - b.mean(-1), [ours, theirs])


def probability_of_improvement(ours: Sequence[Values], theirs: Sequence[Values]) -> Interval:
    """How probable it is that a run of ours beats one of theirs, a tie counting half; the mean over tasks.

    0.5 says nothing. An interval that holds 0.5 says that the seeds do not tell the two apart.

    Raises
    ------
    ValueError
        If the tasks are not as many on both sides.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} tasks of ours beside {len(theirs)} of theirs: they must be the same")

    def statistic(*runs: np.ndarray) -> np.ndarray:
        wins = []
        for a, b in zip(runs[: len(ours)], runs[len(ours) :], strict=True):
            difference = a[..., :, None] - b[..., None, :]
            wins.append((0.5 + 0.5 * np.sign(difference)).mean((-2, -1)))
        return np.mean(wins, 0)

    return _interval(statistic, [*ours, *theirs])


def differ(ours: Values, others: Mapping[str, Values], level: float = 0.05) -> dict[str, bool]:
    """Whether runs tell ours apart from each of several others: Mann and Whitney's rank test, two-sided, by permutation
    (exact up to seven runs each, with ties too), with Holm's correction, so that one wrong verdict among all is no more
    probable than ``level``."""
    values = {}
    for name, theirs in others.items():
        method = PermutationMethod(n_resamples=_RESAMPLES, rng=np.random.default_rng(0))
        values[name] = float(mannwhitneyu(ours, theirs, method=method).pvalue)
    apart, found = True, {}
    for rank, name in enumerate(sorted(values, key=lambda name: values[name])):
        apart = apart and values[name] * (len(values) - rank) < level
        found[name] = apart
    return {name: found[name] for name in others}


def can_differ(runs: int, others: int, level: float = 0.05) -> bool:
    """Whether so many runs of each agent could tell one apart from any of so many others by :func:`differ`."""
    return 0 < 2 / math.comb(2 * runs, runs) * others < level


def beside(pairs: Mapping[str, tuple[Interval, Interval]]) -> str:
    """In words: where the first of two intervals lies above the second, where below, and where they overlap."""
    found: dict[str, list[str]] = {"higher in": [], "lower in": [], "not told apart in": []}
    for name, (ours, theirs) in pairs.items():
        way = "higher in" if ours.low > theirs.high else "lower in" if ours.high < theirs.low else "not told apart in"
        found[way].append(name)
    return "; ".join(f"{way} {', '.join(names)}" for way, names in found.items() if names)


def performance_profile(tasks: Sequence[Values], thresholds: Sequence[float]) -> list[Interval]:
    """The share of runs above each threshold, tasks counted alike; fractions of runs, from 1 down to 0."""
    return [
        _interval(lambda *runs, at=at: np.mean([(run > at).mean(-1) for run in runs], 0), tasks) for at in thresholds
    ]


def _trimmed_mean(values: np.ndarray) -> np.ndarray:
    """Without the lowest and the highest quarter, rounded down."""
    cut = values.shape[-1] // 4
    return np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)


def _interval(statistic: Callable[..., np.ndarray], samples: Sequence[Values]) -> Interval:
    """Percentile bootstrap in which the seeds of every task are drawn anew among themselves (stratified).

    Raises
    ------
    ValueError
        If there is no task, or one with fewer than two runs: an interval cannot be had from one.
    """
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    if not arrays or min(map(len, arrays)) < 2:
        raise ValueError(f"an interval needs two runs of every task, and there are {[len(array) for array in arrays]}")
    rng = np.random.default_rng(0)
    drawn = [array[rng.integers(len(array), size=(_RESAMPLES, len(array)))] for array in arrays]
    low, high = np.quantile(statistic(*drawn), (0.025, 0.975))
    return Interval(float(statistic(*arrays)), float(low), float(high))


def interval_of_means(curves: np.ndarray) -> np.ndarray:
    """The ends of the 95 % interval of a mean over seeds, at every point of their curves.

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

    Seeds are drawn with replacement, then episodes within each drawn seed, so that both what training and what playing
    leave to chance is in the interval. Few seeds make it too narrow.

    Parameters
    ----------
    seeds : sequence of sequences of float
        Values of the episodes of each seed, one at least.
    """
    values = [np.array(own, dtype=float) for own in seeds]
    rng = np.random.default_rng(0)
    count = len(values)
    # Drawing episodes of a seed anew for each time it is drawn: (resamples, seeds, episodes).
    drawn = rng.integers(count, size=(_RESAMPLES, count))
    means = np.empty((_RESAMPLES, count))
    for seed in range(count):
        chosen = drawn == seed
        means[chosen] = rng.choice(values[seed], size=(int(chosen.sum()), len(values[seed]))).mean(1)
    low, high = np.quantile(means.mean(1), (0.025, 0.975))
    return Interval(float(np.mean([own.mean() for own in values])), float(low), float(high))
