"""The cache of features of the frozen base model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainers
from trainers.evaluation import evaluate
from trainers.features import FeatureStore
from trainers.language_model import LanguageModel, load_language_model
from trainers.loop import train
from trainers.prefix_tree import build_tree

Envs = Callable[..., gym.vector.VectorEnv]
TEXTS = [((5, 6, 7), (8, 9)), ((5, 6, 7), (8,)), ((5, 6, 7), (8, 10, 11)), ((5, 6), ()), ((5, 6, 7), ())]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_language_model("embedded", device="cpu")


def test_rows_are_the_hidden_states_of_each_text(model: LanguageModel) -> None:
    store = FeatureStore(model, 1 << 20)
    rows = store.rows(TEXTS)
    decoder = model.model.get_base_model().get_decoder()
    for (prompt, text), own in zip(TEXTS, rows, strict=True):
        with model.model.disable_adapter(), torch.no_grad():
            hidden = decoder(input_ids=torch.tensor([[*prompt, *text]])).last_hidden_state[0]
        torch.testing.assert_close(store.features[own], hidden[len(prompt) - 1 :], atol=1e-5, rtol=1e-5)
    assert len(store.features) == 6, "(5 6 7), 8, 8 9, 8 10, 8 10 11; (5 6)"


def test_stored_features_are_not_computed_again(model: LanguageModel) -> None:
    store = FeatureStore(model, 1 << 20)
    before = store.rows(TEXTS[:3])
    with mock.patch.object(model, "features", wraps=model.features) as features:
        again = store.rows([*TEXTS[:3], ((1, 2), (3,))])
    ((computed,),) = (call.args for call in features.call_args_list)
    assert computed == [((1, 2), build_tree(((3, 0),)))]
    for own, other in zip(before, again, strict=False):
        assert np.array_equal(own, other)


def test_full_store_is_cleared(model: LanguageModel) -> None:
    store = FeatureStore(model, 3 * model.hidden_size * 4)
    store.rows(TEXTS[:1])
    assert len(store.features) == 3
    store.rows(TEXTS[2:3])
    assert len(store.features) == 5, "one call may exceed the capacity"
    store.rows(TEXTS[3:4])
    assert len(store.features) == 1


def test_saved_store_can_be_loaded(model: LanguageModel) -> None:
    store, other = FeatureStore(model, 1 << 20), FeatureStore(model, 1 << 20)
    rows = store.rows(TEXTS)
    other.load_state(store.state())
    with mock.patch.object(model, "features", side_effect=AssertionError("computed again")):
        assert all(np.array_equal(a, b) for a, b in zip(other.rows(TEXTS), rows, strict=True))
    assert torch.equal(other.features, store.features)
    store.clear()
    other.load_state(store.state())
    assert len(other.rows(TEXTS[:1])[0]) == 3


@pytest.mark.parametrize("name", ["poad", "twosome"])
def test_feature_cache_does_not_change_learning(name: str, make_envs: Envs) -> None:
    results = []
    for size in (256, 0):
        agent = trainers.make(name, make_envs(2), seed=3, feature_cache_mib=size, device="cpu")
        with mock.patch.object(agent.language_model, "features", wraps=agent.language_model.features) as features:
            lines = train(agent, make_envs(2), 96, rollout_steps=16, seed=1)
        rows = sum(len(tree.parents) for call in features.call_args_list for _, tree in call.args[0])
        results.append((lines, rows))
    (cached_lines, cached_rows), (fresh_lines, fresh_rows) = results
    assert cached_rows < fresh_rows
    for cached, fresh in zip(cached_lines, fresh_lines, strict=True):
        for metric in ("policy_loss", "value_loss", "approximate_kl", "explained_variance", "entropy"):
            assert cached[metric] == pytest.approx(fresh[metric], abs=1e-4, rel=1e-3)


def test_evaluation_computes_no_features(make_envs: Envs) -> None:
    agent = trainers.make("poad", make_envs(2), device="cpu")
    with mock.patch.object(agent.language_model, "features", side_effect=AssertionError("no values are needed")):
        evaluate(agent, "Overcooked-tomato-salad-v0", 2, num_envs=2)


def test_features_of_free_text_are_not_kept(tmp_path: Path, make_envs: Envs) -> None:
    agent = trainers.make("poad", make_envs(2), sampling="free", max_action_tokens=4, device="cpu")
    train(agent, make_envs(2), 16, rollout_steps=4)
    rows = len(agent.features.features)
    train(agent, make_envs(2), 16, rollout_steps=4)
    assert len(agent.features.features) < 2 * rows
