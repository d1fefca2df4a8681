"""Critics: small networks on the features of the frozen base model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn


def hidden_layers(features: int, hidden: Sequence[int]) -> list[nn.Module]:
    """Return linear layers with ReLU, from ``features`` inputs through layers of the widths ``hidden``."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([features, *hidden]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers


class ValueCritic(nn.Sequential):
    """State values V: an MLP with ReLU from one feature vector to one number.

    The last layer starts at zero, so an untrained critic predicts 0 everywhere.

    Parameters
    ----------
    features : int
        Width of a feature vector.
    hidden : sequence of int
        Widths of the hidden layers.
    """

    def __init__(self, features: int, hidden: Sequence[int]) -> None:
        layers = hidden_layers(features, hidden)
        last = nn.Linear([features, *hidden][-1], 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        super().__init__(*layers, last)

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """Return V of each feature vector: a tensor (…, width) of any floating dtype to float32 (…,)."""
        return self(features.float())[..., 0]

    @torch.no_grad()
    def values_at(self, features: torch.Tensor, *rows: np.ndarray) -> list[np.ndarray]:
        """Return V at rows of a feature matrix, for int64 arrays of any shape: float64 arrays of the same shapes.

        Each distinct row is evaluated once.
        """
        distinct, where = np.unique(np.concatenate([own.ravel() for own in rows]), return_inverse=True)
        values = self.values(features[torch.from_numpy(distinct).to(features.device)]).double().cpu().numpy()[where]
        parts = np.split(values, np.cumsum([own.size for own in rows])[:-1])
        return [part.reshape(own.shape) for part, own in zip(parts, rows, strict=True)]
