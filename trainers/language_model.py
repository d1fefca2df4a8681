"""Causal language models with a trainable LoRA adapter: the embedded model, or any Hugging Face model."""

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
"""Configuration entries of models that change logits after the head."""
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
_MAX_PACKING_ERROR, _MAX_PACKING_ERROR_ROUNDED = 1e-3, 0.05
"""Largest ``packing_error`` of a model that packs: in float32, and in half precision or quantised."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchLogits:
    """Logits of a packed batch, divided by the temperature, and their statistics; float32 tensors.

    Attributes
    ----------
    edge_logits : tensor (E,)
        Logit of each edge's token at the node that the edge leaves.
    log_sum_exp : tensor (N,) or None
        Log-sum-exp over the tokenizer's vocabulary at each node.
    entropy : tensor (N,) or None
        Entropy of the softmax over that vocabulary at each node, in nats.
    """

    edge_logits: torch.Tensor
    log_sum_exp: torch.Tensor | None
    entropy: torch.Tensor | None


class LanguageModel:
    """A frozen causal model with a trainable LoRA adapter, evaluated at the nodes of prefix trees.

    Parameters
    ----------
    model : PeftModel
    tokenizer : Tokenizer
    checkpointing : bool
        Recompute activations in the backward pass instead of keeping them.
    temperature : float
        Divisor of the logits, in sampling and in scoring.
    tokens_per_forward : int
        Largest number of padded tokens in one forward pass. A single query may exceed it.

    Attributes
    ----------
    packs : bool
        True: the candidates of a query are scored as one prefix tree. False: each candidate is a row of its own, after
        the whole prompt.
    packing_error : float
        Mean absolute difference between packed and unpacked log-probabilities, divided by the difference that a wrong
        mask causes. NaN if packing failed.
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
        # A model's own generation settings, such as a repetition penalty, would change the distribution that is
        # sampled, but not the one that is scored.
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
        self._choose_forward_passes()

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return int(self.model.config.get_text_config().hidden_size)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the adapter."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def groups(self, queries: Sequence[Query]) -> Iterator[tuple[list[int], PackedBatch]]:
        """Yield batches of at most ``tokens_per_forward`` tokens, each with the indices of its queries."""
        for indices in split(queries, self.tokens_per_forward, packed=self.packs):
            yield indices, self.pack([queries[i] for i in indices])

    def pack(self, queries: Sequence[Query]) -> PackedBatch:
        """Return one batch of all queries. On a GPU its number of keys is a multiple of 8, to spare kernels a copy."""
        return pack(queries, self.tokenizer.pad_id, multiple=1 if self.device.type == "cpu" else 8)

    def read(self, batch: PackedBatch, *, vocabulary: bool, entropy: bool = False) -> BatchLogits:
        """Return the logits of a batch at its edges, with gradients to the adapter.

        Parameters
        ----------
        vocabulary : bool
            Also return the log-sum-exp over the whole vocabulary.
        entropy : bool
            Also return the entropy over the whole vocabulary; requires ``vocabulary``.
        """
        nodes = torch.from_numpy(batch.edge_nodes).to(self.device)
        tokens = torch.from_numpy(batch.edge_tokens).to(self.device)
        if self._head is None:
            logits = self.logits(batch).float() / self.temperature
            log_sum_exp = logits.logsumexp(-1) if vocabulary else None
            entropies = None
            if entropy and log_sum_exp is not None:
                log_probs = logits - log_sum_exp[:, None]
                entropies = -(log_probs.exp() * log_probs).sum(-1)
            return BatchLogits(logits[nodes, tokens], log_sum_exp, entropies)
        hidden = self.hidden(batch)
        edges = edge_logits(self._head, hidden, nodes, tokens)
        edges = edges if self.temperature == 1 else edges / self.temperature
        if not vocabulary:
            return BatchLogits(edges, None, None)
        size = self.tokenizer.vocab_size
        return BatchLogits(
            edges, *vocabulary_statistics(self._head, hidden, size, self.temperature, with_entropy=entropy)
        )

    def hidden(self, batch: PackedBatch) -> torch.Tensor:
        """Return the last hidden states at every node of a batch: tensor (N, hidden) of the model's dtype."""
        if self._can_pack(batch):
            inputs = packed_inputs(batch, self.device, self.model.dtype)
            output = self._decoder(**inputs, use_cache=False).last_hidden_state[0]
            return output[torch.from_numpy(batch.columns).to(self.device)]
        return self._forward_unpacked(
            batch, lambda **inputs: self._decoder(**inputs, use_cache=False).last_hidden_state
        )

    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """Return the model's next-token logits at every node of a batch, at temperature 1: tensor (N, vocabulary).

        The vocabulary is the tokenizer's. Models pad theirs; the padding is dropped.
        """
        if self._can_pack(batch):
            columns = torch.from_numpy(batch.columns).to(self.device)
            inputs = packed_inputs(batch, self.device, self.model.dtype)
            logits = self.model.get_base_model()(**inputs, use_cache=False, logits_to_keep=columns).logits[0]
        else:
            causal = self.model.get_base_model()
            logits = self._forward_unpacked(batch, lambda **inputs: causal(**inputs, use_cache=False).logits)
        return logits[:, : self.tokenizer.vocab_size]

    @torch.no_grad()
    def features(self, queries: Sequence[Query]) -> list[torch.Tensor]:
        """Return the last hidden states of the frozen base model at the nodes of each query: tensors (M, hidden)."""
        features: dict[int, torch.Tensor] = {}
        with self._without_adapter():
            for indices, batch in self.groups(queries):
                parts = self.hidden(batch).split(np.diff(batch.starts).tolist())
                features.update(zip(indices, parts, strict=True))
        return [features[index] for index in range(len(queries))]

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        """Disable the adapter, like ``PeftModel.disable_adapter``, but without a search through all modules."""
        enabled = [layer for layer in self._adapter_layers if not layer.disable_adapters]
        for layer in enabled:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in enabled:
                layer.enable_adapters(True)

    def _can_pack(self, batch: PackedBatch) -> bool:
        """Return whether the model packs this batch: its texts must fit into the sliding window, if there is one."""
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
        return self.packs and (window is None or int(batch.position_ids.max()) < window)

    def _forward_unpacked(self, batch: PackedBatch, forward: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Return the outputs of ``forward`` at the nodes of a batch, computed without packing: (N, …).

        Each row is a prompt followed by one candidate. This is the reference for packing. Rows go through the model in
        chunks of ``tokens_per_forward``. If there are several chunks, their activations are recomputed in the backward
        pass, so that only one chunk is in memory.
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

            recompute = torch.is_grad_enabled() and len(rows) > per_chunk
            outputs.append(checkpoint(compute, use_reentrant=False) if recompute else compute())
        return torch.cat(outputs)[torch.from_numpy(source).to(self.device)]

    @torch.no_grad()
    def _choose_forward_passes(self) -> None:
        """Use the fast forward passes whose results on two small queries equal those of the unpacked one.

        The error of packing is measured relative to that of a wrong mask, under which each token attends to all tokens
        before it. An absolute limit would not fit all models: in bfloat16, with large logits, the log-probabilities of
        the unpacked forward pass are themselves exact to about 0.1 only.
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
            raise  # too little memory is no evidence against packing
        except (TypeError, ValueError, RuntimeError, NotImplementedError, ZeroDivisionError) as reason:
            logger.info("packing failed: %s", reason)
        rounded = self.model.dtype != torch.float32 or getattr(self.model.get_base_model(), "is_quantized", False)
        limit = _MAX_PACKING_ERROR_ROUNDED if rounded else _MAX_PACKING_ERROR
        self.packs = self.packing_error < limit
        if not self.packs:
            self.model.get_base_model().set_attn_implementation(implementation)
            logger.warning(
                "%s does not support tree attention (packing error %.2g, must be below %.2g): each candidate is scored "
                "in a row of its own, which is slower",
                type(self.model.get_base_model()).__name__,
                self.packing_error,
                limit,
            )

    def _plain_head(self, batch: PackedBatch, logits: torch.Tensor) -> nn.Linear | None:
        """Return the head if the logits are its product with the last hidden states, else None."""
        head = self.model.get_base_model().get_output_embeddings()
        config = self.model.config.get_text_config()
        adjusted = any(getattr(config, name, None) not in (None, 1) for name in _ADJUSTMENTS)
        if type(head) is not nn.Linear or not head.weight.is_floating_point() or adjusted:
            return None
        try:
            hidden = self.hidden(batch)
        except (AttributeError, TypeError, ValueError):  # the model has no decoder that returns hidden states
            return None
        product = nn.functional.linear(hidden, head.weight, head.bias)[:, : logits.shape[1]].float()
        return head if (product - logits).abs().mean() < 0.02 * logits.std() else None

    @torch.no_grad()
    def generate(self, prompts: Sequence[Tokens], *, max_tokens: int, greedy: bool) -> list[Tokens]:
        """Return a continuation of each prompt, sampled token by token from the model.

        With ``greedy`` each token is the most probable one. A continuation ends with the first of the tokenizer's
        ``stop_ids``, or after ``max_tokens`` tokens. Padding is one of the ``stop_ids``, because environments read it
        as the end of an action.
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
            # A growing cache is copied at every token, which on a CPU takes longer than the model itself.
            cache_implementation="static" if self.device.type == "cpu" else None,
        )
        with self._without_checkpointing():
            output = self.model.generate(
                input_ids=input_ids.to(self.device),
                attention_mask=attention.to(self.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([_OnlyTokenizerIds(self.tokenizer.vocab_size)]),
            )
        return [self._through_first_stop(row) for row in output[:, width:].tolist()]

    def _through_first_stop(self, ids: list[int]) -> Tokens:
        stops = (i for i, token in enumerate(ids) if token in self.tokenizer.stop_ids)
        return tuple(ids[: next(stops, len(ids)) + 1])

    @contextmanager
    def _without_checkpointing(self) -> Iterator[None]:
        """Disable gradient checkpointing, which would disable the KV cache."""
        if self.checkpointing:
            self.model.gradient_checkpointing_disable()
        try:
            yield
        finally:
            if self.checkpointing:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_CHECKPOINTING)


class _OnlyTokenizerIds(LogitsProcessor):
    """Exclude the ids by which a model pads its vocabulary: the tokenizer cannot decode them."""

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
    """Load a causal model, freeze it, and add a new LoRA adapter, which is initialised from torch's global generator.

    Parameters
    ----------
    model : str, Path or transformers.PreTrainedModel
        ``"embedded"``, a Hugging Face name, a folder, or a model object.
    tokenizer : optional
        The default is the model's own. A model object without ``name_or_path`` needs one.
    device : str
        ``"auto"``: a GPU if there is one, else the CPU.
    dtype : str
        ``"auto"``: bfloat16 on a GPU, float32 on a CPU and for the embedded model.
    lora_targets : sequence of str
        Names of the linear layers that get an adapter, or ``("all-linear",)``.
    quantize : str, optional
        ``"4bit"`` (NF4) or ``"8bit"``, with bitsandbytes.
    temperature : float
        Divisor of the logits, in sampling and in scoring.
    tokens_per_forward : int
        Largest number of padded tokens in one forward pass. A single query may exceed it.

    Raises
    ------
    ValueError
        If the device, dtype or quantisation is unknown, or the tokenizer has more entries than the model.
    """
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize={quantize!r} must be one of {QUANTIZATIONS} or None")
    if quantize == "8bit":
        logger.warning(
            "with quantize='8bit', scores depend on the other rows of a batch (bitsandbytes selects outlier columns "
            "over all rows), so probability ratios are noisy; quantize='4bit' avoids this"
        )
    torch_device = resolve_device(device)
    if torch_device.type == "cuda":
        # cuDNN attention would compile a plan for each new shape of a batch, and one run has about a hundred shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch_dtype = _resolve_dtype(dtype, torch_device, model)
    if isinstance(model, str | Path):
        own_tokenizer = load_tokenizer(tokenizer if tokenizer is not None else str(model))
        base = _load_base(str(model), torch_device, torch_dtype, quantize)
    else:
        if quantize is not None:
            raise ValueError(
                f"quantize={quantize!r} needs the name or folder of a model, got an object: load it quantised instead"
            )
        own_tokenizer = load_tokenizer(tokenizer if tokenizer is not None else model.name_or_path)
        base = model.to(torch_device)
    size = base.get_input_embeddings().num_embeddings
    if own_tokenizer.vocab_size > size:
        raise ValueError(
            f"the tokenizer {own_tokenizer.name!r} has {own_tokenizer.vocab_size} entries, more than the model's {size}"
        )
    for module in base.modules():  # no dropout: the policy that samples must be the policy that learns
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    rope = getattr(base.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        logger.warning(
            "this model's position encoding (rope_type=%r) depends on the longest text of a batch: if texts are longer "
            "than the model's original context, scores depend on the other texts of the batch",
            rope["rope_type"],
        )
    targets: str | list[str] = "all-linear" if tuple(lora_targets) == ("all-linear",) else list(lora_targets)
    adapter = LoraConfig(
        r=lora_rank, lora_alpha=lora_alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    if quantize != "8bit":
        adapter._register_custom_module({nn.Linear: AdaptedLinear})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses names that transformers will remove
        adapted = get_peft_model(base, adapter)
    # Without dropout, training and evaluation mode compute the same. But checkpointing works in training mode only. And
    # on a CPU in evaluation mode, bitsandbytes stores 4-bit weights in a form that has no gradients.
    adapted.train(gradient_checkpointing or quantize is not None)
    return LanguageModel(
        adapted,
        own_tokenizer,
        checkpointing=gradient_checkpointing,
        temperature=temperature,
        tokens_per_forward=tokens_per_forward,
    )


def resolve_device(device: str) -> torch.device:
    """Return a torch device by its name; ``"auto"`` is a GPU if there is one, else the CPU.

    Raises
    ------
    ValueError
        If torch has no device of this name, or sees no GPU.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device={device!r} is unknown: use 'auto', 'cpu', 'cuda' or 'cuda:N'") from None
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} needs a CUDA GPU, but torch sees none: use 'auto' or 'cpu'")
    return resolved


def _resolve_dtype(dtype: str, device: torch.device, model: Any) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and model != EMBEDDED else torch.float32
    resolved = getattr(torch, dtype, None)
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise ValueError(f"dtype={dtype!r} is unknown: use 'auto', 'float32', 'bfloat16' or 'float16'")
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
    """Hide transformers' progress bar: the embedded model loads in an instant."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
