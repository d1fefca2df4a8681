"""Every environment keeps Gymnasium's contract and that of the base class."""

import copy
import inspect
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from lang_envs import ENVIRONMENTS, LanguageEnv, TokenEnv

IDS = sorted(name for name, environment in ENVIRONMENTS.items() if environment.finite)
TOMATO = "Overcooked-tomato-salad-v0"
FULL = "Overcooked-tomato-lettuce-onion-salad-v0"
every_id = pytest.mark.parametrize("name", IDS)
both_interfaces = pytest.mark.parametrize("interface", ["tokens", "text"])
both_autoresets = pytest.mark.parametrize("autoreset", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])


def say(env: gym.Env, phrase: str) -> tuple:
    """Perform the action of a phrase, with either interface."""
    space = env.action_space
    return env.step(space.encode(phrase) if hasattr(space, "encode") else phrase)


def plain(*values: Any) -> tuple:
    """Return the values with lists instead of arrays, so that tuples of them can be compared."""
    return tuple(value.tolist() if isinstance(value, np.ndarray) else value for value in values)


def random_walk(env: gym.Env, steps: int, seed: int) -> list[tuple]:
    """Return what random available actions give from the present state on, including resets."""
    chooser, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        choice = chooser.choice(env.unwrapped.available_action_ids())
        outcome = say(env, env.unwrapped.action_names[choice])
        seen.append(plain(*outcome))
        if outcome[2] or outcome[3]:
            seen.append(plain(*env.reset()))
    return seen


# --------------------------------------------------------------------------------------------- Gymnasium's contract


@every_id
@both_interfaces
def test_check_env_passes_without_a_warning(name: str, interface: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # check_env would rather see the bare environment, and what is to be checked here is the wrapper to tokens
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(gym.make(name, interface=interface, disable_env_checker=True))


@every_id
def test_every_observation_fits_both_spaces(name: str) -> None:
    for interface in ("tokens", "text"):
        env = gym.make(name, interface=interface)
        observation, _ = env.reset(seed=0)
        for outcome in [(observation,), *random_walk(env, 300, seed=1)]:
            raw = np.array(outcome[0]) if interface == "tokens" else outcome[0]
            assert raw in env.observation_space


@every_id
@both_autoresets
def test_vector_environments_keep_their_rows_apart_and_reset_themselves(name: str, autoreset: AutoresetMode) -> None:
    follow_single_environments("sync", name, autoreset)


@pytest.mark.parametrize("name", [TOMATO, FULL])
@both_autoresets
def test_async_vector_environments_give_the_same_results(name: str, autoreset: AutoresetMode) -> None:
    follow_single_environments("async", name, autoreset)


def follow_single_environments(mode: str, name: str, autoreset: AutoresetMode) -> None:
    """Random actions in three rows of a vector environment yield what they yield in three single environments."""
    singles = [gym.make(name) for _ in range(3)]
    vector = gym.make_vec(name, num_envs=3, vectorization_mode=mode, vector_kwargs={"autoreset_mode": autoreset})
    try:
        assert vector.single_action_space == singles[0].action_space
        observations, infos = vector.reset(seed=7)
        for row, env in enumerate(singles):
            observation, info = env.reset(seed=7 + row)
            assert np.array_equal(observations[row], observation)
            assert (infos["text"][row], infos["available_actions"][row]) == (info["text"], info["available_actions"])

        chooser, ended, ends = np.random.default_rng(3), [False] * 3, 0
        names = singles[0].unwrapped.action_names
        for _ in range(300):
            phrases = [names[chooser.integers(len(names))] for _ in singles]
            actions = np.stack([vector.single_action_space.encode(phrase) for phrase in phrases])
            observations, rewards, terminations, truncations, infos = vector.step(actions)
            for row, env in enumerate(singles):
                if ended[row] and autoreset == AutoresetMode.NEXT_STEP:
                    observation, info = env.reset()
                    assert (rewards[row], terminations[row], truncations[row]) == (0, False, False)
                    ended[row] = False
                else:
                    observation, reward, terminated, truncated, info = env.step(actions[row])
                    assert (rewards[row], terminations[row], truncations[row]) == (reward, terminated, truncated)
                    ended[row] = terminated or truncated
                    if ended[row] and autoreset == AutoresetMode.SAME_STEP:
                        ends += 1
                        assert np.array_equal(infos["final_obs"][row], observation)
                        assert infos["final_info"]["text"][row] == info["text"]
                        observation, info = env.reset()
                ends += ended[row] and autoreset == AutoresetMode.NEXT_STEP
                assert np.array_equal(observations[row], observation)
                assert infos["text"][row] == info["text"]
                assert infos["available_action_ids"][row] == info["available_action_ids"]
        assert ends >= 3, "the walk has to pass ends of episodes to say anything"
    finally:
        vector.close()


@every_id
def test_text_environments_work_in_vectors_too(name: str) -> None:
    vector = gym.make_vec(name, num_envs=2, vectorization_mode="sync", interface="text")
    observations, infos = vector.reset(seed=0)
    phrase = vector.envs[0].unwrapped.action_names[0]
    observations, *_, infos = vector.step((phrase, "nonsense"))
    assert observations == tuple(infos["text"])
    assert infos["action_valid"].tolist() == [True, False]


# ------------------------------------------------------------------------------------------ copies, seeds, exact resume


@every_id
@both_interfaces
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"]
)
def test_copies_in_the_middle_of_an_episode_continue_identically(name: str, interface: str, duplicate: Any) -> None:
    env = gym.make(name, interface=interface)
    env.reset(seed=5)
    random_walk(env, 7, seed=0)
    other = duplicate(env)
    assert random_walk(other, 200, seed=1) == random_walk(env, 200, seed=1)


def test_copies_are_independent(diary: LanguageEnv) -> None:
    diary.reset(seed=1)
    diary.step("one")
    other = copy.deepcopy(diary)
    first, second = diary.step("two")[0], other.step("two")[0]
    assert first == second, "random numbers included"
    diary.step("three")
    assert other.symbolic_observation().tolist() == [2]


def test_state_of_one_environment_can_be_assigned_to_another(diary: LanguageEnv) -> None:
    diary.reset(seed=1)
    diary.step("one")
    state = copy.deepcopy(diary.state)
    other = type(diary)()
    other.reset(seed=99)
    other.state = state
    for entry in ("two", "three", "the end"):
        assert other.step(entry) == diary.step(entry)
    assert other.reset()[0] == diary.reset()[0]
    assert other.step("again") == diary.step("again"), "and the random generator continues identically"


@every_id
@both_interfaces
def test_state_of_every_environment_can_be_assigned_to_another(name: str, interface: str) -> None:
    env, other = (gym.make(name, interface=interface) for _ in range(2))
    env.reset(seed=5)
    other.reset(seed=6)
    random_walk(env, 7, seed=0)
    other.unwrapped.state = pickle.loads(pickle.dumps(env.unwrapped.state))
    assert random_walk(other, 200, seed=1) == random_walk(env, 200, seed=1)


def test_state_includes_whether_an_episode_is_over(tomato_plan: tuple[str, ...]) -> None:
    env, other = (gym.make(TOMATO, interface="text").unwrapped for _ in range(2))
    env.reset()
    for phrase in tomato_plan:
        env.step(phrase)
    other.reset()
    other.state = env.state
    with pytest.raises(ResetNeeded):
        other.step("chop")


TRAJECTORY = """
import gymnasium as gym, numpy as np, lang_envs
for name in sorted(name for name, environment in lang_envs.ENVIRONMENTS.items() if environment.finite):
    env, chooser = gym.make(name), np.random.default_rng(0)
    observation, info = env.reset(seed=11)
    for _ in range(60):
        print(name, info["text"], observation.tolist(), sorted(info.items()))
        action = env.action_space.encode(chooser.choice(info["available_actions"]))
        observation, reward, terminated, truncated, info = env.step(action)
        print(repr(reward), terminated, truncated)
        if terminated or truncated:
            observation, info = env.reset()
    env.action_space.seed(4)
    print(env.action_space.sample().tolist())
"""


def test_episodes_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", TRAJECTORY],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") > 100 * len(IDS)


@every_id
def test_reset_with_a_seed_starts_the_same_episode_again(name: str) -> None:
    env = gym.make(name)
    first = plain(*env.reset(seed=3)), random_walk(env, 100, seed=0)
    assert (plain(*env.reset(seed=3)), random_walk(env, 100, seed=0)) == first


# ----------------------------------------------------------------------------------------------------- info


@every_id
@both_interfaces
def test_info_lists_exactly_the_actions_that_step_accepts(name: str, interface: str) -> None:
    env = gym.make(name, interface=interface)
    observation, info = env.reset(seed=0)
    environment, space, chooser = env.unwrapped, env.observation_space, np.random.default_rng(0)
    assert "action_valid" not in info
    for _ in range(200):
        text = observation if interface == "text" else space.decode(observation)
        assert text == info["text"]
        assert info["available_actions"] == tuple(environment.action_names[k] for k in info["available_action_ids"])
        phrase = environment.action_names[chooser.integers(len(environment.action_names))]
        offered = phrase in info["available_actions"]
        observation, reward, terminated, truncated, info = say(env, phrase)
        assert info["action_valid"] == offered
        assert isinstance(reward, float)
        assert isinstance(terminated, bool)
        assert isinstance(truncated, bool)
        assert not (terminated and truncated)
        if terminated or truncated:
            observation, info = env.reset()


@every_id
def test_infos_and_observations_are_fresh_objects(name: str) -> None:
    env = gym.make(name)
    outcomes = [env.reset(seed=0), env.reset(seed=0)]
    chosen = env.action_space.encode(env.unwrapped.action_names[0])
    outcomes += [(outcome[0], outcome[-1]) for outcome in (env.step(chosen), env.step(chosen))]
    for (observation, info), (other_observation, other_info) in pairwise(outcomes):
        assert observation is not other_observation
        assert not np.shares_memory(observation, other_observation)
        assert info is not other_info
    outcomes[0][0][:] = -1  # what a caller does to an observation is no business of the environment
    assert np.array_equal(env.reset(seed=0)[0], outcomes[1][0])


@every_id
def test_symbolic_observation_has_a_name_for_every_field(name: str) -> None:
    environment = gym.make(name, interface="text").unwrapped
    environment.reset(seed=0)
    fields = environment.symbolic_observation()
    assert fields.dtype == np.int64
    assert fields.shape == (len(environment.symbolic_fields),)
    assert len(set(environment.symbolic_fields)) == len(environment.symbolic_fields)
    fields[:] = -7
    assert -7 not in environment.symbolic_observation()


@every_id
@both_interfaces
def test_unknown_phrase_costs_one_primitive_step_and_changes_nothing_else(name: str, interface: str) -> None:
    env = gym.make(name, interface=interface)
    env.reset(seed=0)
    random_walk(env, 3, seed=2)
    environment = env.unwrapped
    symbols, available = environment.symbolic_observation(), environment.available_action_ids()
    for _ in range(3):
        _, reward, terminated, truncated, info = say(env, "fly")
        assert info["action_valid"] is False
        assert info.get("primitive_steps", 1) == 1
        assert not (terminated or truncated)
        assert reward <= 0
        assert np.array_equal(environment.symbolic_observation(), symbols)
        assert info["available_action_ids"] == available


def test_unknown_phrases_use_up_the_time_of_an_episode() -> None:
    env = gym.make(TOMATO, interface="text")
    env.reset()
    kitchen_state, rewards = env.unwrapped.state["fields"]["kitchen_state"], []
    for step in range(1, 201):
        _, reward, _, truncated, _ = env.step("fly")
        rewards.append(reward)
        assert truncated == (step == 200)
    assert set(rewards) == {-0.001}
    assert env.unwrapped.state["fields"]["kitchen_state"] == kitchen_state


def test_unavailable_phrase_is_invalid_like_an_unknown_one(door: LanguageEnv) -> None:
    _, info = door.reset()
    assert info["available_actions"] == ("open the door",)
    for phrase in ("walk through the door", "close the door", "fly"):
        text, reward, terminated, _, info = door.step(phrase)
        assert (text, reward, terminated, info["action_valid"]) == ("The door is closed.", 0.0, False, False)
    _, _, _, _, info = door.step(" open the door ")
    assert info["action_valid"] is True, "space around a phrase does not count"
    assert info["available_actions"] == ("close the door", "walk through the door")
    assert info["available_action_ids"] == (1, 2)


def test_info_of_an_environment_without_phrases_has_no_available_actions(diary: LanguageEnv) -> None:
    _, info = diary.reset(seed=0)
    assert set(info) == {"text"}
    *_, info = diary.step(" anything\n at all ")
    assert set(info) == {"text", "action_valid"}
    assert info["action_valid"] is True
    assert " anything\n at all " in info["text"], "the text arrives as it was sent"


# --------------------------------------------------------------------------------------------------------- tutorial


def test_example_in_the_docstring_of_the_base_class_is_a_complete_environment() -> None:
    documentation = inspect.getdoc(LanguageEnv) or ""
    block = re.search(r"A complete environment::\n\n((?:    .*\n|\n)+)", documentation)
    assert block is not None
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(block[1]), namespace)
    make = namespace["Door"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(), skip_render_check=True)
    assert TokenEnv(make()).observation_space.contains(TokenEnv(make()).reset(seed=0)[0])
    closed = next(seed for seed in range(100) if make().reset(seed=seed)[0] == "The door is closed.")
    env = make()
    env.reset(seed=closed)
    assert env.step("walk through the door")[:3] == ("The door is closed.", 0.0, False)
    assert env.step("open the door")[:3] == ("The door is open.", 0.0, False)
    assert env.step("walk through the door")[1:3] == (1.0, True)
    env.reset(seed=closed)
    state = env.state
    env.step("open the door")
    env.state = state
    assert env.narrate() == "The door is closed."


def test_docstring_of_the_base_class_lists_every_hook() -> None:
    documentation = inspect.getdoc(LanguageEnv) or ""
    hooks = {
        name
        for name, value in vars(LanguageEnv).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in ("reset", "step")
    }
    assert set(re.findall(r"^:meth:`(\w+)` ", documentation, re.MULTILINE)) == hooks


# ------------------------------------------------------------------------------------------------------- wrong inputs


def wrong_token_actions(space: Any) -> dict[str, tuple[Any, str]]:
    vocabulary, length = space.tokenizer.vocab_size, space.max_length
    return {
        "floats": (np.zeros(length), "integers, not float64"),
        "booleans": (np.zeros(length, dtype=bool), "integers, not bool"),
        "objects": (np.array(["chop"] * length, dtype=object), "integers, not object"),
        "too short": (np.zeros(length - 1, dtype=np.int64), rf"shape \({length},\), not \({length - 1},\)"),
        "two-dimensional": (np.zeros((1, length), dtype=np.int64), rf"shape \({length},\), not \(1, {length}\)"),
        "id too large": (np.full(length, vocabulary), f"id {vocabulary} is outside .*: expected 0 to {vocabulary - 1}"),
        "negative id": (np.full(length, -1), "id -1 is outside"),
        "id beyond int64": (np.full(length, 2**64 - 1, dtype=np.uint64), "outside"),
        "wrong id behind the end": (np.r_[space.encode("chop")[: length - 1], vocabulary], "outside"),
        "list": ([0] * length, "NumPy array, not list"),
        "string": ("chop", "NumPy array, not str"),
        "nothing": (None, "NumPy array, not NoneType"),
    }


@every_id
@pytest.mark.parametrize("case", list(wrong_token_actions(gym.make(TOMATO).action_space)))
def test_malformed_token_action_raises_and_changes_nothing(name: str, case: str) -> None:
    env = gym.make(name)
    env.reset(seed=0)
    random_walk(env, 3, seed=2)
    before = copy.deepcopy(env.unwrapped.state)
    action, message = wrong_token_actions(env.action_space)[case]
    with pytest.raises(ValueError, match=message):
        env.step(action)
    assert env.unwrapped.state == before


@every_id
@pytest.mark.parametrize("action", [None, 3, b"chop", ["chop"], np.zeros(3)], ids=repr)
def test_text_action_that_is_not_a_str_raises_and_changes_nothing(name: str, action: Any) -> None:
    env = gym.make(name, interface="text").unwrapped
    env.reset(seed=0)
    before = copy.deepcopy(env.state)
    with pytest.raises(ValueError, match=f"must be a str, not {type(action).__name__}"):
        env.step(action)
    assert env.state == before


@every_id
@both_interfaces
def test_step_needs_a_running_episode(name: str, interface: str) -> None:
    env = gym.make(name, interface=interface)
    phrase = env.unwrapped.action_names[0]
    with pytest.raises(ResetNeeded):
        say(env, phrase)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.unwrapped.step(phrase)
    env.reset(seed=0)
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, _ = say(env, phrase)
    before = copy.deepcopy(env.unwrapped.state)
    with pytest.raises(ResetNeeded, match="after an episode's end"):
        say(env, phrase)
    assert env.unwrapped.state == before
    env.reset()
    say(env, phrase)


def test_ten_thousand_random_token_actions_corrupt_nothing(tomato_plan: tuple[str, ...]) -> None:
    env = gym.make(TOMATO)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(10_000):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert np.isfinite(reward)
        if terminated or truncated:
            env.reset()
    env.reset()
    environment, earned, elapsed = env.unwrapped, 0.0, 0
    for phrase in tomato_plan:
        _, reward, terminated, _, info = say(env, phrase)
        earned += environment.discount**elapsed * reward
        elapsed += info["primitive_steps"]
    assert terminated
    assert earned == pytest.approx(environment.optimal_return, abs=1e-6)
