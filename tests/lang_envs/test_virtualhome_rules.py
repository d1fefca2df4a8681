"""Tests of VirtualHome: each rule of the household, and the observations."""

from collections import defaultdict
from collections.abc import Iterator

import gymnasium as gym
import pytest

import lang_envs  # noqa: F401  (registers the ids)
from lang_envs import TokenEnv
from lang_envs.virtualhome import TASKS, HouseholdTask, Thing
from lang_envs.virtualhome.env import VirtualHomeEnv
from lang_envs.virtualhome.household import HELD, ROOMS, Household, State
from lang_envs.virtualhome.narration import action_phrases, narrate

HOME = Household(
    (
        Thing("cup", "cupboard", ("grabbable",)),
        Thing("spoons", "table", ("grabbable",), plural=True),
        Thing("lamp", "kitchen", ("grabbable", "switch")),
        Thing("cupboard", "kitchen", ("container",)),
        Thing("table", "kitchen", ("surface",)),
        Thing("radio", "bedroom", ("switch", "screen")),
        Thing("bed", "bedroom", ("seat",)),
    )
)
PHRASES = action_phrases(HOME)
INDEX = {thing.name: i for i, thing in enumerate(HOME.things)}

EVERYTHING = HouseholdTask(
    "Put everything in order.",
    HOME.things,
    goal=["cup_on_table", "lamp_in_cupboard", "is_lamp_on", "not is_cupboard_open", "hold_spoons", "is_sit_bed"],
)


def do(*phrases: str, state: State | None = None) -> State:
    state = HOME.initial_state() if state is None else state
    for phrase in phrases:
        state = HOME.perform(state, HOME.actions[PHRASES.index(phrase)])
    return state


def sees(state: State) -> set[str]:
    return {field for field, value in HOME.observe(state).items() if value}


def test_nothing_is_near_or_in_hand_at_the_start_and_containers_are_closed() -> None:
    seen = sees(HOME.initial_state())
    assert seen == {"in_kitchen", "see_lamp", "see_cupboard", "see_table", "see_spoons", "spoons_on_table"}


def test_after_walking_to_a_thing_the_person_is_near_it_only() -> None:
    state = do("walk to the table", "walk to the lamp")
    assert {field for field in sees(state) if field.startswith("close")} == {"close_to_lamp"}


def test_after_walking_to_a_room_the_person_is_near_held_things_only() -> None:
    state = do("walk to the lamp", "grab the lamp", "walk to the table", "walk to the bathroom")
    assert sees(state) == {"in_bathroom", "see_lamp", "close_to_lamp", "hold_lamp"}


def test_things_in_a_closed_container_are_not_seen_and_in_an_open_one_are_near_with_it() -> None:
    at_cupboard = do("walk to the cupboard")
    assert "see_cup" not in sees(at_cupboard)
    opened = do("open the cupboard", state=at_cupboard)
    assert {"see_cup", "close_to_cup", "cup_in_cupboard", "is_cupboard_open"} <= sees(opened)
    from_afar = do("walk to the lamp", "walk to the cup", state=opened)
    assert {"close_to_cup", "close_to_cupboard"} <= sees(from_afar)
    closed = do("close the cupboard", state=opened)
    assert sees(closed) == sees(at_cupboard)


def test_things_on_a_near_surface_are_not_near() -> None:
    assert "close_to_spoons" not in sees(do("walk to the table"))
    assert "close_to_table" not in sees(do("walk to the spoons"))


def test_thing_just_put_on_a_surface_is_still_near() -> None:
    state = do("walk to the lamp", "grab the lamp", "walk to the table", "put the lamp on the table")
    assert {"lamp_on_table", "close_to_lamp", "close_to_table"} <= sees(state)
    assert "hold_lamp" not in sees(state)


def test_two_hands_hold_two_things_and_then_nothing_can_be_grabbed_opened_or_switched() -> None:
    full = do("walk to the lamp", "grab the lamp", "walk to the spoons", "grab the spoons")
    assert full.places.count(HELD) == 2
    for phrases in (
        ("walk to the cupboard", "open the cupboard"),
        ("turn on the lamp",),
        ("walk to the bedroom", "walk to the radio", "turn on the radio"),
    ):
        before = do(*phrases[:-1], state=full)
        assert do(phrases[-1], state=before) == before
    cup_near = do("walk to the cupboard", state=full)._replace(opened=frozenset({INDEX["cupboard"]}))
    assert "close_to_cup" in sees(cup_near)
    assert do("grab the cup", state=cup_near) == cup_near


@pytest.mark.parametrize(
    ("before", "phrase"),
    [
        ((), "grab the lamp"),
        ((), "open the cupboard"),
        ((), "walk to the kitchen"),
        ((), "walk to the cup"),
        ((), "walk to the bed"),
        ((), "sit on the bed"),
        ((), "stand up from the bed"),
        (("walk to the cupboard",), "close the cupboard"),
        (("walk to the cupboard",), "grab the cup"),
        (("walk to the cupboard",), "put the cup in the cupboard"),
        (("walk to the lamp",), "turn off the lamp"),
        (("walk to the lamp", "grab the lamp"), "walk to the lamp"),
        (("walk to the lamp", "grab the lamp"), "grab the lamp"),
        (("walk to the lamp", "grab the lamp"), "put the lamp on the table"),
        (("walk to the lamp", "grab the lamp", "walk to the cupboard"), "put the lamp in the cupboard"),
        (("walk to the bedroom", "walk to the bed", "sit on the bed"), "walk to the radio"),
        (("walk to the bedroom", "walk to the bed", "sit on the bed"), "walk to the kitchen"),
        (("walk to the bedroom", "walk to the bed", "sit on the bed"), "sit on the bed"),
    ],
)
def test_action_without_its_precondition_changes_nothing(before: tuple[str, ...], phrase: str) -> None:
    state = do(*before)
    assert do(phrase, state=state) == state


def test_sitting_person_faces_the_screen_and_must_stand_up_to_walk() -> None:
    sitting = do("walk to the bedroom", "walk to the bed", "sit on the bed")
    assert {"is_sit_bed", "is_face_radio"} <= sees(sitting)
    up = do("stand up from the bed", "walk to the kitchen", state=sitting)
    assert "in_kitchen" in sees(up)


def test_switches_go_on_and_off() -> None:
    on = do("walk to the lamp", "turn on the lamp")
    assert "is_lamp_on" in sees(on)
    assert "is_lamp_on" not in sees(do("turn off the lamp", state=on))


def test_closing_and_turning_off_need_a_free_hand() -> None:
    busy = do("walk to the cupboard", "open the cupboard", "walk to the lamp", "turn on the lamp", "grab the lamp")
    full = do("walk to the spoons", "grab the spoons", state=busy)
    assert do("turn off the lamp", state=full) == full
    at_cupboard = do("walk to the cupboard", state=full)
    assert do("close the cupboard", state=at_cupboard) == at_cupboard


def test_person_sits_on_one_seat_and_faces_screens_of_the_room_only() -> None:
    lounge = Household(
        (
            Thing("sofa", "living room", ("seat",)),
            Thing("game chair", "living room", ("seat", "screen")),
            Thing("TV", "kitchen", ("screen",)),
        ),
        start="living room",
    )
    names = action_phrases(lounge)

    def act(state: State, phrase: str) -> State:
        return lounge.perform(state, lounge.actions[names.index(phrase)])

    near_both = lounge.initial_state()._replace(near=frozenset({0, 1}))
    sitting = act(near_both, "sit on the sofa")
    assert sitting.seat == 0
    assert act(sitting, "sit on the game chair") == sitting
    assert act(sitting, "stand up from the game chair") == sitting
    assert not lounge.true_fields(sitting)["is_face_tv"]
    assert lounge.true_fields(sitting)["is_face_gamechair"]
    on_chair = act(act(sitting, "stand up from the sofa"), "sit on the game chair")
    texts = {narrate(lounge, "Rest.", lounge.observe(state)) for state in (sitting, on_chair)}
    assert len(texts) == 2
    assert all(text.startswith("Rest. You are in the living room.") for text in texts)


def test_menu_of_entertainment_has_the_peculiarities_of_the_source() -> None:
    env = VirtualHomeEnv("entertainment")
    rooms = {"walk to the kitchen", "walk to the bathroom", "walk to the bedroom"}

    def offered(*phrases: str) -> set[str]:
        env.reset(seed=0)
        for phrase in phrases:
            _, _, _, _, info = env.step(phrase)
            assert info["action_valid"], phrase
        return set(info["available_actions"])

    chips = ("walk to the chips", "grab the chips")
    table = ("walk to the living room", "walk to the coffee table")
    furniture = {"walk to the TV", "walk to the sofa"}
    assert offered(*table) == rooms, "at the table with empty hands nothing else"
    assert offered(*chips, *table) == rooms | furniture | {"put the chips on the coffee table"}
    left_behind = (*chips, *table, "put the chips on the coffee table", "walk to the kitchen")
    elsewhere = {"walk to the living room", "walk to the bathroom", "walk to the bedroom"}
    assert offered(*left_behind) == elsewhere | {"walk to the chips"}, "not to the milk"
    tv = ("walk to the living room", "walk to the TV")
    assert {"turn on the TV", "turn off the TV"} <= offered(*tv)
    assert not {"turn on the TV", "turn off the TV"} & offered(*tv, "turn on the TV")
    sofa = (*tv, "turn on the TV", "walk to the sofa")
    assert {"sit on the sofa", "stand up from the sofa"} <= offered(*sofa)
    assert offered(*sofa, "sit on the sofa") == rooms, "no standing up"


def test_menu_of_food_preparation_has_the_peculiarities_of_the_source() -> None:
    env = VirtualHomeEnv("food-preparation")
    env.reset(seed=0)
    env.step("walk to the pancake")
    info = env.step("grab the pancake")[-1]
    assert "walk to the pancake" in info["available_actions"], "though it is in hand"
    info = env.step("walk to the microwave")[-1]
    assert {"put the pancake in the microwave", "open the microwave", "close the microwave"} <= set(
        info["available_actions"]
    ), "though it is closed"
    env.step("open the microwave")
    info = env.step("put the pancake in the microwave")[-1]
    assert not {"grab the pancake", "walk to the pancake", "walk to the microwave"} & set(info["available_actions"])


def test_goal_includes_things_that_are_not_seen() -> None:
    task = TASKS["food-preparation"]
    done = State(0, (len(ROOMS) + 1, 0))
    assert task.is_done(done)
    assert not task.household.observe(done)["pancake_in_microwave"]
    assert not task.is_done(done._replace(opened=frozenset({1})))


# ------------------------------------------------------------------------------------------ every task, every state


def reachable(task: HouseholdTask) -> Iterator[State]:
    household = task.household
    found = [household.initial_state()]
    known = set(found)
    for state in found:
        yield state
        if task.is_done(state):
            continue
        for action in household.actions:
            after = household.perform(state, action)
            if after not in known:
                known.add(after)
                found.append(after)


@pytest.mark.parametrize("task", [*TASKS.values(), EVERYTHING], ids=[*TASKS, "everything"])
def test_states_with_equal_text_have_equal_symbolic_observations_and_available_actions(task: HouseholdTask) -> None:
    worded = defaultdict(set)
    for state in reachable(task):
        seen = task.household.observe(state)
        worded[narrate(task.household, task.instruction, seen)].add(
            (tuple(seen.values()), task.available_actions(state))
        )
    assert len(worded) > 15
    assert {text: views for text, views in worded.items() if len(views) > 1} == {}


@pytest.mark.parametrize("task", [*TASKS.values(), EVERYTHING], ids=[*TASKS, "everything"])
def test_every_observation_consists_of_the_parts_and_some_phrase_is_always_available(task: HouseholdTask) -> None:
    env = VirtualHomeEnv(task)
    for state in reachable(task):
        text = narrate(task.household, task.instruction, task.household.observe(state))
        rest = text
        for part in env.text_parts:
            rest = rest.removeprefix(max((choice for choice in part if rest.startswith(choice)), key=len))
        assert rest == ""
        assert text in env.observation_space
        assert task.available_actions(state) or task.is_done(state)


def test_longest_text_of_every_part_fits_the_token_space() -> None:
    env = TokenEnv(VirtualHomeEnv(EVERYTHING))
    longest = "".join(max(part, key=len) for part in env.unwrapped.text_parts)
    space = env.observation_space
    assert space.pad(space.tokenizer.encode(longest)).shape == space.shape


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            do("walk to the lamp", "grab the lamp", "turn on the lamp", "walk to the cupboard"),
            " You are in the kitchen. The spoons are on the table. You hold the switched-on lamp."
            " The closed cupboard is next to you. The table is here.",
        ),
        (
            do("walk to the cupboard", "open the cupboard"),
            " You are in the kitchen. Your hands are empty. The cup is in the cupboard, next to you."
            " The spoons are on the table. The switched-off lamp is here. The open cupboard is next to you."
            " The table is here.",
        ),
        (
            do("walk to the bedroom", "walk to the bed", "sit on the bed"),
            " You are in the bedroom. Your hands are empty. You face the switched-off radio. You sit on the bed.",
        ),
        (do("walk to the bathroom"), " You are in the bathroom. Your hands are empty."),
    ],
)
def test_observation_describes_the_state(state: State, text: str) -> None:
    assert narrate(HOME, "Tidy up.", HOME.observe(state)) == "Tidy up." + text


# ------------------------------------------------------------------------------------------------------ the environment


def test_fifty_steps_truncate_and_another_limit_can_be_set() -> None:
    for limit, options in ((50, {}), (7, {"max_steps": 7}), (7, {"max_episode_steps": 7})):
        env = gym.make("VirtualHome-cheese-v0", interface="text", **options)
        env.reset(seed=0)
        ends = [env.step("sing a song")[2:4] for _ in range(limit)]
        assert ends == [(False, False)] * (limit - 1) + [(False, True)]


def test_success_in_the_last_step_terminates_and_does_not_truncate() -> None:
    env = gym.make("VirtualHome-cheese-v0", interface="text", max_steps=6)
    env.reset(seed=0)
    plan = ("walk to the cheese", "grab the cheese", "walk to the microwave", "open the microwave",
            "put the cheese in the microwave", "close the microwave")  # fmt: skip
    assert [env.step(phrase)[1:4] for phrase in plan] == [(0.0, False, False)] * 5 + [(1.0, True, False)]
    for wrong in (0, 2.5, "5", True):
        with pytest.raises(ValueError, match=r"max_steps=.* expected a whole number of at least 1"):
            VirtualHomeEnv("cheese", max_steps=wrong)


def test_unavailable_phrase_takes_a_step_and_changes_nothing() -> None:
    env = gym.make("VirtualHome-entertainment-v0", interface="text")
    text, before = env.reset(seed=0)
    assert "walk to the kitchen" not in before["available_actions"]
    after, reward, terminated, truncated, info = env.step("walk to the kitchen")
    assert (after, reward, terminated, truncated) == (text, 0.0, False, False)
    assert not info["action_valid"]
    assert info["available_actions"] == before["available_actions"]


def test_copies_share_the_cache_and_nothing_else() -> None:
    import copy
    import pickle

    env = VirtualHomeEnv("cheese")
    env.reset(seed=0)
    env.step("walk to the cheese")
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert twin.cached is env.cached
        assert twin.step("grab the cheese")[0] != env.narrate()


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    import lang_envs.virtualhome.env as module

    fresh, small = module.CachedTask(EVERYTHING), module.CachedTask(EVERYTHING)
    states = list(reachable(EVERYTHING))[:300]
    expected = [(fresh.view(state), fresh.perform(state, 0)) for state in states]
    monkeypatch.setattr(module, "TRANSITIONS_CACHED", 50)
    assert [(small.view(state), small.perform(state, 0)) for state in states] == expected
    assert max(len(small.views), len(small.transitions)) <= 50
