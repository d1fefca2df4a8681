"""Tests of VirtualHome's rendering: the floor plan and the picture show the state."""

import sys

import gymnasium as gym
import numpy as np
import pytest

from lang_envs.virtualhome import TASKS, HouseholdTask, Thing
from lang_envs.virtualhome.household import ROOMS, State
from lang_envs.virtualhome.narration import action_phrases
from lang_envs.virtualhome.rendering import CAPTION, CELL, COLUMNS, PLAN, ROWS, draw, write

pytest.importorskip("PIL", reason="pictures need Pillow")

TASK = TASKS["entertainment"]
FULL = HouseholdTask(
    "Fill the house.",
    [
        *(Thing(f"jar {n}", "shelf", ("grabbable",)) for n in range(3)),
        Thing("shelf", "bedroom", ("surface",)),
        Thing("washer", "bedroom", ("container", "switch")),
        Thing("rug", "bedroom"),
        *(Thing(f"lamp {n}", "bedroom", ("switch",)) for n in range(3)),
        Thing("extraordinarily comfortable reading chair", "bedroom", ("seat",)),
    ],
    goal=["jar0_in_washer"],
)


def after(task: HouseholdTask, *phrases: str) -> State:
    state, names = task.household.initial_state(), action_phrases(task.household)
    for phrase in phrases:
        state = task.household.perform(state, task.household.actions[names.index(phrase)])
    return state


def example_states(task: HouseholdTask, limit: int = 60) -> list[State]:
    found = [task.household.initial_state()]
    for state in found:
        for action in task.household.actions:
            if (new := task.household.perform(state, action)) not in found and len(found) < limit:
                found.append(new)
    return found


@pytest.mark.parametrize("task", [TASK, TASKS["towel"], FULL], ids=["entertainment", "towel", "full"])
def test_every_state_has_its_own_plan_and_picture(task: HouseholdTask) -> None:
    states = example_states(task)
    assert len({write(task, state) for state in states}) == len(states)
    assert len({draw(task, state).tobytes() for state in states}) == len(states)


def test_same_state_has_the_same_picture() -> None:
    first, second = (draw(TASK, TASK.household.initial_state()) for _ in range(2))
    assert np.array_equal(first, second)


def test_picture_is_uint8_with_a_caption_below() -> None:
    picture = draw(TASK, TASK.household.initial_state())
    assert picture.dtype == np.uint8
    height = ROWS * len(PLAN) * CELL
    assert picture.shape == (height + CAPTION, COLUMNS * len(PLAN[0]) * CELL, 3)
    assert len(np.unique(picture[height:].reshape(-1, 3), axis=0)) > 2, "something is written there"


@pytest.mark.parametrize("room", range(4))
def test_the_persons_room_is_light_and_the_others_are_dark(room: int) -> None:
    picture = draw(TASK, TASK.household.initial_state()._replace(room=room)).astype(int)
    brightness = {
        name: picture[(row + 1) * ROWS * CELL - 4, (column + 1) * COLUMNS * CELL - 4].sum()
        for row, rooms in enumerate(PLAN)
        for column, name in enumerate(rooms)
    }
    lit = brightness.pop(ROOMS[room])
    assert lit > max(brightness.values()) + 100


def test_plan_shows_places_near_things_and_held_things() -> None:
    task = TASKS["food-preparation"]
    held = write(task, after(task, "walk to the pancake", "grab the pancake", "walk to the microwave"))
    assert held.splitlines()[0] == task.instruction
    assert "In hand: pancake" in held
    assert "| > microwave (closed) " in held
    done = write(task, after(task, "walk to the pancake", "grab the pancake", "walk to the microwave",
                             "open the microwave", "put the pancake in the microwave"))  # fmt: skip
    assert "| > microwave (open) " in done
    assert "| >   in it: pancake " in done
    assert "In hand: nothing" in done


def test_held_things_are_drawn_in_hand_with_their_switch() -> None:
    task = HouseholdTask("Light it.", [Thing("lamp", "kitchen", ("grabbable", "switch"))], goal=["is_lamp_on"])
    near, held, lit = (
        after(task, *phrases)
        for phrases in (
            ("walk to the lamp",),
            ("walk to the lamp", "grab the lamp"),
            ("walk to the lamp", "turn on the lamp", "grab the lamp"),
        )
    )
    assert "In hand: lamp (off)" in write(task, held)
    assert "In hand: lamp (on)" in write(task, lit)
    kitchen = [draw(task, state)[: ROWS * CELL, : COLUMNS * CELL] for state in (near, held, lit)]
    bare = draw(task, held._replace(places=(3,)))[: ROWS * CELL, : COLUMNS * CELL]
    assert not any(np.array_equal(kitchen[1], other) for other in (kitchen[0], kitchen[2], bare))


def test_the_person_is_drawn_next_to_what_is_near() -> None:
    pictures = [draw(TASK, after(TASK, f"walk to the {snack}")).astype(int) for snack in ("chips", "milk")]
    first, second = (
        np.flatnonzero((picture[: ROWS * CELL, : COLUMNS * CELL] == (74, 111, 165)).all(-1).any(0)).mean()
        for picture in pictures
    )
    assert second > first + CELL


def test_plan_is_as_wide_as_its_longest_line() -> None:
    lines = write(FULL, FULL.household.initial_state()).splitlines()[1:-2]
    assert len({len(line) for line in lines}) == 1
    assert any("extraordinarily comfortable reading chair" in line for line in lines)


@pytest.mark.parametrize("interface", ["tokens", "text"])
def test_environments_render_in_the_mode_asked_for(interface: str) -> None:
    shown = {}
    for mode in ("ansi", "rgb_array", None):
        env = gym.make("VirtualHome-pizza-v0", interface=interface, render_mode=mode, disable_env_checker=True)
        env.reset()
        shown[mode] = env.unwrapped.render()
    assert "Heat the pizza" in shown["ansi"]
    assert shown["rgb_array"].shape[2] == 3
    assert shown[None] is None


def test_error_without_pillow_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'lang-envs\[render\]'"):
        draw(TASK, TASK.household.initial_state())
    assert "@ the person" in write(TASK, TASK.household.initial_state()), "the plan needs no Pillow"
