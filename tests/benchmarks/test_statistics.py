"""Intervals against what theory says of them."""

import numpy as np
import pytest

from benchmarks.statistics import bootstrap_mean


def test_values_that_do_not_vary_have_no_interval() -> None:
    assert bootstrap_mean([[0.25] * 10] * 3) == pytest.approx((0.25, 0.25, 0.25))


@pytest.mark.parametrize(("between", "within"), [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_interval_has_the_width_of_both_levels_of_chance(between: float, within: float) -> None:
    rng = np.random.default_rng(5)
    seeds, episodes = 60, 25
    values = between * rng.normal(size=(seeds, 1)) + within * rng.normal(size=(seeds, episodes))
    mean, low, high = bootstrap_mean(values)
    assert mean == pytest.approx(values.mean())
    # Variance of the mean of resampled seeds, plus that of resampled episodes within them (plug-in variances).
    error = np.sqrt(values.mean(1).var() / seeds + values.var(1).mean() / (seeds * episodes))
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.06)
    assert low < mean < high


def test_same_numbers_give_the_same_interval() -> None:
    values = np.random.default_rng(0).random((3, 20))
    assert bootstrap_mean(values) == bootstrap_mean(values)
