"""PPO for language agents (arXiv 1707.06347): one iteration, from a rollout to the last optimiser step.

An algorithm chooses the *credit steps* of an action: its tokens, or the action as a whole. Each has a ratio, an
advantage and, with a critic, a value. POAD, NTPO and TWOSOME differ in ``level`` and ``token_discounts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from trainers import losses
from trainers.agent import Rollout
from trainers.credit import gae
from trainers.critic import ValueCritic
from trainers.language_agent import ActionRecord, LanguageAgent
from trainers.metrics import Metrics
from trainers.prefix_tree import Query
from trainers.rollout import padded
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


@dataclass(frozen=True)
class PPOSettings(PolicyGradientSettings):
    """Settings of PPO with a critic."""

    gae_lambda: float = setting(0.95, least=0, most=1)
    """λ of generalised advantage estimation between actions."""
    truncation_is_termination: bool = False
    """Treat truncated episodes as terminated (the paper's code); False bootstraps from V(final observation)."""
    critic_lr: float = setting(1e-5, embedded=1e-3, above=0)
    """Learning rate of the critic."""
    critic_hidden: tuple[int, ...] = setting((1024, 512), embedded=(256, 256))
    """Widths of the critic's hidden layers."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B actions with their credit steps, at most U each, as tensors (B, U). ``mask`` is True at real credit steps;
    elsewhere all values are 0. ``fresh`` (B,) is False for actions of an earlier policy."""

    records: list[ActionRecord]
    mask: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    fresh: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class PPOBatch(Batch):
    """A batch with values and returns (B, U); the critic predicts them from ``feature_rows`` of the feature store."""

    old_values: torch.Tensor
    returns: torch.Tensor
    feature_rows: torch.Tensor


class PolicyGradientAgent(LanguageAgent):
    """PPO's clipped update for any advantages; a subclass writes ``learn``, which calls :meth:`update` with a batch."""

    settings_type: ClassVar[type[PolicyGradientSettings]] = PolicyGradientSettings
    settings: PolicyGradientSettings
    level: ClassVar[str] = "token"
    """Credit steps are the tokens of an action (``"token"``), or the action (``"action"``)."""

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        super().__init__(envs, model, tokenizer, **settings)
        self.adapter = self.language_model.trainable_parameters()
        self.actor_optimizer = torch.optim.Adam(self.adapter, lr=self.settings.actor_lr, eps=1e-5)
        self.saved["actor_optimizer"] = self.actor_optimizer

    def critic_step(self, batch: Any, rows: np.ndarray, metrics: Metrics) -> None:
        """Train the critic, if there is one, on the actions ``rows`` of a batch, an int array (b,)."""

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
            for number, rows in enumerate(filter(len, minibatches)):
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
            loss = losses.clipped_policy_loss(log_probs, old, batch.advantages[own], mask, settings.clip) / credit_steps
            by_token = settings.entropy_level == "token"
            entropy = scores.token_entropies.sum() / tokens if by_token else scores.action_entropies.sum() / len(rows)
            (loss - settings.entropy_coefficient * entropy).backward()
            with torch.no_grad():
                kl = losses.approximate_kl(log_probs, old, mask) / credit_steps
                clipped = losses.count_clipped(log_probs, old, mask, settings.clip) / credit_steps
                totals += torch.stack([loss, entropy, kl, clipped])
        loss_, entropy_, kl_, clipped_ = totals.tolist()
        metrics.add(policy_loss=loss_, entropy=entropy_, approximate_kl=kl_, clip_fraction=clipped_)
        if first:
            metrics.add(first_ratio_error=worst)
        if settings.kl_threshold is not None and kl_ > settings.kl_threshold:
            return False
        metrics.add(actor_grad_norm=float(torch.nn.utils.clip_grad_norm_(self.adapter, settings.max_grad_norm)))
        self.actor_optimizer.step()
        return True


class PPOAgent(PolicyGradientAgent):
    """PPO with a critic on features of the frozen base model (arXiv 1707.06347)."""

    settings_type: ClassVar[type[PPOSettings]] = PPOSettings
    settings: PPOSettings

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        super().__init__(envs, model, tokenizer, **settings)
        with self.random_stream.active():
            self.critic = ValueCritic(self.language_model.hidden_size, self.settings.critic_hidden)
        self.critic.to(self.language_model.device)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=self.settings.critic_lr, eps=1e-5)
        self.saved |= {"critic": self.critic, "critic_optimizer": self.critic_optimizer}

    def token_discounts(self) -> tuple[float, float]:
        """Return γ_w and λ_w: the discount, and λ of GAE, from a token to the next token of its action."""
        return 1.0, 1.0

    def bootstrap_values(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the value from which the action before each action bootstraps: (T, N, U) to (T, N)."""
        return values[..., 0]

    def learn(self, rollout: Rollout) -> dict[str, float]:
        batch = self.assign_credit(rollout)
        explained = losses.explained_variance(batch.old_values, batch.returns, batch.mask)
        return self.update(batch) | {"explained_variance": explained}

    def assign_credit(self, rollout: Rollout) -> PPOBatch:
        """Return the valid actions of a rollout with values, advantages and returns of their credit steps."""
        shape, settings = rollout.rewards.shape, self.settings
        records: list[ActionRecord] = [action.record for row in rollout.actions for action in row]
        # The critic reads the prompt, then the prompt with each token but the last one.
        texts = [(r.query.prompt, r.tokens[:-1] if self.level == "token" else ()) for r in records]
        last = rollout.last_of_episodes(with_truncated=not settings.truncation_is_termination)
        rows = self.features.rows([*texts, *((self.prompt(observation), ()) for observation in last.values())])
        feature_rows, mask = padded(rows[: len(records)], shape)
        old_log_probs, _ = padded([record.log_probs(self.level) for record in records], shape)
        mask &= rollout.valid[..., None]
        last_rows = np.array([own[0] for own in rows[len(records) :]], dtype=np.int64)
        values, last_values = self.critic.values_at(self.features.features, feature_rows, last_rows)
        values[~mask] = 0.0
        next_values = np.zeros(shape)
        next_values[:-1] = self.bootstrap_values(values, mask)[1:]
        next_values[rollout.episode_ends] = 0.0
        for step, value in zip(last, last_values, strict=True):
            next_values[step] = value
        gamma_token, gae_lambda_token = self.token_discounts()
        advantages, returns = gae(
            rollout.rewards,
            values,
            mask,
            next_values,
            rollout.episode_ends,
            gamma=self.discounts(rollout),
            gae_lambda=settings.gae_lambda,
            gamma_token=gamma_token,
            gae_lambda_token=gae_lambda_token,
        )

        def valid(array: np.ndarray) -> torch.Tensor:
            chosen = torch.from_numpy(array[rollout.valid])
            return (chosen.float() if chosen.is_floating_point() else chosen).to(self.language_model.device)

        credit, real = valid(advantages), valid(mask)
        return PPOBatch(
            records=[record for record, is_valid in zip(records, rollout.valid.flat, strict=True) if is_valid],
            mask=real,
            old_log_probs=valid(np.where(mask, old_log_probs, 0.0)),
            old_values=valid(values),
            advantages=losses.normalise_advantages(credit, real, settings.advantage_std_floor),
            fresh=real[:, 0],
            returns=valid(returns),
            feature_rows=valid(feature_rows),
        )

    def values(self, queries: Sequence[Query]) -> list[np.ndarray]:
        """Return the critic's value at every node (prefix of a candidate) of each query's tree: float64 arrays (M,)."""
        features = self.language_model.features(queries)
        return [self.critic.values(nodes).detach().double().cpu().numpy() for nodes in features]

    def critic_step(self, batch: PPOBatch, rows: np.ndarray, metrics: Metrics) -> None:
        """Take one optimiser step of the critic on the actions ``rows`` of a batch, an int array (b,)."""
        chosen = torch.from_numpy(rows).to(batch.mask.device)
        mask, old, returns = batch.mask[chosen], batch.old_values[chosen], batch.returns[chosen]
        # Environments with few states repeat features: each distinct one is evaluated once.
        distinct, where = torch.unique(batch.feature_rows[chosen], return_inverse=True)
        values = self.critic.values(self.features.features[distinct])[where]
        # 0.5 is the paper's weight of the value loss.
        loss = 0.5 * losses.clipped_value_loss(values, old, returns, mask, self.settings.clip) / mask.sum()
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), self.settings.max_grad_norm)
        self.critic_optimizer.step()
        metrics.add(value_loss=loss.item(), critic_grad_norm=float(norm))
