"""Critic-free policy gradients: REINFORCE, GRPO, RLOO and GiGPO.

Their advantages compare returns of whole episodes (:mod:`trainers.groups`). All tokens of an action get the advantage
of the action: without a critic there is no credit to assign inside it. The update is PPO's, without a critic.

The group is all episodes that end in a rollout. Episodes that have not ended are continued in the next rollout:
dropping them would over-represent short episodes. A truncated episode counts with the return it had, since there is no
value to bootstrap from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from trainers.agent import Rollout
from trainers.agents.ppo import Batch, PolicyGradientAgent, PolicyGradientSettings
from trainers.groups import against_same_observation, leave_one_out, normalised, returns_to_go, scaled
from trainers.language_agent import ActionRecord
from trainers.policy import PolicyOutput
from trainers.prefix_tree import Query, Tokens, build_tree
from trainers.rollout import padded
from trainers.settings import setting


@dataclass(frozen=True)
class CriticFreeSettings(PolicyGradientSettings):
    """Settings of critic-free agents."""

    discount_returns: bool = True
    """Discount returns by environment time, as reported returns are; False sums rewards, as most published code."""


@dataclass(frozen=True)
class GiGPOSettings(CriticFreeSettings):
    """Settings of GiGPO."""

    step_weight: float = setting(1.0, least=0)
    """Weight ω of the comparison of actions on the same observation."""


class Step(NamedTuple):
    """An action of an episode, its reward, and the discount γ_t from it to the next action."""

    record: ActionRecord
    reward: float
    discount: float


class CriticFreeAgent(PolicyGradientAgent):
    """PPO's update with advantages from returns of whole episodes; subclasses define :meth:`advantages`."""

    settings_type: ClassVar[type[CriticFreeSettings]] = CriticFreeSettings
    settings: CriticFreeSettings

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        super().__init__(envs, model, tokenizer, **settings)
        self._running: list[list[Step]] = []

    def advantages(self, to_go: list[np.ndarray], prompts: list[list[Tokens]]) -> np.ndarray:
        """Return the advantage of each action of E episodes: float64 array (ΣT_i,).

        Parameters
        ----------
        to_go : list of E float64 arrays (T_i,)
            Returns-to-go; the first of each is the return of the episode.
        prompts : list of E lists of T_i prompts
        """
        raise NotImplementedError

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Run PPO's epochs on the episodes that ended in a rollout, if any; return the metrics of the update."""
        carried = {id(step.record) for episode in self._running for step in episode}
        episodes = self._finished(rollout)
        shares = {"finished_episodes": float(len(episodes))}
        if not episodes:
            return shares
        to_go = [
            returns_to_go(np.array([step.reward for step in own]), np.array([step.discount for step in own]))
            for own in episodes
        ]
        shares["equal_returns"] = float(np.ptp([own[0] for own in to_go]) == 0)
        advantages = self.advantages(to_go, [[step.record.query.prompt for step in own] for own in episodes])
        records = [step.record for own in episodes for step in own]
        device = self.language_model.device
        log_probs, mask = padded([record.log_probs("token") for record in records], (len(records),))
        batch = Batch(
            records=records,
            mask=torch.from_numpy(mask).to(device),
            old_log_probs=torch.from_numpy(log_probs).float().to(device),
            advantages=torch.from_numpy(np.where(mask, advantages[:, None], 0.0)).float().to(device),
            fresh=torch.tensor([id(record) not in carried for record in records], device=device),
        )
        return self.update(batch) | shares

    def _finished(self, rollout: Rollout) -> list[list[Step]]:
        """Continue the running episodes with a rollout; return those that ended, in the order in which they ended."""
        steps, num_envs = rollout.rewards.shape
        self._running = self._running or [[] for _ in range(num_envs)]
        discounts = self.discounts(rollout) if self.settings.discount_returns else np.ones_like(rollout.rewards)
        finished = []
        for t in range(steps):
            for n in np.flatnonzero(rollout.valid[t]):
                record = rollout.actions[t][n].record
                self._running[n].append(Step(record, float(rollout.rewards[t, n]), float(discounts[t, n])))
                if rollout.terminated[t, n] or rollout.truncated[t, n]:
                    finished.append(self._running[n])
                    self._running[n] = []
        return finished

    def state(self) -> dict[str, Any]:
        return super().state() | {"running": [[_stored(step) for step in episode] for episode in self._running]}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._running = [[_restored(step) for step in episode] for episode in state["running"]]


class REINFORCE(CriticFreeAgent):
    """REINFORCE with returns-to-go, normalised over all actions of a batch (ReBN; GEM, arXiv 2510.01051)."""

    def advantages(self, to_go: list[np.ndarray], prompts: list[list[Tokens]]) -> np.ndarray:
        return normalised(np.concatenate(to_go), self.settings.advantage_std_floor)


class GRPO(CriticFreeAgent):
    """Group-relative policy optimisation (arXiv 2402.03300): each episode's return, normalised over the group."""

    def advantages(self, to_go: list[np.ndarray], prompts: list[list[Tokens]]) -> np.ndarray:
        return _for_all_actions(normalised(_returns(to_go), self.settings.advantage_std_floor), to_go)


class RLOO(CriticFreeAgent):
    """REINFORCE leave-one-out (arXiv 2402.14740): each episode's return minus the mean return of the others,
    scaled to unit variance over all actions."""

    def advantages(self, to_go: list[np.ndarray], prompts: list[list[Tokens]]) -> np.ndarray:
        return scaled(_for_all_actions(leave_one_out(_returns(to_go)), to_go), self.settings.advantage_std_floor)


class GiGPO(CriticFreeAgent):
    """Group-in-group policy optimisation (arXiv 2505.10978): RLOO, plus the same comparison at each observation."""

    settings_type: ClassVar[type[GiGPOSettings]] = GiGPOSettings
    settings: GiGPOSettings

    def advantages(self, to_go: list[np.ndarray], prompts: list[list[Tokens]]) -> np.ndarray:
        episodes = np.repeat(np.arange(len(to_go)), [len(own) for own in to_go])
        observations = [prompt for own in prompts for prompt in own]
        at_observation = against_same_observation(np.concatenate(to_go), observations, episodes)
        advantages = leave_one_out(_returns(to_go))[episodes] + self.settings.step_weight * at_observation
        return scaled(advantages, self.settings.advantage_std_floor)


def _returns(to_go: list[np.ndarray]) -> np.ndarray:
    return np.array([own[0] for own in to_go])


def _for_all_actions(values: np.ndarray, to_go: list[np.ndarray]) -> np.ndarray:
    """Return the value of each episode for each of its actions."""
    return np.repeat(values, [len(own) for own in to_go])


def _stored(step: Step) -> dict[str, Any]:
    """Return a step as plain data: what is needed to score its action again."""
    record = step.record
    return {
        "prompt": list(record.query.prompt),
        "candidates": [list(candidate) for candidate in record.query.tree.candidates],
        "choice": record.choice,
        "token_log_probs": torch.from_numpy(record.output.token_log_probs[record.choice].copy()),
        "reward": step.reward,
        "discount": step.discount,
    }


def _restored(stored: dict[str, Any]) -> Step:
    tree = build_tree(tuple(map(tuple, stored["candidates"])))
    log_probs = np.zeros(tree.mask.shape)
    log_probs[stored["choice"]] = stored["token_log_probs"].numpy()
    output = PolicyOutput(log_probs, np.zeros(len(log_probs)))
    record = ActionRecord(Query(tuple(stored["prompt"]), tree), stored["choice"], output)
    return Step(record, stored["reward"], stored["discount"])
