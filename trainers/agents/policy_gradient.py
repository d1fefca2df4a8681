"""PPO's clipped update (arXiv 1707.06347), for advantages from anywhere: with a critic (ppo.py) or without one.

An algorithm chooses the *credit steps* of an action: its tokens, or the action as a whole. Each credit step has a
probability ratio and an advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from trainers import losses
from trainers.agent import Rollout
from trainers.language_agent import ActionRecord, LanguageAgent
from trainers.metrics import Metrics
from trainers.settings import LanguageAgentSettings, setting


@dataclass(frozen=True)
class PolicyGradientSettings(LanguageAgentSettings):
    """Settings of PPO's update. Defaults are those of the paper for Overcooked (arXiv 2405.15821, appendix)."""

    advantage_std_floor: float = setting(0.05, least=0)
    """Never divide advantages by less than this (the paper's code: 0)."""
    actor_lr: float = setting(5e-7, embedded=3e-4, above=0)
    """Learning rate of the adapter."""
    anneal_steps: int = setting(0, least=0)
    """Decrease learning rates linearly to 0 over this many environment steps; 0 keeps them constant."""
    epochs: int = setting(5, embedded=4, least=1)
    """Passes over each rollout."""
    minibatches: int = setting(2, embedded=4, least=1)
    """Optimiser steps in one pass."""
    clip: float = setting(0.2, above=0)
    """Clip range ε of ratios and of changes of values."""
    entropy_coefficient: float = setting(0.01, least=0)
    """Weight of the entropy bonus."""
    entropy_level: str = setting("action", choices=("action", "token"))
    """Entropy of the distribution over actions (action), or the mean over the tokens of an action (token)."""
    kl_threshold: float | None = setting(0.02, above=0)
    """Skip the adapter's remaining steps on a rollout once the approximate KL divergence per credit step is above this;
    None never skips."""
    max_grad_norm: float = setting(0.5, above=0)
    """Scale gradients down to this norm, separately for the adapter and the critic."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B actions with their credit steps, at most U each, as tensors (B, U). ``mask`` is True at real credit steps;
    elsewhere all values are 0. ``fresh`` (B,) is False for actions of an earlier policy."""

    records: list[ActionRecord]
    mask: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    fresh: torch.Tensor


class PolicyGradientAgent(LanguageAgent):
    """A language agent that learns with PPO's clipped update from any advantages.

    Subclasses assign credit. Parameters are those of :class:`trainers.language_agent.LanguageAgent`.
    """

    settings_type: ClassVar[type[PolicyGradientSettings]] = PolicyGradientSettings
    settings: PolicyGradientSettings
    level: ClassVar[str] = "token"
    """Credit steps are the tokens of an action (``"token"``), or the action (``"action"``)."""

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        super().__init__(envs, model, tokenizer, **settings)
        self.adapter = self.language_model.trainable_parameters()
        self.actor_optimizer = torch.optim.Adam(self.adapter, lr=self.settings.actor_lr, eps=1e-5)
        self.saved["actor_optimizer"] = self.actor_optimizer

    def assign_credit(self, rollout: Rollout) -> Batch:
        """Return the actions to learn from, with the advantages that the update uses."""
        raise NotImplementedError

    def critic_step(self, batch: Any, rows: np.ndarray, metrics: Metrics) -> None:
        """Train the critic, if there is one, on the actions ``rows`` of a batch, an int array (b,)."""

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Run PPO's epochs on one rollout; return the metrics of the update."""
        return self.update(self.assign_credit(rollout))

    def update(self, batch: Batch) -> dict[str, float]:
        """Run PPO's epochs on a batch; return the metrics of the update."""
        settings, metrics = self.settings, Metrics()
        self.forget_outputs()
        left = max(0.0, 1 - self.steps_learnt / settings.anneal_steps) if settings.anneal_steps else 1.0
        for optimizer in (part for part in self.saved.values() if isinstance(part, torch.optim.Optimizer)):
            optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"] * left
        actor_steps, stopped = 0, False
        for epoch in range(settings.epochs):
            minibatches = np.array_split(self.random.permutation(len(batch.records)), settings.minibatches)
            for number, rows in enumerate(minibatches):
                if not len(rows):
                    continue
                self.critic_step(batch, rows, metrics)
                if not stopped:
                    stopped = not self.actor_step(batch, rows, metrics, first=epoch == number == 0)
                    actor_steps += not stopped
        self.steps_learnt += len(batch.records)
        return metrics.means() | {
            "skipped_actor_steps": 1 - actor_steps / (settings.epochs * settings.minibatches),
            "actor_lr": settings.actor_lr * left,
        }

    def actor_step(self, batch: Batch, rows: np.ndarray, metrics: Metrics, *, first: bool) -> bool:
        """Take one optimiser step of the adapter on the actions ``rows`` of a batch, an int array (b,).

        Returns False, and takes no step, if the policy differs from the one that acted by more than ``kl_threshold``.
        ``first`` is True before the first step on a rollout, where both must agree.
        """
        settings, chosen = self.settings, torch.from_numpy(rows).to(batch.mask.device)
        records, credit_steps = [batch.records[row] for row in rows], batch.mask[chosen].sum()
        tokens = sum(len(record.tokens) for record in records)
        totals, worst = torch.zeros(4, device=batch.mask.device), 0.0
        self.actor_optimizer.zero_grad(set_to_none=True)
        for scores in self.score_actions(
            records,
            action_log_probs=self.level == "action",
            action_entropies=settings.entropy_level == "action",
            token_entropies=settings.entropy_level == "token",
        ):
            own = chosen[scores.rows]
            mask, old = batch.mask[own], batch.old_log_probs[own]
            log_probs = scores.action_log_probs[:, None] if self.level == "action" else scores.token_log_probs
            log_probs = torch.nn.functional.pad(log_probs, (0, mask.shape[1] - log_probs.shape[1]))
            if first:
                worst = max(worst, self.ratio_error(log_probs, old, mask & batch.fresh[own, None]))
            policy_loss = losses.clipped_policy_loss(log_probs, old, batch.advantages[own], mask, settings.clip)
            policy_loss = policy_loss / credit_steps
            if settings.entropy_level == "token":
                entropy = scores.token_entropies.sum() / tokens
            else:
                entropy = scores.action_entropies.sum() / len(rows)
            (policy_loss - settings.entropy_coefficient * entropy).backward()
            with torch.no_grad():
                kl = losses.approximate_kl(log_probs, old, mask) / credit_steps
                clipped = losses.count_clipped(log_probs, old, mask, settings.clip) / credit_steps
                totals += torch.stack([policy_loss, entropy, kl, clipped])
        loss_, entropy_, kl_, clipped_ = totals.tolist()
        metrics.add(policy_loss=loss_, entropy=entropy_, approximate_kl=kl_, clip_fraction=clipped_)
        if first:
            metrics.add(first_ratio_error=worst)
        if settings.kl_threshold is not None and kl_ > settings.kl_threshold:
            return False
        metrics.add(actor_grad_norm=float(torch.nn.utils.clip_grad_norm_(self.adapter, settings.max_grad_norm)))
        self.actor_optimizer.step()
        return True
