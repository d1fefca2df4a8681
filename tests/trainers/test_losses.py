"""PPO's losses, compared with values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from trainers.losses import (
    approximate_kl,
    clipped_policy_loss,
    clipped_value_loss,
    count_clipped,
    normalise_advantages,
)

MASK = torch.tensor([[True, True], [True, False]])


def test_policy_loss_clips_gains_but_not_losses() -> None:
    ratios = torch.tensor([[1.5, 0.5], [1.5, 9.0]])
    advantages = torch.tensor([[2.0, -1.0], [-3.0, 100.0]])
    # min(1.5·2, 1.2·2) = 2.4; min(−0.5, −0.8) = −0.8; min(−4.5, −3.6) = −4.5; the last entry is padding
    loss = clipped_policy_loss(ratios.log(), torch.zeros(2, 2), advantages, MASK, clip=0.2)
    assert loss.item() == pytest.approx(-(2.4 - 0.8 - 4.5), rel=1e-6)


def test_policy_loss_has_no_gradient_outside_the_clip_range() -> None:
    log_probs = torch.tensor([[math.log(1.5), math.log(0.5)]], requires_grad=True)
    clipped_policy_loss(log_probs, torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), MASK[:1], 0.2).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[0.0, 0.0]]


def test_value_loss_is_the_larger_of_clipped_and_unclipped() -> None:
    values, old = torch.tensor([[1.0, 0.1], [0.0, 7.0]]), torch.tensor([[0.5, 0.0], [0.0, 0.0]])
    returns = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    # clip(1.0; 0.5 ± 0.2) = 0.7 → (0.3)²; clip(0.1; 0 ± 0.2) = 0.1 → 0.9²; 2²
    loss = clipped_value_loss(values, old, returns, MASK, clip=0.2)
    assert loss.item() == pytest.approx(0.5 * (0.09 + 0.81 + 4.0), rel=1e-6)


def test_approximate_kl_is_zero_for_equal_policies_and_else_positive() -> None:
    old = torch.tensor([[-1.0, -2.0], [-0.5, -9.0]])
    assert approximate_kl(old, old, MASK).item() == 0.0
    moved = old + torch.tensor([[0.3, -0.3], [0.1, 50.0]])
    expected = sum(math.exp(d) - 1 - d for d in (0.3, -0.3, 0.1))
    assert approximate_kl(moved, old, MASK).item() == pytest.approx(expected, rel=1e-5)


def test_count_clipped_ignores_padding() -> None:
    ratios = torch.tensor([[1.21, 0.85], [0.79, 5.0]])
    assert count_clipped(ratios.log(), torch.zeros(2, 2), MASK, 0.2).item() == 2


def test_normalised_advantages_have_mean_zero_and_standard_deviation_one() -> None:
    advantages = torch.tensor([[1.0, 4.0], [7.0, float("nan")]])
    normalised = normalise_advantages(advantages, MASK, std_floor=0.05)
    assert normalised[MASK].mean().item() == pytest.approx(0, abs=1e-6)
    assert normalised[MASK].std(correction=0).item() == pytest.approx(1, rel=1e-6)
    assert normalised[1, 1].item() == 0


def test_std_floor_limits_normalised_noise() -> None:
    advantages = torch.tensor([[1e-4, -1e-4], [0.0, 0.0]])
    assert normalise_advantages(advantages, MASK, std_floor=0.05).abs().max().item() == pytest.approx(2e-3, rel=1e-3)
