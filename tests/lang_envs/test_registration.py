"""Tests of the registry: ids, specs, and imports of the package."""

import inspect
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec, load_env_creator

import lang_envs
from lang_envs import ENVIRONMENTS, LanguageEnv, TokenEnv, TokenSequence

IDS = sorted(name for name, environment in ENVIRONMENTS.items() if environment.finite)
TOMATO = "Overcooked-tomato-salad-v0"


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_environments_imports_neither_torch_nor_the_other_packages() -> None:
    loaded = run_python(
        "import sys, lang_envs, gymnasium\n"
        f"env = gymnasium.make({TOMATO!r}); env.reset(); env.step(env.action_space.encode('chop'))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    ).split()
    assert "lang_envs" in loaded
    heavy = {
        "torch",
        "transformers",
        "peft",
        "trainers",
        "benchmarks",
        "PIL",
        "sklearn",
        "pandas",
        "matplotlib",
        "rich",
    }
    assert not heavy & set(loaded)


def test_make_imports_the_package_by_the_name_before_the_colon() -> None:
    printed = run_python(
        f"import gymnasium; env = gymnasium.make('lang_envs:{TOMATO}'); print(env.reset(seed=0)[1]['text'])"
    )
    assert printed.startswith("Make a tomato salad.")


@pytest.mark.parametrize("name", IDS)
def test_every_id_is_registered_with_plain_data(name: str) -> None:
    spec = gym.spec(name)
    assert isinstance(spec.entry_point, str)
    assert EnvSpec.from_json(spec.to_json()) == spec
    assert ENVIRONMENTS[name].summary.endswith(".")


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("interface", ["tokens", "text"])
def test_spec_of_an_environment_makes_the_same_environment_again(name: str, interface: str) -> None:
    env = gym.make(name, interface=interface)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert str(again) == str(env)
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space
    assert again.reset(seed=1)[1] == env.reset(seed=1)[1]


def test_arguments_survive_the_spec() -> None:
    env = gym.make(TOMATO, max_observation_tokens=200, max_action_tokens=50)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert (again.observation_space.shape, again.action_space.shape) == ((200,), (50,))


@pytest.mark.parametrize("name", IDS)
def test_tokens_are_the_default_and_text_is_an_option(name: str) -> None:
    tokens, text = gym.make(name), gym.make(name, interface="text")
    assert isinstance(tokens.action_space, TokenSequence)
    assert isinstance(tokens.observation_space, TokenSequence)
    assert isinstance(text.action_space, gym.spaces.Text)
    assert isinstance(text.observation_space, gym.spaces.Text)
    assert isinstance(text.unwrapped, LanguageEnv)
    assert type(tokens.unwrapped) is type(text.unwrapped)


def test_wrapping_a_text_environment_by_hand_gives_the_same_as_make() -> None:
    by_hand, made = TokenEnv(gym.make(TOMATO, interface="text")), gym.make(TOMATO)
    assert by_hand.action_space == made.action_space
    assert by_hand.reset(seed=0)[0].tolist() == made.reset(seed=0)[0].tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"interface": "speech"}, ValueError, "interface 'speech' is not one of"),
        ({"dish": ["potato"]}, ValueError, "is not one of tomato"),
        ({"dishes": ["tomato"]}, TypeError, "dishes"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gym.make(TOMATO, **arguments)


@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_registering_twice_does_no_harm() -> None:
    gym.register_envs(lang_envs)
    lang_envs.registration.register_environments()
    gym.make(TOMATO).reset()


@pytest.mark.parametrize("entry_point", sorted({entry.entry_point for entry in ENVIRONMENTS.values()}))
def test_class_docstring_is_the_manual_of_the_environment(entry_point: str) -> None:
    manual = inspect.getdoc(load_env_creator(entry_point)) or ""
    for heading in (
        "Description",
        "Action Space",
        "Observation Space",
        "Starting State",
        "Rewards",
        "Episode End",
        "Information",
        "Arguments",
        "References",
        "Version History",
    ):
        assert f"\n\n{heading}\n{'-' * len(heading)}\n" in manual
