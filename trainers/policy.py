"""A language model as a policy: log-probabilities and entropies of actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainers.language_model import LanguageModel
from trainers.prefix_tree import PackedBatch, Query, Tokens

SAMPLING_MODES = ("trie", "candidates", "free")
NORMALISATIONS = ("token", "word", "none")


@dataclass(frozen=True)
class Scores:
    """Log-probabilities and entropies for B queries, of at most K candidates with at most L tokens each.

    Attributes
    ----------
    token_log_probs : float32 tensor (B, K, L)
        Log-probability of each token given the tokens before it; 0 at padding.
    action_log_probs : float32 tensor (B, K)
        Log-probability of each candidate under the sampling distribution; −inf at padding.
    action_entropy : float32 tensor (B,)
        Entropy of the sampling distribution over actions, in nats. With free text it needs ``node_entropies``.
    node_entropies : float32 tensor (B, K, L)
        Entropy of the distribution from which each token was sampled, in nats.
    """

    token_log_probs: torch.Tensor
    action_log_probs: torch.Tensor
    action_entropy: torch.Tensor
    node_entropies: torch.Tensor


@dataclass(frozen=True)
class PolicyOutput:
    """Log-probabilities of one query: of the tokens of its K candidates (K, L), and of the candidates (K,); float64."""

    token_log_probs: np.ndarray
    action_log_probs: np.ndarray


class LanguagePolicy:
    """Scores queries in batches that fit into memory.

    Parameters
    ----------
    language_model : LanguageModel
    sampling : str
        ``"trie"``: token by token, restricted to prefixes of the candidates, so that the policy that samples is the
        policy whose token probabilities are learnt. ``"candidates"``: a softmax over whole candidates
        (arXiv 2405.15821, eq. 6). ``"free"``: token by token over the whole vocabulary.
    normalisation : str
        With ``"candidates"``, divide the log-likelihood of a candidate by its number of tokens without the end token
        (``"token"``), by its number of words (``"word"``; TWOSOME, arXiv 2401.14151), or by nothing (``"none"``; GLAM,
        arXiv 2302.02662).
    """

    def __init__(self, language_model: LanguageModel, *, sampling: str, normalisation: str) -> None:
        self.language_model = language_model
        self.sampling = sampling
        self.normalisation = normalisation

    @torch.no_grad()
    def outputs(self, queries: Sequence[Query]) -> list[PolicyOutput]:
        """Return the log-probabilities of each query."""
        outputs: dict[int, PolicyOutput] = {}
        for indices, batch in self.language_model.groups(queries):
            scores = self.score(batch)
            token_log_probs = scores.token_log_probs.double().cpu().numpy()
            action_log_probs = scores.action_log_probs.double().cpu().numpy()
            for row, (index, query) in enumerate(zip(indices, batch.queries, strict=True)):
                k, length = query.tree.mask.shape
                outputs[index] = PolicyOutput(token_log_probs[row, :k, :length], action_log_probs[row, :k])
        return [outputs[index] for index in range(len(queries))]

    def score(self, batch: PackedBatch, *, with_node_entropies: bool = False) -> Scores:
        """Return the scores of all candidates of a batch of queries, with gradients to the adapter.

        ``node_entropies`` is computed if ``with_node_entropies`` is True, else it is zero.
        """
        among_siblings = self.sampling == "trie"
        readings = self.language_model.read(
            batch, vocabulary=not among_siblings, entropy=with_node_entropies and not among_siblings
        )
        device = readings.edge_logits.device
        edge_nodes = torch.from_numpy(batch.edge_nodes).to(device)
        total, entropies = readings.log_sum_exp, readings.entropy
        if total is None:
            total = log_sum_exp(readings.edge_logits, edge_nodes, len(batch.columns))
        edge_log_probs = readings.edge_logits - total[edge_nodes]

        paths = torch.from_numpy(batch.paths).to(device)
        mask = torch.from_numpy(batch.mask).to(device)
        token_log_probs = torch.where(mask, edge_log_probs[paths], 0.0)
        action_log_probs = self._action_log_probs(token_log_probs, mask, batch)
        node_entropies = torch.zeros_like(token_log_probs)
        if with_node_entropies:
            if entropies is None:
                surprise = edge_log_probs.exp() * edge_log_probs
                entropies = -torch.zeros_like(total).index_add(0, edge_nodes, surprise)
            node_entropies = torch.where(mask, entropies[edge_nodes[paths]], 0.0)
        # The entropy of free text is the expected sum of its tokens' entropies; the sampled text is one draw of it.
        action_entropy = node_entropies[:, 0].sum(-1) if self.sampling == "free" else _entropy(action_log_probs)
        return Scores(token_log_probs, action_log_probs, action_entropy, node_entropies)

    def _action_log_probs(self, token_log_probs: torch.Tensor, mask: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        likelihood = token_log_probs.sum(-1).masked_fill(~mask.any(-1), -torch.inf)
        if self.sampling != "candidates":
            return likelihood
        lengths = np.ones(batch.mask.shape[:2], dtype=np.float32)
        for row, query in enumerate(batch.queries):
            candidates = query.tree.candidates
            lengths[row, : len(candidates)] = [self.divisor(candidate) for candidate in candidates]
        return (likelihood / torch.from_numpy(lengths).to(likelihood.device)).log_softmax(-1)

    def divisor(self, candidate: Tokens) -> int:
        """Return the divisor of the log-likelihood of a candidate."""
        tokenizer = self.language_model.tokenizer
        phrase = candidate[:-1] if candidate[-1] == tokenizer.end_id else candidate
        if self.normalisation == "token":
            return max(1, len(phrase))
        if self.normalisation == "word":
            return max(1, len(tokenizer.decode(phrase).split()))
        return 1


def _entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Return the entropy of distributions along the last axis; −inf marks padding."""
    return -(log_probs.exp() * torch.where(log_probs > -torch.inf, log_probs, 0.0)).sum(-1)


def log_sum_exp(values: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Return the log-sum-exp of the values of each group, −inf of an empty one: (E,) and int64 (E,) to (count,)."""
    largest = values.new_full((count,), -torch.inf).scatter_reduce(0, groups, values.detach(), "amax")
    largest = torch.where(largest.isfinite(), largest, 0.0)
    sums = torch.zeros_like(largest).index_add(0, groups, (values - largest[groups]).exp())
    return largest + sums.log()
