"""AdaptedLinear: comparison with PEFT's layers, and precision for small changes of the adapter in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.tuners import lora
from torch import nn

from trainers.adapters import AdaptedLinear
from trainers.language_model import load_language_model

STEP = 5e-7
"""The paper's learning rate: the size of Adam's first step."""


def adapted(layer: nn.Module) -> Any:
    torch.manual_seed(1)
    return AdaptedLinear(layer, "default", LoraConfig(r=8, lora_alpha=16), r=8, lora_alpha=16)


def effective_gain(kind: Any, layer: Any, steps: int) -> float:
    """Return the measured change of the output after a change of the adapter, as a fraction of the exact change.

    It is the projection of the measured change on the exact one: 1 if nothing is lost.
    """
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    x = torch.randn(256, layer.in_features, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    with torch.no_grad():
        up.zero_()
        before = kind.forward(layer, x).float()
        up.copy_(torch.randn(up.shape, generator=torch.Generator().manual_seed(3)).sign() * STEP * steps)
        change = kind.forward(layer, x).float() - before
        exact = x.float() @ down.float().t() @ up.float().t() * layer.scaling["default"]
    return float((change * exact).sum() / exact.square().sum())


@pytest.mark.parametrize("steps", [1, 100])
def test_small_change_of_the_adapter_changes_bfloat16_outputs(steps: int) -> None:
    torch.manual_seed(0)
    layer = adapted(nn.Linear(1024, 1024, bias=False).to(torch.bfloat16)).float()
    layer.base_layer.to(torch.bfloat16)
    assert effective_gain(lora.Linear, layer, steps) < 0.5, "PEFT adds to a rounded result, so the change is lost"
    assert effective_gain(AdaptedLinear, layer, steps) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_equal_those_of_the_explicit_sum(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    layer = adapted(nn.Linear(32, 48, bias=bias).to(dtype))
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    for parameter in (down, up):
        parameter.data = torch.randn(parameter.shape)
    x = torch.randn(3, 5, 32).to(dtype).requires_grad_()
    base = layer.base_layer
    exact = x.float() @ base.weight.float().t() + 2 * (x.float() @ down.t() @ up.t())
    exact = exact + base.bias.float() if bias else exact
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(layer(x).float(), exact, atol=tolerance * 10, rtol=tolerance)
    weights = torch.randn(exact.shape)
    ours = torch.autograd.grad((layer(x).float() * weights).sum(), [x, down, up])
    theirs = torch.autograd.grad((exact * weights).sum(), [x, down, up])
    for own, other in zip(ours, theirs, strict=True):
        assert (own - other).norm() < tolerance * other.norm()


def test_4bit_layer_equals_pefts_layer() -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = load_language_model("embedded", quantize="4bit", device="cpu", dtype="float32")
    layers = [layer for layer in model.model.modules() if isinstance(layer, AdaptedLinear)]
    assert layers
    for layer in layers:
        nn.init.normal_(layer.lora_B["default"].weight)
        x = torch.randn(3, layer.in_features)
        torch.testing.assert_close(layer(x), lora.Linear.forward(layer, x), atol=1e-4, rtol=1e-4)
