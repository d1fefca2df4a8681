"""Prefix trees and packed batches, against what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.prefix_tree import along, build_tree, pack, packed_length, split

CANDIDATES = ((5, 6, 7, 2), (5, 6, 2), (5, 8, 2), (9, 2))


def test_every_path_spells_its_candidate() -> None:
    tree = build_tree(CANDIDATES)
    for row, candidate in enumerate(CANDIDATES):
        assert tuple(tree.edge_tokens[tree.paths[row][tree.mask[row]]]) == candidate


def test_every_node_knows_its_beginnings() -> None:
    tree = build_tree(CANDIDATES)
    for row, candidate in enumerate(CANDIDATES):
        nodes = tree.path_nodes[row, : len(candidate)]
        assert tree.node_depths[nodes].tolist() == list(range(len(candidate)))
        assert tree.node_tokens[nodes[1:]].tolist() == list(candidate[:-1])
        assert tree.ancestors[nodes[-1]].nonzero()[0].tolist() == sorted(nodes.tolist())


def test_shared_beginnings_are_kept_once_and_whole_candidates_not_at_all() -> None:
    tree = build_tree(CANDIDATES)
    beginnings = {candidate[:n] for candidate in CANDIDATES for n in range(len(candidate))}
    assert len(tree.node_tokens) == len(beginnings) == 6
    assert len(tree.edge_tokens) == len({candidate[: n + 1] for candidate in CANDIDATES for n in range(len(candidate))})


def test_what_matters_for_some_candidates_is_their_way_and_every_token_beside_it() -> None:
    tree = build_tree(CANDIDATES)
    part = along(tree, (3, 1))
    assert part.candidates == ((9, 2), (5, 6, 2))
    for row, candidate in enumerate(part.candidates):
        assert tuple(part.edge_tokens[part.paths[row][part.mask[row]]]) == candidate
        nodes = part.path_nodes[row, : len(candidate)]
        assert part.node_tokens[nodes[1:]].tolist() == list(candidate[:-1])
        for position, node in enumerate(nodes):
            beside = {other[position] for other in CANDIDATES if other[:position] == candidate[:position]}
            assert set(part.edge_tokens[part.edge_nodes == node]) == beside
    assert len(part.node_tokens) == 4, "the empty beginning, (5), (5, 6), (9)"


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ((), "non-empty"),
        (((1, 2), ()), "non-empty"),
        (((1, 2), (1, 2)), "differ"),
        (((1, 2), (1, 2, 3)), "begin others"),
    ],
)
def test_candidates_that_make_no_tree_are_refused(candidates: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tree(candidates)


def test_packed_tokens_attend_to_what_stands_before_them_in_their_candidate_alone() -> None:
    questions = [((11, 12, 13), build_tree(CANDIDATES)), ((14,), build_tree(((5, 6, 2),)))]
    batch = pack(questions, pad_id=0)
    for row, (prompt, tree) in enumerate(questions):
        for candidate_row, candidate in enumerate(tree.candidates):
            nodes = tree.path_nodes[candidate_row, : len(candidate)]
            for position, node in enumerate(nodes):
                column = batch.root + node
                seen = np.flatnonzero(batch.attention[row, column])
                by_position = sorted(seen, key=lambda c: batch.position_ids[row, c])
                assert batch.input_ids[row, by_position].tolist() == [*prompt, *candidate[:position]]
                assert batch.position_ids[row, by_position].tolist() == list(range(len(prompt) + position))


def test_no_row_of_the_mask_is_empty() -> None:
    batch = pack([((11, 12, 13), build_tree(CANDIDATES)), ((14,), build_tree(((5, 2),)))], pad_id=0)
    assert batch.attention.any(-1).all()


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        pack([((), build_tree(((5, 2),)))], pad_id=0)


def test_groups_hold_every_question_once_and_keep_to_their_size() -> None:
    rng = np.random.default_rng(0)
    questions = [(tuple(range(1, 2 + int(n))), build_tree(((5, 6, 2), (7, 2)))) for n in rng.integers(1, 40, size=50)]
    groups = split(questions, tokens=128)
    assert sorted(index for group in groups for index in group) == list(range(50))
    for group in groups:
        widest = max(packed_length(questions[index]) for index in group)
        assert len(group) == 1 or len(group) * widest <= 128
    assert split(questions, tokens=1) and all(len(group) == 1 for group in split(questions, tokens=1))
