"""Causal language models with a trainable adapter: the embedded one, or any of Hugging Face."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
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
from trainers.prefix_tree import PackedBatch, Tokens, build_tree, pack

EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(__file__).with_name("embedded_lm")
QUANTIZATIONS = ("4bit", "8bit")

_CHECKPOINTING = {"use_reentrant": False}
_NARROW = 128
"""Up to this width (where it was measured) one product with all of a layer's weights beats two with thin ones."""

logger = logging.getLogger(__name__)


class NarrowLinear(lora.Linear):
    """A linear layer of a small model with LoRA: x (W + s·B·A)ᵀ in one product, where PEFT's own takes three.

    For float32 alone, in which the sum loses nothing.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1 or args or kwargs:
            return super().forward(x, *args, **kwargs)
        (adapter,) = self.active_adapters
        down, up = self.lora_A[adapter].weight, self.lora_B[adapter].weight
        weight = torch.addmm(self.base_layer.weight, up, down, alpha=self.scaling[adapter])
        return nn.functional.linear(x, weight, self.base_layer.bias)


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
    """

    def __init__(
        self, model: PeftModel, tokenizer: Tokenizer, *, checkpointing: bool = False, temperature: float = 1.0
    ) -> None:
        self.model = model
        self.checkpointing = checkpointing
        self.temperature = temperature
        # A model's own generation settings (a repetition penalty, say) would sample from another distribution than the
        # one that is scored.
        model.generation_config = model.get_base_model().generation_config = GenerationConfig()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_CHECKPOINTING)
        self.tokenizer = tokenizer
        self.device: torch.device = model.device
        self._adapter_layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
        self.packs = False
        self.packs = self._packing_is_exact()
        if not self.packs:
            logger.warning(
                "%s does not take tree attention masks: every candidate is scored by itself, which is slower",
                type(model.get_base_model()).__name__,
            )

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def trainable_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """Next-token logits at every node of every question's tree, adapter on: float tensor (B, M, vocabulary).

        The vocabulary is the tokenizer's; what a model has beyond it stands for nothing.
        """
        if self._packs(batch):
            columns = torch.arange(batch.root, batch.input_ids.shape[1], device=self.device)
            logits = self.model(**self._packed_inputs(batch), use_cache=False, logits_to_keep=columns).logits
        else:
            logits = self._at_nodes(batch, lambda **inputs: self.model(**inputs, use_cache=False).logits)
        logits = logits[..., : self.tokenizer.vocab_size]
        return logits if self.temperature == 1 else logits / self.temperature

    @torch.no_grad()
    def features(self, batch: PackedBatch) -> torch.Tensor:
        """Last hidden states of the frozen base model at every node: float32 tensor (B, M, hidden)."""
        decoder = self.model.get_base_model().get_decoder()
        with self._without_adapter():
            if not self._packs(batch):
                outputs = self._at_nodes(batch, lambda **i: decoder(**i, use_cache=False).last_hidden_state)
                return outputs.float()
            hidden = decoder(**self._packed_inputs(batch), use_cache=False).last_hidden_state
        return hidden[:, batch.root :].float()

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
        """Whether a batch can be packed: a mask of ours knows nothing of a model's sliding window."""
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
        return self.packs and (window is None or batch.input_ids.shape[1] <= window)

    def _packed_inputs(self, batch: PackedBatch) -> dict[str, torch.Tensor]:
        dtype = self.model.dtype
        attention = torch.from_numpy(batch.attention).to(self.device)
        mask = torch.zeros(attention.shape, dtype=dtype, device=self.device)
        mask.masked_fill_(~attention, torch.finfo(dtype).min)
        return {
            "input_ids": torch.from_numpy(batch.input_ids).to(self.device),
            "position_ids": torch.from_numpy(batch.position_ids).to(self.device),
            "attention_mask": mask[:, None],
        }

    def _at_nodes(self, batch: PackedBatch, forward: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The naive way, which is the reference: a row of prompt + candidate for each candidate, outputs everywhere."""
        questions = batch.questions
        rows = [(b, prompt, candidate) for b, (prompt, tree) in enumerate(questions) for candidate in tree.candidates]
        width = max(len(prompt) + len(candidate) for _, prompt, candidate in rows)
        input_ids = torch.full((len(rows), width), self.tokenizer.pad_id)
        attention = torch.zeros(input_ids.shape, dtype=torch.long)
        for row, (_, prompt, candidate) in enumerate(rows):
            sequence = (*prompt, *candidate)
            input_ids[row, : len(sequence)] = torch.tensor(sequence)
            attention[row, : len(sequence)] = 1
        outputs = forward(input_ids=input_ids.to(self.device), attention_mask=attention.to(self.device))

        source_rows = np.zeros((len(questions), batch.input_ids.shape[1] - batch.root), dtype=np.int64)
        source_columns = np.zeros_like(source_rows)
        row = 0
        for b, (prompt, tree) in enumerate(questions):
            for k, candidate in enumerate(tree.candidates):
                nodes = tree.path_nodes[k, : len(candidate)]
                source_rows[b, nodes] = row
                source_columns[b, nodes] = len(prompt) - 1 + np.arange(len(candidate))
                row += 1
        return outputs[torch.from_numpy(source_rows), torch.from_numpy(source_columns)]

    @torch.no_grad()
    def _packing_is_exact(self) -> bool:
        """Whether this model, asked a small question, gives the packed answer that it gives to the naive way."""
        ids = [i % self.tokenizer.vocab_size for i in range(7, 27)]
        tree = build_tree(((ids[0], ids[1], ids[2]), (ids[0], ids[3], ids[4]), (ids[5], ids[6])))
        batch = pack([(tuple(ids[8:18]), tree), (tuple(ids[9:14]), tree)], self.tokenizer.pad_id)
        naive = self.logits(batch).float().log_softmax(-1)
        self.packs = True
        try:
            packed = self.logits(batch).float().log_softmax(-1)
        except torch.OutOfMemoryError:
            raise  # says nothing of masks
        except (TypeError, ValueError, RuntimeError) as error:
            logger.info("packing failed: %s", error)
            return False
        finally:
            self.packs = False
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.1
        return bool((packed - naive).abs().max() < tolerance)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Tokens], *, max_tokens: int, greedy: bool) -> list[Tokens]:
        """Continue prompts token by token from the model's own distribution, up to the end token, with a KV cache.

        The ids are what was sampled, the end token included where it came within ``max_tokens``; a padding token ends
        an action, too, for that is how a world reads it.
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

    Raises
    ------
    ValueError
        For an unknown device, dtype or quantisation, or a tokenizer with more entries than the model has.
    """
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize={quantize!r} is not one of {QUANTIZATIONS} or None")
    place = resolve_device(device)
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
    for module in base.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the policy that samples is the policy that learns
    targets: str | list[str] = "all-linear" if tuple(lora_targets) == ("all-linear",) else list(lora_targets)
    adapter = LoraConfig(
        r=lora_rank, lora_alpha=lora_alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    narrow = base.config.get_text_config().hidden_size <= _NARROW
    if narrow and quantize is None and base.dtype == torch.float32:
        adapter._register_custom_module({nn.Linear: NarrowLinear})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names that peft still uses in transformers
        adapted = get_peft_model(base, adapter)
    # Without dropout the two modes compute the same, but checkpointing works in training mode alone, and on a CPU
    # bitsandbytes packs 4-bit weights in evaluation mode into a form that gradients do not go through.
    adapted.train(gradient_checkpointing or quantize is not None)
    return LanguageModel(adapted, tokens, checkpointing=gradient_checkpointing, temperature=temperature)


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
    options: dict[str, Any] = {}
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
