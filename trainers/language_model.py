"""Causal language models with a trainable adapter: the embedded one, or any of Hugging Face."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from lang_envs import Tokenizer, load_tokenizer
from trainers.adapters import AdaptedLinear
from trainers.head import edge_logits, vocabulary_statistics
from trainers.prefix_tree import PackedBatch, Query, Tokens, build_tree, pack, split
from trainers.tree_attention import NAME as TREE_ATTENTION
from trainers.tree_attention import packed_inputs

EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(__file__).with_name("embedded_lm")
QUANTIZATIONS = ("4bit", "8bit")

_CHECKPOINTING = {"use_reentrant": False}
_ADJUSTMENTS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of models that do something to logits after the head."""
_ROPE_OF_THE_BATCH = ("dynamic", "longrope")
_EXACT, _EXACT_ROUNDED = 1e-3, 0.05
"""Largest ``packing_error`` of a model that packs: in float32, and in half precision or quantised."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Readings:
    """What is read at the nodes and edges of a packed batch, divided by the temperature; float32 tensors.

    Attributes
    ----------
    edge_logits : tensor (E,)
    log_sum_exp : tensor (N,) or None
        Over the tokenizer's vocabulary, at each node.
    entropy : tensor (N,) or None
        Of the distribution over that vocabulary, in nats.
    """

    edge_logits: torch.Tensor
    log_sum_exp: torch.Tensor | None
    entropy: torch.Tensor | None


class LanguageModel:
    """A frozen causal model with a trainable LoRA adapter, read at the nodes of prefix trees.

    Parameters
    ----------
    model : PeftModel
    tokenizer : Tokenizer
    checkpointing : bool
        Compute activations again in the backward pass instead of keeping them.
    temperature : float
        What logits are divided by before anybody sees them or samples from them.
    tokens_per_forward : int
        At most this many padded tokens go through the model at once, as far as one query allows.

    Attributes
    ----------
    packs : bool
        Whether candidates are scored as trees. False: every candidate is a row of its own behind the whole prompt.
    packing_error : float
        Mean difference of packed from unpacked log-probabilities, divided by what a wrong mask makes of them; NaN where
        packing failed.
    """

    def __init__(
        self,
        model: PeftModel,
        tokenizer: Tokenizer,
        *,
        checkpointing: bool = False,
        temperature: float = 1.0,
        tokens_per_forward: int = 16384,
    ) -> None:
        self.model = model
        self.checkpointing = checkpointing
        self.temperature = temperature
        self.tokens_per_forward = tokens_per_forward
        base = model.get_base_model()
        # A model's own generation settings (a repetition penalty, say) would sample from another distribution than the
        # one that is scored.
        model.generation_config = base.generation_config = GenerationConfig()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_CHECKPOINTING)
        self.tokenizer = tokenizer
        self.device: torch.device = model.device
        self._decoder = base.get_decoder()
        self._adapter_layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
        self._head: nn.Linear | None = None
        self.packs = False
        self.packing_error = math.nan
        self._learn_what_the_model_can_do()

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def trainable_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def groups(self, queries: Sequence[Query]) -> Iterator[tuple[list[int], PackedBatch]]:
        """Packed batches of queries that cost at most ``tokens_per_forward``, each with the queries' indices."""
        for indices in split(queries, self.tokens_per_forward, packed=self.packs):
            yield indices, self.pack([queries[i] for i in indices])

    def pack(self, queries: Sequence[Query]) -> PackedBatch:
        """One batch of some queries; on a GPU with a number of keys that its kernels take without a copy."""
        return pack(queries, self.tokenizer.pad_id, multiple=1 if self.device.type == "cpu" else 8)

    def read(self, batch: PackedBatch, *, vocabulary: bool, entropy: bool = False) -> Readings:
        """Score the edges of a batch, adapter on, with gradients to the adapter.

        Parameters
        ----------
        vocabulary : bool
            Whether the log-sum-exp over the whole vocabulary is needed, too.
        entropy : bool
            Whether its entropy is needed; only with ``vocabulary``.
        """
        nodes = torch.from_numpy(batch.edge_nodes).to(self.device)
        tokens = torch.from_numpy(batch.edge_tokens).to(self.device)
        if self._head is None:
            logits = self.logits(batch).float() / self.temperature
            total = logits.logsumexp(-1) if vocabulary else None
            spread = None
            if entropy and total is not None:
                log_probs = logits - total[:, None]
                spread = -(log_probs.exp() * log_probs).sum(-1)
            return Readings(logits[nodes, tokens], total, spread)
        hidden = self.hidden(batch)
        edges = edge_logits(self._head, hidden, nodes, tokens)
        edges = edges if self.temperature == 1 else edges / self.temperature
        if not vocabulary:
            return Readings(edges, None, None)
        size = self.tokenizer.vocab_size
        return Readings(edges, *vocabulary_statistics(self._head, hidden, size, self.temperature, with_entropy=entropy))

    def hidden(self, batch: PackedBatch) -> torch.Tensor:
        """Last hidden states at every node of a batch: tensor (N, hidden) of the model's dtype."""
        if self._packs(batch):
            inputs = packed_inputs(batch, self.device, self.model.dtype)
            output = self._decoder(**inputs, use_cache=False).last_hidden_state[0]
            return output[torch.from_numpy(batch.columns).to(self.device)]
        return self._at_nodes(batch, lambda **inputs: self._decoder(**inputs, use_cache=False).last_hidden_state)

    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """Next-token logits at every node of a batch as the model makes them: tensor (N, vocabulary).

        The vocabulary is the tokenizer's; what a model has beyond it stands for nothing.
        """
        if self._packs(batch):
            columns = torch.from_numpy(batch.columns).to(self.device)
            inputs = packed_inputs(batch, self.device, self.model.dtype)
            logits = self.model.get_base_model()(**inputs, use_cache=False, logits_to_keep=columns).logits[0]
        else:
            causal = self.model.get_base_model()
            logits = self._at_nodes(batch, lambda **inputs: causal(**inputs, use_cache=False).logits)
        return logits[:, : self.tokenizer.vocab_size]

    @torch.no_grad()
    def features(self, queries: Sequence[Query]) -> list[torch.Tensor]:
        """Last hidden states of the frozen base model at the nodes of each query: tensors (M, hidden)."""
        found: dict[int, torch.Tensor] = {}
        with self._without_adapter():
            for indices, batch in self.groups(queries):
                parts = self.hidden(batch).split(np.diff(batch.starts).tolist())
                found.update(zip(indices, parts, strict=True))
        return [found[index] for index in range(len(queries))]

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        """What ``PeftModel.disable_adapter`` does, without its look at every module of the model each time."""
        enabled = [layer for layer in self._adapter_layers if not layer.disable_adapters]
        for layer in enabled:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in enabled:
                layer.enable_adapters(True)

    def _packs(self, batch: PackedBatch) -> bool:
        """Whether a batch can be packed: tree attention knows nothing of a model's sliding window."""
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
        return self.packs and (window is None or int(batch.position_ids.max()) < window)

    def _at_nodes(self, batch: PackedBatch, forward: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The unpacked way, which is the reference: a row of prompt + candidate for each candidate.

        Rows go through the model in chunks of ``tokens_per_forward``. Of several chunks the activations are computed
        again in the backward pass, so that memory is that of one.
        """
        rows = [(b, k) for b, (_, tree) in enumerate(batch.queries) for k in range(len(tree.candidates))]
        width = max(len(prompt) + tree.mask.shape[1] for prompt, tree in batch.queries)
        per_chunk = max(1, self.tokens_per_forward // width)
        source, outputs, count = np.zeros(len(batch.columns), dtype=np.int64), [], 0
        for start in range(0, len(rows), per_chunk):
            chunk = rows[start : start + per_chunk]
            input_ids = np.full((len(chunk), width), self.tokenizer.pad_id)
            attention = np.zeros(input_ids.shape, dtype=np.int64)
            columns: list[int] = []
            for row, (b, k) in enumerate(chunk):
                prompt, tree = batch.queries[b]
                sequence = (*prompt, *tree.candidates[k])
                input_ids[row, : len(sequence)] = sequence
                attention[row, : len(sequence)] = 1
                nodes = tree.path_nodes[k, : len(tree.candidates[k])]
                source[batch.starts[b] + nodes] = count + len(columns) + np.arange(len(nodes))
                columns += range(row * width + len(prompt) - 1, row * width + len(sequence) - 1)
            count += len(columns)
            where = torch.tensor(columns, device=self.device)
            inputs = {
                "input_ids": torch.from_numpy(input_ids).to(self.device),
                "attention_mask": torch.from_numpy(attention).to(self.device),
            }

            def compute(inputs: dict[str, torch.Tensor] = inputs, where: torch.Tensor = where) -> torch.Tensor:
                return forward(**inputs).flatten(0, 1)[where]

            again = torch.is_grad_enabled() and len(rows) > per_chunk
            outputs.append(checkpoint(compute, use_reentrant=False) if again else compute())
        return torch.cat(outputs)[torch.from_numpy(source).to(self.device)]

    @torch.no_grad()
    def _learn_what_the_model_can_do(self) -> None:
        """Ask the model a small query in every way, and take the fast ways that give its own answer.

        A tree is exact if it differs from the unpacked way by little of what a wrong mask (each token sees all that
        precede it) makes of the answer. That ratio needs no number that fits all models: in bfloat16 the unpacked way
        itself is exact to some 0.1 in a log-probability only, where logits are large.
        """
        ids = tuple(i % self.tokenizer.vocab_size for i in range(7, 47))
        a, b, c, d, *_ = ids
        tree = build_tree(((a, b, c, d, a), (a, b, d, c, b), (a, c, b, d), (c, d, a, b), (d, a)))
        batch = self.pack([Query(ids[16:34], tree), Query(ids[20:29], tree)])
        unpacked = self.logits(batch).float()
        self._head = self._plain_head(batch, unpacked)

        def error(other: PackedBatch) -> float:
            return float((self.logits(other).float().log_softmax(-1) - unpacked.log_softmax(-1)).abs().mean())

        implementation = self.model.config._attn_implementation
        self.packs = True
        try:
            self.model.get_base_model().set_attn_implementation(TREE_ATTENTION)
            _, depth, keys = batch.visible.shape
            wrong = replace(batch, visible=batch.visible | np.tri(depth, keys, batch.width, dtype=bool))
            self.packing_error = error(batch) / error(wrong)
        except torch.OutOfMemoryError:
            raise  # says nothing of trees
        except (TypeError, ValueError, RuntimeError, NotImplementedError, ZeroDivisionError) as reason:
            logger.info("packing failed: %s", reason)
        rounded = self.model.dtype != torch.float32 or getattr(self.model.get_base_model(), "is_quantized", False)
        exact = _EXACT_ROUNDED if rounded else _EXACT
        self.packs = self.packing_error < exact
        if not self.packs:
            self.model.get_base_model().set_attn_implementation(implementation)
            logger.warning(
                "%s does not take tree attention (error %.2g, allowed %.2g): every candidate is scored by itself, "
                "which is slower",
                type(self.model.get_base_model()).__name__,
                self.packing_error,
                exact,
            )

    def _plain_head(self, batch: PackedBatch, logits: torch.Tensor) -> nn.Linear | None:
        """The head, if logits are its product with the last hidden states and nothing else."""
        head = self.model.get_base_model().get_output_embeddings()
        config = self.model.config.get_text_config()
        adjusted = any(getattr(config, name, None) not in (None, 1) for name in _ADJUSTMENTS)
        if type(head) is not nn.Linear or not head.weight.is_floating_point() or adjusted:
            return None
        try:
            hidden = self.hidden(batch)
        except (AttributeError, TypeError, ValueError):  # no decoder of its own that gives hidden states
            return None
        own = nn.functional.linear(hidden, head.weight, head.bias)[:, : logits.shape[1]].float()
        return head if (own - logits).abs().mean() < 0.02 * logits.std() else None

    @torch.no_grad()
    def generate(self, prompts: Sequence[Tokens], *, max_tokens: int, greedy: bool) -> list[Tokens]:
        """Continue prompts token by token from the model's own distribution, up to the end token, with a KV cache.

        The ids are what was sampled, the end token included where it came within ``max_tokens``; a padding token ends
        an action, too, for that is how an environment reads it.
        """
        width, pad = max(map(len, prompts)), self.tokenizer.pad_id
        input_ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        attention = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        sampling = {"do_sample": False} if greedy else {"do_sample": True, "temperature": self.temperature, "top_k": 0}
        config = GenerationConfig(
            max_new_tokens=max_tokens,
            **sampling,
            pad_token_id=pad,
            eos_token_id=list(self.tokenizer.stop_ids),
            # A cache that grows is copied for every token, which on a CPU takes longer than the model does.
            cache_implementation="static" if self.device.type == "cpu" else None,
        )
        with self._without_checkpointing():
            output = self.model.generate(
                input_ids=input_ids.to(self.device),
                attention_mask=attention.to(self.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([_OnlyTokenizerIds(self.tokenizer.vocab_size)]),
            )
        return [self._until_end(row) for row in output[:, width:].tolist()]

    def _until_end(self, ids: list[int]) -> Tokens:
        ends = (i for i, token in enumerate(ids) if token in self.tokenizer.stop_ids)
        return tuple(ids[: next(ends, len(ids)) + 1])

    @contextmanager
    def _without_checkpointing(self) -> Iterator[None]:
        """Gradient checkpointing would turn the KV cache off."""
        if self.checkpointing:
            self.model.gradient_checkpointing_disable()
        try:
            yield
        finally:
            if self.checkpointing:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_CHECKPOINTING)


class _OnlyTokenizerIds(LogitsProcessor):
    """Models pad their vocabulary; what the tokenizer cannot say is never sampled."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, self.vocab_size :] = -torch.inf
        return scores


def load_language_model(
    model: Any = EMBEDDED,
    *,
    tokenizer: Any = None,
    device: str = "auto",
    dtype: str = "auto",
    lora_rank: int = 8,
    lora_alpha: int = 16,
    lora_targets: Sequence[str] = ("q_proj", "v_proj"),
    quantize: str | None = None,
    gradient_checkpointing: bool = False,
    temperature: float = 1.0,
    tokens_per_forward: int = 16384,
) -> LanguageModel:
    """Load a causal model, freeze it, and put a fresh LoRA adapter on it. Seed torch before: the adapter is random.

    Parameters
    ----------
    model : str, Path or transformers.PreTrainedModel
        ``"embedded"``, a Hugging Face name, a folder, or a model object.
    tokenizer : optional
        By default the model's own; a model object needs one, unless it knows its name.
    device : str
        ``"auto"`` takes a GPU where there is one.
    dtype : str
        ``"auto"``: bfloat16 on a GPU, float32 on a CPU and for the embedded model.
    lora_targets : sequence of str
        Names of the linear layers that get an adapter, or ``("all-linear",)``.
    quantize : str, optional
        ``"4bit"`` (NF4) or ``"8bit"``, through bitsandbytes.
    temperature : float
        What logits are divided by, in sampling and in scoring alike.
    tokens_per_forward : int
        At most this many padded tokens go through the model at once.

    Raises
    ------
    ValueError
        For an unknown device, dtype or quantisation, or a tokenizer with more entries than the model has.
    """
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize={quantize!r} is not one of {QUANTIZATIONS} or None")
    if quantize == "8bit":
        logger.warning(
            "8-bit scores of a prompt depend on what else is in the batch (bitsandbytes picks outlier columns over all "
            "rows), so ratios are noisy; quantize='4bit' has no such effect"
        )
    place = resolve_device(device)
    if place.type == "cuda":
        # It would compile a plan for every new shape of a batch, of which one run has a hundred.
        torch.backends.cuda.enable_cudnn_sdp(False)
    number_type = _resolve_dtype(dtype, place, model)
    if isinstance(model, str | Path):
        tokens = load_tokenizer(tokenizer if tokenizer is not None else str(model))
        base = _load_base(str(model), place, number_type, quantize)
    else:
        if quantize is not None:
            raise ValueError("quantize= is for models loaded by name; load the object quantised instead")
        tokens = load_tokenizer(tokenizer if tokenizer is not None else model.name_or_path)
        base = model.to(place)
    size = base.get_input_embeddings().num_embeddings
    if tokens.vocab_size > size:
        raise ValueError(f"the tokenizer {tokens.name!r} has {tokens.vocab_size} entries, the model only {size}")
    for module in base.modules():  # the policy that samples is the policy that learns
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    rope = getattr(base.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") in _ROPE_OF_THE_BATCH:
        logger.warning(
            "the positions of this model (rope_type=%r) depend on the longest text in a batch: where texts are longer "
            "than it was first trained on, scores depend on what else is in the batch",
            rope["rope_type"],
        )
    targets: str | list[str] = "all-linear" if tuple(lora_targets) == ("all-linear",) else list(lora_targets)
    adapter = LoraConfig(
        r=lora_rank, lora_alpha=lora_alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    if quantize != "8bit":
        adapter._register_custom_module({nn.Linear: AdaptedLinear})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names that peft still uses in transformers
        adapted = get_peft_model(base, adapter)
    # Without dropout the two modes compute the same, but checkpointing works in training mode alone, and on a CPU
    # bitsandbytes packs 4-bit weights in evaluation mode into a form that gradients do not go through.
    adapted.train(gradient_checkpointing or quantize is not None)
    return LanguageModel(
        adapted,
        tokens,
        checkpointing=gradient_checkpointing,
        temperature=temperature,
        tokens_per_forward=tokens_per_forward,
    )


def resolve_device(device: str) -> torch.device:
    """``"auto"`` as a GPU where there is one, else the CPU; any other name as torch knows it."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r} is not known: use 'auto', 'cpu', 'cuda' or 'cuda:N'") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is asked for, and torch sees no CUDA GPU here")
    return place


def _resolve_dtype(dtype: str, device: torch.device, model: Any) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and model != EMBEDDED else torch.float32
    resolved = getattr(torch, dtype, None)
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is not one of 'auto', 'float32', 'bfloat16', 'float16'")
    return resolved


def _load_base(name: str, device: torch.device, dtype: torch.dtype, quantize: str | None) -> PreTrainedModel:
    options: dict[str, Any] = {"trust_remote_code": False}
    if quantize == "4bit":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
    elif quantize == "8bit":
        options["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
    if quantize is not None:
        options["device_map"] = {"": device}
    if name == EMBEDDED:
        with _no_progress_bar():
            base = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=dtype, **options)
    else:
        base = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
    return base if quantize is not None else base.to(device)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """For what is loaded in no time."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
