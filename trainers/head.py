"""The language-model head at the nodes of trees, without storing logits of the whole vocabulary.

Scores need one logit for each edge, which is the product of one row of the head's weights with a hidden state. If every
token of the vocabulary is a choice, they also need a log-sum-exp for each node. It is computed together with its
gradient in chunks of nodes, so that memory does not grow with nodes × vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CHUNK, CHUNK_ON_GPU = 1 << 22, 1 << 25
"""Logits in memory at a time: 16 MiB of float32 on a CPU, 128 MiB on a GPU, where small products are slow."""


def edge_logits(head: nn.Linear, hidden: torch.Tensor, nodes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of E edges, computed in float32 for any dtype of the model: float32 tensor (E,).

    Parameters
    ----------
    hidden : tensor (N, hidden)
        Last hidden states at the nodes.
    nodes, tokens : int64 tensor (E,)
        The node that each edge leaves, and its token.
    """
    logits = (hidden[nodes].float() * head.weight[tokens].float()).sum(-1)
    return logits if head.bias is None else logits + head.bias[tokens].float()


def vocabulary_statistics(
    head: nn.Linear, hidden: torch.Tensor, vocabulary: int, temperature: float, *, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-sum-exp of logits / temperature, and the entropy of their softmax, over ``vocabulary`` tokens.

    Both have gradients to ``hidden``, a tensor (N, hidden), but not to the head, which is frozen.

    Returns
    -------
    log_sum_exp : float32 tensor (N,)
    entropy : float32 tensor (N,) or None
        In nats; None unless ``with_entropy``.
    """
    bias = None if head.bias is None else head.bias[:vocabulary]
    log_sum_exp, entropy = _Statistics.apply(hidden, head.weight[:vocabulary], bias, temperature, with_entropy)
    return log_sum_exp, entropy if with_entropy else None


def float_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``x @ weight.T`` in float32: (…, in) and (out, in) to (…, out).

    In half precision, a GPU accumulates in float32 and rounds the sum. Here the sum is not rounded.
    """
    if x.dtype == weight.dtype == torch.float32:
        return x @ weight.t()
    if x.is_cuda and _MM_GIVES_FLOAT32:
        flat = torch.mm(x.reshape(-1, x.shape[-1]), weight.t(), out_dtype=torch.float32)
        return flat.view(*x.shape[:-1], -1)
    return x.float() @ weight.float().t()


_MM_GIVES_FLOAT32 = hasattr(torch.ops.aten.mm, "dtype")  # torch 2.8 and newer


class _Statistics(torch.autograd.Function):
    """The forward pass computes the gradients chunk by chunk; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        temperature: float,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sums, entropies, slopes, entropy_slopes = [], [], [], []
        needs_gradient = ctx.needs_input_grad[0]
        chunk = CHUNK if hidden.device.type == "cpu" else CHUNK_ON_GPU
        for part in hidden.split(max(1, chunk // len(weight))):
            logits = float_product(part, weight)
            if bias is not None:
                logits = logits + bias.float()
            logits = logits.div_(temperature) if temperature != 1 else logits
            log_sum_exp = logits.logsumexp(-1, keepdim=True)
            sums.append(log_sum_exp[:, 0])
            if not (needs_gradient or entropy):
                continue
            log_probs = logits.sub_(log_sum_exp)
            probs = log_probs.exp()
            if needs_gradient:
                slopes.append(probs.to(weight.dtype) @ weight)
            if entropy:
                log_probs *= probs  # never 0 · −inf, because logits are finite
                h = -log_probs.sum(-1, keepdim=True)
                entropies.append(h[:, 0])
                if needs_gradient:  # dH/dz = −p (log p + H)
                    entropy_slopes.append((log_probs.addcmul_(probs, h).neg_()).to(weight.dtype) @ weight)
        ctx.temperature = temperature
        ctx.save_for_backward(*(torch.cat(each) for each in (slopes, entropy_slopes) if each))
        log_sum_exps = torch.cat(sums)
        return log_sum_exps, torch.cat(entropies) if entropy else torch.zeros_like(log_sum_exps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [
            gradient[:, None].to(slope.dtype) * slope
            for gradient, slope in zip(gradients, ctx.saved_tensors, strict=False)
        ]
        return sum(scaled[1:], scaled[0]) / ctx.temperature, None, None, None, None
