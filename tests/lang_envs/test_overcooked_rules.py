"""Tests of Overcooked: the rules in hand-made states, the best return by value iteration, and every observation."""

import itertools
import re

import gymnasium as gym
import numpy as np
import pytest

import lang_envs
from lang_envs.overcooked.env import MAX_PRIMITIVE_STEPS, OvercookedEnv
from lang_envs.overcooked.kitchen import DISHES, HELD, IN_BOWL, NOTHING, Kitchen, State, make_kitchen
from lang_envs.overcooked.macro_actions import Cook, MacroAction, macro_actions
from lang_envs.overcooked.narration import narrate

TOMATO, LETTUCE, ONION, BOWL = range(4)
COUNTER = (6, 3)
BOARD, SECOND_BOARD = (1, 0), (2, 0)
GAMMA = 0.99


@pytest.fixture
def kitchen() -> Kitchen:
    return make_kitchen(("tomato", "lettuce"))


def make_state(
    cook=(1, 1), *, tomato=(0, 5), lettuce=(1, 6), onion=(2, 6), bowl=(6, 5), chops=(0, 0, 0)
) -> State:  # by default, everything is where it starts
    return State(cook, (tomato, lettuce, onion, bowl), chops)


def discounted(*rewards: float) -> float:
    return sum(GAMMA**k * reward for k, reward in enumerate(rewards))


# ------------------------------------------------------------------------------------------------- primitive steps


def test_layout_equals_that_of_the_source() -> None:
    plain, full = make_kitchen(("tomato",)), make_kitchen(("tomato", "lettuce", "onion"))
    assert (plain.starts, plain.boards, plain.delivery, plain.cook_start) == (
        ((0, 5), (6, 5)),
        ((1, 0),),
        (3, 0),
        (1, 4),
    )
    assert full.starts == ((0, 5), (1, 6), (2, 6), (6, 5))
    assert full.boards == ((1, 0), (2, 0))


def test_walking_costs_a_thousandth(kitchen: Kitchen) -> None:
    state, reward, delivered = kitchen.step_to(make_state(cook=(2, 2)), (3, 2))
    assert (state.cook, reward, delivered) == ((3, 2), -0.001, False)


def test_row_step_comes_before_column_step(kitchen: Kitchen) -> None:
    assert kitchen.next_cell((1, 4), (6, 5)) == (2, 4)
    assert kitchen.next_cell((5, 4), (6, 5)) == (5, 5), "a row step into the wall is none"
    assert kitchen.next_cell((1, 4), (0, 5)) == (1, 5)


@pytest.mark.parametrize(("item", "cook"), [(TOMATO, (1, 5)), (LETTUCE, (1, 5)), (BOWL, (5, 5))])
def test_empty_hand_picks_up_from_a_counter(kitchen: Kitchen, item: int, cook: tuple[int, int]) -> None:
    state, reward, _ = kitchen.step_to(make_state(cook=cook), kitchen.starts[item])
    assert state.held == item
    assert reward == -0.001


def test_empty_hand_at_an_empty_counter_does_nothing(kitchen: Kitchen) -> None:
    before = make_state(cook=(5, 3))
    assert kitchen.step_to(before, COUNTER)[0] == before


def test_empty_hand_picks_up_chopped_food_and_bowls_from_a_board(kitchen: Kitchen) -> None:
    assert kitchen.step_to(make_state(tomato=BOARD, chops=(3, 0, 0)), BOARD)[0].held == TOMATO
    assert kitchen.step_to(make_state(bowl=BOARD), BOARD)[0].held == BOWL


@pytest.mark.parametrize(("food", "earned"), [("tomato", 0.2), ("lettuce", 0.2), ("onion", 0.0)])
def test_third_chop_is_rewarded_for_ingredients_only(kitchen: Kitchen, food: str, earned: float) -> None:
    state, rewards = make_state(**{food: BOARD}), []
    for _ in range(3):
        state, reward, _ = kitchen.step_to(state, BOARD)
        rewards.append(reward)
    assert state.chops[kitchen.foods.index(food)] == 3
    assert rewards == pytest.approx([-0.001, -0.001, earned - 0.001])


def test_carried_item_is_put_on_an_empty_counter_or_board(kitchen: Kitchen) -> None:
    assert kitchen.step_to(make_state((5, 3), tomato=HELD), COUNTER)[0].locations[TOMATO] == COUNTER
    assert kitchen.step_to(make_state(tomato=HELD), BOARD)[0].locations[TOMATO] == BOARD
    assert kitchen.step_to(make_state(bowl=HELD), BOARD)[0].locations[BOWL] == BOARD


@pytest.mark.parametrize(
    ("before", "target"),
    [
        pytest.param(make_state((5, 3), tomato=HELD, lettuce=COUNTER), COUNTER, id="food on food"),
        pytest.param(make_state((5, 3), tomato=HELD, bowl=COUNTER), COUNTER, id="raw food on a bowl"),
        pytest.param(make_state((5, 3), bowl=HELD, tomato=COUNTER), COUNTER, id="bowl on raw food"),
        pytest.param(make_state(tomato=HELD, bowl=BOARD, chops=(2, 0, 0)), BOARD, id="half chopped food on a bowl"),
        pytest.param(make_state(bowl=HELD, tomato=BOARD, chops=(2, 0, 0)), BOARD, id="bowl on half chopped food"),
        pytest.param(make_state(tomato=HELD, lettuce=BOARD, chops=(3, 3, 0)), BOARD, id="chopped food on chopped food"),
    ],
)
def test_items_that_do_not_fit_together_change_nothing(
    kitchen: Kitchen, before: State, target: tuple[int, int]
) -> None:
    assert kitchen.step_to(before, target) == (before, -0.001, False)


def test_chopped_food_goes_into_a_bowl_on_a_counter_which_stays_there(kitchen: Kitchen) -> None:
    state, _, _ = kitchen.step_to(make_state((5, 5), tomato=HELD, chops=(3, 0, 0)), (6, 5))
    assert state.locations[TOMATO] == IN_BOWL
    assert state.locations[BOWL] == (6, 5)
    assert state.held == NOTHING


def test_chopped_food_carried_to_a_bowl_on_a_board_leaves_the_bowl_in_hand(kitchen: Kitchen) -> None:
    state, _, _ = kitchen.step_to(make_state(tomato=HELD, bowl=BOARD, chops=(3, 0, 0)), BOARD)
    assert state.locations[TOMATO] == IN_BOWL
    assert state.held == BOWL


@pytest.mark.parametrize(("cook", "place"), [((5, 3), COUNTER), ((1, 1), BOARD)])
def test_carried_bowl_takes_chopped_food(kitchen: Kitchen, cook: tuple[int, int], place: tuple[int, int]) -> None:
    state, _, _ = kitchen.step_to(make_state(cook, bowl=HELD, tomato=place, chops=(3, 0, 0)), place)
    assert state.locations[TOMATO] == IN_BOWL
    assert state.held == BOWL


# -------------------------------------------------------------------------------------------------------- delivery


def test_right_dish_earns_one_and_ends_the_episode(kitchen: Kitchen) -> None:
    dish = make_state((3, 1), tomato=IN_BOWL, lettuce=IN_BOWL, bowl=HELD, chops=(3, 3, 0))
    _, reward, delivered = kitchen.step_to(dish, kitchen.delivery)
    assert (reward, delivered) == (0.999, True)


@pytest.mark.parametrize(
    ("contents", "chops"),
    [((TOMATO,), (3, 0, 0)), ((TOMATO, ONION), (3, 0, 3)), ((TOMATO, LETTUCE, ONION), (3, 3, 3)), ((), (0, 0, 0))],
)
def test_bowl_with_wrong_food_returns_to_its_start(kitchen: Kitchen, contents: tuple[int, ...], chops) -> None:
    locations = [IN_BOWL if item in contents else start for item, start in enumerate(kitchen.starts[:3])]
    state, reward, delivered = kitchen.step_to(State((3, 1), (*locations, HELD), chops), kitchen.delivery)
    assert state == make_state(cook=(3, 1)), "bowl and foods at their starts, unchopped"
    assert (reward, delivered) == (pytest.approx(-0.101), False)


def test_food_delivered_without_a_bowl_returns_unchopped_and_nothing_else_moves(kitchen: Kitchen) -> None:
    before = make_state((3, 1), tomato=HELD, lettuce=BOARD, bowl=SECOND_BOARD, onion=IN_BOWL, chops=(3, 3, 3))
    state, reward, _ = kitchen.step_to(before, kitchen.delivery)
    assert state == make_state((3, 1), lettuce=BOARD, bowl=SECOND_BOARD, onion=IN_BOWL, chops=(0, 3, 3))
    assert reward == pytest.approx(-0.101)


def test_empty_hands_at_the_delivery_counter_do_nothing(kitchen: Kitchen) -> None:
    before = make_state(cook=(3, 1))
    assert kitchen.step_to(before, kitchen.delivery) == (before, -0.001, False)


# ------------------------------------------------------------------------------------------------- what the cook sees


def what_is_seen(kitchen: Kitchen, state: State) -> dict[str, int]:
    return dict(zip(kitchen.symbolic_fields, kitchen.symbolic_observation(state), strict=True))


def test_items_within_two_cells_are_seen_and_others_are_zero(kitchen: Kitchen) -> None:
    seen = what_is_seen(kitchen, make_state((3, 3), tomato=BOARD, chops=(2, 0, 0)))
    assert {name: value for name, value in seen.items() if value} == {
        "agent_x": 3,
        "agent_y": 3,
        "dish_tomato_lettuce": 1,
    }
    seen = what_is_seen(kitchen, make_state((3, 2), tomato=BOARD, chops=(2, 0, 0)))
    assert (seen["tomato_x"], seen["tomato_y"], seen["tomato_chops"]) == (1, 0, 2)
    assert (seen["board_1_x"], seen["board_2_x"], seen["delivery_x"]) == (1, 2, 3)


def test_dish_is_one_hot_in_the_order_of_the_source() -> None:
    order = ["tomato", "lettuce", "onion", "tomato lettuce", "tomato onion", "lettuce onion", "tomato lettuce onion"]
    for place, names in enumerate(order):
        kitchen = make_kitchen(tuple(names.split()))
        assert kitchen.symbolic_observation(kitchen.initial_state())[-7:] == tuple(int(i == place) for i in range(7))


def test_memory_of_the_source_always_equals_the_state() -> None:
    """The source's memory, written down as it is described, never differs from the truth, so a state needs none."""
    kitchen = make_kitchen(("tomato", "lettuce"))
    cook, items = Cook(kitchen), range(len(kitchen.starts))
    start = kitchen.initial_state()
    open_, done = [start], {start}
    while open_:
        before = open_.pop()
        for macro in macro_actions(kitchen):
            cached = [kitchen.position(before, item) for item in items]
            for state, _, delivered in cook.primitive_steps(before, macro):
                if delivered:
                    break
                for item in items:
                    where = kitchen.position(state, item)
                    if kitchen.in_view(state, where):
                        cached[item] = where
                    elif kitchen.in_view(state, cached[item]):
                        cached[item] = kitchen.starts[item]
                    assert cached[item] == where
            if not delivered and state not in done:
                done.add(state)
                open_.append(state)
    assert len(done) > 1000


# ------------------------------------------------------------------------------------------------------ macro-actions


def perform(kitchen: Kitchen, state: State, kind: str, target: int = 0):
    return Cook(kitchen).perform(state, MacroAction(kind, target))


def test_reward_of_a_macro_action_is_discounted_per_primitive_step(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, make_state((1, 4), tomato=HELD), "deliver")
    assert outcome.primitive_steps == 6  # two rows, three columns, one act
    assert outcome.reward == pytest.approx(discounted(*[-0.001] * 5, -0.101), abs=1e-12)


def test_get_walks_to_the_item_and_takes_it(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, kitchen.initial_state(), "get", BOWL)
    assert outcome.state == make_state((5, 5), bowl=HELD)
    assert outcome.primitive_steps == 6


def test_get_stops_next_to_unchopped_food_on_a_board(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, make_state((1, 3), tomato=BOARD), "get", TOMATO)
    assert outcome == (make_state((1, 1), tomato=BOARD), pytest.approx(discounted(-0.001, -0.001)), False, 2)


def test_get_of_unchopped_food_on_the_board_next_to_the_cook_idles_one_step(kitchen: Kitchen) -> None:
    before = make_state(tomato=BOARD)
    assert perform(kitchen, before, "get", TOMATO) == (before, -0.001, False, 1)


def test_get_of_food_seen_in_the_bowl_idles_one_step(kitchen: Kitchen) -> None:
    before = make_state((4, 4), tomato=IN_BOWL, chops=(3, 0, 0))
    assert perform(kitchen, before, "get", TOMATO) == (before, -0.001, False, 1)


def test_get_of_food_in_a_bowl_out_of_view_walks_until_it_is_seen(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, make_state((1, 5), tomato=IN_BOWL, chops=(3, 0, 0)), "get", TOMATO)
    assert outcome.state == make_state((4, 5), tomato=IN_BOWL, chops=(3, 0, 0))


def test_bowl_stays_where_it_is_while_unchopped_food_is_in_hand(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, make_state((4, 5), tomato=HELD), "get", BOWL)
    assert outcome.state == make_state((5, 5), tomato=HELD)


def test_get_the_bowl_with_chopped_food_puts_the_food_in_and_takes_the_bowl(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, make_state((5, 5), tomato=HELD, chops=(3, 0, 0)), "get", BOWL)
    assert outcome.state == make_state((5, 5), tomato=IN_BOWL, bowl=HELD, chops=(3, 0, 0))
    assert outcome.primitive_steps == 2


def test_go_to_board_acts_only_if_the_cook_carries_something(kitchen: Kitchen) -> None:
    assert perform(kitchen, make_state((2, 2), tomato=HELD), "go", 1).state.locations[TOMATO] == SECOND_BOARD
    by_the_board = perform(kitchen, make_state((2, 2), tomato=SECOND_BOARD), "go", 1)
    assert by_the_board == (make_state((2, 1), tomato=SECOND_BOARD), -0.001, False, 1)


def test_deliver_with_empty_hands_stops_at_the_counter(kitchen: Kitchen) -> None:
    assert perform(kitchen, make_state((3, 3)), "deliver") == (
        make_state((3, 1)),
        pytest.approx(discounted(-0.001, -0.001)),
        False,
        2,
    )


def test_chop_is_three_chops_next_to_unchopped_food_and_one_idle_step_elsewhere(kitchen: Kitchen) -> None:
    outcome = perform(kitchen, make_state((2, 1), tomato=SECOND_BOARD), "chop")
    assert outcome.state.chops == (3, 0, 0)
    assert outcome.reward == pytest.approx(discounted(-0.001, -0.001, 0.199), abs=1e-12)
    for nothing_to_chop in (
        make_state(tomato=SECOND_BOARD),
        make_state(tomato=BOARD, chops=(3, 0, 0)),
        make_state(bowl=BOARD),
    ):
        assert perform(kitchen, nothing_to_chop, "chop") == (nothing_to_chop, -0.001, False, 1)


def test_cached_results_equal_fresh_ones(kitchen: Kitchen) -> None:
    cook, macros = Cook(kitchen), macro_actions(kitchen)
    state = kitchen.initial_state()
    for macro in itertools.islice(itertools.cycle(macros), 100):
        cached = [cook.perform(state, macro) for _ in range(2)][1]
        assert cached == perform(kitchen, state, *macro)
        state = kitchen.initial_state() if cached.delivered else cached.state


# --------------------------------------------------------------------------------------------------- ends of episodes


def test_two_hundred_primitive_steps_truncate() -> None:
    env = OvercookedEnv()
    env.reset()
    for step in range(1, MAX_PRIMITIVE_STEPS + 1):
        _, _, terminated, truncated, info = env.step("chop")
        assert (terminated, truncated) == (False, step == 200)
    assert info["success"] is False


def test_step_limit_is_checked_when_a_macro_action_ends() -> None:
    env = OvercookedEnv()
    env.reset()
    for _ in range(199):
        env.step("chop")
    _, _, terminated, truncated, info = env.step("get the bowl")
    assert (terminated, truncated, info["primitive_steps"]) == (False, True, 6)


def test_delivery_in_the_last_step_terminates_and_does_not_truncate() -> None:
    env = OvercookedEnv()
    env.reset()
    for phrase in ("get the tomato", "go to the cutting board", "chop", "get the tomato", "get the bowl"):
        *_, info = env.step(phrase)
    while env.primitive_steps < 199:
        env.step("chop")
    _, _, terminated, truncated, info = env.step("deliver the dish")
    assert (terminated, truncated, info["success"]) == (True, False, True)


# ------------------------------------------------------------------------------------------------- the best that can be


def reachable(env: OvercookedEnv) -> dict[State, list]:
    """Every state that can be reached, with the outcome of each action there."""
    cook, macros = Cook(env.kitchen), macro_actions(env.kitchen)
    outcomes: dict[State, list] = {}
    open_ = [env.kitchen.initial_state()]
    while open_:
        state = open_.pop()
        if state not in outcomes:
            outcomes[state] = [cook.perform(state, macro) for macro in macros]
            open_ += [outcome.state for outcome in outcomes[state] if not outcome.delivered]
    return outcomes


def value_iteration(outcomes: dict[State, list]) -> dict[State, np.ndarray]:
    """Action values of every state, each action discounted by 0.99 per primitive step that it takes."""
    number = {state: k for k, state in enumerate(outcomes)}
    rewards = np.array([[o.reward for o in row] for row in outcomes.values()])
    goes_on = np.array([[0.0 if o.delivered else GAMMA**o.primitive_steps for o in row] for row in outcomes.values()])
    successors = np.array([[0 if o.delivered else number[o.state] for o in row] for row in outcomes.values()])
    values = np.zeros(len(number))
    while True:
        action_values = rewards + goes_on * values[successors]
        change = np.abs(action_values.max(axis=1) - values).max()
        values = action_values.max(axis=1)
        if change < 1e-12:
            return dict(zip(outcomes, action_values, strict=True))


@pytest.mark.parametrize("dish", DISHES, ids="-".join)
def test_optimal_return_equals_that_of_value_iteration_and_of_its_plan(dish: tuple[str, ...]) -> None:
    env = OvercookedEnv(dish)
    action_values = value_iteration(reachable(env))
    assert action_values[env.kitchen.initial_state()].max() == pytest.approx(env.optimal_return, abs=1e-6)

    env.reset()
    earned, elapsed, terminated, said_at = 0.0, 0, False, {}
    while not terminated:
        choice = int(action_values[env.kitchen_state].argmax())
        text = env.narrate()
        assert said_at.setdefault(text, choice) == choice, f"the plan needs two actions at {text!r}"
        _, reward, terminated, truncated, info = env.step(env.action_names[choice])
        earned += GAMMA**elapsed * reward
        elapsed += info["primitive_steps"]
        assert not truncated
    assert info["success"]
    assert earned == pytest.approx(env.optimal_return, abs=1e-6)


# --------------------------------------------------------------------------------------------------- the observations


@pytest.mark.parametrize("dish", DISHES, ids="-".join)
def test_every_observation_consists_of_the_parts_and_fits_the_token_space(dish: tuple[str, ...]) -> None:
    env = gym.make(f"Overcooked-{'-'.join(dish)}-salad-v0")
    environment, space = env.unwrapped, env.observation_space
    made_of_parts = re.compile("".join(f"(?:{'|'.join(map(re.escape, part))})" for part in environment.text_parts))
    texts = {}
    for state in reachable(environment):
        environment.kitchen_state = state
        text = environment.narrate()
        offered = texts.setdefault(text, environment.available_action_ids())
        assert offered == environment.available_action_ids(), (
            f"two states with different actions have the text {text!r}"
        )
    for text in texts:
        assert made_of_parts.fullmatch(text), text
        assert text.isascii(), text
        assert text.isprintable(), text
        assert text in environment.observation_space
        ids = space.tokenizer.encode(text)
        assert space.pad(ids) in space
        assert space.decode(space.pad(ids)) == text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            make_state(tomato=BOARD, lettuce=HELD, bowl=SECOND_BOARD, onion=IN_BOWL, chops=(0, 3, 3)),
            "You stand at the first cutting board. You carry a chopped lettuce. "
            "On the first cutting board is a raw tomato. On the second cutting board is a bowl with chopped onion.",
        ),
        (
            make_state((1, 5)),
            "You stand at a counter. Your hands are empty. On a counter is a raw tomato. "
            "On a counter is a raw lettuce. On a counter is a raw onion.",
        ),
        (
            make_state((3, 2)),
            "You stand in the middle of the kitchen. Your hands are empty. "
            "The first cutting board is empty. The second cutting board is empty.",
        ),
        (
            make_state((3, 1), tomato=IN_BOWL, lettuce=IN_BOWL, bowl=HELD, onion=BOARD, chops=(3, 3, 1)),
            "You stand at the delivery counter. You carry a bowl with chopped tomato and chopped lettuce. "
            "On the first cutting board is a partly chopped onion. The second cutting board is empty.",
        ),
        (make_state((5, 5)), "You stand at a counter. Your hands are empty. On a counter is an empty bowl."),
    ],
)
def test_observation_describes_the_state(kitchen: Kitchen, state: State, text: str) -> None:
    """Pinned word for word: the embedded model has learnt them."""
    text_of = narrate(kitchen, kitchen.symbolic_observation(state))
    assert text_of == f"Make a tomato and lettuce salad. {text}"


@pytest.mark.parametrize("dish", DISHES, ids="-".join)
def test_longest_text_of_every_part_fits_the_token_space(dish: tuple[str, ...]) -> None:
    env = gym.make(f"Overcooked-{'-'.join(dish)}-salad-v0")
    tokenizer = env.observation_space.tokenizer
    text = "".join(max(part, key=lambda choice: len(tokenizer.encode(choice))) for part in env.unwrapped.text_parts)
    env.observation_space.pad(tokenizer.encode(text))


@pytest.mark.parametrize("dish", DISHES, ids="-".join)
def test_equal_text_means_equal_symbolic_observation(dish: tuple[str, ...]) -> None:
    """Texts leave out coordinates; what they say about items, boards and hands is all that the symbols say."""
    env = OvercookedEnv(dish)
    kitchen, text_of = env.kitchen, {}
    for state in reachable(env):
        fields = what_is_seen(kitchen, state)
        agent = fields["agent_x"], fields["agent_y"]
        boards = [(fields[f"board_{k + 1}_x"], fields[f"board_{k + 1}_y"]) for k in range(len(kitchen.boards))]

        def place(name: str, fields=fields, agent=agent, boards=boards) -> str:
            cell = fields[f"{name}_x"], fields[f"{name}_y"]
            if cell == (0, 0):
                return "unseen"
            if cell == agent:
                return "in hand"
            return f"board {boards.index(cell)}" if cell in boards else "counter"

        sight = [(place(name), fields.get(f"{name}_chops")) for name in (*kitchen.foods, "bowl")]
        sight += [board != (0, 0) for board in boards]
        env.kitchen_state = state
        assert text_of.setdefault(env.narrate(), sight) == sight, env.narrate()


def test_error_for_an_unknown_dish_names_all_dishes() -> None:
    with pytest.raises(ValueError, match=r"dish 'potato' is not one of .*tomato-lettuce-onion"):
        OvercookedEnv(["potato"])
    assert OvercookedEnv("tomato-onion").kitchen == OvercookedEnv(["tomato", "onion"]).kitchen
    assert set(lang_envs.ENVIRONMENTS) >= {f"Overcooked-{'-'.join(dish)}-salad-v0" for dish in DISHES}
