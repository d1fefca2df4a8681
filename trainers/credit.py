"""Credit assignment: generalised advantage estimation over whole actions and over their tokens.

TWOSOME and GLAM use `action_gae`. NTPO and POAD use `token_gae` and differ in one number, the
discount between two tokens of the same action: ``gamma_token=gamma`` is NTPO, ``gamma_token=1``
is POAD's Bellman backup with Action Decomposition (BAD). Both functions are pure. They take NumPy
arrays or torch tensors and compute with NumPy: a scan is many small steps, which torch takes longer
to launch than to do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike, NDArray

Array = TypeVar("Array", "np.ndarray[Any, Any]", "torch.Tensor")


def action_gae(
    rewards: ArrayLike | torch.Tensor,
    values: Array,
    next_values: ArrayLike | torch.Tensor,
    episode_ends: ArrayLike | torch.Tensor,
    *,
    gamma: float | ArrayLike,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Estimate the advantage and the return of each action, an action being one indivisible step.

    Parameters
    ----------
    rewards : (T, N)
        Reward of step t in environment n.
    values : (T, N), floating
        Value of the observation in which the action was taken. The results are of its kind (NumPy
        or torch), dtype and device; the other arguments may differ in these.
    next_values : (T, N)
        Value of what follows the step: 0 after a termination, the value of the final observation
        after a truncation, else the value of the next observation.
    episode_ends : (T, N), bool
        Terminated or truncated. Cuts the accumulation and nothing else. Nothing of the next row
        passes an end, not even a NaN: a row without an action (vector environments with next-step
        autoreset produce them) stays isolated if it and the row before it are marked as ends.
    gamma : float or (T, N), in [0, 1]
        Discount over the step. An array where steps differ in how long they take: a macro-action
        of k primitive steps is discounted by the k-th power.
    gae_lambda : float in [0, 1]

    Returns
    -------
    advantages, returns : (T, N)
        Constants: no gradient flows through them.

    Raises
    ------
    ValueError
        If shapes disagree, `values` isn't floating, or a discount lies outside [0, 1].

    References
    ----------
    Schulman et al., arXiv:1506.02438, eq. 16; Wen et al., arXiv:2405.15821, whose action-level
    baselines use it.
    """
    _check_unit_interval(gae_lambda=gae_lambda)
    v = _floating(values)
    if v.ndim != 2:
        raise ValueError(f"values must have shape (T, N), got {v.shape}")
    like = partial(_like, v)
    discounts = _discounts(gamma, like)
    outcomes = like(rewards, "rewards") + discounts * like(next_values, "next_values")
    ends = like(episode_ends, "episode_ends", dtype=bool)

    deltas = outcomes - v
    reach = np.ones_like(deltas)
    advantages = deltas + _carry(deltas, reach, ends, decay=discounts * gae_lambda)
    return _as_kind_of(values, advantages), _as_kind_of(values, advantages + v)


def token_gae(
    rewards: ArrayLike | torch.Tensor,
    values: Array,
    mask: ArrayLike | torch.Tensor,
    next_values: ArrayLike | torch.Tensor,
    episode_ends: ArrayLike | torch.Tensor,
    *,
    gamma: float | ArrayLike,
    gae_lambda: float,
    gamma_token: float,
    gae_lambda_token: float,
) -> tuple[Array, Array]:
    """Estimate the advantage and the return of each token of each action.

    With ``n`` tokens in action t, and V[j] the value before token j = 1 … n::

        delta[j] = gamma_token * V[j + 1] - V[j]                             j < n
        delta[n] = reward + gamma * next_value - V[n]
        A[j] = delta[j] + gamma_token * gae_lambda_token * A[j + 1]          j < n
        A[n] = delta[n] + gamma * gae_lambda * A of action t + 1's first token
                                                          (delta[n] alone where the episode ends)

    With ``gamma_token = gae_lambda_token = 1`` the sum over an action telescopes, and its first
    token has the advantage that `action_gae` gives to the whole action.

    Parameters
    ----------
    rewards : (T, N)
        Reward of step t in environment n, credited to the last token of the action.
    values : (T, N, L), floating
        Value before each token: of the observation and the tokens so far. The results are of its
        kind (NumPy or torch), dtype and device; the other arguments may differ in these. What
        stands where `mask` is False is never used and may be NaN.
    mask : (T, N, L), bool
        True at the action's tokens, False at the padding behind them. A row that is all False
        holds no action (vector environments with next-step autoreset produce them). Its results
        are zero, its reward and next value are ignored, and nothing accumulates into it, out of it
        or across it: the row before it ends on its own `next_values`, as at an episode's end.
        Callers mark both rows as ends, as `action_gae` needs it.
    next_values : (T, N)
        Value of what follows the step, before its first token: 0 after a termination, the value of
        the final observation after a truncation, else the value of the next observation.
    episode_ends : (T, N), bool
        Terminated or truncated. Cuts the accumulation and nothing else.
    gamma : float or (T, N), in [0, 1]
        Discount from an action to the next; an array where actions differ in how long they take.
    gae_lambda : float in [0, 1]
        Trace decay from an action to the next.
    gamma_token, gae_lambda_token : float in [0, 1]
        The same from a token to the next of its action.

    Returns
    -------
    advantages, returns : (T, N, L)
        Zero where `mask` is False. Constants: no gradient flows through them.

    Raises
    ------
    ValueError
        If shapes disagree, a row of `mask` isn't a prefix, `values` isn't floating, or a discount
        lies outside [0, 1].

    References
    ----------
    Wen et al., arXiv:2405.15821: eqs. 9 and 10 with ``gamma_token=gamma``, eqs. 13 and 14 with
    ``gamma_token=1``.
    """
    _check_unit_interval(gae_lambda=gae_lambda, gamma_token=gamma_token, gae_lambda_token=gae_lambda_token)
    v = _floating(values)
    if v.ndim != 3 or v.shape[-1] == 0:
        raise ValueError(f"values must have shape (T, N, L), L >= 1, got {v.shape}")
    is_token = _like(v, mask, "mask", dtype=bool)
    _check_prefixes(is_token)
    like = partial(_like, v, axes=2)
    discounts = _discounts(gamma, like)
    outcomes = like(rewards, "rewards") + discounts * like(next_values, "next_values")
    ends = like(episode_ends, "episode_ends", dtype=bool)

    # Tokens first, (L, T, N), so that a step of the scan over tokens reads memory in its order.
    is_token = np.ascontiguousarray(np.moveaxis(is_token, -1, 0))
    v = np.where(is_token, np.moveaxis(v, -1, 0), 0)
    is_last = is_token.copy()
    is_last[:-1] &= ~is_token[1:]
    backups = np.zeros_like(v)
    backups[:-1] = gamma_token * v[1:]
    backups = np.where(is_last, outcomes, backups)

    # An advantage is linear in what arrives behind the action. So two things are accumulated for
    # all actions at once: `own`, the advantage if nothing arrived, and `reach`, the share of an
    # arrival that gets to each token. What does arrive is then a scan over the first tokens alone.
    own = backups - v
    reach = is_last.astype(v.dtype)
    fade = gamma_token * gae_lambda_token
    for j in reversed(range(len(v) - 1)):
        own[j] += fade * own[j + 1]
        reach[j] += fade * reach[j + 1]

    carry = _carry(own[0], reach[0], ends, decay=discounts * gae_lambda)
    advantages = own + reach * carry
    returns = np.moveaxis(advantages + v, 0, -1)
    advantages = np.moveaxis(advantages, 0, -1)
    return _as_kind_of(values, advantages), _as_kind_of(values, returns)


def _carry(own: NDArray[Any], reach: NDArray[Any], ends: NDArray[Any], *, decay: NDArray[Any]) -> NDArray[Any]:
    """Return what arrives behind each step: decay[t] * A[t + 1] within an episode, else 0.

    A[t] = own[t] + reach[t] * carry[t] is the advantage at the beginning of step t.
    """
    carry = np.zeros_like(own)
    goes_on = ~ends
    for t in reversed(range(len(own) - 1)):
        following = own[t + 1] + reach[t + 1] * carry[t + 1]
        # Left out, not multiplied by zero, so that a NaN stays in the episode that it came from.
        np.multiply(decay[t], following, out=carry[t], where=goes_on[t])
    return carry


def _discounts(gamma: Any, like: Any) -> NDArray[Any]:
    """Return one discount for each step."""
    number = np.ndim(gamma) == 0
    discounts = like(np.full(like.args[0].shape[:2], gamma) if number else gamma, "gamma")
    outside = discounts[~((discounts >= 0) & (discounts <= 1))]
    if outside.size:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma if number else outside.flat[0]}")
    return discounts


def _to_numpy(array: Any) -> NDArray[Any]:
    if hasattr(array, "detach"):  # a torch tensor, recognised without importing torch
        array = array.detach().cpu()
        if array.is_floating_point() and array.element_size() < 4:
            array = array.float()  # NumPy has no bfloat16
    return np.asarray(array)


def _floating(values: Any) -> NDArray[Any]:
    """Return `values` in NumPy, in single precision at least: half would not bear the sums."""
    array = _to_numpy(values)
    if array.dtype.kind != "f":
        raise ValueError(f"values must be floating, got dtype {values.dtype}")
    return array.astype(np.result_type(array.dtype, np.float32), copy=False)


def _like(values: NDArray[Any], array: Any, name: str, *, axes: int | None = None, dtype: Any = None) -> NDArray[Any]:
    """Return `array` in NumPy; its shape must be that of `values`, or its first `axes`."""
    converted = _to_numpy(array).astype(dtype or values.dtype, copy=False)
    expected = values.shape[:axes]
    if converted.shape != expected:
        raise ValueError(
            f"{name} must have shape {expected} to go with values of shape {values.shape}, got {converted.shape}"
        )
    return converted


def _as_kind_of(values: Any, result: NDArray[Any]) -> Any:
    if isinstance(values, np.ndarray):
        return result.astype(values.dtype, order="C", copy=False)
    return values.new_tensor(np.ascontiguousarray(result))


def _check_prefixes(mask: NDArray[Any]) -> None:
    token_after_padding = mask[..., 1:] & ~mask[..., :-1]
    if token_after_padding.any():
        t, n, _ = np.argwhere(token_after_padding)[0].tolist()
        raise ValueError(
            f"mask of shape {mask.shape} must be True on a prefix of each row, padding only at the "
            f"end; row [{t}, {n}] is {mask[t, n].tolist()}"
        )


def _check_unit_interval(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {number}")
