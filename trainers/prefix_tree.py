"""Candidates that share a prompt and often their first tokens, as a tree; and batches of such trees for one forward.

A prompt is encoded once and the candidates hang behind it as a tree: each token attends to the prompt and to its
ancestors alone and stands at the position it would have if its candidate stood there by itself. What a model computes
for it is what it would compute for prompt + candidate, at the price of prompt + distinct inner tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Tokens = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """K candidates of at most L tokens, as M nodes and E edges.

    A node is a prefix after which some candidate goes on (node 0, the root, is the empty one); an edge is a token that
    goes on. Whole candidates are no nodes: nothing is read after their last token.

    Attributes
    ----------
    candidates : tuple of K tuples of int
    node_tokens, node_depths : int64 array (M,)
        Last token of each prefix (−1 at the root) and its length.
    ancestors : bool array (M, M)
        ``ancestors[i, j]``: prefix j begins prefix i, or is it.
    edge_nodes, edge_tokens : int64 array (E,)
        The node that each edge leaves, and its token.
    paths : int64 array (K, L)
        The edges of each candidate, 0 where ``mask`` is False.
    mask : bool array (K, L)
    """

    candidates: tuple[Tokens, ...]
    node_tokens: np.ndarray
    node_depths: np.ndarray
    ancestors: np.ndarray
    edge_nodes: np.ndarray
    edge_tokens: np.ndarray
    paths: np.ndarray
    mask: np.ndarray

    @property
    def path_nodes(self) -> np.ndarray:
        """The node before each token of each candidate: int64 array (K, L)."""
        return self.edge_nodes[self.paths]


@lru_cache(maxsize=4096)
def build_tree(candidates: tuple[Tokens, ...]) -> PrefixTree:
    """The prefix tree of distinct candidates, none of them the beginning of another.

    Raises
    ------
    ValueError
        If there is no candidate, one is empty, two are equal, or one begins another.
    """
    if not candidates or not all(candidates):
        raise ValueError(f"candidates must be non-empty sequences of token ids, at least one: {candidates}")
    if len(set(candidates)) < len(candidates):
        raise ValueError(f"candidates must differ from each other: {candidates}")
    nodes: dict[Tokens, int] = {(): 0}
    edges: dict[Tokens, int] = {}
    for candidate in candidates:
        for length in range(1, len(candidate)):
            nodes.setdefault(candidate[:length], len(nodes))
        for length in range(1, len(candidate) + 1):
            edges.setdefault(candidate[:length], len(edges))
    if beginnings := [candidate for candidate in candidates if candidate in nodes]:
        raise ValueError(f"candidates {beginnings} begin others; let every candidate end with the end token")

    ancestors = np.zeros((len(nodes), len(nodes)), dtype=bool)
    for prefix, node in nodes.items():
        for length in range(len(prefix) + 1):
            ancestors[node, nodes[prefix[:length]]] = True
    longest = max(map(len, candidates))
    paths = np.zeros((len(candidates), longest), dtype=np.int64)
    mask = np.zeros((len(candidates), longest), dtype=bool)
    for row, candidate in enumerate(candidates):
        paths[row, : len(candidate)] = [edges[candidate[:length]] for length in range(1, len(candidate) + 1)]
        mask[row, : len(candidate)] = True
    return PrefixTree(
        candidates,
        node_tokens=np.array([prefix[-1] if prefix else -1 for prefix in nodes], dtype=np.int64),
        node_depths=np.array([len(prefix) for prefix in nodes], dtype=np.int64),
        ancestors=ancestors,
        edge_nodes=np.array([nodes[prefix[:-1]] for prefix in edges], dtype=np.int64),
        edge_tokens=np.array([prefix[-1] for prefix in edges], dtype=np.int64),
        paths=paths,
        mask=mask,
    )


@lru_cache(maxsize=4096)
def along(tree: PrefixTree, choices: tuple[int, ...]) -> PrefixTree:
    """The part of a tree on which the log-probabilities of some candidates depend.

    The nodes on the way of the candidates ``choices``, which are the new tree's candidates in that order, and every
    edge that leaves these nodes: a token is chosen among its siblings, wherever they lead.
    """
    rows = list(choices)
    nodes = np.unique(tree.path_nodes[rows][tree.mask[rows]])
    edges = np.flatnonzero(np.isin(tree.edge_nodes, nodes))
    longest = int(tree.mask[rows].sum(-1).max())
    mask = tree.mask[rows, :longest]
    return PrefixTree(
        tuple(tree.candidates[row] for row in rows),
        tree.node_tokens[nodes],
        tree.node_depths[nodes],
        tree.ancestors[np.ix_(nodes, nodes)],
        np.searchsorted(nodes, tree.edge_nodes[edges]),
        tree.edge_tokens[edges],
        np.where(mask, np.searchsorted(edges, tree.paths[rows, :longest]), 0),
        mask,
    )


Question = tuple[Tokens, PrefixTree]
"""A prompt and the tree of what may be said to it."""


@dataclass(frozen=True)
class PackedBatch:
    """B questions packed into rows of S tokens: prompts padded at the left, behind them the trees padded at the right.

    The root of every tree stands in column ``root``, its other nodes behind it in order, so that the logits of all
    nodes are those of columns ``root`` to S.

    Attributes
    ----------
    questions : tuple of B questions
    input_ids, position_ids : int64 array (B, S)
    attention : bool array (B, S, S)
        Which column (last axis) a row's token attends to.
    edge_nodes, edge_tokens : int64 array (B, E)
    edge_mask : bool array (B, E)
    paths : int64 array (B, K, L)
    mask : bool array (B, K, L)
    """

    questions: tuple[Question, ...]
    input_ids: np.ndarray
    position_ids: np.ndarray
    attention: np.ndarray
    root: int
    edge_nodes: np.ndarray
    edge_tokens: np.ndarray
    edge_mask: np.ndarray
    paths: np.ndarray
    mask: np.ndarray


def packed_length(question: Question) -> int:
    """Tokens that a question costs when packed."""
    prompt, tree = question
    return len(prompt) + len(tree.node_tokens) - 1


def pack(questions: Sequence[Question], pad_id: int) -> PackedBatch:
    """Pack prompts and the trees behind them into one batch.

    Raises
    ------
    ValueError
        If a prompt is empty: the first token of an action needs one to be read from.
    """
    if not all(prompt for prompt, _ in questions):
        raise ValueError("a prompt is empty: give the tokenizer a begin token, or the world a text")
    width = max(len(prompt) for prompt, _ in questions)
    nodes, edges, candidates, longest = (
        max(sizes)
        for sizes in zip(
            *((len(t.node_tokens), len(t.edge_tokens), *t.mask.shape) for _, t in questions),
            strict=True,
        )
    )
    rows, columns, root = len(questions), width + nodes - 1, width - 1
    input_ids = np.full((rows, columns), pad_id, dtype=np.int64)
    position_ids = np.zeros((rows, columns), dtype=np.int64)
    # Padding attends to itself, for a softmax over nothing is not a number.
    attention = np.broadcast_to(np.eye(columns, dtype=bool), (rows, columns, columns)).copy()
    edge_nodes = np.zeros((rows, edges), dtype=np.int64)
    edge_tokens = np.zeros((rows, edges), dtype=np.int64)
    edge_mask = np.zeros((rows, edges), dtype=bool)
    paths = np.zeros((rows, candidates, longest), dtype=np.int64)
    mask = np.zeros((rows, candidates, longest), dtype=bool)
    for row, (prompt, tree) in enumerate(questions):
        start, end = width - len(prompt), root + len(tree.node_tokens)
        input_ids[row, start:width] = prompt
        input_ids[row, width:end] = tree.node_tokens[1:]
        position_ids[row, start:width] = np.arange(len(prompt))
        position_ids[row, root:end] = len(prompt) - 1 + tree.node_depths
        attention[row, start:width, start:width] = np.tri(len(prompt), dtype=bool)
        attention[row, width:end, start:width] = True
        attention[row, width:end, width:end] = tree.ancestors[1:, 1:]
        edge_nodes[row, : len(tree.edge_nodes)] = tree.edge_nodes
        edge_tokens[row, : len(tree.edge_tokens)] = tree.edge_tokens
        edge_mask[row, : len(tree.edge_nodes)] = True
        k, length = tree.mask.shape
        paths[row, :k, :length] = tree.paths
        mask[row, :k, :length] = tree.mask
    return PackedBatch(
        tuple(questions),
        input_ids,
        position_ids,
        attention,
        root,
        edge_nodes,
        edge_tokens,
        edge_mask,
        paths,
        mask,
    )


def split(questions: Sequence[Question], tokens: int) -> list[list[int]]:
    """Indices of questions in groups that cost at most ``tokens`` when packed and padded; at least one each."""
    groups: list[list[int]] = []
    widest = 0
    for index in sorted(range(len(questions)), key=lambda i: packed_length(questions[i])):
        widest = max(widest, packed_length(questions[index]))
        if groups and (len(groups[-1]) + 1) * widest <= tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
