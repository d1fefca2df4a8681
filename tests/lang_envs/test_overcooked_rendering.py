"""Tests of Overcooked's rendering: the picture and the map show the state."""

import sys

import gymnasium as gym
import numpy as np
import pytest

import lang_envs
from lang_envs.overcooked.kitchen import CHOPS_NEEDED, HELD, IN_BOWL, SIZE, Kitchen, State, is_floor, make_kitchen
from lang_envs.overcooked.rendering import CAPTION, CELL, draw, write

pytest.importorskip("PIL", reason="pictures need Pillow")

BOARD = (1, 0)


@pytest.fixture
def kitchen() -> Kitchen:
    return make_kitchen(("tomato", "lettuce", "onion"))


def example_states(kitchen: Kitchen) -> dict[str, State]:
    start = kitchen.initial_state()
    starts = list(start.locations)
    made = {"start": start, "cook elsewhere": start._replace(cook=(4, 2))}
    for item, food in enumerate(kitchen.foods):
        for chops in range(4):
            locations = (*starts[:item], BOARD, *starts[item + 1 :])
            counts = tuple(chops if k == item else 0 for k in range(3))
            made[f"{food} on a board, {chops} chops"] = start._replace(locations=locations, chops=counts)
            made[f"{food} in hand, {chops} chops"] = start._replace(
                locations=(*starts[:item], HELD, *starts[item + 1 :]), chops=counts
            )
        made[f"{food} in the bowl"] = start._replace(locations=(*starts[:item], IN_BOWL, *starts[item + 1 :]))
    made["empty bowl in hand"] = start._replace(locations=(*starts[:3], HELD))
    made["full bowl in hand"] = start._replace(locations=(IN_BOWL, IN_BOWL, IN_BOWL, HELD), chops=(3, 3, 3))
    made["full bowl on a board"] = start._replace(locations=(IN_BOWL, IN_BOWL, IN_BOWL, BOARD), chops=(3, 3, 3))
    return made


def test_picture_is_uint8_with_a_caption_below(kitchen: Kitchen) -> None:
    picture = draw(kitchen, kitchen.initial_state())
    assert picture.dtype == np.uint8
    assert picture.shape == (SIZE * CELL + CAPTION, SIZE * CELL, 3)
    caption = picture[SIZE * CELL :]
    assert len(np.unique(caption.reshape(-1, 3), axis=0)) > 2, "something is written there"


def test_every_state_has_its_own_picture(kitchen: Kitchen) -> None:
    pictures = {name: draw(kitchen, state)[: SIZE * CELL] for name, state in example_states(kitchen).items()}
    seen: dict[bytes, str] = {}
    for name, picture in pictures.items():
        assert (other := seen.setdefault(picture.tobytes(), name)) == name, f"{name!r} looks like {other!r}"


def test_chopped_food_and_partly_chopped_food_look_different(kitchen: Kitchen) -> None:
    made = example_states(kitchen)
    for food in kitchen.foods:
        raw, cut, chopped = (
            draw(kitchen, made[f"{food} on a board, {chops} chops"]).astype(int) for chops in (0, 2, CHOPS_NEEDED)
        )
        changed_by_cutting, changed_by_chopping = (int((picture != raw).sum()) for picture in (cut, chopped))
        assert 0 < 2 * changed_by_cutting < changed_by_chopping


def test_same_state_has_the_same_picture(kitchen: Kitchen) -> None:
    first, second = (draw(kitchen, kitchen.initial_state()) for _ in range(2))
    assert np.array_equal(first, second)
    assert first is not second


def test_caption_names_the_dish() -> None:
    captions = set()
    for dish in (("tomato", "onion"), ("lettuce",)):
        kitchen = make_kitchen(dish)
        captions.add(draw(kitchen, kitchen.initial_state())[SIZE * CELL :].tobytes())
    assert len(captions) == 2


@pytest.mark.parametrize("cook", [(1, 4), (2, 2), (5, 1)])
def test_cells_in_view_are_light_and_others_are_dark(kitchen: Kitchen, cook: tuple[int, int]) -> None:
    picture = draw(kitchen, kitchen.initial_state()._replace(cook=cook)).astype(int)
    brightness: dict[tuple[bool, bool], set[int]] = {}
    for x in range(SIZE):
        for y in range(SIZE):
            if (x, y) in (*kitchen.boards, kitchen.delivery):
                continue
            seen = abs(x - cook[0]) <= 2 and abs(y - cook[1]) <= 2
            corner = picture[x * CELL + 5, y * CELL + 5]  # no sprite reaches there
            brightness.setdefault((is_floor((x, y)), seen), set()).add(int(corner.sum()))
    assert all(len(values) == 1 for values in brightness.values()), brightness
    for floor in (True, False):
        assert min(brightness[floor, True]) > max(brightness[floor, False]) + 100


def test_map_mentions_dish_hand_items_and_boards(kitchen: Kitchen) -> None:
    state = State((1, 1), ((1, 0), IN_BOWL, HELD, (2, 0)), (2, 3, 0))
    text = write(kitchen, state)
    assert "Dish: tomato, lettuce, onion salad" in text
    assert "In hand: raw onion" in text
    for symbol in ("[T2]", "[Ul]", "C(O)", " D "):
        assert symbol in text
    for word in ("cook", "counter", "floor", "cutting board", "delivery counter", "raw", "chopped", "bowl"):
        assert word in text, "the legend explains it"


def test_every_state_has_its_own_map(kitchen: Kitchen) -> None:
    made = example_states(kitchen)
    assert len({write(kitchen, state) for state in made.values()}) == len(made)


def test_map_shows_the_content_of_the_bowl_in_hand(kitchen: Kitchen) -> None:
    made = example_states(kitchen)
    assert "In hand: empty bowl" in write(kitchen, made["empty bowl in hand"])
    assert "In hand: bowl with chopped tomato, lettuce, onion" in write(kitchen, made["full bowl in hand"])


@pytest.mark.parametrize("cook", [(1, 4), (3, 3), (5, 1)])
def test_frame_of_the_map_encloses_the_view(kitchen: Kitchen, cook: tuple[int, int]) -> None:
    lines = write(kitchen, kitchen.initial_state()._replace(cook=cook)).split("\n")[1:17]
    columns = {char: k for k, char in enumerate(lines[0]) if char != " "}
    frame = [k for k, line in enumerate(lines) if "+" in line]
    for x in range(SIZE):
        (at,) = (k for k, line in enumerate(lines) if line.startswith(f" {x} "))
        assert (frame[0] < at < frame[1]) == (abs(x - cook[0]) <= 2)
    left, right = lines[frame[0]].index("+"), lines[frame[0]].rindex("+")
    for y in range(SIZE):
        assert (left < columns[str(y)] < right) == (abs(y - cook[1]) <= 2)


@pytest.mark.parametrize("interface", ["tokens", "text"])
def test_environments_render_in_the_mode_asked_for(interface: str) -> None:
    shown = {}
    for mode in ("ansi", "rgb_array", None):
        env = gym.make("Overcooked-lettuce-salad-v0", interface=interface, render_mode=mode, disable_env_checker=True)
        env.reset()
        shown[mode] = env.unwrapped.render()
    assert "Dish: lettuce salad" in shown["ansi"]
    assert shown["rgb_array"].shape[2] == 3
    assert shown[None] is None


def test_unknown_render_mode_is_rejected() -> None:
    with pytest.raises(ValueError, match="human"):
        lang_envs.overcooked.env.OvercookedEnv(render_mode="human")


def test_error_without_pillow_names_the_extra_to_install(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'lang-envs\[render\]'"):
        draw(kitchen, kitchen.initial_state())
    assert "Dish" in write(kitchen, kitchen.initial_state()), "the map needs no Pillow"
