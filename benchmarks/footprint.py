"""What a training asks of a GPU, before it is started: an estimate from the model's shape."""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from trainers.agents.settings import Settings

_GIB = 1024**3
_SHAPES = {
    "meta-llama/Llama-2-7b-hf": LlamaConfig(),
    "codellama/CodeLlama-7b-hf": LlamaConfig(vocab_size=32_016),
}
"""Shapes of the paper's models, which need no download."""
_BYTES_OF_BASE = {None: 2.0, "8bit": 1.05, "4bit": 0.57}
_BYTES_OF_ADAPTER = 16  # weight, gradient and two moments, float32
_ACTIVATIONS = 34  # bytes for each token, layer and hidden unit in bfloat16 (Korthikanti et al., arXiv 2205.05198)
_KEPT_INPUTS = 2  # the same with checkpoints: the layers' inputs alone
_LOGITS = 12  # bytes for each entry: bfloat16, float32 of log-probabilities and of their gradient, rounded up


class Footprint(NamedTuple):
    """GiB of GPU memory, by what takes it."""

    base: float
    adapter: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(self)


def footprint(model: str, settings: Settings) -> Footprint:
    """An estimate for a model trained with an adapter in bfloat16.

    Raises
    ------
    ValueError
        If nothing is known of the model: it is no folder and cannot be downloaded.
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
    tokens = settings.tokens_per_forward
    each = _KEPT_INPUTS if settings.gradient_checkpointing else _ACTIVATIONS
    return Footprint(
        base=parameters * _BYTES_OF_BASE[settings.quantize] / _GIB,
        adapter=adapter * _BYTES_OF_ADAPTER / _GIB,
        activations=tokens * text.num_hidden_layers * text.hidden_size * each / _GIB,
        logits=tokens * text.vocab_size * _LOGITS / _GIB,
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
