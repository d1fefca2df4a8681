"""PPO for language agents: one iteration, from a rollout to the last optimiser step.

An algorithm chooses the *credit steps* of an action: its tokens, or the action as a whole. Each credit step has a
probability ratio, a value and an advantage. POAD, NTPO and TWOSOME differ in the attributes ``level``, ``gamma_token``
and ``gae_lambda_token``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from trainers import losses
from trainers.agent import Rollout
from trainers.agent_state import load_optimizer
from trainers.credit import gae
from trainers.critic import ValueCritic
from trainers.language_agent import ActionRecord, LanguageAgent
from trainers.metrics import Metrics
from trainers.policy import Scores
from trainers.prefix_tree import Query, along
from trainers.rollout import env_attribute
from trainers.settings import LanguageAgentSettings, setting

_RATIO_TOLERANCE = 1e-2


@dataclass(frozen=True)
class PPOSettings(LanguageAgentSettings):
    """Settings of PPO. Defaults are those of the paper for Overcooked (arXiv 2405.15821, appendix)."""

    # --- credit
    gamma: float | None = setting(None, least=0, most=1)
    """Discount γ of one unit of environment time; by default the environment's own."""
    discount_by_time: bool = True
    """Discount an action of k units of time by γ to the k, as the environment's returns are; False discounts every
    action by γ (the paper's code)."""
    gae_lambda: float = setting(0.95, least=0, most=1)
    """λ of generalised advantage estimation between actions."""
    truncation_is_termination: bool = False
    """Treat truncated episodes as terminated (the paper's code); False bootstraps from V(final observation)."""
    advantage_std_floor: float = setting(0.05, least=0)
    """Never divide advantages by less than this (the paper's code: 0)."""

    # --- update
    actor_lr: float = setting(5e-7, embedded=3e-4, above=0)
    """Learning rate of the adapter."""
    critic_lr: float = setting(1e-5, embedded=1e-3, above=0)
    """Learning rate of the critic."""
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
    critic_hidden: tuple[int, ...] = setting((1024, 512), embedded=(256, 256))
    """Widths of the critic's hidden layers."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The B valid actions of a rollout, with at most U credit steps each.

    Attributes
    ----------
    records : list of B ActionRecord
    mask : bool tensor (B, U)
        True at real credit steps.
    old_log_probs, old_values, advantages, returns : float32 tensor (B, U)
        0 where ``mask`` is False. Advantages are not normalised.
    feature_rows : int64 tensor (B, U)
        Rows of the feature store from which the critic predicts the values.
    """

    records: list[ActionRecord]
    mask: torch.Tensor
    old_log_probs: torch.Tensor
    old_values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    feature_rows: torch.Tensor


class PPOAgent(LanguageAgent):
    """A language agent that learns with PPO (arXiv 1707.06347); parameters as in :class:`LanguageAgent`."""

    settings_type: ClassVar[type[PPOSettings]] = PPOSettings
    settings: PPOSettings
    level: ClassVar[str]
    """Credit steps are the tokens of an action (``"token"``), or the action (``"action"``)."""

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        super().__init__(envs, model, tokenizer, **settings)
        self.gamma = float(env_attribute(envs, "discount")) if self.settings.gamma is None else self.settings.gamma
        self.settings = replace(self.settings, gamma=self.gamma)
        with self._stream.active():
            self.critic = ValueCritic(self.language_model.hidden_size, self.settings.critic_hidden)
        self.critic.to(self.language_model.device)
        self.adapter = self.language_model.trainable_parameters()
        self.actor_optimizer = torch.optim.Adam(self.adapter, lr=self.settings.actor_lr, eps=1e-5)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=self.settings.critic_lr, eps=1e-5)
        self._steps_learnt = 0

    @property
    def gamma_token(self) -> float:
        """γ_w: discount from a token to the next token of its action."""
        return 1.0

    @property
    def gae_lambda_token(self) -> float:
        """λ_w: trace decay from a token to the next token of its action."""
        return 1.0

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Run PPO's epochs on one rollout; return the metrics of the update."""
        settings, metrics = self.settings, Metrics()
        batch = self.assign_credit(rollout)
        advantages = losses.normalise_advantages(batch.advantages, batch.mask, settings.advantage_std_floor)
        self.forget_outputs()
        self._anneal_learning_rates()
        actor_steps, stopped = 0, False
        for epoch in range(settings.epochs):
            minibatches = np.array_split(self.random.permutation(len(batch.records)), settings.minibatches)
            for number, rows in enumerate(minibatches):
                if not len(rows):
                    continue
                self.critic_step(batch, rows, metrics)
                if not stopped:
                    stopped = not self.actor_step(batch, advantages, rows, metrics, first=epoch == number == 0)
                    actor_steps += not stopped
        self._steps_learnt += len(batch.records)
        spread = batch.returns[batch.mask].var()
        error = (batch.returns - batch.old_values)[batch.mask].var()
        return metrics.means() | {
            "skipped_actor_steps": 1 - actor_steps / (settings.epochs * settings.minibatches),
            "explained_variance": float(1 - error / spread) if spread > 0 else 0.0,
            "actor_lr": self.actor_optimizer.param_groups[0]["lr"],
        }

    # ------------------------------------------------------------------------------------------------------- credit

    def assign_credit(self, rollout: Rollout) -> Batch:
        """Return the valid actions of a rollout with values, advantages and returns of their credit steps."""
        settings, shape = self.settings, rollout.rewards.shape
        records: list[ActionRecord] = [action.record for row in rollout.actions for action in row]
        # The critic reads the prompt, then the prompt with each token but the last one.
        texts = [(record.query.prompt, record.tokens[:-1] if self.level == "token" else ()) for record in records]
        final = {
            (after.t, after.n): self.prompt(after.observation)
            for after in rollout.next_observations()
            if after.observation is not None
            and not (after.truncated and settings.truncation_is_termination)
            and (after.truncated or after.t == len(rollout.rewards) - 1)
        }  # the other next observations are those of the next row's actions
        rows = self.features.rows([*texts, *((prompt, ()) for prompt in final.values())])
        width = max(map(len, rows))
        feature_rows = np.zeros((*shape, width), dtype=np.int64)
        mask = np.zeros(feature_rows.shape, dtype=bool)
        log_probs = np.zeros(feature_rows.shape)
        for place, record, own in zip(np.ndindex(shape), records, rows, strict=False):
            feature_rows[place][: len(own)] = own
            mask[place][: len(own)] = rollout.valid[place]
            log_probs[place][: len(own)] = self._old_log_probs(record)
        values, final_values = self._values_at(feature_rows, np.array([own[0] for own in rows[len(records) :]], int))
        values[~mask] = 0.0
        next_values = np.zeros(shape)
        next_values[:-1] = values[1:, :, 0]
        next_values[rollout.episode_ends] = 0.0
        for place, value in zip(final, final_values, strict=True):
            next_values[place] = value
        durations = rollout.durations if settings.discount_by_time else np.ones(shape)
        advantages, returns = gae(
            rollout.rewards,
            values,
            mask,
            next_values,
            rollout.episode_ends,
            gamma=self.gamma**durations,
            gae_lambda=settings.gae_lambda,
            gamma_token=self.gamma_token,
            gae_lambda_token=self.gae_lambda_token,
        )

        def valid(array: np.ndarray) -> torch.Tensor:
            rows = array[rollout.valid]
            rows = rows.astype(np.float32) if rows.dtype == np.float64 else rows
            return torch.from_numpy(rows).to(self.language_model.device)

        return Batch(
            records=[record for record, counts in zip(records, rollout.valid.flat, strict=True) if counts],
            mask=valid(mask),
            old_log_probs=valid(np.where(mask, log_probs, 0.0)),
            old_values=valid(values),
            advantages=valid(advantages),
            returns=valid(returns),
            feature_rows=valid(feature_rows),
        )

    @torch.no_grad()
    def values(self, queries: Sequence[Query]) -> list[np.ndarray]:
        """Return the critic's value at every node of each query's tree: float64 arrays (M,)."""
        features = self.language_model.features(queries)
        return [self.critic.values(nodes).double().cpu().numpy() for nodes in features]

    @torch.no_grad()
    def _values_at(self, rows: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the critic's values at rows of the feature store, of any shape: each distinct row once."""
        distinct, where = np.unique([*rows.ravel(), *others], return_inverse=True)
        features = self.features.features[torch.from_numpy(distinct).to(self.language_model.device)]
        values = self.critic.values(features).double().cpu().numpy()[where]
        return values[: rows.size].reshape(rows.shape), values[rows.size :]

    def _old_log_probs(self, record: ActionRecord) -> np.ndarray:
        """Return the log-probabilities of the credit steps of an action when it was taken: (U,)."""
        if self.level == "action":
            return record.output.action_log_probs[[record.choice]]
        return record.output.token_log_probs[record.choice, : len(record.tokens)]

    # ------------------------------------------------------------------------------------------------------- update

    def critic_step(self, batch: Batch, rows: np.ndarray, metrics: Metrics) -> None:
        """Take one optimiser step of the critic on the actions ``rows`` of a batch, an int array (b,)."""
        chosen = torch.from_numpy(rows).to(batch.mask.device)
        mask = batch.mask[chosen]
        # Environments with few states repeat features: each distinct one is evaluated once.
        distinct, where = torch.unique(batch.feature_rows[chosen], return_inverse=True)
        values = self.critic.values(self.features.features[distinct])[where]
        loss = losses.clipped_value_loss(
            values, batch.old_values[chosen], batch.returns[chosen], mask, self.settings.clip
        )
        loss = 0.5 * loss / mask.sum()  # weight of the value loss in the paper
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), self.settings.max_grad_norm)
        self.critic_optimizer.step()
        metrics.add(value_loss=loss.item(), critic_grad_norm=float(norm))

    def actor_step(
        self, batch: Batch, advantages: torch.Tensor, rows: np.ndarray, metrics: Metrics, *, first: bool
    ) -> bool:
        """Take one optimiser step of the adapter on the actions ``rows`` of a batch, an int array (b,).

        Returns False, and takes no step, if the policy differs from the one that acted by more than ``kl_threshold``.
        ``first`` is True before the first step on a rollout, where both must agree.
        """
        settings, device = self.settings, batch.mask.device
        token_entropy = settings.entropy_level == "token" or settings.sampling == "free"
        members = self._members(batch, rows)
        credit_steps = batch.mask[torch.from_numpy(rows).to(device)].sum()
        tokens = sum(len(batch.records[row].tokens) for row in rows)
        totals, worst = torch.zeros(4, device=device), 0.0
        self.actor_optimizer.zero_grad(set_to_none=True)
        for _, packed in self.language_model.groups(list(members)):
            places = [(index, *own) for index, query in enumerate(packed.queries) for own in members[query]]
            index, chosen, choices = torch.tensor(places, device=device).unbind(1)
            scores = self.policy.score(packed, with_node_entropies=token_entropy)
            mask, old = batch.mask[chosen], batch.old_log_probs[chosen]
            log_probs = self._log_probs(scores, index, choices, width=mask.shape[1])
            if first:
                worst = max(worst, self._first_ratio_error(log_probs, old, mask))
            policy_loss = losses.clipped_policy_loss(log_probs, old, advantages[chosen], mask, settings.clip)
            policy_loss = policy_loss / credit_steps
            if settings.entropy_level == "token":
                entropy = scores.node_entropies[index, choices].sum() / tokens
            else:
                entropy = scores.action_entropy[index].sum() / len(rows)
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

    def _log_probs(self, scores: Scores, index: torch.Tensor, choices: torch.Tensor, *, width: int) -> torch.Tensor:
        """Return the log-probabilities of credit steps, padded with 0: (b, width)."""
        if self.level == "action":
            return scores.action_log_probs[index, choices][:, None]
        log_probs = scores.token_log_probs[index, choices][:, :width]
        return torch.nn.functional.pad(log_probs, (0, width - log_probs.shape[1]))

    def _members(self, batch: Batch, rows: np.ndarray) -> dict[Query, list[tuple[int, int]]]:
        """Return the distinct queries of some actions, each with its actions as (row, index of the candidate).

        Where only the chosen candidates and their siblings matter, queries are reduced to these.
        """
        members: dict[Query, list[tuple[int, int]]] = {}
        for row in rows.tolist():
            members.setdefault(batch.records[row].query, []).append((row, batch.records[row].choice))
        settings = self.settings
        if settings.entropy_level == "action" or (self.level == "action" and settings.sampling == "candidates"):
            return members
        reduced: dict[Query, list[tuple[int, int]]] = {}
        for (prompt, tree), own in members.items():
            taken = tuple(sorted({choice for _, choice in own}))
            reduced[Query(prompt, along(tree, taken))] = [(row, taken.index(choice)) for row, choice in own]
        return reduced

    def _first_ratio_error(self, log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> float:
        """Return the largest |log ratio| before the first step, where the policy is the one that acted.

        Raises
        ------
        RuntimeError
            If it is not small in full precision. In half precision it is only reported, as ``first_ratio_error``.
        """
        worst = (log_probs - old)[mask].abs().max().item()
        exact = self.language_model.model.dtype == torch.float32 and self.settings.quantize is None
        if exact and worst > _RATIO_TOLERANCE:
            raise RuntimeError(f"the policy's log-probabilities differ by {worst} from those it acted with")
        return worst

    def _anneal_learning_rates(self) -> None:
        total = self.settings.anneal_steps
        left = max(0.0, 1 - self._steps_learnt / total) if total else 1.0
        self.actor_optimizer.param_groups[0]["lr"] = self.settings.actor_lr * left
        self.critic_optimizer.param_groups[0]["lr"] = self.settings.critic_lr * left

    # ------------------------------------------------------------------------------------------ saving and restoring

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "critic": self.critic.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "steps_learnt": self._steps_learnt,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        if type(state["steps_learnt"]) is not int:
            raise ValueError(f"it contains steps_learnt={state['steps_learnt']!r:.40}, expected a number")
        self.critic.load_state_dict(state["critic"])
        load_optimizer(self.actor_optimizer, state["actor_optimizer"])
        load_optimizer(self.critic_optimizer, state["critic_optimizer"])
        self._steps_learnt = state["steps_learnt"]
