"""Credit assignment: generalised advantage estimation (GAE), in NumPy.

One function serves all agents. TWOSOME has one credit step in each action. NTPO and POAD have one for each token, and
differ in one number: NTPO discounts from token to token as from action to action, POAD does not discount.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]


def gae(
    rewards: ArrayLike,
    values: Floats,
    mask: ArrayLike,
    next_values: ArrayLike,
    episode_ends: ArrayLike,
    *,
    gamma: float | ArrayLike,
    gae_lambda: float,
    gamma_token: float = 1.0,
    gae_lambda_token: float = 1.0,
) -> tuple[Floats, Floats]:
    """Estimate the advantage and the return of each credit step of each action.

    With ``n`` credit steps in action t, and V[j] the value before step j = 1 … n::

        delta[j] = gamma_token * V[j + 1] - V[j]                             j < n
        delta[n] = reward + gamma * next_value - V[n]
        A[j] = delta[j] + gamma_token * gae_lambda_token * A[j + 1]          j < n
        A[n] = delta[n] + gamma * gae_lambda * A of action t + 1's first step
                                                          (delta[n] alone where the episode ends)

    With U = 1 this is GAE over actions. With ``gamma_token = gae_lambda_token = 1`` the deltas of an action sum to
    reward + gamma * next_value - V[1], so the advantage of its first token is the advantage of the action.

    Parameters
    ----------
    rewards : (T, N)
        Reward of environment step t in environment n, credited to the last credit step of the action.
    values : (T, N, U), floating
        Value before each credit step: of the observation and the tokens so far. Entries where `mask` is False are
        never used and may be NaN. The results have this dtype.
    mask : (T, N, U), bool
        True at the action's credit steps, False at the padding after them. If all entries of a step (t, n) are False,
        no action was taken there: next-step autoreset uses such steps to reset. Its results are zero, its reward and
        next value are ignored. The step before ends on its own `next_values`. Callers mark both in `episode_ends`.
    next_values : (T, N)
        Value of what follows the environment step: 0 after a termination, the value of the final observation after a
        truncation, else the value of the next observation.
    episode_ends : (T, N), bool
        True where the episode was terminated or truncated. Later steps do not affect such a step, even if they are NaN.
    gamma : float or (T, N), in [0, 1]
        Discount from an action to the next; an array if actions differ in duration (k units of time: γ to the k).
    gae_lambda : float in [0, 1]
        λ of GAE from an action to the next.
    gamma_token, gae_lambda_token : float in [0, 1]
        Discount and λ from a token to the next token of its action.

    Returns
    -------
    advantages, returns : (T, N, U)
        Zero where `mask` is False.

    Raises
    ------
    ValueError
        If shapes disagree, a row of `mask` is not a prefix, `values` is not floating, or a discount is outside [0, 1].

    References
    ----------
    Schulman et al., arXiv 1506.02438, eq. 16; Wen et al., arXiv 2405.15821: eqs. 9 and 10 with ``gamma_token=gamma``,
    eqs. 13 and 14 with ``gamma_token=1``.
    """
    numbers = {"gae_lambda": gae_lambda, "gamma_token": gamma_token, "gae_lambda_token": gae_lambda_token}
    if outside := [name for name, number in numbers.items() if not 0 <= number <= 1]:
        raise ValueError(f"{outside[0]} must lie in [0, 1], got {numbers[outside[0]]}")
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise ValueError(f"values must be floating, got dtype {values.dtype}")
    if values.ndim != 3 or values.shape[-1] == 0:
        raise ValueError(f"values must have shape (T, N, U), U >= 1, got {values.shape}")
    dtype = np.result_type(values.dtype, np.float32)  # half precision is too coarse for the sums
    steps = values.shape[:2]

    def checked(array: ArrayLike, name: str, shape: tuple[int, ...] = steps, dtype: Any = dtype) -> NDArray[Any]:
        converted = np.asarray(array).astype(dtype, copy=False)
        if converted.shape != shape:
            raise ValueError(
                f"{name} must have shape {shape} to go with values of shape {values.shape}, got {converted.shape}"
            )
        return converted

    is_real = checked(mask, "mask", values.shape, bool)
    if (is_real[..., 1:] & ~is_real[..., :-1]).any():
        raise ValueError(f"mask of shape {is_real.shape} must be True on a prefix of each row, with padding at the end")
    ends = checked(episode_ends, "episode_ends", dtype=bool)
    discounts = checked(np.full(steps, gamma) if np.ndim(gamma) == 0 else gamma, "gamma")
    if (wrong := discounts[~((discounts >= 0) & (discounts <= 1))]).size:
        raise ValueError(f"gamma must lie in [0, 1], got {wrong.flat[0]}")
    outcomes = checked(rewards, "rewards") + discounts * checked(next_values, "next_values")

    # Credit steps first, (U, T, N), so that one iteration over them reads adjacent memory.
    is_real = np.ascontiguousarray(np.moveaxis(is_real, -1, 0))
    v = np.where(is_real, np.moveaxis(values.astype(dtype, copy=False), -1, 0), 0)
    is_last = is_real.copy()
    is_last[:-1] &= ~is_real[1:]
    backups = np.zeros_like(v)
    backups[:-1] = gamma_token * v[1:]
    backups = np.where(is_last, outcomes, backups)

    # An advantage is linear in what arrives from the next action. So two arrays are computed for all actions at once:
    # `own`, the advantage if nothing arrives, and `reach`, the share of an arrival that gets to each credit step. What
    # arrives is then one scan over time.
    own = backups - v
    reach = is_last.astype(dtype)
    fade = gamma_token * gae_lambda_token
    for j in reversed(range(len(v) - 1)):
        own[j] += fade * own[j + 1]
        reach[j] += fade * reach[j + 1]
    advantages = own + reach * _arrivals(own[0], reach[0], ends, discounts * gae_lambda)
    returns = advantages + v

    def restored(array: Floats) -> Floats:
        return np.moveaxis(array, 0, -1).astype(values.dtype, order="C", copy=False)

    return restored(advantages), restored(returns)


def _arrivals(own: Floats, reach: Floats, ends: NDArray[np.bool_], decay: Floats) -> Floats:
    """Return what arrives after each action: decay[t] * A[t + 1] within an episode, else 0; all arrays (T, N).

    A[t] = own[t] + reach[t] * arrival[t] is the advantage at the first credit step of action t.
    """
    arrivals = np.zeros_like(own)
    for t in reversed(range(len(own) - 1)):
        following = own[t + 1] + reach[t + 1] * arrivals[t + 1]
        # Not computed at ends, rather than multiplied by zero: a NaN stays in its own episode.
        np.multiply(decay[t], following, out=arrivals[t], where=~ends[t])
    return arrivals
