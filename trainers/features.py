"""Features of the frozen base model, kept for the whole run: they never change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trainers.language_model import LanguageModel
from trainers.prefix_tree import Query, Tokens, build_tree

Reading = tuple[Tokens, Tokens]
"""A prompt, and the tokens that were read behind it."""


class FeatureStore:
    """Last hidden states of the frozen base model after every token that was read behind a prompt.

    Texts are kept as a trie: one row for each prompt and for each token behind it, so that what two texts share is
    kept once. When the store is full, it is emptied and begins anew.

    Parameters
    ----------
    language_model : LanguageModel
    capacity : int
        Bytes to keep from one call of :meth:`rows` to the next. One call may need more.

    Attributes
    ----------
    features : tensor (rows, hidden)
        On the model's device; float32, or the model's dtype where that is half precision.
    """

    def __init__(self, language_model: LanguageModel, capacity: int) -> None:
        self.language_model = language_model
        self.capacity = capacity
        self.features = torch.empty(0)
        self.clear()

    def clear(self) -> None:
        model = self.language_model
        self._roots: dict[Tokens, int] = {}
        self._children: dict[tuple[int, int], int] = {}
        self.features = torch.empty(0, model.hidden_size, dtype=model.model.dtype, device=model.device)

    def rows(self, readings: Sequence[Reading]) -> list[np.ndarray]:
        """Rows of ``features`` for each text: that of its prompt, then one for each token; int64 arrays (1 + tokens,).

        Rows hold until the next call. What is not kept yet is computed, each distinct text once.
        """
        if self.features.nbytes > self.capacity:
            self.clear()
        distinct = dict.fromkeys(readings)
        missing = [reading for reading in distinct if self._find(reading) is None]
        if missing:
            # A tree of one candidate reads all but its last token.
            queries = [Query(prompt, build_tree(((*text, 0),))) for prompt, text in missing]
            computed = self.language_model.features(queries)
            kept: list[int] = []
            start = 0
            for reading, features in zip(missing, computed, strict=True):
                kept += [start + node for node in self._add(reading)]
                start += len(features)
            where = torch.tensor(kept, device=self.features.device)
            self.features = torch.cat([self.features, torch.cat(computed)[where].to(self.features.dtype)])
        found = {reading: np.array(self._find(reading)) for reading in distinct}
        return [found[reading] for reading in readings]

    def _find(self, reading: Reading) -> list[int] | None:
        """The rows of a text, or None if one is missing."""
        prompt, text = reading
        row = self._roots.get(prompt)
        rows = [row]
        for token in text:
            row = None if row is None else self._children.get((row, token))
            rows.append(row)
        return None if row is None else rows  # type: ignore[return-value]

    def _add(self, reading: Reading) -> list[int]:
        """Number the rows that a text adds; returns which of its nodes they are."""
        prompt, text = reading
        count = len(self._roots) + len(self._children)
        added = [] if prompt in self._roots else [0]
        row = self._roots.setdefault(prompt, count)
        for depth, token in enumerate(text, start=1):
            size = count + len(added)
            below = self._children.setdefault((row, token), size)
            if below == size:
                added.append(depth)
            row = below
        return added

    def state(self) -> dict[str, torch.Tensor]:
        """All that is kept, as tensors: what :meth:`load_state` takes. What is not to be kept is dropped before."""
        if self.features.nbytes > self.capacity:
            self.clear()
        prompts = list(self._roots)
        parents = np.full((len(self.features), 2), -1, dtype=np.int64)
        if self._children:
            parents[list(self._children.values())] = list(self._children)
        return {
            "features": self.features,
            "parents": torch.from_numpy(parents),  # row and token before each row; −1 of prompts
            "prompt_rows": torch.tensor(list(self._roots.values()), dtype=torch.int64),
            "prompt_lengths": torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64),
            "prompt_tokens": torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int64),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what :meth:`state` gave.

        Raises
        ------
        ValueError
            If it is of another model, or does not hold together.
        """
        self.clear()
        features, lengths = state["features"], state["prompt_lengths"]
        count = len(features)
        if features.shape[1:] != self.features.shape[1:] or state["parents"].shape != (count, 2):
            raise ValueError(f"it holds features of shape {tuple(features.shape)}, for a model of another width")
        parents = state["parents"].tolist()
        self._children = {(parent, token): row for row, (parent, token) in enumerate(parents) if parent >= 0}
        texts = state["prompt_tokens"].split(lengths.tolist())
        rows = state["prompt_rows"].tolist()
        self._roots = {tuple(text.tolist()): row for text, row in zip(texts, rows, strict=True)}
        if sorted([*self._roots.values(), *self._children.values()]) != list(range(count)):
            raise ValueError("it holds features that belong to no text")
        self.features = features.to(self.features)
