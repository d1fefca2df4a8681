"""Attention of packed batches: causal in prompts; in trees, each token attends to its prompt and its ancestors.

The cost is linear in the number of candidates. For a long prompt it is about that of causal attention. The mask of a
part of a tree has the size part × (prompt + part).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainers.prefix_tree import PackedBatch

NAME = "prefix_tree"
"""Name under which this attention is registered in transformers."""


@dataclass(frozen=True)
class TreeLayout:
    """Positions of prompts and trees in the sequence of a packed batch (see ``prefix_tree.PackedBatch``).

    Attributes
    ----------
    prompts, width : int
        The first ``prompts · width`` tokens are prompts, the others parts of trees.
    owners : int64 tensor (R,) or None
        Index of the prompt of each part; None if part r belongs to prompt r.
    mask : tensor (R, 1, C, S), of the model's dtype
        Added to the attention scores of parts: 0 at visible keys, else the lowest number of the dtype.
    """

    prompts: int
    width: int
    owners: torch.Tensor | None
    mask: torch.Tensor


def packed_inputs(batch: PackedBatch, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments with which a model whose attention is ``NAME`` processes a packed batch."""
    visible = torch.from_numpy(batch.visible).to(device)
    mask = torch.zeros(visible.shape, dtype=dtype, device=device)
    mask.masked_fill_(~visible, torch.finfo(dtype).min)
    in_order = np.array_equal(batch.owners, np.arange(batch.prompts))
    owners = None if in_order else torch.from_numpy(batch.owners).to(device)
    return {
        "input_ids": torch.from_numpy(batch.input_ids).to(device)[None],
        "position_ids": torch.from_numpy(batch.position_ids).to(device)[None],
        # Four dimensions keep transformers from making a mask of its own.
        "attention_mask": torch.zeros(1, 1, 1, 1, dtype=dtype, device=device),
        "tree": TreeLayout(batch.prompts, batch.width, owners, mask[:, None]),
    }


def tree_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: TreeLayout | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention of a packed batch, or ordinary attention if ``tree`` is None, in transformers' interface.

    ``dropout`` is ignored, because the policy that samples must be the policy that learns.

    Parameters
    ----------
    query : tensor (1, H, T, D)
        H heads; any number of rows if ``tree`` is None.
    key, value : tensor (1, G, T, D)
        G divides H: grouped query heads share keys.

    Returns
    -------
    tensor (1, T, H, D), None
        The second is the place of attention weights, which are not computed.

    Raises
    ------
    ValueError
        If the model uses attention sinks.
    """
    if options.get("s_aux") is not None:
        raise ValueError("tree attention does not support attention sinks (s_aux)")
    if tree is None:
        if softcap is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return _attend(query, key, value, attention_mask, scaling, softcap).transpose(1, 2), None
    parts, end = len(tree.mask), tree.prompts * tree.width
    # Views (rows, heads, tokens, D) of the sequence, without a copy.
    cut = [x[0].split([end, x.shape[2] - end], dim=1) for x in (query, key, value)]
    prompt = [x.unflatten(1, (tree.prompts, tree.width)).transpose(0, 1) for x, _ in cut]
    outputs = [_attend(prompt[0], prompt[1], prompt[2], None, scaling, softcap).transpose(1, 2).flatten(0, 1)]
    if parts:
        own = [x.unflatten(1, (parts, -1)).transpose(0, 1) for _, x in cut]
        unseen = tree.mask.shape[-1] - tree.width - own[1].shape[2]  # unused keys, which pad S
        before = prompt[1:] if tree.owners is None else [x[tree.owners] for x in prompt[1:]]
        keys, values = (
            torch.cat([x, y, *([y[:, :, :1].expand(-1, -1, unseen, -1)] if unseen else [])], dim=2)
            for x, y in zip(before, own[1:], strict=True)
        )
        outputs.append(_attend(own[0], keys, values, tree.mask, scaling, softcap).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Return the attention of rows (B, H, T, D) with an additive or boolean mask; causal if it is None."""
    shared = query.shape[1] // key.shape[1]
    if softcap is None and (mask is None or shared == 1):
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=shared > 1
        )
    if shared > 1:  # torch has no fast kernels for a mask with shared heads
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    if softcap is None:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = (scores / softcap).tanh() * softcap
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        mask = mask.tril(scores.shape[-1] - scores.shape[-2])
    least = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
