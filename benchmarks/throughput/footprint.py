"""Estimate the GPU memory of training from the model's shape."""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from trainers.head import CHUNK_ON_GPU
from trainers.settings import LanguageAgentSettings

_GIB = 1024**3
_SHAPES = {
    "meta-llama/Llama-2-7b-hf": LlamaConfig(),
    "codellama/CodeLlama-7b-hf": LlamaConfig(vocab_size=32_016),
}
"""Shapes of the paper's models, without a download."""
_BYTES_OF_BASE = {None: 2.0, "8bit": 1.05, "4bit": 0.57}
_BYTES_OF_ADAPTER = 16  # weight, gradient and two moments, float32
_HIDDEN = 16
"""Bytes kept for the backward pass of a Llama layer for each token and hidden unit: the inputs of two norms in float32;
queries, keys, values and what attention returns in bfloat16."""
_INTERMEDIATE = 6
"""The same for each unit of the feed-forward part: three tensors in bfloat16."""
_ADAPTED_INPUT = 4
"""The same for each input of a layer with an adapter: a float32 copy, since PEFT keeps LoRA in float32."""
_KEPT_INPUT = 2
"""With gradient checkpoints, bytes for each token, layer and hidden unit: the layers' inputs in bfloat16."""
_LOGITS = 12
"""Bytes for each logit of a chunk (``trainers.head``): float32 log-probabilities, probabilities, and one temporary."""


class Footprint(NamedTuple):
    """GPU memory in GiB, by purpose."""

    base: float
    adapter: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(self)


def footprint(model: str, settings: LanguageAgentSettings, *, minibatch_tokens: int | None = None) -> Footprint:
    """Estimate the memory of training an adapter in bfloat16.

    Parameters
    ----------
    model : str
    settings : LanguageAgentSettings
    minibatch_tokens : int, optional
        Tokens of a minibatch's distinct queries, packed; by default the maximum of one forward pass.

    Raises
    ------
    ValueError
        If the model is no folder and cannot be downloaded.
    """
    config = _shape(model)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    parameters = sum(weight.numel() for weight in network.parameters())
    targets = settings.lora_targets
    layers = [
        module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear)
        and ((targets == ("all-linear",) and not name.endswith("lm_head")) or name.rpartition(".")[2] in targets)
    ]
    adapter = sum(settings.lora_rank * (layer.in_features + layer.out_features) for layer in layers)
    text = config.get_text_config()
    depth = text.num_hidden_layers
    kept = depth * text.hidden_size * _HIDDEN + sum(layer.in_features for layer in layers) * _ADAPTED_INPUT
    kept += depth * getattr(text, "intermediate_size", 4 * text.hidden_size) * _INTERMEDIATE
    if settings.gradient_checkpointing:  # one layer at a time is computed again
        kept = depth * text.hidden_size * _KEPT_INPUT + kept // depth
    tokens = min(settings.tokens_per_forward, minibatch_tokens or settings.tokens_per_forward)
    return Footprint(
        base=parameters * _BYTES_OF_BASE[settings.quantize] / _GIB,
        adapter=adapter * _BYTES_OF_ADAPTER / _GIB,
        activations=tokens * kept / _GIB,
        logits=min(tokens * text.vocab_size, CHUNK_ON_GPU) * _LOGITS / _GIB,
    )


def _shape(model: str) -> PretrainedConfig:
    if model in _SHAPES:
        return _SHAPES[model]
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the shape of {model!r} is not known: it is no folder and no model of the hub: {error}"
        ) from error
