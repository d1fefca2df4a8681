"""What agents that learn by PPO share: how they act, how they learn, how they are put down and taken up again."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file

from trainers import ppo
from trainers.agent import Action, Rollout
from trainers.agent_state import load_optimizer, load_state, load_tensors, save_state
from trainers.agents.settings import Settings, resolve
from trainers.features import FeatureStore
from trainers.language_model import LanguageModel, load_language_model
from trainers.policy import LanguagePolicy, PolicyOutput, Scores
from trainers.prefix_tree import Query, Tokens, along, build_tree
from trainers.rollout import token_space

ADAPTER_FOLDER = "adapter"
_RATIO_TOLERANCE = 1e-2
_OUTPUTS_KEPT = 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActionRecord:
    """What a decision keeps for learning: the query, which candidate was taken, and how it looked then."""

    query: Query
    choice: int
    output: PolicyOutput

    @property
    def length(self) -> int:
        """Number of tokens of the action."""
        return len(self.tokens)

    @property
    def tokens(self) -> Tokens:
        """The tokens of the action."""
        return self.query[1].candidates[self.choice]


@dataclass(frozen=True)
class Batch:
    """The B decisions of a rollout, as tensors over U units: tokens, or one unit for the whole action.

    ``decisions`` are their memories; the tensors have shape (B, U). ``nodes`` are the rows of the feature store at
    which units are valued.
    """

    decisions: list[ActionRecord]
    mask: torch.Tensor
    old_log_probs: torch.Tensor
    old_values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    nodes: torch.Tensor


class PPOAgent(ABC):
    """A language model that learns by PPO, with credit per token or per action.

    Parameters
    ----------
    envs : gymnasium.vector.VectorEnv or gymnasium.Env
        The environments it will act in; they say which tokens and which discount.
    model : str, Path or transformers.PreTrainedModel
        ``"embedded"``, a Hugging Face name, a folder, or a model object.
    tokenizer : optional
        The model's tokenizer, where the model does not know it; a model object takes the environment's.
    **settings
        Fields of the agent's settings.

    Raises
    ------
    ValueError
        If the environments speak another tokenizer than the model, or a setting is unknown.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    level: ClassVar[str]
    """What a unit is: ``"token"`` or ``"action"``."""

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        if not env_attribute(envs, "action_names"):
            settings.setdefault("sampling", "free")
        resolved = resolve(self.settings_type, model, settings)
        self.gamma = float(env_attribute(envs, "discount")) if resolved.gamma is None else resolved.gamma
        self.settings = resolved = replace(resolved, gamma=self.gamma)
        space = getattr(envs, "single_action_space", envs.action_space)
        self.env_tokenizer = token_space(space).tokenizer
        if resolved.sampling != "free" and not env_attribute(envs, "action_names"):
            raise ValueError(f"sampling={resolved.sampling!r} needs phrases to choose from; use sampling='free' here")
        torch.manual_seed(resolved.seed)
        self.random = np.random.default_rng(resolved.seed)
        if tokenizer is None and not isinstance(model, str | Path):
            tokenizer = self.env_tokenizer
        language_model = load_language_model(
            model,
            tokenizer=tokenizer,
            device=resolved.device,
            dtype=resolved.dtype,
            lora_rank=resolved.lora_rank,
            lora_alpha=resolved.lora_alpha,
            lora_targets=resolved.lora_targets,
            quantize=resolved.quantize,
            gradient_checkpointing=resolved.gradient_checkpointing,
            temperature=resolved.temperature,
            tokens_per_forward=resolved.tokens_per_forward,
        )
        _check_tokenizers(self.env_tokenizer, language_model)
        language_model.packs &= resolved.packing
        self.tokenizer = language_model.tokenizer
        self.policy = LanguagePolicy(
            language_model,
            sampling=resolved.sampling,
            normalisation=resolved.normalisation,
            critic_hidden=resolved.critic_hidden,
        )
        # No two texts are alike in free text: nothing would be found again.
        kept = 0 if resolved.sampling == "free" else resolved.feature_cache_mib
        self._features = FeatureStore(language_model, kept << 20)
        self.max_action_tokens = min(resolved.max_action_tokens or space.max_length, space.max_length)
        self._adapter = language_model.trainable_parameters()
        self._critic = list(self.policy.critic.parameters())
        self._actor_optimizer = torch.optim.Adam(self._adapter, lr=resolved.actor_lr, eps=1e-5)
        self._critic_optimizer = torch.optim.Adam(self._critic, lr=resolved.critic_lr, eps=1e-5)
        self._steps_learnt = 0
        self._outputs: dict[Query, PolicyOutput] = {}

    @property
    def language_model(self) -> LanguageModel:
        return self.policy.language_model

    # -------------------------------------------------------------------------------------- what an algorithm decides

    @abstractmethod
    def credit(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        next_values: np.ndarray,
        episode_ends: np.ndarray,
        gamma: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and returns of units.

        ``values``, ``mask`` and the results are arrays (T, N, U), all others (T, N); see :mod:`trainers.credit`.
        """

    @abstractmethod
    def units_of(self, memory: ActionRecord) -> tuple[Tokens, np.ndarray]:
        """The tokens that the critic reads behind the prompt of a decision, and the log-probabilities of units then.

        The units are valued after the prompt and after each of these tokens: U − 1 tokens, and an array (U,).
        """

    @abstractmethod
    def unit_log_probs(self, scores: Scores, rows: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of units now, for the candidates ``choices`` of the queries ``rows``: (B, U)."""

    # ------------------------------------------------------------------------------------------------------- acting

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        """One decision for each observation; ``greedy`` takes the most probable action."""
        queries = self._queries(observations, infos, greedy)
        decisions = []
        for query, output in zip(queries, self._assess(queries), strict=True):
            choice = self._choose(output.action_log_probs, greedy)
            ids = query[1].candidates[choice]
            phrase = ids[:-1] if ids[-1] in self.tokenizer.stop_ids else ids
            decisions.append(Action(self.tokenizer.decode(phrase).strip(), ids, ActionRecord(query, choice, output)))
        return decisions

    def _queries(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], greedy: bool) -> list[Query]:
        if self.settings.sampling == "free":
            prompts = [self._prompt(row) for row in observations]
            said = self.language_model.generate(prompts, max_tokens=self.max_action_tokens, greedy=greedy)
            return [(prompt, build_tree((ids,))) for prompt, ids in zip(prompts, said, strict=True)]
        return [self.query(row, info["available_actions"]) for row, info in zip(observations, infos, strict=True)]

    def query(self, observation: np.ndarray, phrases: Sequence[str]) -> Query:
        """What the model is asked where one of some phrases has to be said.

        Parameters
        ----------
        observation : int array (any length)
            Token ids of an observation, padded or not.
        phrases : sequence of str
            The available actions.
        """
        encoded = _encode_phrases(self.tokenizer, tuple(phrases), self.settings.end_token)
        return self._prompt(observation), build_tree(encoded)

    def _prompt(self, observation: np.ndarray) -> Tokens:
        """The ids before the padding, in their frame."""
        padding = np.flatnonzero(observation == self.env_tokenizer.pad_id)
        return self.tokenizer.prompt(observation[: padding[0] if len(padding) else None].tolist())

    def _assess(self, queries: Sequence[Query]) -> list[PolicyOutput]:
        """Each distinct query is put to the model once until it learns again."""
        if len(self._outputs) > _OUTPUTS_KEPT:
            self._outputs.clear()
        new = [query for query in dict.fromkeys(queries) if query not in self._outputs]
        if new:
            self._outputs.update(zip(new, self.policy.assess(new), strict=True))
        return [self._outputs[query] for query in queries]

    def _choose(self, log_probs: np.ndarray, greedy: bool) -> int:
        # To draw a leaf with the product of its tokens' probabilities is to walk down the trie token by token.
        if greedy or len(log_probs) == 1:
            return int(log_probs.argmax())
        cumulative = np.exp(log_probs).cumsum()
        return int(np.searchsorted(cumulative, self.random.random() * cumulative[-1], side="right"))

    # ----------------------------------------------------------------------------------------------------- learning

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """PPO on one rollout; returns the metrics of the update."""
        batch = self._batch(rollout)
        self._outputs.clear()
        self._anneal()
        metrics = Metrics()
        size = len(batch.decisions)
        advantages = ppo.normalise_advantages(batch.advantages, batch.mask, self.settings.advantage_std_floor)
        planned = self.settings.epochs * self.settings.minibatches
        steps_taken, stopped = 0, False
        for step in range(planned):
            if step % self.settings.minibatches == 0:
                parts = np.array_split(self.random.permutation(size), self.settings.minibatches)
            rows = parts[step % self.settings.minibatches]
            if not len(rows):
                continue
            self._critic_step(batch, rows, metrics)
            if not stopped:
                stopped = not self._actor_step(batch, advantages, rows, metrics, first=step == 0)
                steps_taken += not stopped
        self._steps_learnt += size
        spread = batch.returns[batch.mask].var()
        error = (batch.returns - batch.old_values)[batch.mask].var()
        return metrics.means() | {
            "skipped_actor_steps": 1 - steps_taken / planned,
            "explained_variance": float(1 - error / spread) if spread > 0 else 0.0,
            "actor_lr": self._actor_optimizer.param_groups[0]["lr"],
        }

    def _actor_step(
        self, batch: Batch, advantages: torch.Tensor, rows: np.ndarray, metrics: Metrics, *, first: bool
    ) -> bool:
        """One step of the adapter; False, and no step, if the policy has already moved too far from the rollout's."""
        settings = self.settings
        by_token = settings.entropy_level == "token" or settings.sampling == "free"
        members = self._queries_of(batch, rows)
        queries = list(members)
        units = batch.mask[torch.from_numpy(rows).to(batch.mask.device)].sum()
        totals = torch.zeros(4, device=batch.mask.device)
        worst = 0.0
        self._actor_optimizer.zero_grad(set_to_none=True)
        for _, packed in self.language_model.groups(queries):
            where = [(i, *own) for i, query in enumerate(packed.queries) for own in members[query]]
            index, chosen, choices = torch.tensor(where, device=batch.mask.device).unbind(1)
            scores = self.policy.score(packed, with_node_entropies=by_token)
            mask, old = batch.mask[chosen], batch.old_log_probs[chosen]
            log_probs = _to_width(self.unit_log_probs(scores, index, choices), mask.shape[1])
            if first:
                worst = max(worst, self._first_ratio_error(log_probs, old, mask))
            policy_loss = ppo.clipped_policy_loss(log_probs, old, advantages[chosen], mask, settings.clip) / units
            if settings.entropy_level == "token":
                entropy = scores.node_entropies[index, choices].sum() / self._tokens(batch, rows)
            else:
                entropy = scores.action_entropy[index].sum() / len(rows)
            (policy_loss - settings.entropy_coefficient * entropy).backward()
            with torch.no_grad():
                kl = ppo.approximate_kl(log_probs, old, mask) / units
                outside = ppo.clipped_units(log_probs, old, mask, settings.clip) / units
                totals += torch.stack([policy_loss, entropy, kl, outside])
        loss, entropy_, kl_, outside_ = totals.tolist()
        metrics.add(policy_loss=loss, entropy=entropy_, approximate_kl=kl_, clip_fraction=outside_)
        if first:
            metrics.add(first_ratio_error=worst)
        if kl_ > settings.kl_threshold:
            return False
        norm = torch.nn.utils.clip_grad_norm_(self._adapter, settings.max_grad_norm)
        metrics.add(actor_grad_norm=float(norm))
        self._actor_optimizer.step()
        return True

    def _queries_of(self, batch: Batch, rows: np.ndarray) -> dict[Query, list[tuple[int, int]]]:
        """The distinct queries of some decisions, each with its decisions as (row, candidate taken)."""
        members: dict[Query, list[tuple[int, int]]] = {}
        for row in rows:
            memory = batch.decisions[row]
            members.setdefault(memory.query, []).append((int(row), memory.choice))
        settings = self.settings
        if settings.entropy_level == "action" or (self.level == "action" and settings.sampling == "candidates"):
            return members  # every candidate counts
        narrowed = {}
        for (prompt, tree), own in members.items():
            taken = tuple(sorted({choice for _, choice in own}))
            narrowed[prompt, along(tree, taken)] = [(row, taken.index(choice)) for row, choice in own]
        return narrowed

    def _critic_step(self, batch: Batch, rows: np.ndarray, metrics: Metrics) -> None:
        settings, chosen = self.settings, torch.from_numpy(rows).to(batch.mask.device)
        mask = batch.mask[chosen]
        # In an environment of few situations most units stand at the same nodes, whose value is computed once.
        nodes, where = torch.unique(batch.nodes[chosen], return_inverse=True)
        values = self.policy.critic(self._features.features[nodes].float())[..., 0][where]
        loss = ppo.clipped_value_loss(values, batch.old_values[chosen], batch.returns[chosen], mask, settings.clip)
        loss = settings.value_coefficient * loss / mask.sum()
        self._critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._critic, settings.max_grad_norm)
        self._critic_optimizer.step()
        metrics.add(value_loss=loss.item(), critic_grad_norm=float(norm))

    def _first_ratio_error(self, log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> float:
        """Largest |log ratio| before the first step, when the policy is the one that acted.

        Raises
        ------
        RuntimeError
            If it is not small in full precision. In half precision the metric ``first_ratio_error`` shows it.
        """
        worst = (log_probs - old)[mask].abs().max().item()
        exact = self.language_model.model.dtype == torch.float32 and self.settings.quantize is None
        if exact and worst > _RATIO_TOLERANCE:
            raise RuntimeError(f"the policy's log-probabilities differ by {worst} from those it acted with")
        return worst

    @staticmethod
    def _tokens(batch: Batch, rows: np.ndarray) -> int:
        return sum(batch.decisions[row].length for row in rows)

    def _batch(self, rollout: Rollout) -> Batch:
        """The rollout's valid decisions with their credit."""
        memories: list[list[ActionRecord]] = [[decision.record for decision in row] for row in rollout.actions]
        units = [[self.units_of(memory) for memory in row] for row in memories]
        following = self._following(rollout)
        rows = self._features.rows(
            [
                (m.query[0], read)
                for own, row in zip(units, memories, strict=True)
                for m, (read, _) in zip(row, own, strict=True)
            ]
            + [(prompt, ()) for prompt in following.values()]
        )
        width = max(map(len, rows))
        nodes = np.zeros((*rollout.rewards.shape, width), dtype=np.int64)
        mask = np.zeros(nodes.shape, dtype=bool)
        log_probs = np.zeros(nodes.shape)
        for (t, i), own in zip(np.ndindex(rollout.rewards.shape), rows, strict=False):
            nodes[t, i, : len(own)] = own
            mask[t, i, : len(own)] = rollout.valid[t, i]
            log_probs[t, i, : len(own)] = units[t][i][1]
        last = np.array([own[0] for own in rows[rollout.rewards.size :]])
        values, next_values = self._values(nodes, dict(zip(following, last, strict=True)), rollout)
        advantages, returns = self.credit(
            rollout.rewards,
            np.where(mask, values, 0.0),
            mask,
            next_values,
            rollout.episode_ends,
            self.gamma ** (rollout.durations if self.settings.discount_by_time else np.ones_like(rollout.durations)),
        )
        device = self.language_model.device

        def flat(array: np.ndarray) -> torch.Tensor:
            rows = array[rollout.valid]
            return torch.from_numpy(rows.astype(np.float32) if rows.dtype == np.float64 else rows).to(device)

        return Batch(
            [memories[t][i] for t, i in np.argwhere(rollout.valid)],
            flat(mask),
            flat(np.where(mask, log_probs, 0.0)),
            flat(np.where(mask, values, 0.0)),
            flat(advantages),
            flat(returns),
            flat(nodes),
        )

    def _following(self, rollout: Rollout) -> dict[tuple[int, int], Tokens]:
        """The prompts of what follows a last step or a truncation, by (t, n); a termination is followed by nothing."""
        last = {(len(rollout.rewards) - 1, int(n)) for n in np.flatnonzero(~rollout.episode_ends[-1])}
        following = {key: rollout.last_observations[key[1]] for key in sorted(last)}
        if not self.settings.truncation_is_termination:
            following |= {key: observation for key, (observation, _) in rollout.final.items()}
        return {key: self._prompt(observation) for key, observation in following.items()}

    @torch.no_grad()
    def _values(
        self, nodes: np.ndarray, following: dict[tuple[int, int], int], rollout: Rollout
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values at the rows ``nodes`` (T, N, U), and of what follows each step before any token is said (T, N)."""
        distinct, where = np.unique([*nodes.ravel(), *following.values()], return_inverse=True)
        features = self._features.features[torch.from_numpy(distinct).to(self.language_model.device)]
        found = self.policy.critic(features.float())[..., 0].double().cpu().numpy()[where]
        values = found[: nodes.size].reshape(nodes.shape)
        next_values = np.zeros(rollout.rewards.shape)
        next_values[:-1] = values[1:, :, 0]
        next_values[rollout.episode_ends] = 0.0
        for key, value in zip(following, found[nodes.size :], strict=True):
            next_values[key] = value
        return values, next_values

    def _anneal(self) -> None:
        total = self.settings.anneal_steps
        left = max(0.0, 1 - self._steps_learnt / total) if total else 1.0
        self._actor_optimizer.param_groups[0]["lr"] = self.settings.actor_lr * left
        self._critic_optimizer.param_groups[0]["lr"] = self.settings.critic_lr * left

    # ----------------------------------------------------------------------------------------------- saving, loading

    def save(self, folder: Path) -> None:
        """Write the adapter in PEFT's format, the critic, the optimisers and all random generators."""
        folder.mkdir(parents=True, exist_ok=True)
        model = self.language_model.model
        model.save_pretrained(str(folder / ADAPTER_FOLDER), save_embedding_layers=False)
        save_file(self.policy.critic.state_dict(), folder / "critic.safetensors")
        state = {
            "class": type(self).__qualname__,
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "features": self._features.state(),
            "steps_learnt": self._steps_learnt,
            "random": self.random.bit_generator.state,
            "settings": asdict(self.settings),
        }
        save_state(folder, state)

    def load(self, folder: Path) -> None:
        """Go on from what :meth:`save` wrote; settings that differ from those it was saved with are warned of.

        Raises
        ------
        ValueError
            If the folder holds no agent, a damaged one, or one of another class or shape.
        """
        state = load_state(
            folder, "class", "actor_optimizer", "critic_optimizer", "features", "steps_learnt", "random", "settings"
        )
        if type(state["steps_learnt"]) is not int or not isinstance(state["settings"], dict):
            raise ValueError(f"{folder} holds an agent whose steps_learnt or settings are of another type")
        if state["class"] != type(self).__qualname__:
            raise ValueError(f"{folder} holds a {state['class']}, and this is a {type(self).__qualname__}")
        model, device = self.language_model.model, str(self.language_model.device)
        weights = load_tensors(folder / ADAPTER_FOLDER / "adapter_model.safetensors", device)
        if weights.keys() != get_peft_model_state_dict(model, save_embedding_layers=False).keys():
            raise ValueError(f"{folder / ADAPTER_FOLDER} holds an adapter of other layers")
        set_peft_model_state_dict(model, weights)
        self.policy.critic.load_state_dict(load_tensors(folder / "critic.safetensors", device))
        self._features.load_state(state["features"])
        load_optimizer(self._actor_optimizer, state["actor_optimizer"])
        load_optimizer(self._critic_optimizer, state["critic_optimizer"])
        self._steps_learnt = state["steps_learnt"]
        for name, value in asdict(self.settings).items():
            if name in state["settings"] and state["settings"][name] != value:
                logger.warning(
                    "%s is %r now and was %r when %s was saved", name, value, state["settings"][name], folder
                )
        self.random.bit_generator.state = state["random"]
        self._outputs.clear()


class Metrics:
    """Means of what was measured several times."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self._values.items()}


def env_attribute(envs: Any, name: str) -> Any:
    """An attribute of the environments, which are all of one kind."""
    return envs.get_wrapper_attr(name) if isinstance(envs, gym.Env) else envs.get_attr(name)[0]


def _check_tokenizers(environment: Any, language_model: LanguageModel) -> None:
    model = language_model.tokenizer
    if environment != model:
        raise ValueError(
            f"the environments speak {environment}, the model {model}: make the environments with tokenizer={model.name!r}"
        )


@lru_cache(maxsize=4096)
def _encode_phrases(tokenizer: Any, phrases: tuple[str, ...], end_token: bool) -> tuple[Tokens, ...]:
    encoded = [tokenizer.encode_action(phrase) for phrase in phrases]
    return tuple(encoded if end_token else (ids[:-1] for ids in encoded))


def _to_width(units: torch.Tensor, width: int) -> torch.Tensor:
    """Units of one group, which may be narrower than the whole batch."""
    return torch.nn.functional.pad(units, (0, width - units.shape[1])) if units.shape[1] < width else units[:, :width]
