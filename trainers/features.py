"""A cache of features of the frozen base model, which do not change during a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trainers.language_model import LanguageModel
from trainers.prefix_tree import Query, Tokens, build_tree

Text = tuple[Tokens, Tokens]
"""A prompt and the tokens that follow it."""


class FeatureStore:
    """Last hidden states of the frozen base model at the end of prompts and at each token after them.

    Texts form a trie with one row for each prompt and each token after it, so that a shared prefix is stored once. A
    full store is cleared.

    Parameters
    ----------
    language_model : LanguageModel
    capacity : int
        Bytes to keep between calls of :meth:`rows`. One call may need more.

    Attributes
    ----------
    features : tensor (rows, hidden)
        On the model's device, in the model's dtype.
    """

    def __init__(self, language_model: LanguageModel, capacity: int) -> None:
        self.language_model = language_model
        self.capacity = capacity
        self.features = torch.empty(0)
        self.clear()

    def clear(self) -> None:
        """Drop all features."""
        model = self.language_model
        self._roots: dict[Tokens, int] = {}
        self._children: dict[tuple[int, int], int] = {}
        self.features = torch.empty(0, model.hidden_size, dtype=model.model.dtype, device=model.device)

    def rows(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """Return the rows of ``features`` of each text; compute those that are missing.

        Returns
        -------
        list of int64 arrays (1 + tokens,)
            The row of the prompt, then one row for each token after it. They are valid until the next call.
        """
        if self.features.nbytes > self.capacity:
            self.clear()
        distinct = dict.fromkeys(texts)
        missing = [text for text in distinct if self._find(text) is None]
        if missing:
            # The nodes of a tree with one candidate are at all its tokens but the last one, so a token is appended.
            queries = [Query(prompt, build_tree(((*tokens, 0),))) for prompt, tokens in missing]
            computed = self.language_model.features(queries)
            kept: list[int] = []
            start = 0
            for text, features in zip(missing, computed, strict=True):
                kept += [start + node for node in self._add(text)]
                start += len(features)
            where = torch.tensor(kept, device=self.features.device)
            self.features = torch.cat([self.features, torch.cat(computed)[where].to(self.features.dtype)])
        rows = {text: np.array(self._find(text)) for text in distinct}
        return [rows[text] for text in texts]

    def _find(self, text: Text) -> list[int] | None:
        """Return the rows of a text, or None if one is missing."""
        prompt, tokens = text
        row = self._roots.get(prompt)
        rows = [row]
        for token in tokens:
            row = None if row is None else self._children.get((row, token))
            rows.append(row)
        return None if row is None else rows  # type: ignore[return-value]

    def _add(self, text: Text) -> list[int]:
        """Assign numbers to the missing rows of a text; return their positions: 0 is the prompt, then its tokens."""
        prompt, tokens = text
        count = len(self._roots) + len(self._children)
        added = [] if prompt in self._roots else [0]
        row = self._roots.setdefault(prompt, count)
        for depth, token in enumerate(tokens, start=1):
            new = count + len(added)
            child = self._children.setdefault((row, token), new)
            if child == new:
                added.append(depth)
            row = child
        return added

    def state(self) -> dict[str, torch.Tensor]:
        """Return the store as tensors, for :meth:`load_state`. A full store is cleared first."""
        if self.features.nbytes > self.capacity:
            self.clear()
        prompts = list(self._roots)
        parents = np.full((len(self.features), 2), -1, dtype=np.int64)
        if self._children:
            parents[list(self._children.values())] = list(self._children)
        return {
            "features": self.features,
            "parents": torch.from_numpy(parents),  # parent row and token of each row; −1 for prompts
            "prompt_rows": torch.tensor(list(self._roots.values()), dtype=torch.int64),
            "prompt_lengths": torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64),
            "prompt_tokens": torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int64),
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Restore what :meth:`state` returned.

        Raises
        ------
        ValueError
            If the features have another width than the model, or do not match the texts.
        """
        self.clear()
        features, lengths = state["features"], state["prompt_lengths"]
        count = len(features)
        if features.shape[1:] != self.features.shape[1:] or state["parents"].shape != (count, 2):
            raise ValueError(
                f"it contains features of shape {tuple(features.shape)} with parents of shape "
                f"{tuple(state['parents'].shape)}, expected (n, {self.features.shape[1]}) and (n, 2)"
            )
        parents = state["parents"].tolist()
        self._children = {(parent, token): row for row, (parent, token) in enumerate(parents) if parent >= 0}
        prompts = state["prompt_tokens"].split(lengths.tolist())
        rows = state["prompt_rows"].tolist()
        self._roots = {tuple(prompt.tolist()): row for prompt, row in zip(prompts, rows, strict=True)}
        if sorted([*self._roots.values(), *self._children.values()]) != list(range(count)):
            raise ValueError("it contains features that belong to no text")
        self.features = features.to(self.features)
