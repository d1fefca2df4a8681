"""Losses and estimates of PPO (arXiv 1707.06347; arXiv 2405.15821, eq. 16).

All are pure functions of float tensors of shape (B, U): B actions of U credit steps, which are tokens or, with U = 1,
whole actions. ``mask`` (B, U) is True at real credit steps. Losses are sums: the caller divides by the number of credit
steps of its minibatch, which may be split over several backward passes.
"""

from __future__ import annotations

import torch


def clipped_policy_loss(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Return the sum of −min(ρ A, clip(ρ, 1−ε, 1+ε) A), with ρ = exp(log_probs − old_log_probs); a scalar."""
    ratio = (log_probs - old_log_probs).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -_masked_sum(surrogate, mask)


def clipped_value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Return the sum of ½ max((V − R)², (clip(V, V_old ± ε) − R)²); a scalar."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * _masked_sum(torch.maximum((values - returns) ** 2, (clipped - returns) ** 2), mask)


def approximate_kl(log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the sum of ρ − 1 − log ρ, an estimate of KL(old ‖ new) that is never negative; a scalar."""
    log_ratio = log_probs - old_log_probs
    return _masked_sum(log_ratio.exp() - 1 - log_ratio, mask)


def count_clipped(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Return the number of credit steps whose ratio is outside the clip range; a scalar."""
    return _masked_sum((((log_probs - old_log_probs).exp() - 1).abs() > clip).float(), mask)


def normalise_advantages(advantages: torch.Tensor, mask: torch.Tensor, std_floor: float) -> torch.Tensor:
    """Return advantages with mean 0 over real credit steps, divided by max(standard deviation, ``std_floor``).

    The floor keeps noise from being scaled up to the size of a signal in a rollout without reward.
    """
    real = advantages[mask]
    scale = real.std(correction=0).clamp(min=max(std_floor, 1e-8))
    return torch.where(mask, (advantages - real.mean()) / scale, 0.0)


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> float:
    """Return 1 − Var(R − V) / Var(R) over real credit steps; 0 if all returns are equal."""
    variance = returns[mask].var()
    return float(1 - (returns - values)[mask].var() / variance) if variance > 0 else 0.0


def _masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values, 0.0).sum()
