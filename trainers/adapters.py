"""Linear layers with LoRA that compute the same function as PEFT's layers, faster or more precisely."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import lora
from torch import nn

from trainers.head import float_product


class AdaptedLinear(lora.Linear):
    """A frozen linear layer with one LoRA adapter: W x + s · B A x, with input x and scale s.

    In float32, W + s · B A is computed first, so that the layer is one product. In half precision, both products are
    added in float32 and rounded once. PEFT adds the adapter's product to a rounded result, which loses changes that are
    smaller than half a unit in the last place of the activation.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1 or args or kwargs:
            return super().forward(x, *args, **kwargs)
        (adapter,) = self.active_adapters
        down, up, scale = self.lora_A[adapter].weight, self.lora_B[adapter].weight, self.scaling[adapter]
        base = self.base_layer
        if base.weight.dtype == x.dtype == torch.float32:
            return _OneProduct.apply(x, base.weight, base.bias, down, up, scale)
        output = _FloatProduct.apply(x, base)
        if base.bias is not None:
            output = output + base.bias.float()
        return torch.add(output, x.to(down.dtype) @ down.t() @ up.t(), alpha=scale).to(x.dtype)


class _OneProduct(torch.autograd.Function):
    """x (W + s · B A)ᵀ + bias, without gradients to W and the bias, which are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        merged = torch.addmm(weight, up, down, alpha=scale)
        ctx.save_for_backward(x, merged, down, up)
        ctx.scale = scale
        return nn.functional.linear(x, merged, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, merged, down, up = ctx.saved_tensors
        flat_gradient = gradient.reshape(-1, gradient.shape[-1])
        flat_x = x.reshape(-1, x.shape[-1])
        x_gradient = (flat_gradient @ merged).view(x.shape) if ctx.needs_input_grad[0] else None
        down_gradient = ((flat_gradient @ up).t() @ flat_x).mul_(ctx.scale)
        up_gradient = (flat_gradient.t() @ (flat_x @ down.t())).mul_(ctx.scale)
        return x_gradient, None, None, down_gradient, up_gradient, None


class _FloatProduct(torch.autograd.Function):
    """x Wᵀ in float32, with W frozen. The backward pass computes in the dtype of x, like that of a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return float_product(x, _weight(layer, x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return gradient.to(ctx.dtype) @ _weight(ctx.layer, ctx.dtype), None


def _weight(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight of a linear layer; that of a 4-bit layer is dequantised to ``dtype``."""
    if (state := getattr(layer.weight, "quant_state", None)) is None:
        return layer.weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, state).to(dtype)
