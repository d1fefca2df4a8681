"""Prefix trees and packed batches, compared with the candidates and prompts that they contain."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.prefix_tree import PART, PrefixTree, Query, along, build_tree, pack, split

CANDIDATES = ((5, 6, 7, 2), (5, 6, 2), (5, 8, 2), (9, 2))


def test_paths_contain_the_tokens_of_the_candidates() -> None:
    tree = build_tree(CANDIDATES)
    for row, candidate in enumerate(CANDIDATES):
        assert tuple(tree.edge_tokens[tree.paths[row][tree.mask[row]]]) == candidate


def test_nodes_have_depth_token_and_parent_of_their_prefix() -> None:
    tree = build_tree(CANDIDATES)
    for row, candidate in enumerate(CANDIDATES):
        nodes = tree.path_nodes[row, : len(candidate)]
        assert tree.node_depths[nodes].tolist() == list(range(len(candidate)))
        assert tree.node_tokens[nodes[1:]].tolist() == list(candidate[:-1])
        assert tree.parents[nodes].tolist() == [-1, *nodes[:-1]]


def test_nodes_are_the_distinct_proper_prefixes() -> None:
    tree = build_tree(CANDIDATES)
    prefixes = {candidate[:n] for candidate in CANDIDATES for n in range(len(candidate))}
    assert len(tree.node_tokens) == len(prefixes) == 6
    assert len(tree.edge_tokens) == len({candidate[: n + 1] for candidate in CANDIDATES for n in range(len(candidate))})


def test_along_keeps_paths_of_chosen_candidates_and_their_siblings() -> None:
    tree = build_tree(CANDIDATES)
    part = along(tree, (3, 1))
    assert part.candidates == ((9, 2), (5, 6, 2))
    for row, candidate in enumerate(part.candidates):
        assert tuple(part.edge_tokens[part.paths[row][part.mask[row]]]) == candidate
        nodes = part.path_nodes[row, : len(candidate)]
        assert part.node_tokens[nodes[1:]].tolist() == list(candidate[:-1])
        for position, node in enumerate(nodes):
            siblings = {other[position] for other in CANDIDATES if other[:position] == candidate[:position]}
            assert set(part.edge_tokens[part.edge_nodes == node]) == siblings
    assert len(part.node_tokens) == 4, "(), (5), (5, 6), (9)"


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ((), "non-empty"),
        (((1, 2), ()), "non-empty"),
        (((1, 2), (1, 2)), "distinct"),
        (((1, 2), (1, 2, 3)), "prefixes of others"),
    ],
)
def test_build_tree_refuses_invalid_candidates(candidates: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tree(candidates)


def random_candidates(count: int, tokens: int = 12, longest: int = 6) -> tuple[tuple[int, ...], ...]:
    rng = np.random.default_rng(count)
    candidates: set[tuple[int, ...]] = set()
    while len(candidates) < count:
        candidates.add((*rng.integers(5, 5 + tokens, rng.integers(1, longest)).tolist(), 2))
    return tuple(rng.permutation(np.array(sorted(candidates), dtype=object)).tolist())


def packed_queries() -> list[tuple[tuple[int, ...], PrefixTree]]:
    """Return four queries: two with equal prompts, one with a tree of several parts, one with only a root."""
    return [
        ((11, 12, 13), build_tree(CANDIDATES)),
        ((14,), build_tree(((5, 6, 2),))),
        ((11, 12, 13), build_tree(random_candidates(400))),
        ((15, 16), build_tree(((2,),))),
    ]


@pytest.mark.parametrize("multiple", [1, 8])
def test_packed_tokens_attend_only_to_their_prompt_and_prefix(multiple: int) -> None:
    queries = packed_queries()
    batch = pack(queries, pad_id=0, multiple=multiple)
    _, depth, keys = batch.visible.shape
    assert keys % multiple == 0
    prompt_columns = batch.prompts * batch.width
    for b, (prompt, tree) in enumerate(queries):
        columns = batch.columns[batch.starts[b] : batch.starts[b + 1]]
        for row, candidate in enumerate(tree.candidates):
            for position, node in enumerate(tree.path_nodes[row, : len(candidate)]):
                column = columns[node]
                if node == 0:  # a root is the last token of its prompt, in which attention is causal
                    visible = np.arange(column // batch.width * batch.width, column + 1)
                else:
                    part, row_of_part = divmod(column - prompt_columns, depth)
                    visible_keys = np.flatnonzero(batch.visible[part, row_of_part])
                    part_start = prompt_columns + part * depth - batch.width
                    prompt_start = batch.owners[part] * batch.width
                    visible = np.where(visible_keys < batch.width, prompt_start, part_start) + visible_keys
                visible = visible[np.argsort(batch.position_ids[visible])]
                assert batch.input_ids[visible].tolist() == [*prompt, *candidate[:position]]
                assert batch.position_ids[visible].tolist() == list(range(len(prompt) + position))


def test_paths_of_a_batch_contain_the_tokens_of_the_candidates() -> None:
    queries = packed_queries()
    batch = pack(queries, pad_id=0)
    for b, (_, tree) in enumerate(queries):
        for row, candidate in enumerate(tree.candidates):
            edges = batch.paths[b, row, batch.mask[b, row]]
            assert tuple(batch.edge_tokens[edges]) == candidate
            assert (
                batch.edge_nodes[edges].tolist() == (batch.starts[b] + tree.path_nodes[row, : len(candidate)]).tolist()
            )


def test_equal_prompts_are_packed_once() -> None:
    batch = pack(packed_queries(), pad_id=0)
    assert batch.prompts == 3
    ids = batch.input_ids[: batch.prompts * batch.width].reshape(batch.prompts, -1)
    assert ids.tolist() == [[11, 12, 13], [14, 0, 0], [15, 16, 0]]


def test_parts_of_wide_trees_contain_every_node_with_its_ancestors() -> None:
    tree = build_tree(random_candidates(2000))
    parts = tree.parts
    assert max(len(part.nodes) for part in parts) <= PART + 4  # the last candidate of a part has up to 5 nodes
    assert set(np.concatenate([part.nodes for part in parts])) == set(range(1, len(tree.parents)))
    total = sum(len(part.nodes) for part in parts)
    assert total < 1.1 * len(tree.parents), "few nodes are in two parts"
    for part in parts:
        for row, node in enumerate(part.nodes):
            ancestors = []
            while node:
                ancestors.append(node)
                node = tree.parents[node]
            assert part.nodes[part.visible[row]].tolist() == ancestors[::-1]


def test_every_row_of_the_attention_mask_has_a_visible_key() -> None:
    batch = pack([Query((11, 12, 13), build_tree(CANDIDATES)), Query((14,), build_tree(((5, 7, 2),)))], pad_id=0)
    assert batch.visible.any(-1).all()


def test_empty_prompt_raises() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        pack([Query((), build_tree(((5, 2),)))], pad_id=0)


@pytest.mark.parametrize("packed", [True, False])
def test_groups_contain_every_query_once_and_respect_the_size_limit(packed: bool) -> None:
    rng = np.random.default_rng(0)
    trees = [build_tree(((5, 6, 2), (7, 2))), build_tree(CANDIDATES)]
    queries = [Query(tuple(range(1, 2 + int(n))), trees[n % 2]) for n in rng.integers(1, 40, size=50)]
    groups = split(queries, tokens=256, packed=packed)
    assert sorted(index for group in groups for index in group) == list(range(50))
    for group in groups:
        chosen = [queries[index] for index in group]
        if packed:
            cost = len(pack(chosen, 0).input_ids)
        else:
            rows = [len(prompt) + len(candidate) for prompt, tree in chosen for candidate in tree.candidates]
            cost = len(rows) * max(rows)
        assert len(group) == 1 or cost <= 256
    alone = split(queries, tokens=1, packed=packed)
    assert all(len({queries[index][0] for index in group}) == 1 for group in alone)


@pytest.mark.parametrize(("shared", "longest"), [(140, 142), (3, 1000)])
def test_trees_with_long_candidates_cost_at_most_twice_their_nodes(shared: int, longest: int) -> None:
    start = tuple(range(10, 10 + shared))
    short = tuple((*start, 3000 + i, 4000 + i, 2) for i in range(1000))
    tree = build_tree((*short, (*start, *range(5000, 5000 + longest - shared), 2)))
    inner = len(tree.parents) - 1
    batch = pack([Query((5,), tree)], pad_id=0)
    assert inner <= len(batch.input_ids) - 1 < 2.2 * inner
    assert set(np.concatenate([part.nodes for part in tree.parts])) == set(range(1, inner + 1))


def test_queries_are_equal_if_prompts_candidates_and_siblings_are() -> None:
    tree, again = build_tree.__wrapped__(CANDIDATES), build_tree.__wrapped__(CANDIDATES)
    assert tree is not again and tree == again and hash(tree) == hash(again)
    assert len({Query((5,), tree), Query((5,), again)}) == 1
    assert Query((5,), tree) != Query((6,), tree)
    # Equal candidates, with and without the siblings of their tokens.
    assert along(tree, (0, 1)).candidates == build_tree(CANDIDATES[:2]).candidates
    assert along(tree, (0, 1)) != build_tree(CANDIDATES[:2])
    assert along(tree, (0, 1)) == along.__wrapped__(again, (0, 1))
