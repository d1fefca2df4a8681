"""Tests of the space of token sequences and of the wrapper that turns text into token ids."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from lang_envs import LanguageEnv, TokenEnv, TokenSequence, load_tokenizer

TOMATO = "Overcooked-tomato-salad-v0"


@pytest.fixture
def space() -> TokenSequence:
    return TokenSequence(load_tokenizer(), 8, seed=0)


# ------------------------------------------------------------------------------------------------------------ the space


def test_space_is_a_multidiscrete_of_the_vocabulary(space: TokenSequence) -> None:
    assert isinstance(space, MultiDiscrete)
    assert space.shape == (8,)
    assert space.dtype == np.int64
    assert set(space.nvec) == {space.tokenizer.vocab_size}


def test_samples_are_ids_then_padding_of_every_length(space: TokenSequence) -> None:
    lengths = set()
    for _ in range(500):
        array = space.sample()
        assert array in space
        ids = space.unpad(array)
        lengths.add(len(ids))
        assert space.check_ids(space.check(array)) is array
    assert lengths >= set(range(1, 9))


def test_equal_seeds_give_equal_samples(space: TokenSequence) -> None:
    other = TokenSequence(load_tokenizer(), 8)
    space.seed(3)
    other.seed(3)
    assert all(np.array_equal(space.sample(), other.sample()) for _ in range(20))


def test_spaces_are_equal_if_tokenizer_and_length_are(space: TokenSequence) -> None:
    tokenizer = space.tokenizer
    assert space == TokenSequence(load_tokenizer("embedded"), 8)
    assert space != TokenSequence(tokenizer, 9)
    assert space != MultiDiscrete(space.nvec)
    for duplicate in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert duplicate == space
        assert duplicate.decode(duplicate.encode("chop")) == " chop"
    assert "max_length=8" in repr(space)
    assert "embedded" in repr(space)


def test_space_can_be_stored_as_json(space: TokenSequence) -> None:
    samples = [space.sample() for _ in range(3)]
    again = space.from_jsonable(space.to_jsonable(samples))
    assert np.array_equal(np.stack(again), np.stack(samples))


def test_vector_tools_batch_the_space_into_an_array(space: TokenSequence) -> None:
    batch = batch_space(space, 4)
    array = create_empty_array(space, 4)
    assert array.shape == batch.shape == (4, 8)
    assert array.dtype == np.int64
    assert all(row in space for row in iterate(batch, batch.sample()))


def test_padding_and_back(space: TokenSequence) -> None:
    array = space.pad((5, 6, 7))
    assert array.tolist() == [5, 6, 7] + [space.tokenizer.pad_id] * 5
    assert space.unpad(array) == (5, 6, 7)
    assert space.unpad(space.pad(tuple(range(5, 13)))) == tuple(range(5, 13)), "a full array needs no end"
    assert space.pad((5,)) is not space.pad((5,))
    with pytest.raises(ValueError, match="9 tokens do not fit into a space of 8"):
        space.pad((5,) * 9)


@pytest.mark.parametrize("stop", ["end_id", "pad_id"])
def test_everything_after_the_first_end_or_padding_is_ignored(space: TokenSequence, stop: str) -> None:
    array = space.pad((5, getattr(space.tokenizer, stop), 6, 7))
    assert space.unpad(array) == (5,)


def test_phrase_is_encoded_with_a_space_before_and_the_end_token_after(space: TokenSequence) -> None:
    array = space.encode("chop")
    tokenizer = space.tokenizer
    ids = space.unpad(array)
    assert array[len(ids)] == tokenizer.end_id
    assert set(array[len(ids) + 1 :].tolist()) <= {tokenizer.pad_id}
    assert space.decode(array) == " chop"


def test_max_length_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_length must be at least 1, not 0"):
        TokenSequence(load_tokenizer(), 0)


# ---------------------------------------------------------------------------------------------------------- the wrapper


def test_spaces_fit_the_longest_observation_and_phrase() -> None:
    env = gym.make(TOMATO)
    environment, tokenizer = env.unwrapped, env.get_wrapper_attr("tokenizer")
    longest = max(len(tokenizer.encode(" " + name)) + 1 for name in environment.action_names)
    assert env.action_space.max_length == longest
    assert env.observation_space.max_length < 100
    for name in environment.action_names:
        assert env.action_space.decode(env.action_space.encode(name)).strip() == name


def test_error_for_a_too_short_space_names_the_argument_and_the_needed_length() -> None:
    env = gym.make(TOMATO)
    observation, action = env.observation_space.max_length, env.action_space.max_length
    for argument, needed in (("max_observation_tokens", observation), ("max_action_tokens", action)):
        gym.make(TOMATO, **{argument: needed})
        roomier = gym.make(TOMATO, **{argument: needed + 5})
        assert needed + 5 in (roomier.observation_space.max_length, roomier.action_space.max_length)
        with pytest.raises(
            ValueError, match=rf"{argument}={needed - 1} cannot hold .* at least {needed} for .*'embedded'"
        ):
            gym.make(TOMATO, **{argument: needed - 1})


@pytest.mark.parametrize("argument", ["max_observation_tokens", "max_action_tokens"])
@pytest.mark.parametrize("length", [0, -1])
@pytest.mark.parametrize("environment", ["door", "diary"])
def test_lengths_below_one_are_rejected(
    argument: str, length: int, environment: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ValueError, match=f"{argument}={length}|must be at least 1, not {length}"):
        TokenEnv(request.getfixturevalue(environment), **{argument: length})


def test_only_language_environments_can_be_wrapped() -> None:
    with pytest.raises(ValueError, match="TokenEnv wraps a LanguageEnv, not a CartPoleEnv"):
        TokenEnv(gym.make("CartPole-v1"))


@pytest.mark.parametrize("spelling", ["chop", " chop", "  chop \n"])
def test_phrase_is_recognised_with_any_tokenization_and_outer_spaces(spelling: str) -> None:
    env = gym.make(TOMATO, max_action_tokens=20)
    space = env.action_space
    env.reset()
    whole = space.pad(space.tokenizer.encode(spelling))
    letter_by_letter = space.pad(tuple(i for letter in spelling for i in space.tokenizer.encode(letter)))
    for action in (whole, letter_by_letter):
        *_, info = env.step(action)
        assert info["action_valid"] is True


def test_tokens_after_the_end_token_are_ignored() -> None:
    env = gym.make(TOMATO, max_action_tokens=12)
    env.reset()
    action = env.action_space.encode("chop")
    stop = int(np.flatnonzero(action == env.action_space.tokenizer.end_id)[0])
    action[stop + 1 :] = 17
    *_, info = env.step(action)
    assert info["action_valid"] is True


def test_smaller_integer_dtypes_are_accepted() -> None:
    env = gym.make(TOMATO)
    env.reset()
    for dtype in (np.int16, np.int32, np.uint16):
        *_, info = env.step(env.action_space.encode("chop").astype(dtype))
        assert info["action_valid"] is True


def test_invalid_utf8_is_an_unknown_phrase() -> None:
    env = gym.make(TOMATO)
    env.reset()
    half = env.action_space.tokenizer.encode("\u00e9")[:1]  # the first of two bytes
    *_, info = env.step(env.action_space.pad(half))
    assert info["action_valid"] is False


def test_observation_cache_is_bounded(diary: LanguageEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lang_envs.tokens.CACHE_ENTRIES", 5)
    environment = gym.make(TOMATO, interface="text").unwrapped
    assert isinstance(environment, LanguageEnv)
    env = TokenEnv(environment)
    _, info = env.reset(seed=0)
    seen = set()
    for number in range(40):
        phrases = info["available_actions"]
        observation, *_, info = env.step(env.action_space.encode(phrases[number * 7 % len(phrases)]))
        assert env.observation_space.decode(observation) == info["text"]
        seen.add(info["text"])
        assert 0 < len(env.encoded_observations) <= 5
    assert len(seen) > 5
    env = TokenEnv(diary)
    env.reset(seed=0)
    for number in range(20):
        env.step(env.action_space.encode(f"entry {number}"))
    assert not env.encoded_observations, "with free text as actions, observations are not cached"


# ------------------------------------------------------------------------------------------------------ open-ended text


def test_open_ended_environments_have_default_lengths(diary: LanguageEnv) -> None:
    env = TokenEnv(diary)
    assert (env.observation_space.max_length, env.action_space.max_length) == (1024, 128)
    observation, info = env.reset(seed=0)
    assert env.observation_space.decode(observation) == "Dear diary:"
    assert "trimmed_tokens" not in info


def test_free_text_reaches_the_environment_unchanged(diary: LanguageEnv) -> None:
    env = TokenEnv(diary)
    env.reset(seed=0)
    entry = "d\u00e9j\u00e0 vu,\n  \u4f60\u597d \U0001f955"
    *_, info = env.step(env.action_space.encode(entry))
    assert f"{entry} " in info["text"]


def test_long_observations_lose_their_beginning_and_info_has_the_number_of_tokens(diary: LanguageEnv) -> None:
    env = TokenEnv(diary, max_observation_tokens=30)
    tokenizer = env.tokenizer
    _, info = env.reset(seed=0)
    trimmed: list[Any] = []
    for number in range(12):
        observation, *_, info = env.step(env.action_space.encode(f"entry {number}"))
        everything = tokenizer.encode(info["text"])
        surplus = len(everything) - 30
        assert info.get("trimmed_tokens") == (surplus if surplus > 0 else None)
        kept = everything[max(0, surplus) :]
        assert observation.tolist() == [*kept, *[tokenizer.pad_id] * (30 - len(kept))]
        trimmed.append(info.get("trimmed_tokens"))
    assert trimmed[0] is None
    assert trimmed[-1] > 0
    _, info = env.reset()
    assert "trimmed_tokens" not in info
