"""Prefix trees of candidates that share a prompt, and batches of such trees for one forward pass.

A batch contains each prompt once, and the candidates of a prompt as a tree. Each token of the tree attends only to the
prompt and to its ancestors. Its position is the one that it has in prompt + candidate. So the model computes the same
as for each prompt + candidate separately, at the cost of the prompt and the distinct inner tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

Tokens = tuple[int, ...]

PART = 128
"""Approximate number of nodes that share one attention mask. Larger trees are split, so that their cost is linear."""


@dataclass(frozen=True)
class TreePart:
    """Some branches of a tree, with all their nodes except the root.

    Attributes
    ----------
    nodes : int64 array (C,)
        Node indices in the tree, parents before their children.
    visible : bool array (C, C)
        ``visible[i, j]``: node j is node i or an ancestor of it.
    """

    nodes: np.ndarray
    visible: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class PrefixTree:
    """K candidates of at most L tokens, as M nodes and E edges.

    A node is a proper prefix of a candidate; node 0, the root, is the empty prefix. An edge is a token that follows a
    node. Complete candidates are not nodes, because no logits are needed after their last token.

    Attributes
    ----------
    candidates : tuple of K tuples of int
    node_tokens, node_depths, parents : int64 array (M,)
        Last token of each prefix, its length, and the node of the prefix without its last token. Token and parent of
        the root are −1. Parents precede their children.
    edge_nodes, edge_tokens : int64 array (E,)
        The node that each edge leaves, and its token.
    paths : int64 array (K, L)
        The edges of each candidate; 0 where ``mask`` is False.
    mask : bool array (K, L)
        True at the tokens of each candidate, False at the padding after them.
    """

    candidates: tuple[Tokens, ...]
    node_tokens: np.ndarray
    node_depths: np.ndarray
    parents: np.ndarray
    edge_nodes: np.ndarray
    edge_tokens: np.ndarray
    paths: np.ndarray
    mask: np.ndarray

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PrefixTree) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _key(self) -> tuple[tuple[Tokens, ...], bytes, bytes]:
        """What determines a tree. Candidates alone do not: :func:`along` keeps edges to siblings of their tokens."""
        return self.candidates, self.edge_nodes.tobytes(), self.edge_tokens.tobytes()

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @property
    def path_nodes(self) -> np.ndarray:
        """The node before each token of each candidate: int64 array (K, L)."""
        return self.edge_nodes[self.paths]

    @cached_property
    def parts(self) -> tuple[TreePart, ...]:
        """The tree without its root, in parts of about ``PART`` nodes, or of the length of the longest candidate.

        No candidate is cut: a prefix that candidates of two parts share is in both. So the parts together have at most
        about twice the nodes of the tree. A small tree is one part; a tree that has only a root has no parts.
        """
        inner = len(self.parents) - 1
        if inner == 0:
            return ()
        count = -(-inner // max(PART, int(self.node_depths.max())))
        if count == 1:
            return (self._part(np.arange(1, inner + 1)),)
        limit = -(-inner // count)
        groups: list[dict[int, None]] = [{}]
        seen: set[int] = set()
        new = 0
        path_nodes, lengths = self.path_nodes, self.mask.sum(-1)
        # In lexicographic order, candidates that share a prefix are neighbours.
        for row in sorted(range(len(self.candidates)), key=self.candidates.__getitem__):
            if new >= limit:
                groups.append({})
                new = 0
            path = path_nodes[row, 1 : lengths[row]].tolist()
            groups[-1] |= dict.fromkeys(path)
            new += len(set(path) - seen)
            seen.update(path)
        return tuple(self._part(np.array(sorted(group))) for group in groups if group)

    def _part(self, nodes: np.ndarray) -> TreePart:
        local = np.full(len(self.parents), -1)
        local[nodes] = np.arange(len(nodes))
        parents = local[self.parents[nodes]]  # −1 for children of the root
        visible = np.eye(len(nodes), dtype=bool)
        rows, ancestors = np.arange(len(nodes)), parents
        while len(rows := rows[(below_root := ancestors >= 0)]):
            ancestors = ancestors[below_root]
            visible[rows, ancestors] = True
            ancestors = parents[ancestors]
        return TreePart(nodes, visible)


@lru_cache(maxsize=4096)
def build_tree(candidates: tuple[Tokens, ...]) -> PrefixTree:
    """Return the prefix tree of distinct candidates, none of which is a prefix of another.

    Raises
    ------
    ValueError
        If there is no candidate, one is empty, two are equal, or one is a prefix of another.
    """
    if not candidates or not all(candidates):
        raise ValueError(f"candidates must be one or more non-empty tuples of token ids, got {candidates}")
    if len(set(candidates)) < len(candidates):
        raise ValueError(f"candidates must be distinct, got {candidates}")
    tokens, depths, parents = [-1], [0], [-1]
    edges: dict[tuple[int, int], int] = {}
    children: dict[int, int] = {}
    longest = max(map(len, candidates))
    paths = np.zeros((len(candidates), longest), dtype=np.int64)
    mask = np.zeros((len(candidates), longest), dtype=bool)
    for row, candidate in enumerate(candidates):
        node, path = 0, []
        for depth, token in enumerate(candidate, start=1):
            edge = edges.setdefault((node, token), len(edges))
            path.append(edge)
            if depth < len(candidate):
                if edge not in children:
                    children[edge] = len(tokens)
                    tokens.append(token)
                    depths.append(depth)
                    parents.append(node)
                node = children[edge]
        paths[row, : len(path)] = path
        mask[row, : len(path)] = True
    last = paths[np.arange(len(candidates)), mask.sum(-1) - 1].tolist()
    if prefixes := [candidate for candidate, edge in zip(candidates, last, strict=True) if edge in children]:
        raise ValueError(f"candidates {prefixes} are prefixes of others: append the end token to every candidate")
    edge_array = np.array(list(edges), dtype=np.int64)
    return PrefixTree(
        candidates=candidates,
        node_tokens=np.array(tokens, dtype=np.int64),
        node_depths=np.array(depths, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        edge_nodes=edge_array[:, 0],
        edge_tokens=edge_array[:, 1],
        paths=paths,
        mask=mask,
    )


@lru_cache(maxsize=4096)
def along(tree: PrefixTree, choices: tuple[int, ...]) -> PrefixTree:
    """Return the part of a tree on which the log-probabilities of the candidates ``choices`` depend.

    The new tree's candidates are ``choices``, in this order. It has the nodes of their paths and all edges that leave
    these nodes, because the probability of a token depends on its siblings.
    """
    rows = list(choices)
    nodes = np.unique(tree.path_nodes[rows][tree.mask[rows]])
    edges = np.flatnonzero(np.isin(tree.edge_nodes, nodes))
    longest = int(tree.mask[rows].sum(-1).max())
    mask = tree.mask[rows, :longest]
    return PrefixTree(
        candidates=tuple(tree.candidates[row] for row in rows),
        node_tokens=tree.node_tokens[nodes],
        node_depths=tree.node_depths[nodes],
        parents=np.concatenate([[-1], np.searchsorted(nodes, tree.parents[nodes[1:]])]),
        edge_nodes=np.searchsorted(nodes, tree.edge_nodes[edges]),
        edge_tokens=tree.edge_tokens[edges],
        paths=np.where(mask, np.searchsorted(edges, tree.paths[rows, :longest]), 0),
        mask=mask,
    )


class Query(NamedTuple):
    """A prompt and the prefix tree of its candidates; equal if the prompts and the trees are."""

    prompt: Tokens
    tree: PrefixTree


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """B queries as one sequence of T tokens: first the distinct prompts, then R parts of trees.

    Prompts are padded on the right to width P, parts to width C; T = prompts · P + R · C. Queries with equal prompts
    share one.

    Attributes
    ----------
    queries : tuple of B queries
    input_ids, position_ids : int64 array (T,)
    prompts, width : int
        Number of distinct prompts, and P.
    owners : int64 array (R,)
        Index of the prompt of each part.
    visible : bool array (R, C, S)
        Keys to which each token of a part attends: P of its prompt, C of its part, then unused keys up to S.
    columns : int64 array (N,)
        Index in the sequence of each node of all queries, in the queries' order. A root is the last token of its
        prompt.
    starts : int64 array (B + 1,)
        The nodes of query b are ``starts[b]`` to ``starts[b + 1] - 1``.
    edge_nodes, edge_tokens : int64 array (E,)
        The edges of all queries. Nodes are indices into ``columns``.
    paths : int64 array (B, K, L)
        The edges of each candidate, as indices into ``edge_nodes``.
    mask : bool array (B, K, L)
        True at the tokens of each candidate.
    """

    queries: tuple[Query, ...]
    input_ids: np.ndarray
    position_ids: np.ndarray
    prompts: int
    width: int
    owners: np.ndarray
    visible: np.ndarray
    columns: np.ndarray
    starts: np.ndarray
    edge_nodes: np.ndarray
    edge_tokens: np.ndarray
    paths: np.ndarray
    mask: np.ndarray


def pack(queries: Sequence[Query], pad_id: int, *, multiple: int = 1) -> PackedBatch:
    """Return one batch of all queries. The number of keys S is a multiple of ``multiple``.

    Raises
    ------
    ValueError
        If a prompt is empty: the model predicts the first token of an action at the last token of the prompt.
    """
    if not all(prompt for prompt, _ in queries):
        raise ValueError("a prompt is empty: use a tokenizer with a begin token, or non-empty observations")
    rows = {prompt: row for row, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in queries))}
    width = max(map(len, rows))
    parts = [(query, part) for query in queries for part in query[1].parts]
    depth = max((len(part.nodes) for _, part in parts), default=0)
    parts_start = len(rows) * width
    prompt_ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    for prompt, row in rows.items():
        prompt_ids[row, : len(prompt)] = prompt
    part_ids = np.full((len(parts), depth), pad_id, dtype=np.int64)
    part_positions = np.zeros_like(part_ids)
    visible = np.zeros((len(parts), depth, -(-(width + depth) // multiple) * multiple), dtype=bool)
    # Padding attends to itself, because a softmax over no keys is NaN.
    visible[:, np.arange(depth), width + np.arange(depth)] = True

    starts = np.concatenate([[0], np.cumsum([len(tree.parents) for _, tree in queries])])
    columns = np.zeros(starts[-1], dtype=np.int64)
    candidates = max(len(tree.candidates) for _, tree in queries)
    longest = max(tree.mask.shape[1] for _, tree in queries)
    paths = np.zeros((len(queries), candidates, longest), dtype=np.int64)
    mask = np.zeros(paths.shape, dtype=bool)
    edges, r = 0, 0
    for b, (prompt, tree) in enumerate(queries):
        columns[starts[b]] = rows[prompt] * width + len(prompt) - 1
        for part in tree.parts:
            size = len(part.nodes)
            part_ids[r, :size] = tree.node_tokens[part.nodes]
            part_positions[r, :size] = len(prompt) - 1 + tree.node_depths[part.nodes]
            visible[r, :size, : len(prompt)] = True
            visible[r, :size, width : width + size] = part.visible
            columns[starts[b] + part.nodes] = parts_start + r * depth + np.arange(size)
            r += 1
        k, length = tree.mask.shape
        paths[b, :k, :length] = np.where(tree.mask, tree.paths + edges, 0)
        mask[b, :k, :length] = tree.mask
        edges += len(tree.edge_nodes)
    return PackedBatch(
        queries=tuple(queries),
        input_ids=np.concatenate([prompt_ids.ravel(), part_ids.ravel()]),
        position_ids=np.concatenate([np.tile(np.arange(width), len(rows)), part_positions.ravel()]),
        prompts=len(rows),
        width=width,
        owners=np.array([rows[prompt] for (prompt, _), _ in parts], dtype=np.int64),
        visible=visible,
        columns=columns,
        starts=starts,
        edge_nodes=np.concatenate([start + tree.edge_nodes for start, (_, tree) in zip(starts, queries, strict=False)]),
        edge_tokens=np.concatenate([tree.edge_tokens for _, tree in queries]),
        paths=paths,
        mask=mask,
    )


def split(queries: Sequence[Query], tokens: int, *, packed: bool = True) -> list[list[int]]:
    """Return groups of indices of queries. A group has at most ``tokens`` tokens, or only one query.

    The tokens of a group include padding. They are counted as in a packed batch (distinct prompts and parts of trees),
    or without packing (a row of prompt + candidate for each candidate).
    """
    groups: list[list[int]] = []
    prompts: set[Tokens] = set()
    rows = width = depth = 0
    for index in sorted(range(len(queries)), key=lambda i: (len(queries[i][0]), queries[i][0])):
        prompt, tree = queries[index]
        if packed:
            own_rows, own_depth = len(tree.parts), max((len(part.nodes) for part in tree.parts), default=0)
        else:
            own_rows, own_depth = len(tree.candidates), tree.mask.shape[1]
        for new_group in (False, True):
            if new_group or not groups:
                groups.append([])
                prompts, rows, width, depth = set(), 0, 0, 0
            prompts.add(prompt)
            rows, width, depth = rows + own_rows, max(width, len(prompt)), max(depth, own_depth)
            if not groups[-1] or (len(prompts) * width + rows * depth if packed else rows * (width + depth)) <= tokens:
                break
        groups[-1].append(index)
    return groups
