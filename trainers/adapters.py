"""Linear layers with LoRA that compute the same function as PEFT's, faster or more exactly."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import lora
from torch import nn

from trainers.head import float_product


class AdaptedLinear(lora.Linear):
    """A frozen linear layer with one LoRA adapter: W x + s · B A x, x the input and s the scale.

    In float32 the sum W + s · B A is one matrix, so that input and output are passed over once. In half precision both
    products are added in float32 and rounded once: PEFT adds the adapter's to a result that is already rounded, which
    swallows steps smaller than half a unit in the last place of the activation.
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
    """x (W + s · B A)ᵀ + bias; of W and the bias, which are frozen, no gradient."""

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
        both = torch.addmm(weight, up, down, alpha=scale)
        ctx.save_for_backward(x, both, down, up)
        ctx.scale = scale
        return nn.functional.linear(x, both, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, both, down, up = ctx.saved_tensors
        wide = gradient.reshape(-1, gradient.shape[-1])
        flat = x.reshape(-1, x.shape[-1])
        of_x = (wide @ both).view(x.shape) if ctx.needs_input_grad[0] else None
        of_down = ((wide @ up).t() @ flat).mul_(ctx.scale)
        of_up = (wide.t() @ (flat @ down.t())).mul_(ctx.scale)
        return of_x, None, None, of_down, of_up, None


class _FloatProduct(torch.autograd.Function):
    """x Wᵀ with a float32 result, W frozen; the gradient is multiplied in the dtype of x, as a linear layer's is."""

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
    """The weight of a linear layer, of a 4-bit one in ``dtype``."""
    if (state := getattr(layer.weight, "quant_state", None)) is None:
        return layer.weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, state).to(dtype)
