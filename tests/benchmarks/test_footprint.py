"""The estimate of GPU memory, beside the bytes that torch keeps for the backward pass on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.throughput.footprint import footprint
from lang_envs import load_tokenizer
from trainers.agents.ppo import PPOSettings as Settings
from trainers.language_model import load_language_model

TOKENS = 32
WIDTHS = {"hidden_size": 1024, "intermediate_size": 2752, "num_attention_heads": 8}
"""A quarter of Llama 2's, of the same proportions; with the whole widths the figures are the same."""


def kept_by_a_layer(config: LlamaConfig, targets: tuple[str, ...]) -> int:
    """Bytes that one layer with adapters keeps in bfloat16, its weights not counted."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(config).to(torch.bfloat16)
    language_model = load_language_model(base, tokenizer=load_tokenizer("embedded"), device="cpu", lora_targets=targets)
    base.enable_input_require_grads()  # as in a layer that is not the first
    weights = {weight.untyped_storage().data_ptr() for weight in base.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    decoder = base.get_decoder()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    decoder.layers[0].register_forward_pre_hook(lambda *_: hooks.__enter__())
    decoder.layers[0].register_forward_hook(lambda *_: hooks.__exit__(None, None, None))
    decoder(input_ids=torch.arange(TOKENS)[None] + 7, use_cache=False)
    assert language_model.model.dtype == torch.bfloat16
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("all-linear",), ("down_proj",)])
def test_activations_are_estimated_within_a_twentieth(targets: tuple[str, ...], tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=load_tokenizer("embedded").vocab_size, num_hidden_layers=1, **WIDTHS)
    config.save_pretrained(tmp_path)
    estimate = footprint(str(tmp_path), Settings(lora_targets=targets), minibatch_tokens=TOKENS)
    measured = kept_by_a_layer(config, targets)
    assert estimate.activations * 1024**3 == pytest.approx(measured, rel=0.05)


def test_a_small_minibatch_needs_less_than_the_most_that_goes_through_the_model() -> None:
    name = "meta-llama/Llama-2-7b-hf"
    whole, small = footprint(name, Settings()), footprint(name, Settings(), minibatch_tokens=1_500)
    assert whole == footprint(name, Settings(), minibatch_tokens=10**6)
    assert small.activations == pytest.approx(whole.activations * 1_500 / Settings().tokens_per_forward)
    assert 7 < small.activations < 9
    assert small.logits == whole.logits < 0.5, "logits are made in chunks"
