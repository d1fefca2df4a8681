"""Intervals and tests, compared with SciPy and with closed forms."""

import numpy as np
import pytest

from benchmarks.statistics import (
    Interval,
    bootstrap_mean,
    compare_intervals,
    enough_runs,
    interquartile_mean,
    interval_of_means,
    mean,
    mean_difference,
    performance_profile,
    probability_of_improvement,
    rank_tests,
)


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


def test_interquartile_mean_is_scipys_trimmed_mean_over_all_tasks() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for seeds in (2, 3, 7, 10):
        tasks = rng.normal(size=(3, seeds))
        assert interquartile_mean(tasks).value == pytest.approx(stats.trim_mean(tasks.ravel(), 0.25))


def test_intervals_are_scipys_stratified_bootstrap() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(2)
    tasks = [rng.gamma(2, size=12), 3 + rng.normal(size=8)]

    def middle(*runs: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(stats.trim_mean(np.concatenate(runs, axis), 0.25, axis=axis))

    theirs = stats.bootstrap(tasks, middle, n_resamples=10_000, method="percentile", rng=rng).confidence_interval
    _, low, high = interquartile_mean(tasks)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_interval_of_a_difference_is_scipys_bootstrap() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(6)
    ours, theirs = rng.normal(1.0, 1.0, size=12), rng.gamma(2, size=9)

    def difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(a.mean(axis) - b.mean(axis))

    expected = stats.bootstrap((ours, theirs), difference, n_resamples=10_000, method="percentile", rng=rng)
    value, low, high = mean_difference(ours, theirs)
    assert value == pytest.approx(ours.mean() - theirs.mean())
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval), abs=0.04)


def test_band_of_curves_is_the_interval_of_the_mean_at_every_point() -> None:
    curves = np.random.default_rng(7).normal(size=(10, 5)) + np.arange(5)
    low, high = interval_of_means(curves)
    for point in range(5):
        _, expected_low, expected_high = mean([curves[:, point]])
        assert (low[point], high[point]) == pytest.approx((expected_low, expected_high), abs=0.06)


def test_interval_of_a_mean_over_tasks_has_the_width_of_the_seeds_alone() -> None:
    rng = np.random.default_rng(3)
    tasks = [10 * task + rng.normal(size=50) for task in range(4)]  # differences between tasks are not chance
    value, low, high = mean(tasks)
    assert value == pytest.approx(np.mean(tasks))
    error = np.sqrt(sum(task.var() / len(task) for task in tasks)) / len(tasks)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_probability_of_improvement_is_mann_whitneys_u() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(4)
    ours, theirs = rng.integers(0, 5, 9), rng.integers(0, 5, 6)  # with ties
    expected = stats.mannwhitneyu(ours, theirs).statistic / (9 * 6)
    value, low, high = probability_of_improvement([ours], [theirs])
    assert value == pytest.approx(expected)
    assert low < value < high
    assert probability_of_improvement([theirs], [ours]).value == pytest.approx(1 - expected)
    assert probability_of_improvement([[3, 4], [3, 4]], [[1, 2], [3, 4]]) == pytest.approx(
        (0.75, 0.625, 0.875), abs=0.13
    )
    with pytest.raises(ValueError, match="2 tasks of ours and 1 of theirs"):
        probability_of_improvement([[1, 2], [1, 2]], [[1, 2]])


def test_performance_profile_counts_runs_above_each_threshold() -> None:
    tasks = [[0.1, 0.5, 0.9, 0.9], [0.5, 0.5]]
    profile = performance_profile(tasks, [0.0, 0.1, 0.5, 0.9])
    assert [point.value for point in profile] == pytest.approx([1.0, (0.75 + 1) / 2, (0.5 + 0) / 2, 0.0])
    assert all(point.low <= point.value <= point.high for point in profile)
    assert profile[0] == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("tasks", [[], [[1.0]], [[1.0, 2.0], [1.0]]])
def test_no_interval_from_one_run(tasks: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="an interval needs two runs of every task"):
        mean(tasks)


def test_equal_agents_are_seldom_significantly_different() -> None:
    """Of five equal agents, at most one time in twenty any is significantly different from the first."""
    rng = np.random.default_rng(3)
    drawn = rng.normal(size=(400, 5, 5))
    wrong = [min(rank_tests(first, dict(enumerate(others))).values()) < 0.05 for first, *others in drawn]
    assert np.mean(wrong) < 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)


def test_different_agents_are_significantly_different_with_enough_runs() -> None:
    rng = np.random.default_rng(4)
    runs = {"same": rng.normal(size=10), "higher": rng.normal(3, size=10), "lower": rng.normal(-3, size=10)}
    found = rank_tests(rng.normal(size=10), runs)
    assert found["same"] > 0.05 > max(found["higher"], found["lower"])
    assert rank_tests([1.0] * 10, {"equal": [1.0] * 10}) == {"equal": 1.0}
    # ranks 1 to 3 against 4 to 6: the most extreme of 20 orders
    assert rank_tests([1, 2, 3], {"above": [4, 5, 6]}) == pytest.approx({"above": 0.1})


def test_ties_are_tested_exactly() -> None:
    # 2 of the 252 ways to split 0 0 0 0 0 1 1 1 1 1 are as far apart as this one
    assert rank_tests([0.0] * 5, {"ones": [1.0] * 5}) == pytest.approx({"ones": 2 / 252})


def test_holms_correction_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(8)
    ours, others = rng.normal(size=6), {str(k): rng.normal(k / 2, size=6) for k in range(5)}
    single = {name: rank_tests(ours, {name: theirs})[name] for name, theirs in others.items()}
    ordered = sorted(single, key=lambda name: single[name])
    expected = {
        name: min(
            1.0, max(single[before] * (5 - rank) for rank, before in enumerate(ordered[: ordered.index(name) + 1]))
        )
        for name in single
    }
    assert rank_tests(ours, others) == pytest.approx(expected)


@pytest.mark.parametrize(("runs", "others"), [(3, 0), (3, 1), (4, 1), (4, 2), (5, 6), (5, 7), (10, 8)])
def test_too_few_runs_for_any_significance_are_known(runs: int, others: int) -> None:
    furthest = {str(other): [1.0 + other] * runs for other in range(others)}
    found = rank_tests([0.0] * runs, furthest)
    assert enough_runs(runs, others) == any(p < 0.05 for p in found.values())


def test_seeds_with_few_episodes_count_as_much_as_those_with_many() -> None:
    value, low, high = bootstrap_mean([[0.0] * 30, [1.0]])
    assert (value, low, high) == (0.5, 0.0, 1.0)


def test_intervals_are_compared_by_their_ends() -> None:
    low, middle, high = Interval(0.2, 0.1, 0.3), Interval(0.4, 0.3, 0.5), Interval(0.8, 0.6, 0.9)
    pairs = {"a": (low, high), "b": (high, low), "c": (low, middle), "d": (middle, high), "e": (middle, low)}
    assert compare_intervals(pairs) == "higher on b; lower on a, d; overlapping intervals on c, e"
