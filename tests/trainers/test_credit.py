"""Generalised advantage estimation over actions and over tokens, compared with slow references and hand calculation."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from trainers.credit import gae

Floats = np.ndarray[Any, Any]
Convert = Callable[[Any], Any]

DISCOUNTS = {"gamma": 0.9, "gae_lambda": 0.8, "gamma_token": 0.95, "gae_lambda_token": 0.7}
BAD = {"gamma_token": 1.0, "gae_lambda_token": 1.0}
"""Bellman backup with action decomposition (BAD, arXiv 2405.15821), here also without decay inside an action."""


class Rollout(NamedTuple):
    """The array arguments of ``gae``, in its order."""

    rewards: Any
    values: Any
    mask: Any
    next_values: Any
    episode_ends: Any

    @property
    def at_action_level(self) -> tuple[Any, Any, Any, Any]:
        """The arguments of ``action_gae``: the value of an action is the one before its first token."""
        return self.rewards, self.values[:, :, 0], self.next_values, self.episode_ends


def ragged_rollout(seed: int, *, steps: int = 7, envs: int = 3, length: int = 5) -> Rollout:
    """Return random actions of 1 to ``length`` tokens, in episodes of random length, some of them truncated."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(steps, envs, length))
    mask = np.arange(length) < rng.integers(1, length + 1, size=(steps, envs, 1))
    episode_ends = rng.random((steps, envs)) < 0.3
    terminated = episode_ends & (rng.random((steps, envs)) < 0.5)
    next_values = rng.normal(size=(steps, envs))
    next_values[:-1] = np.where(episode_ends[:-1], next_values[:-1], values[1:, :, 0])
    next_values[terminated] = 0
    return Rollout(rng.normal(size=(steps, envs)), values, mask, next_values, episode_ends)


def dyadic_rollout(seed: int) -> Rollout:
    """Return a rollout of multiples of 1/4: with discounts that are powers of 2, float64 results are exact."""
    rollout = ragged_rollout(seed)
    rewards, values, next_values = (
        np.round(4 * array) / 4 for array in (rollout.rewards, rollout.values, rollout.next_values)
    )
    return rollout._replace(rewards=rewards, values=values, next_values=next_values)


def action_gae(
    rewards: Any, values: Any, next_values: Any, episode_ends: Any, *, gamma: Any, gae_lambda: float
) -> tuple[Floats, Floats]:
    """Return ``gae`` with one credit step in each action: arrays (T, N)."""
    mask = np.ones((*np.shape(values), 1), dtype=bool)
    values = values[..., None]
    advantages, returns = gae(rewards, values, mask, next_values, episode_ends, gamma=gamma, gae_lambda=gae_lambda)
    return advantages[..., 0], returns[..., 0]


def reference_action_gae(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    ends: Floats,
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Return the definition, as a sum over the future: A_t = sum_k (gamma lambda)^k delta_{t+k}."""
    steps, envs = rewards.shape
    advantages = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            for k in range(steps - t):
                i = t + k
                delta = rewards[i, n] + gamma * next_values[i, n] - values[i, n]
                advantages[t, n] += (gamma * gae_lambda) ** k * delta
                if ends[i, n]:
                    break
    return advantages


def reference_token_gae(
    rollout: Rollout,
    gamma: float,
    gae_lambda: float,
    gamma_token: float,
    gae_lambda_token: float,
) -> Floats:
    """Return the recurrences of equations 9 and 13, token by token from the end of each environment."""
    rewards, values, mask, next_values, ends = (array.tolist() for array in rollout)
    steps, envs, length = rollout.values.shape
    advantages = np.zeros((steps, envs, length))
    for n in range(envs):
        first_of_next = 0.0
        for t in reversed(range(steps)):
            if ends[t][n]:
                first_of_next = 0.0
            tokens = sum(mask[t][n])
            advantage = first_of_next
            for j in reversed(range(tokens)):
                if j == tokens - 1:
                    delta = rewards[t][n] + gamma * next_values[t][n] - values[t][n][j]
                    advantage = delta + gamma * gae_lambda * first_of_next
                else:
                    delta = gamma_token * values[t][n][j + 1] - values[t][n][j]
                    advantage = delta + gamma_token * gae_lambda_token * advantage
                advantages[t, n, j] = advantage
            first_of_next = advantage if tokens else 0.0
    return advantages


def of_dtype(dtype: str) -> Convert:
    """Return a conversion to a floating dtype that leaves booleans unchanged."""
    return lambda array: array if array.dtype == bool else array.astype(dtype)


both_precisions = pytest.mark.parametrize(
    "convert", [of_dtype("float64"), of_dtype("float32")], ids=["float64", "float32"]
)


def assert_close(result: Any, expected: Floats) -> None:
    tolerance = 1e-12 if np.asarray(result).dtype == np.float64 else 2e-5
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)


# Agreement with slow references


@both_precisions
@pytest.mark.parametrize("seed", range(5))
def test_gae_over_actions_equals_the_discounted_sum_of_td_errors(convert: Convert, seed: int) -> None:
    rollout = ragged_rollout(seed)
    expected = reference_action_gae(*rollout.at_action_level, gamma=0.9, gae_lambda=0.8)

    arguments = Rollout(*map(convert, rollout)).at_action_level
    advantages, returns = action_gae(*arguments, gamma=0.9, gae_lambda=0.8)

    assert_close(advantages, expected)
    assert_close(returns, expected + rollout.values[:, :, 0])


@both_precisions
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "discounts",
    [
        DISCOUNTS,
        {"gamma": 0.99, "gae_lambda": 0.95, "gamma_token": 1.0, "gae_lambda_token": 0.95},
        {"gamma": 1.0, "gae_lambda": 1.0, "gamma_token": 1.0, "gae_lambda_token": 1.0},
        {"gamma": 0.9, "gae_lambda": 0.0, "gamma_token": 0.9, "gae_lambda_token": 0.0},
        {"gamma": 0.0, "gae_lambda": 1.0, "gamma_token": 0.0, "gae_lambda_token": 1.0},
    ],
)
def test_gae_over_tokens_equals_the_recurrence_over_tokens(
    convert: Convert, seed: int, discounts: dict[str, float]
) -> None:
    rollout = ragged_rollout(seed)
    expected = reference_token_gae(rollout, **discounts)

    advantages, returns = gae(*map(convert, rollout), **discounts)

    assert_close(advantages, expected)
    assert_close(returns, np.where(rollout.mask, expected + rollout.values, 0))


@pytest.mark.parametrize(("steps", "envs", "length"), [(1, 1, 1), (1, 3, 4), (6, 1, 1), (0, 2, 3)])
def test_gae_of_smallest_rollouts(steps: int, envs: int, length: int) -> None:
    rollout = ragged_rollout(0, steps=steps, envs=envs, length=length)
    advantages, returns = gae(*rollout, **DISCOUNTS)
    assert_close(advantages, reference_token_gae(rollout, **DISCOUNTS))
    assert returns.shape == (steps, envs, length)


# Values computed by hand


def test_gae_over_actions_by_hand() -> None:
    # gamma = 1/2, lambda = 1/2, so gamma lambda = 1/4; three steps, the last one terminates.
    #   delta_2 = 8 + 0       - 4 = 4        A_2 = 4
    #   delta_1 = 1 + 1/2 * 4 - 2 = 1        A_1 = 1 + 1/4 * 4 = 2
    #   delta_0 = 0 + 1/2 * 2 - 3 = -2       A_0 = -2 + 1/4 * 2 = -1.5
    advantages, returns = action_gae(
        rewards=np.array([[0.0], [1.0], [8.0]]),
        values=np.array([[3.0], [2.0], [4.0]]),
        next_values=np.array([[2.0], [4.0], [0.0]]),
        episode_ends=np.array([[False], [False], [True]]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantages[:, 0].tolist() == [-1.5, 2.0, 4.0]
    assert returns[:, 0].tolist() == [1.5, 4.0, 8.0]


def test_gae_over_tokens_by_hand() -> None:
    # An action of 3 tokens, then one of 2 that terminates. gamma = 1/2 and lambda = 1/2, so gamma lambda = 1/4;
    # gamma_token = 1/2 and lambda_token = 1, so gamma_token lambda_token = 1/2.
    #   Second action, values 2, 6, reward 10, next value 0:
    #     delta_2 = 10 + 0      - 6 = 4      A_2 = 4
    #     delta_1 = 1/2 * 6     - 2 = 1      A_1 = 1 + 1/2 * 4 = 3
    #   First action, values 1, 4, 2, reward 1, next value 2 (the first value of the second action):
    #     delta_3 = 1 + 1/2 * 2 - 2 = 0      A_3 = 0 + 1/4 * 3 = 0.75
    #     delta_2 = 1/2 * 2     - 4 = -3     A_2 = -3 + 1/2 * 0.75 = -2.625
    #     delta_1 = 1/2 * 4     - 1 = 1      A_1 = 1 + 1/2 * -2.625 = -0.3125
    advantages, returns = gae(
        rewards=np.array([[1.0], [10.0]]),
        values=np.array([[[1.0, 4.0, 2.0]], [[2.0, 6.0, 99.0]]]),
        mask=np.array([[[True, True, True]], [[True, True, False]]]),
        next_values=np.array([[2.0], [0.0]]),
        episode_ends=np.array([[False], [True]]),
        gamma=0.5,
        gae_lambda=0.5,
        gamma_token=0.5,
        gae_lambda_token=1.0,
    )
    assert advantages[:, 0].tolist() == [[-0.3125, -2.625, 0.75], [3.0, 4.0, 0.0]]
    assert returns[:, 0].tolist() == [[0.6875, 1.375, 2.75], [5.0, 10.0, 0.0]]


def test_bad_returns_of_all_tokens_equal_the_reward_by_hand() -> None:
    # One action of 3 tokens, reward 5, terminates. With no discount and no decay inside the action, the return of every
    # token equals the reward, for any values in between.
    advantages, returns = gae(
        rewards=np.array([[5.0]]),
        values=np.array([[[1.0, -3.0, 2.0]]]),
        mask=np.ones((1, 1, 3), dtype=bool),
        next_values=np.zeros((1, 1)),
        episode_ends=np.ones((1, 1), dtype=bool),
        gamma=0.5,
        gae_lambda=0.5,
        **BAD,
    )
    assert returns.tolist() == [[[5.0, 5.0, 5.0]]]
    assert advantages.tolist() == [[[4.0, 8.0, 3.0]]]


def test_ntpo_discounts_the_reward_of_earlier_tokens_by_hand() -> None:
    # The same action with values 0: NTPO's advantage of the first of 3 tokens is 1/2 * 1/2 * 5.
    advantages, _ = gae(
        rewards=np.array([[5.0]]),
        values=np.zeros((1, 1, 3)),
        mask=np.ones((1, 1, 3), dtype=bool),
        next_values=np.zeros((1, 1)),
        episode_ends=np.ones((1, 1), dtype=bool),
        gamma=0.5,
        gae_lambda=1.0,
        gamma_token=0.5,
        gae_lambda_token=1.0,
    )
    assert advantages.tolist() == [[[1.25, 2.5, 5.0]]]


# Relations between the two levels


@pytest.mark.parametrize("seed", range(10))
def test_bad_advantage_of_the_first_token_equals_the_actions_exactly(seed: int) -> None:
    rollout = dyadic_rollout(seed)
    at_tokens, token_returns = gae(*rollout, gamma=0.5, gae_lambda=0.5, **BAD)
    at_actions, action_returns = action_gae(*rollout.at_action_level, gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(at_tokens[:, :, 0], at_actions)
    np.testing.assert_array_equal(token_returns[:, :, 0], action_returns)


def test_bad_advantage_of_the_first_token_equals_the_actions_for_any_discounts() -> None:
    rng = np.random.default_rng(0)
    for gamma, gae_lambda in [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), *rng.random((5, 2))]:
        rollout = ragged_rollout(1, steps=40, length=20)
        at_tokens, _ = gae(*rollout, gamma=gamma, gae_lambda=gae_lambda, **BAD)
        at_actions, _ = action_gae(*rollout.at_action_level, gamma=gamma, gae_lambda=gae_lambda)
        np.testing.assert_allclose(at_tokens[:, :, 0], at_actions, rtol=0, atol=1e-11)


@pytest.mark.parametrize("length", [1, 4])
def test_poad_and_ntpo_are_equal_on_actions_of_one_token(length: int) -> None:
    rollout = ragged_rollout(2, length=length)
    rollout = rollout._replace(mask=np.broadcast_to(np.arange(length) == 0, rollout.mask.shape))
    shared = {"gamma": 0.9, "gae_lambda": 0.8, "gae_lambda_token": 0.8}
    poad = gae(*rollout, **shared, gamma_token=1.0)
    ntpo = gae(*rollout, **shared, gamma_token=0.9)
    np.testing.assert_array_equal(poad, ntpo)
    by_action = action_gae(*rollout.at_action_level, gamma=0.9, gae_lambda=0.8)
    np.testing.assert_array_equal([array[:, :, 0] for array in poad], by_action)


def test_poad_and_ntpo_differ_on_longer_actions() -> None:
    rollout = ragged_rollout(2)
    shared = {"gamma": 0.9, "gae_lambda": 0.8, "gae_lambda_token": 0.8}
    poad, _ = gae(*rollout, **shared, gamma_token=1.0)
    ntpo, _ = gae(*rollout, **shared, gamma_token=0.9)
    assert not np.allclose(poad[:, :, 0], ntpo[:, :, 0])


# Ends of episodes


def test_advantages_do_not_depend_on_later_episodes() -> None:
    rollout = ragged_rollout(3)
    rollout.episode_ends[2] = True
    before = gae(*rollout, **DISCOUNTS)
    actions_before = action_gae(*rollout.at_action_level, gamma=0.9, gae_lambda=0.8)
    for array in (rollout.rewards, rollout.values, rollout.next_values):
        array[3:] = math.nan
    after = gae(*rollout, **DISCOUNTS)
    actions_after = action_gae(*rollout.at_action_level, gamma=0.9, gae_lambda=0.8)
    np.testing.assert_array_equal(np.array(after)[:, :3], np.array(before)[:, :3])
    np.testing.assert_array_equal(np.array(actions_after)[:, :3], np.array(actions_before)[:, :3])


def test_last_reward_changes_all_advantages_of_its_episode() -> None:
    rollout = ragged_rollout(3)
    rollout.episode_ends[:] = False
    before, _ = gae(*rollout, **DISCOUNTS)
    rollout.rewards[-1] += 100
    after, _ = gae(*rollout, **DISCOUNTS)
    assert (after > before)[rollout.mask].all()


@pytest.mark.parametrize("ends", [[[True]], [[False]]], ids=["truncated", "rollout's last step"])
def test_truncated_step_bootstraps_like_any_other(
    ends: list[list[bool]],
) -> None:
    # 1 + 1/2 * 8 - 2 = 3: a truncation stops the accumulation, but not the bootstrap.
    reward, value, next_value = (np.array([[number]]) for number in (1.0, 2.0, 8.0))
    at_action, _ = action_gae(reward, value, next_value, ends, gamma=0.5, gae_lambda=0.5)
    assert at_action.tolist() == [[3.0]]
    one_token = np.ones((1, 1, 1), dtype=bool)
    at_token, _ = gae(reward, value[..., None], one_token, next_value, ends, gamma=0.5, gae_lambda=0.5, **BAD)
    assert at_token.tolist() == [[[3.0]]]


def test_termination_does_not_bootstrap() -> None:
    # 1 + 1/2 * 0 - 2 = -1, although the next episode begins with value 8.
    advantages, _ = action_gae(
        rewards=np.array([[1.0], [0.0]]),
        values=np.array([[2.0], [8.0]]),
        next_values=np.zeros((2, 1)),
        episode_ends=np.array([[True], [True]]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantages[0].tolist() == [-1.0]


# Padding


@both_precisions
def test_values_of_padding_are_ignored(convert: Convert) -> None:
    rollout = ragged_rollout(4)
    clean = gae(*map(convert, rollout), **DISCOUNTS)
    for garbage in (math.nan, math.inf, 1e30):
        dirty_values = np.where(rollout.mask, rollout.values, garbage)
        dirty = gae(*map(convert, rollout._replace(values=dirty_values)), **DISCOUNTS)
        for expected, result in zip(clean, dirty, strict=True):
            np.testing.assert_array_equal(result, expected)
            assert (np.asarray(result)[~rollout.mask] == 0).all()


@pytest.mark.parametrize("marks", [[True, True], [False, False]], ids=["marked", "unmarked"])
def test_row_without_an_action_is_zero_and_isolates_its_neighbours(
    marks: list[bool],
) -> None:
    rollout = ragged_rollout(5)
    rollout.episode_ends[:] = False
    rollout.mask[3, 1] = False
    rollout.episode_ends[2:4, 1] = marks
    for array in (rollout.rewards, rollout.values, rollout.next_values):
        array[3, 1] = math.nan

    advantages, returns = gae(*rollout, **DISCOUNTS)

    assert (advantages[3, 1] == 0).all()
    assert (returns[3, 1] == 0).all()
    # Each half equals the result for this half alone; the first one bootstraps from its own next value.
    for half in (slice(0, 3), slice(4, None)):
        alone, _ = gae(*(array[half, 1:2] for array in rollout), **DISCOUNTS)
        np.testing.assert_array_equal(advantages[half, 1:2], alone)


def test_row_without_an_action_is_isolated_at_the_action_level() -> None:
    rewards, values, next_values, ends = ragged_rollout(5).at_action_level
    ends[2:4, 1] = True
    before, _ = action_gae(rewards, values, next_values, ends, gamma=0.9, gae_lambda=0.8)
    rewards[3, 1] = values[3, 1] = next_values[3, 1] = math.nan
    after, _ = action_gae(rewards, values, next_values, ends, gamma=0.9, gae_lambda=0.8)
    real = np.ones_like(ends)
    real[3, 1] = False
    np.testing.assert_array_equal(after[real], before[real])


# Types of arguments and results


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_have_the_dtype_of_the_values(dtype: Any) -> None:
    rollout = ragged_rollout(6)
    mixed = rollout._replace(values=rollout.values.astype(dtype))
    at_tokens = gae(*mixed, **DISCOUNTS)
    at_actions = action_gae(*mixed.at_action_level, gamma=0.9, gae_lambda=0.8)
    assert all(result.dtype == dtype for result in (*at_tokens, *at_actions))


def test_half_precision_is_rounded_once_at_the_end() -> None:
    rollout = ragged_rollout(6, steps=50)
    half = rollout.values.astype(np.float16)
    exact, _ = gae(*rollout._replace(values=half.astype(float)), **DISCOUNTS)
    advantages, _ = gae(*rollout._replace(values=half), **DISCOUNTS)
    assert advantages.dtype == np.float16
    np.testing.assert_allclose(advantages.astype(float), exact, rtol=np.finfo(np.float16).eps / 2, atol=1e-5)


def test_gae_does_not_change_its_arguments() -> None:
    rollout = ragged_rollout(7)
    copies = [array.copy() for array in rollout]
    gae(*rollout, **DISCOUNTS)
    action_gae(*rollout.at_action_level, gamma=0.9, gae_lambda=0.8)
    for array, copy in zip(rollout, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_credit_needs_only_numpy() -> None:
    program = """
import runpy, sys
import numpy as np
zeros, values = np.zeros((2, 1)), np.zeros((2, 1, 3))
credit = runpy.run_path(sys.argv[1])
credit["gae"](zeros, values, values == 0, zeros, zeros, gamma=1, gae_lambda=1)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, inspect.getfile(gae)], check=True)


# Errors


@pytest.mark.parametrize(
    ("argument", "shape"),
    [
        ("rewards", (7, 4)),
        ("rewards", (7, 3, 5)),
        ("mask", (7, 3, 4)),
        ("mask", (7, 3)),
        ("next_values", (8, 3)),
        ("episode_ends", (7,)),
    ],
)
@both_precisions
def test_disagreeing_shapes_raise_with_the_argument_name(
    convert: Convert, argument: str, shape: tuple[int, ...]
) -> None:
    rollout = ragged_rollout(9)._replace(**{argument: np.ones(shape)})
    with pytest.raises(ValueError, match=rf"{argument} .*\(7, 3, 5\).*{str(shape)[1:-1]}"):
        gae(*map(convert, rollout), **DISCOUNTS)


@pytest.mark.parametrize("argument", ["rewards", "next_values", "episode_ends"])
def test_disagreeing_shapes_raise_at_the_action_level(argument: str) -> None:
    rollout = ragged_rollout(9)._replace(**{argument: np.ones((6, 3))})
    with pytest.raises(ValueError, match=rf"{argument} must have shape \(7, 3\).*got \(6, 3\)"):
        action_gae(*rollout.at_action_level, gamma=0.9, gae_lambda=0.8)


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 5, 1), (7, 3, 0)])
def test_values_without_a_token_axis_raise(shape: tuple[int, ...]) -> None:
    rollout = ragged_rollout(9)._replace(values=np.zeros(shape))
    with pytest.raises(ValueError, match=r"values must have shape \(T, N, U\)"):
        gae(*rollout, **DISCOUNTS)


@both_precisions
@pytest.mark.parametrize("row", [[False, True, True], [True, False, True]])
def test_mask_with_padding_before_a_token_raises(convert: Convert, row: list[bool]) -> None:
    rollout = ragged_rollout(9, length=3)
    rollout.mask[4, 2] = row
    with pytest.raises(ValueError, match=r"mask of shape \(7, 3, 3\) must be True on a prefix"):
        gae(*map(convert, rollout), **DISCOUNTS)


@pytest.mark.parametrize("name", DISCOUNTS)
@pytest.mark.parametrize("number", [-0.1, 1.1, math.nan])
def test_discount_outside_the_unit_interval_raises_with_its_name(name: str, number: float) -> None:
    rollout = ragged_rollout(9)
    with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got {number}"):
        gae(*rollout, **(DISCOUNTS | {name: number}))
    if not name.endswith("token"):
        discounts = {"gamma": 0.9, "gae_lambda": 0.8, name: number}
        with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got {number}"):
            action_gae(*rollout.at_action_level, **discounts)


def test_values_that_are_not_floating_raise() -> None:
    rewards, values, next_values, ends = ragged_rollout(9).at_action_level
    with pytest.raises(ValueError, match=r"values must be floating, got dtype int"):
        action_gae(rewards, values.astype(int), next_values, ends, gamma=0.9, gae_lambda=0.8)
