"""A2C with action decomposition: advantage actor-critic (arXiv 1602.01783) with the credit of POAD."""

import numpy as np
import torch

from trainers.agents.poad import POAD
from trainers.metrics import Metrics


class A2C(POAD):
    """One step of critic and adapter for each rollout. Ignores PPO's epochs, minibatches, clip and kl_threshold."""

    def learn(self, rollout):
        batch, own, metrics, mean_entropy = self.assign_credit(rollout), self.settings, Metrics(), 0.0
        self.critic_step(batch, np.arange(len(batch.records)), metrics)
        self.forget_outputs()
        self.actor_optimizer.zero_grad()
        for scores in self.score_actions(batch.records, action_entropies=True):  # in groups that fit into memory
            gains = batch.advantages[scores.rows] * scores.token_log_probs
            entropy = scores.action_entropies.sum() / len(batch.records)
            (-gains.sum() / batch.mask.sum() - own.entropy_coefficient * entropy).backward()
            mean_entropy += entropy.item()
        torch.nn.utils.clip_grad_norm_(self.adapter, own.max_grad_norm)
        self.actor_optimizer.step()
        self.steps_learnt += len(batch.records)
        return metrics.means() | {"entropy": mean_entropy}
