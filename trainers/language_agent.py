"""A language model as an agent: prompts, candidates, actions, saving and restoring. It knows no algorithm."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from trainers.agent import Action, Rollout
from trainers.agent_state import load_optimizer, load_state, load_tensors, save_state
from trainers.features import FeatureStore
from trainers.language_model import load_language_model, resolve_device
from trainers.policy import LanguagePolicy, PolicyOutput
from trainers.prefix_tree import Query, Tokens, along, build_tree
from trainers.random_stream import RandomStream
from trainers.rollout import env_attribute, token_space
from trainers.settings import LanguageAgentSettings, resolve

ADAPTER_FOLDER = "adapter"
_OUTPUTS_KEPT = 1024
_RATIO_TOLERANCE = 1e-2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActionRecord:
    """What a language agent keeps of an action: its query, the index of the chosen candidate, the policy output."""

    query: Query
    choice: int
    output: PolicyOutput

    @property
    def tokens(self) -> Tokens:
        """The tokens of the action."""
        return self.query.tree.candidates[self.choice]

    def log_probs(self, level: str) -> np.ndarray:
        """Return the log-probabilities that the action had: of each token, or with level ``"action"`` of it; (U,)."""
        if level == "action":
            return self.output.action_log_probs[[self.choice]]
        return self.output.token_log_probs[self.choice, : len(self.tokens)]


class ActionScores(NamedTuple):
    """Scores of b actions under the present policy, with gradients to the adapter.

    Attributes
    ----------
    rows : int64 tensor (b,)
        The actions, as indices into the sequence that was scored.
    token_log_probs, token_entropies : float32 tensor (b, L)
        Of each token of the action, 0 at padding. L is the length of the longest candidate that was scored with these
        actions; it may be larger or smaller than the number of credit steps U of a batch. Entropies are 0 unless they
        were requested.
    action_log_probs, action_entropies : float32 tensor (b,)
        Of the whole action under the sampling distribution, and of that distribution, in nats.
    """

    rows: torch.Tensor
    token_log_probs: torch.Tensor
    token_entropies: torch.Tensor
    action_log_probs: torch.Tensor
    action_entropies: torch.Tensor


class LanguageAgent:
    """A language model that acts. Subclasses add :meth:`learn`, and their own state to :meth:`state`.

    Parameters
    ----------
    envs : gymnasium.vector.VectorEnv or gymnasium.Env
        The environments in which it acts; they determine the tokenizer, the action space and the discount.
    model : str, Path or transformers.PreTrainedModel
        ``"embedded"``, a Hugging Face name, a folder, or a model object.
    tokenizer : optional
        The model's tokenizer, if the model's folder does not contain it. For a model object the default is the
        environments' tokenizer.
    **settings
        Fields of ``settings_type``.

    Attributes
    ----------
    gamma : float
        Discount of one unit of environment time.
    features : FeatureStore
        Features of the frozen base model, kept for the whole run.
    random : numpy.random.Generator
        Samples actions and minibatches.
    random_stream : RandomStream
        Initialises weights and samples free text.
    steps_learnt : int
        Environment steps in all updates so far.
    saved : dict
        Networks and optimisers of the algorithm, by name, which :meth:`save` writes.

    Raises
    ------
    ValueError
        If the environments use another tokenizer than the model, or a setting is unknown or out of range.
    """

    settings_type: ClassVar[type[LanguageAgentSettings]] = LanguageAgentSettings

    def __init__(self, envs: Any, model: Any = "embedded", tokenizer: Any = None, **settings: Any) -> None:
        self.settings = own = self.settings_for(envs, model, settings)
        self.gamma: float = own.gamma
        space = token_space(getattr(envs, "single_action_space", envs.action_space))
        self.env_tokenizer = space.tokenizer
        self.max_action_tokens = min(own.max_action_tokens or space.max_length, space.max_length)
        if tokenizer is None and not isinstance(model, str | Path):
            tokenizer = self.env_tokenizer
        self.random = np.random.default_rng(own.seed)
        self.random_stream = RandomStream(own.seed, resolve_device(own.device))
        with self.random_stream.active():
            self.language_model = load_language_model(
                model,
                tokenizer=tokenizer,
                device=own.device,
                dtype=own.dtype,
                lora_rank=own.lora_rank,
                lora_alpha=own.lora_alpha,
                lora_targets=own.lora_targets,
                quantize=own.quantize,
                gradient_checkpointing=own.gradient_checkpointing,
                temperature=own.temperature,
                tokens_per_forward=own.tokens_per_forward,
            )
        self.tokenizer = self.language_model.tokenizer
        if self.env_tokenizer != self.tokenizer:
            raise ValueError(
                f"the environments use the tokenizer {self.env_tokenizer}, the model uses {self.tokenizer}: "
                f"make the environments with tokenizer={self.tokenizer.name!r}"
            )
        self.language_model.packs &= own.packing
        self.policy = LanguagePolicy(self.language_model, sampling=own.sampling, normalisation=own.normalisation)
        # Free texts do not repeat, so their features are not kept.
        self.features = FeatureStore(
            self.language_model, 0 if own.sampling == "free" else own.feature_cache_mib * 2**20
        )
        self.steps_learnt = 0
        self.saved: dict[str, torch.nn.Module | torch.optim.Optimizer] = {}
        self._outputs: dict[Query, PolicyOutput] = {}

    @classmethod
    def settings_for(cls, envs: Any, model: Any, given: dict[str, Any]) -> Any:
        """Return the settings of an agent in environments: those given, and defaults of the model and environments.

        Raises
        ------
        ValueError
            If a setting is unknown or out of range, or these environments do not allow it.
        """
        has_phrases = bool(env_attribute(envs, "action_names"))
        own = resolve(cls.settings_type, model, ({} if has_phrases else {"sampling": "free"}) | given)
        if own.sampling != "free" and not has_phrases:
            raise ValueError(f"sampling={own.sampling!r} needs environments with phrases; use sampling='free' here")
        return replace(own, gamma=float(env_attribute(envs, "discount"))) if own.gamma is None else own

    # ------------------------------------------------------------------------------------------------------- acting

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        """Return one action for each observation; with ``greedy`` the most probable one.

        Parameters
        ----------
        observations : int64 array (N, L)
            Token ids followed by padding.
        infos : sequence of N dicts
            With ``available_actions``, unless actions are free text.
        """
        queries = self.queries(observations, infos, greedy=greedy)
        actions = []
        for query, output in zip(queries, self.policy_outputs(queries), strict=True):
            choice = self.select(output, greedy=greedy)
            ids = query.tree.candidates[choice]
            phrase = ids[:-1] if ids[-1] in self.tokenizer.stop_ids else ids
            actions.append(Action(self.tokenizer.decode(phrase).strip(), ids, ActionRecord(query, choice, output)))
        return actions

    def select(self, output: PolicyOutput, *, greedy: bool) -> int:
        """Return the index of the candidate to take: sampled from the policy, or the most probable one.

        Sampling a candidate with the product of its token probabilities is the same as sampling token by token along
        the tree.
        """
        log_probs = output.action_log_probs
        if greedy or len(log_probs) == 1:
            return int(log_probs.argmax())
        cumulative = np.exp(log_probs).cumsum()
        return int(np.searchsorted(cumulative, self.random.random() * cumulative[-1], side="right"))

    def queries(
        self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False
    ) -> list[Query]:
        """Return one query for each observation. With free text its only candidate is a text that the model samples."""
        if self.settings.sampling != "free":
            return [self.query(row, info["available_actions"]) for row, info in zip(observations, infos, strict=True)]
        prompts = [self.prompt(row) for row in observations]
        with self.random_stream.active():
            texts = self.language_model.generate(prompts, max_tokens=self.max_action_tokens, greedy=greedy)
        return [Query(prompt, build_tree((ids,))) for prompt, ids in zip(prompts, texts, strict=True)]

    def query(self, observation: np.ndarray, phrases: Sequence[str]) -> Query:
        """Return the query for an observation, an int array of token ids with or without padding, and phrases."""
        encoded = _encode_phrases(self.tokenizer, tuple(phrases), self.settings.end_token)
        return Query(self.prompt(observation), build_tree(encoded))

    def prompt(self, observation: np.ndarray) -> Tokens:
        """Return the token ids of an observation, without padding, in the model's prompt template."""
        padding = np.flatnonzero(observation == self.env_tokenizer.pad_id)
        return self.tokenizer.prompt(observation[: padding[0] if len(padding) else None].tolist())

    def policy_outputs(self, queries: Sequence[Query]) -> list[PolicyOutput]:
        """Return the log-probabilities of each query. Each distinct query is scored once between two updates."""
        if len(self._outputs) > _OUTPUTS_KEPT:
            self._outputs.clear()
        new = [query for query in dict.fromkeys(queries) if query not in self._outputs]
        if new:
            self._outputs.update(zip(new, self.policy.outputs(new), strict=True))
        return [self._outputs[query] for query in queries]

    # ------------------------------------------------------------------------------------------------------ learning

    def discounts(self, rollout: Rollout) -> np.ndarray:
        """Return the discount of each step of a rollout: float64 array (T, N)."""
        return self.gamma ** (rollout.durations if self.settings.discount_by_time else np.ones_like(rollout.durations))

    def score_actions(
        self,
        records: Sequence[ActionRecord],
        *,
        action_log_probs: bool = False,
        action_entropies: bool = False,
        token_entropies: bool = False,
    ) -> Iterator[ActionScores]:
        """Score actions with the present policy, in groups that fit into memory; distinct queries are scored once.

        Parameters
        ----------
        records : sequence of ActionRecord
        action_log_probs, action_entropies, token_entropies : bool
            Which scores the caller uses; log-probabilities of tokens are always correct, other scores that were not
            requested may be wrong. If only the candidates that were taken matter, only these and their siblings are
            scored, which is cheaper.
        """
        longest = max((len(record.tokens) for record in records), default=0)
        token_entropies |= action_entropies and self.settings.sampling == "free"

        def padded(tokens: torch.Tensor) -> torch.Tensor:
            """Return scores of tokens with the width of the longest action; candidates may be longer or shorter."""
            return torch.nn.functional.pad(tokens, (0, longest - tokens.shape[1]))

        members: dict[Query, list[tuple[int, int]]] = {}
        for row, record in enumerate(records):
            members.setdefault(record.query, []).append((row, record.choice))
        if not (action_entropies or (action_log_probs and self.settings.sampling == "candidates")):
            reduced: dict[Query, list[tuple[int, int]]] = {}
            for (prompt, tree), own in members.items():
                taken = tuple(sorted({choice for _, choice in own}))
                reduced[Query(prompt, along(tree, taken))] = [(row, taken.index(choice)) for row, choice in own]
            members = reduced
        for _, packed in self.language_model.groups(list(members)):
            places = [(index, *own) for index, query in enumerate(packed.queries) for own in members[query]]
            index, rows, choices = torch.tensor(places, device=self.language_model.device).unbind(1)
            scores = self.policy.score(packed, with_node_entropies=token_entropies)
            yield ActionScores(
                rows,
                padded(scores.token_log_probs[index, choices]),
                padded(scores.node_entropies[index, choices]),
                scores.action_log_probs[index, choices],
                scores.action_entropy[index],
            )

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout and return metrics. Call :meth:`forget_outputs` before the adapter changes."""
        raise NotImplementedError

    def ratio_error(self, log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> float:
        """Return the largest absolute log ratio before the first step on a rollout: there the policy has not changed.

        Raises
        ------
        RuntimeError
            If it is not small in full precision. In half precision it is only a metric.
        """
        errors = (log_probs - old)[mask].abs()
        worst = errors.max().item() if len(errors) else 0.0
        exact = self.language_model.model.dtype == torch.float32 and self.settings.quantize is None
        if exact and worst > _RATIO_TOLERANCE:
            raise RuntimeError(f"the policy's log-probabilities differ by {worst} from those it acted with")
        return worst

    def forget_outputs(self) -> None:
        """Drop kept policy outputs: the adapter changes."""
        self._outputs.clear()

    # ------------------------------------------------------------------------------------------ saving and restoring

    def state(self) -> dict[str, Any]:
        """Return what learning needs besides the adapter: nested dicts and lists of tensors and plain values."""
        return {
            "random": self.random.bit_generator.state,
            "torch_random": self.random_stream.state,
            "features": self.features.state(),
            "steps_learnt": self.steps_learnt,
            **{name: part.state_dict() for name, part in self.saved.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned; tensors are on the CPU.

        Raises
        ------
        ValueError
            If it belongs to another agent or is damaged.
        """
        if missing := self.state().keys() - state.keys():
            raise ValueError(f"the saved agent has no {', '.join(sorted(missing))}")
        if type(state["steps_learnt"]) is not int:
            raise ValueError(f"the saved steps_learnt is {state['steps_learnt']!r:.40}, expected an integer")
        for name, part in self.saved.items():
            if isinstance(part, torch.optim.Optimizer):
                load_optimizer(part, state[name])
            else:
                part.load_state_dict(state[name])
        self.features.load_state(state["features"])
        self.random.bit_generator.state = state["random"]
        self.random_stream.load_state(state["torch_random"])
        self.steps_learnt = state["steps_learnt"]

    def save(self, folder: Path) -> None:
        """Write the adapter in PEFT's format, and the rest of the agent (see :mod:`trainers.agent_state`)."""
        folder.mkdir(parents=True, exist_ok=True)
        self.language_model.model.save_pretrained(str(folder / ADAPTER_FOLDER), save_embedding_layers=False)
        save_state(folder, {"class": type(self).__qualname__, "settings": asdict(self.settings), "state": self.state()})

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote. Settings that differ from the saved ones are logged as warnings.

        Raises
        ------
        ValueError
            If the folder contains no agent, a damaged one, or one of another class or shape.
        """
        saved = load_state(folder, "class", "settings", "state")
        if not isinstance(saved["settings"], dict) or not isinstance(saved["state"], dict):
            raise ValueError(f"{folder} contains an agent whose settings or state have the wrong type")
        if saved["class"] != type(self).__qualname__:
            raise ValueError(f"{folder} contains a {saved['class']}, expected a {type(self).__qualname__}")
        model, device = self.language_model.model, str(self.language_model.device)
        weights = load_tensors(folder / ADAPTER_FOLDER / "adapter_model.safetensors", device)
        if weights.keys() != get_peft_model_state_dict(model, save_embedding_layers=False).keys():
            raise ValueError(f"{folder / ADAPTER_FOLDER} contains an adapter for other layers")
        set_peft_model_state_dict(model, weights)
        self.load_state(saved["state"])
        for name, value in asdict(self.settings).items():
            if name in saved["settings"] and saved["settings"][name] != value:
                logger.warning("%s is %r; %s was saved with %r", name, value, folder, saved["settings"][name])
        self.forget_outputs()


@lru_cache(maxsize=4096)
def _encode_phrases(tokenizer: Any, phrases: tuple[str, ...], end_token: bool) -> tuple[Tokens, ...]:
    encoded = [tokenizer.encode_action(phrase) for phrase in phrases]
    return tuple(encoded if end_token else (ids[:-1] for ids in encoded))
