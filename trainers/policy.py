"""A language model as a policy: what it says, how likely that is, and what a critic on it thinks that is worth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from trainers.language_model import LanguageModel
from trainers.prefix_tree import PackedBatch, Query, Tokens

SAMPLING_MODES = ("trie", "candidates", "free")
NORMALISATIONS = ("token", "word", "none")


@dataclass(frozen=True)
class Scores:
    """How likely a policy makes the candidates of B queries: K of them, of L tokens each, at most.

    Attributes
    ----------
    token_log_probs : float32 tensor (B, K, L)
        Of each token given what precedes it; 0 where there is none.
    action_log_probs : float32 tensor (B, K)
        Of each candidate under the sampling policy; −inf where there is none.
    action_entropy : float32 tensor (B,)
        Of the sampling policy, in nats; of free text only where entropies of nodes are asked for.
    node_entropies : float32 tensor (B, K, L)
        Of the distribution that each token was drawn from.
    """

    token_log_probs: torch.Tensor
    action_log_probs: torch.Tensor
    action_entropy: torch.Tensor
    node_entropies: torch.Tensor


@dataclass(frozen=True)
class PolicyOutput:
    """What a rollout keeps of one query: log-probabilities of its candidates, arrays (K, L) and (K,)."""

    token_log_probs: np.ndarray
    action_log_probs: np.ndarray


class LanguagePolicy:
    """Scores queries in batches: each distinct one once, in groups that fit into memory.

    Parameters
    ----------
    language_model : LanguageModel
    sampling : str
        ``"trie"``: token by token, restricted to the beginnings of candidates; the policy that samples is the policy
        whose token probabilities are learnt. ``"candidates"``: a softmax over whole candidates (arXiv 2405.15821,
        eq. 6). ``"free"``: token by token without restriction.
    normalisation : str
        What a candidate's log-likelihood is divided by with ``"candidates"``: its number of tokens (the end token does
        not count) or of words (TWOSOME, arXiv 2401.14151), or nothing (GLAM, arXiv 2302.02662).
    critic_hidden : sequence of int
        Widths of the critic's hidden layers.
    """

    def __init__(
        self, language_model: LanguageModel, *, sampling: str, normalisation: str, critic_hidden: Sequence[int]
    ) -> None:
        self.language_model = language_model
        self.sampling = sampling
        self.normalisation = normalisation
        self.critic = _critic(language_model.hidden_size, critic_hidden).to(language_model.device)

    @torch.no_grad()
    def assess(self, queries: Sequence[Query]) -> list[PolicyOutput]:
        """Log-probabilities of distinct queries."""
        found: dict[int, PolicyOutput] = {}
        for indices, batch in self.language_model.groups(queries):
            scores = self.score(batch)
            token_log_probs = scores.token_log_probs.double().cpu().numpy()
            action_log_probs = scores.action_log_probs.double().cpu().numpy()
            for row, (index, (_, tree)) in enumerate(zip(indices, batch.queries, strict=True)):
                k, length = tree.mask.shape
                found[index] = PolicyOutput(token_log_probs[row, :k, :length], action_log_probs[row, :k])
        return [found[index] for index in range(len(queries))]

    @torch.no_grad()
    def values(self, queries: Sequence[Query]) -> list[np.ndarray]:
        """What the critic expects at every node of each query: float64 arrays (M,)."""
        features = self.language_model.features(queries)
        return [self.critic(nodes.float())[:, 0].double().cpu().numpy() for nodes in features]

    def score(self, batch: PackedBatch, *, with_node_entropies: bool = False) -> Scores:
        """Log-probabilities of all candidates of one batch of queries, with gradients to the adapter.

        ``node_entropies`` is all zeros unless asked for.
        """
        among_siblings = self.sampling == "trie"
        readings = self.language_model.read(
            batch, vocabulary=not among_siblings, entropy=with_node_entropies and not among_siblings
        )
        device = readings.edge_logits.device
        edge_nodes = torch.from_numpy(batch.edge_nodes).to(device)
        total, entropies = readings.log_sum_exp, readings.entropy
        if total is None:
            total = _log_sum_exp(readings.edge_logits, edge_nodes, len(batch.columns))
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
        for row, (_, tree) in enumerate(batch.queries):
            lengths[row, : len(tree.candidates)] = [self._length(candidate) for candidate in tree.candidates]
        return (likelihood / torch.from_numpy(lengths).to(likelihood.device)).log_softmax(-1)

    def _length(self, candidate: Tokens) -> int:
        """What the log-likelihood of a candidate is divided by."""
        tokenizer = self.language_model.tokenizer
        phrase = candidate[:-1] if candidate[-1] == tokenizer.end_id else candidate
        if self.normalisation == "token":
            return max(1, len(phrase))
        if self.normalisation == "word":
            return max(1, len(tokenizer.decode(phrase).split()))
        return 1


def _entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Of distributions along the last axis, of which −inf is a choice that is not there."""
    return -(log_probs.exp() * torch.where(log_probs > -torch.inf, log_probs, 0.0)).sum(-1)


def _log_sum_exp(values: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Log-sum-exp of the values of each group, which is not empty: tensors (E,) and int64 (E,) to (count,)."""
    largest = torch.full((count,), -torch.inf, device=values.device)
    largest = largest.scatter_reduce(0, groups, values.detach(), "amax")
    sums = torch.zeros_like(largest).index_add(0, groups, (values - largest[groups]).exp())
    return largest + sums.log()


def _critic(features: int, hidden: Sequence[int]) -> nn.Sequential:
    """An MLP with a last layer of zeros, so that an untrained critic expects nothing."""
    widths = [features, *hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    last = nn.Linear(widths[-1], 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)
