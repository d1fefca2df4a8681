"""Tests of household tasks: the registered ones, own tasks, and invalid ones."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from lang_envs import ENVIRONMENTS
from lang_envs.planner import solve
from lang_envs.registration import RegistryEntry
from lang_envs.virtualhome import TASKS, UNSEEN_TASKS, HouseholdTask, Thing, load_task, put_away
from lang_envs.virtualhome.env import VirtualHomeEnv

CHORE = """
instruction: Put the dirty socks in the basket and switch the lamp off and on.
start: bedroom
things:
  - {name: socks, place: bed, properties: [grabbable], plural: true}
  - {name: bed, place: bedroom, properties: [surface, seat]}
  - {name: basket, place: bathroom, properties: [container]}
  - {name: lamp, place: bathroom, properties: [switch]}
goal:
  - socks_in_basket
  - not is_basket_open
  - is_lamp_on
menu:
  walk to the kitchen: [not in_kitchen, not hold_socks]
"""
# To the socks, grab, to the bathroom, to the basket, open, put, close, to the lamp, turn on.
CHORE_STEPS = 9


def play(task: Any, phrases: tuple[str, ...]) -> list[tuple[float, bool]]:
    env = gym.make("VirtualHome-v0", task=task, interface="text")
    env.reset(seed=0)
    return [env.step(phrase)[1:3] for phrase in phrases]


def succeeds(task: Any) -> int:
    """The number of steps of the shortest solution, which is played to its end."""
    plan = solve(VirtualHomeEnv(task)).shortest
    assert plan is not None
    assert play(task, plan) == [(0.0, False)] * (len(plan) - 1) + [(1.0, True)]
    return len(plan)


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        ("food-preparation", 6),
        ("entertainment", 11),
        *((task, 6) for task in UNSEEN_TASKS[:6]),
        ("juice", 8),
        ("towel", 8),
    ],
)
def test_shortest_solutions_have_the_published_lengths(task: str, steps: int) -> None:
    assert succeeds(task) == steps
    assert VirtualHomeEnv(task).optimal_return == pytest.approx(0.95 ** (steps - 1), abs=1e-12)
    found = solve(VirtualHomeEnv(task))
    assert found.best == found.shortest


def test_optimal_returns_equal_those_of_the_paper() -> None:
    assert VirtualHomeEnv("food-preparation").optimal_return == pytest.approx(0.7738, abs=5e-5)
    assert VirtualHomeEnv("entertainment").optimal_return == pytest.approx(0.5987, abs=5e-5)


def test_every_task_has_an_id_and_eight_are_unseen() -> None:
    assert [name for name in ENVIRONMENTS if name.startswith("VirtualHome")] == [
        f"VirtualHome-{task}-v0" for task in TASKS
    ]
    assert len(UNSEEN_TASKS) == 8
    assert len({TASKS[task].things for task in UNSEEN_TASKS}) == 8


def test_a_further_task_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "soup", put_away("Heat the soup in the oven.", "soup", "oven", thing_in="bathroom"))
    row = RegistryEntry("lang_envs.virtualhome.env:VirtualHomeEnv", "", {"task": "soup"})
    env = gym.make("VirtualHome-v0", **row.kwargs)
    check_env(env.unwrapped.unwrapped, skip_render_check=True)
    assert succeeds("soup") == 8


def test_own_task_can_be_a_file_a_mapping_or_an_object(tmp_path: Path) -> None:
    file = tmp_path / "chore.yaml"
    file.write_text(CHORE)
    mapping = yaml.safe_load(CHORE)
    made = HouseholdTask(**mapping | {"things": [Thing(**thing) for thing in mapping["things"]]})
    for task in (file, str(file), mapping, made):
        assert load_task(task) == made
        assert succeeds(task) == CHORE_STEPS
    assert hash(made) == hash(load_task(file))


def test_own_task_passes_check_env_and_can_be_made_from_its_spec() -> None:
    env = gym.make("VirtualHome-v0", task=load_task(yaml.safe_load(CHORE)), interface="text")
    check_env(env.unwrapped, skip_render_check=True)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.task == env.unwrapped.task
    vector = gym.make_vec("VirtualHome-v0", num_envs=2, vectorization_mode="async", task=yaml.safe_load(CHORE))
    _, info = vector.reset(seed=0)
    assert "grab the socks" not in info["available_actions"][0]
    vector.close()


def test_phrases_are_available_by_the_menu_or_if_they_change_something() -> None:
    env = VirtualHomeEnv(yaml.safe_load(CHORE))
    _, info = env.reset(seed=0)
    rooms = ("walk to the living room", "walk to the kitchen", "walk to the bathroom")
    assert info["available_actions"] == (*rooms, "walk to the socks", "walk to the bed")
    env.step("walk to the socks")
    info = env.step("grab the socks")[-1]
    assert "walk to the kitchen" not in info["available_actions"]
    assert "walk to the bathroom" in info["available_actions"]


def test_two_actions_with_one_phrase_are_rejected() -> None:
    names = {"cup": "grabbable", "cup in the tin": "grabbable", "box": "container", "tin in the box": "container"}
    things = [Thing(name, "kitchen", (kind,)) for name, kind in names.items()]
    with pytest.raises(ValueError, match="two things have the phrase 'put the cup in the tin in the box'"):
        HouseholdTask("Do it.", things, goal=["cup_in_box"])


def test_menu_is_evaluated_on_what_is_seen() -> None:
    env = VirtualHomeEnv(changed(menu={"walk to the kitchen": ["not socks_on_bed"]}))
    _, info = env.reset(seed=0)
    assert "walk to the kitchen" not in info["available_actions"]
    info = env.step("walk to the living room")[-1]
    assert "walk to the kitchen" in info["available_actions"], "the socks are still on the bed, but out of sight"


def test_state_without_available_phrases_is_rejected() -> None:
    rooms = ("living room", "kitchen", "bathroom", "bedroom")
    nothing = {f"walk to the {room}": ["in_bedroom"] for room in rooms} | {"walk to the basket": ["is_lamp_on"]}
    nothing |= {"walk to the lamp": ["is_lamp_on"]}
    env = VirtualHomeEnv(changed(menu=nothing))
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"menu: no phrase is available in this state, add one that is: Put the .* the bathroom"
    ):
        env.step("walk to the bathroom")


def test_optimal_return_of_a_task_without_a_solution_is_zero() -> None:
    mapping = yaml.safe_load(CHORE) | {"menu": {"turn on the lamp": ["in_kitchen"]}}
    found = solve(VirtualHomeEnv(mapping))
    assert found.shortest is None
    assert VirtualHomeEnv(mapping).optimal_return == 0.0


def test_optimal_return_is_unknown_for_too_many_states() -> None:
    things = [Thing(f"cup {n}", room, ("grabbable",)) for n in range(6) for room in ("kitchen",)]
    shelves = [Thing(f"shelf {n}", "bedroom", ("surface",)) for n in range(6)]
    goal = [f"cup{n}_on_shelf{n}" for n in range(6)]
    assert VirtualHomeEnv(HouseholdTask("Set the shelves.", (*things, *shelves), goal)).optimal_return is None


def changed(**changes: Any) -> dict[str, Any]:
    return yaml.safe_load(CHORE) | changes


def with_thing(**changes: Any) -> dict[str, Any]:
    mapping = yaml.safe_load(CHORE)
    mapping["things"][0] |= changes
    return mapping


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (changed(instruction=""), "instruction: '' is not one line of plain text"),
        (changed(instruction="two\nlines"), "instruction: .* is not one line"),
        (changed(instruction=["x"]), "instruction: .* is not one line"),
        (changed(instruction="Put the socks in the basket"), "instruction: .* does not end with"),
        (
            changed(goal=["is_lamp_on and hold_socks"]),
            r"goal\[0\]: .* is two conditions: make each one an item of the list",
        ),
        (changed(start="attic"), "start: 'attic' is not one of kitchen, bathroom, bedroom, living room"),
        (changed(things=[]), "things: there are none"),
        (changed(things="socks"), "things: 'socks' is not a list"),
        (changed(things=["socks"]), r"things\[0\]: 'socks' is not a Thing"),
        (changed(goal=[]), "goal: it has no condition"),
        (changed(goal="socks_in_basket"), "goal: 'socks_in_basket' is not a list"),
        (
            changed(goal=["sock_in_basket"]),
            r"goal\[0\]: 'sock_in_basket' is not one of .* Did you mean 'socks_in_basket'",
        ),
        (changed(goal=[True]), r"goal\[0\]: True is not a condition"),
        (changed(goal=["not is_lamp_on"]), "goal: .* holds at the start"),
        (changed(menu={"fly to the moon": []}), "menu: 'fly to the moon' is not one of walk to the"),
        (
            changed(menu={"turn on the lamp": ["is_lamp_onn"]}),
            r"menu\['turn on the lamp'\]\[0\]: 'is_lamp_onn' is not one",
        ),
        (changed(menu=["turn on the lamp"]), "menu: 'turn on the lamp' is not a pair of a phrase and its conditions"),
        (changed(reward=3), "task: 'reward' is not one of instruction, things, goal, start, menu"),
        (with_thing(place="attic"), r"things\[0\].place: 'attic' is not one of kitchen, .*, bed, basket"),
        (with_thing(place="lamp"), r"things\[0\].place: 'lamp' is not one of"),
        (with_thing(name=False), r"things\[0\].name: False is not one line .* unless they are quoted"),
        (with_thing(name="Söckchen"), r"things\[0\].name: 'Söckchen' is not one line of plain text in ASCII"),
        (with_thing(properties=["switch"]), r"things\[0\].place: .* is in or on the bed, but is not grabbable"),
        (with_thing(properties=["grabable"]), r"things\[0\].properties: 'grabable' .* Did you mean 'grabbable'"),
        (with_thing(properties="grabbable"), r"things\[0\].properties: 'grabbable' is not a list"),
        (
            with_thing(properties=["grabbable", "container"]),
            r"things\[0\].properties: 'socks' cannot be both grabbable and container",
        ),
        (with_thing(name="lamp"), r"things\[3\].name: 'lamp' is the same name as 'lamp'"),
        (with_thing(name="La Mp"), r"things\[3\].name: 'lamp' is the same name as 'La Mp'"),
        (with_thing(name="Kitchen"), r"things\[0\].name: 'Kitchen' is the same name as 'kitchen'"),
        (with_thing(name="open socks"), r"things\[0\].name: 'open socks' is not a name of at most 60 letters"),
        (with_thing(name="a. You hold b"), r"things\[0\].name: 'a. You hold b' is not a name"),
        (with_thing(name="x" * 61), r"things\[0\].name: 'x+' is not a name"),
        (
            with_thing(properties=["grabbable", "seat"]),
            r"things\[0\].properties: 'socks' cannot be both grabbable and seat",
        ),
        (changed(menu=[None]), "menu: None is not a pair of a phrase and its conditions"),
        (
            changed(menu=[["turn on the lamp", []], ["turn on the lamp", []]]),
            "menu: 'turn on the lamp' occurs twice",
        ),
        (changed(instruction=" Do it. "), "instruction: ' Do it. ' is not one line"),
        (with_thing(name=7), r"things\[0\].name: 7 is not one line of plain text"),
        (with_thing(plural="yes"), r"things\[0\].plural: 'yes' is neither true nor false"),
        (with_thing(colour="red"), r"things\[0\]: 'colour' is not one of name, place, properties, plural"),
        ({"instruction": "Do it."}, "task.things is missing"),
    ],
)
def test_error_for_an_invalid_task_names_the_field_and_the_possible_values(
    mapping: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        gym.make("VirtualHome-v0", task=mapping)
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(mapping))
    with pytest.raises(ValueError, match=rf"{file}: {message}"):
        load_task(file)


@pytest.mark.parametrize("text", ["- a\n- list\n", "things: [\n", "", "3"])
def test_error_for_a_file_that_is_not_a_mapping_names_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.yml"):
        load_task(file)


def test_error_for_a_missing_task_says_what_is_expected() -> None:
    with pytest.raises(ValueError, match=r"'chese' is neither a \.yaml .* towel\. Did you mean 'cheese'"):
        gym.make("VirtualHome-v0", task="chese")
    with pytest.raises(ValueError, match=r"task is missing.*--set task=FILE"):
        gym.make("VirtualHome-v0")
    for wrong in ([1], 5):
        with pytest.raises(ValueError, match="is not a HouseholdTask, a mapping"):
            load_task(wrong)
    with pytest.raises(FileNotFoundError, match=r"task: the file 'nowhere\.yaml' does not exist"):
        load_task("nowhere.yaml")


def test_yaml_file_cannot_run_code(tmp_path: Path) -> None:
    file = tmp_path / "evil.yaml"
    file.write_text("!!python/object/apply:os.mkdir [" + str(tmp_path / "made") + "]")
    with pytest.raises(ValueError, match=r"evil\.yaml"):
        load_task(file)
    assert not (tmp_path / "made").exists()


def test_uniform_random_play_succeeds_as_often_as_the_markov_chain_predicts() -> None:
    """The share of successes of 2,000 random episodes against the exact probability, by propagation over the states."""
    import numpy as np

    env = gym.make("VirtualHome-cheese-v0", interface="text")
    cached, start = env.unwrapped.cached, env.unwrapped.task.household.initial_state()
    chances, exact = {start: 1.0}, 0.0
    for _ in range(50):
        following: dict[Any, float] = {}
        for state, chance in chances.items():
            available = cached.view(state).available
            for action in available:
                after, done = cached.perform(state, action)
                if done:
                    exact += chance / len(available)
                else:
                    following[after] = following.get(after, 0.0) + chance / len(available)
        chances = following
    rng = np.random.default_rng(0)
    successes = 0
    for _ in range(2000):
        _, info = env.reset()
        over = False
        while not over:
            phrases = info["available_actions"]
            _, _, terminated, truncated, info = env.step(phrases[rng.integers(len(phrases))])
            over = terminated or truncated
        successes += terminated
    assert successes / 2000 == pytest.approx(exact, abs=4 * math.sqrt(exact / 2000))
