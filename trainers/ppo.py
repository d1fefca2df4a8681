"""The clipped objectives of PPO (arXiv 1707.06347; arXiv 2405.15821, eq. 16), on units that are tokens or actions.

All are pure functions of tensors of shape (B, U): U = L tokens for token-level agents, U = 1 for action-level ones.
``mask`` is True where there is a unit. Sums are returned beside nothing else: the caller divides by the number of units
of the whole minibatch, so that a minibatch can be spread over several backward passes.
"""

from __future__ import annotations

import torch


def clipped_policy_loss(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Sum over units of −min(ρ A, clip(ρ, 1−ε, 1+ε) A), ρ the ratio of new to old probability; a scalar."""
    ratio = (log_probs - old_log_probs).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -_masked_sum(surrogate, mask)


def clipped_value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Sum over units of ½ max((V − R)², (clip(V, V_old ± ε) − R)²); a scalar."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * _masked_sum(torch.maximum((values - returns) ** 2, (clipped - returns) ** 2), mask)


def approximate_kl(log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum over units of ρ − 1 − log ρ, an estimate of KL(old ‖ new) that is never negative; a scalar."""
    log_ratio = log_probs - old_log_probs
    return _masked_sum(log_ratio.exp() - 1 - log_ratio, mask)


def clipped_units(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Number of units whose ratio lies outside the clip range; a scalar."""
    return _masked_sum((((log_probs - old_log_probs).exp() - 1).abs() > clip).float(), mask)


def normalise_advantages(advantages: torch.Tensor, mask: torch.Tensor, std_floor: float) -> torch.Tensor:
    """Advantages of mean 0 over the real units, divided by their standard deviation or the floor, if that is larger.

    The floor keeps noise from being blown up to the size of a signal where no reward was seen.
    """
    real = advantages[mask]
    scale = real.std(correction=0).clamp(min=max(std_floor, 1e-8))
    return torch.where(mask, (advantages - real.mean()) / scale, 0.0)


def _masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values, 0.0).sum()
