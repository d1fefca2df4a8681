"""PPO with a critic (arXiv 1707.06347): values, advantages and returns of a rollout, and the critic's step.

The policy's update is in :mod:`trainers.agents.policy_gradient`. POAD, NTPO and TWOSOME differ in ``level`` and
``token_discounts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from trainers import losses
from trainers.agent import Rollout
from trainers.agents.policy_gradient import Batch, PolicyGradientAgent, PolicyGradientSettings
from trainers.credit import gae
from trainers.critic import ValueCritic
from trainers.language_agent import ActionRecord
from trainers.metrics import Metrics
from trainers.prefix_tree import Query
from trainers.rollout import padded
from trainers.settings import setting


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
class PPOBatch(Batch):
    """A batch with values and returns (B, U); ``feature_rows`` (int64) are the rows of the feature store from which the
    critic predicts them."""

    old_values: torch.Tensor
    returns: torch.Tensor
    feature_rows: torch.Tensor


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
        values = np.where(mask, values, 0.0)
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
        loss = losses.clipped_value_loss(values, old, returns, mask, self.settings.clip)
        loss = 0.5 * loss / mask.sum()  # the paper's weight of the value loss
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), self.settings.max_grad_norm)
        self.critic_optimizer.step()
        metrics.add(value_loss=loss.item(), critic_grad_norm=float(norm))
