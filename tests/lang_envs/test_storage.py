"""Tests of storage: values are stored exactly as JSON, and reading any file is safe."""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from lang_envs import storable
from lang_envs.files import MIB, locked, open_regular, read_bytes, read_json, refuse_irregular, write_atomically
from lang_envs.storage import UnstorableError, decode, encode


@storable
class Place(NamedTuple):
    room: int
    things: frozenset[int]


@storable
@dataclass(frozen=True)
class Note:
    text: str
    where: Place | None


@storable
class Mood(Enum):
    GOOD = "good"


class Undeclared(NamedTuple):
    room: int


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        if one.dtype == object:
            return same_kind and all(map(same, one.ravel(), other.ravel()))
        return same_kind and one.tobytes() == other.tobytes()
    if isinstance(one, np.random.Generator):
        return same(one.random(5), other.random(5))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple | deque):
        alike = getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        return alike and len(one) == len(other) and all(map(same, one, other))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


VALUES: list[Any] = [
    None,
    True,
    [0, -1, 1 << 200, 0.1, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    ("", "é\ud800\x00", b"\x00\xff", (), [], {}),
    {1: "one", (2, "two"): [3], None: {"tuple": [1]}, "array": 1.5},
    {frozenset({1, 2}): {3}},
    deque([1, (2,)], maxlen=20),
    deque([1]),
    Note("a", Place(1, frozenset({3}))),
    [Mood.GOOD, Note("b", None)],
    [np.arange(6, dtype=dtype).reshape(2, 3) for dtype in ("int8", "uint64", "float16", "float32", ">i4", "complex64")],
    [np.array([True, False]), np.zeros((0, 4)), np.array("word"), np.array(["a", "bcd"]), np.array([], dtype="U")],
    [np.array(["2026-01-01"], dtype="M8[ns]"), np.float32(0.1), np.bool_(True), np.int64(-3), np.str_("x")],
    np.array([None, (1, 2), {"a": np.ones(2)}], dtype=object),
    np.arange(12.0).reshape(3, 4).T,
    [np.random.Generator(getattr(np.random, kind)(7)) for kind in ("PCG64", "MT19937", "Philox", "SFC64")],
    np.random.MT19937(3).state,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_decoded_values_are_equal_and_of_the_same_types(value: Any) -> None:
    text = json.dumps(encode(value), allow_nan=False)
    assert same(decode(json.loads(text)), value)


@pytest.mark.parametrize("name", ["Overcooked-tomato-onion-salad-v0", "VirtualHome-entertainment-v0"])
def test_states_of_environments_can_be_stored(name: str) -> None:
    env = gym.make(name, interface="text")
    _, info = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(6):
        state = env.get_wrapper_attr("state")
        assert same(decode(json.loads(json.dumps(encode(state)))), state)
        _, _, terminated, truncated, info = env.step(str(rng.choice(info["available_actions"])))
        if terminated or truncated:
            break


def test_state_with_other_fields_is_rejected() -> None:
    env = gym.make("Overcooked-tomato-salad-v0").unwrapped
    state = env.get_wrapper_attr("state")
    with pytest.raises(ValueError, match="this state has the fields"):
        env.state = state | {"fields": state["fields"] | {"advance": 1}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"it\[0\]\['a'\] is a builtins.object, which cannot be stored without a pickle"),
        (OrderedDict(), "OrderedDict"),
        (Undeclared(1), "Undeclared.*lang_envs.storable"),
        (np.zeros(2, dtype=[("x", "i4")]), "numpy.ndarray"),
        (np.random.RandomState(0), "RandomState"),
        (1 << 20_000, "builtins.int"),
        (len, "builtin_function"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_cannot_be_stored_are_named_with_their_place(value: Any, message: str) -> None:
    with pytest.raises(UnstorableError, match=message):
        encode([{"a": value}], "it")


def test_value_that_contains_itself_is_rejected() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnstorableError, match="contains itself"):
        encode(value)
    with pytest.raises(ValueError, match="is not a named tuple"):
        storable(int)


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: list[Any] = [
    {},
    {"a": 1},
    {"tuple": [1], "list": [2]},
    {"tuple": 3},
    {"tuple": "abc"},
    {"dict": [[1]]},
    {"dict": [[[1], 2]]},
    {"dict": 7},
    {"float": "1e999"},
    {"array": ["|O", [1], "AAAAAAAAAAA="]},
    {"array": ["i4,O", [1], ""]},
    {"array": ["<i8", [1 << 60], ""]},
    {"array": ["<i8", [-1], ""]},
    {"array": ["<i8", [True], "AAAAAAAAAAA="]},
    {"array": ["<i8", ["1"], "AAAAAAAAAAA="]},
    {"array": ["<i8", 1, "AAAAAAAAAAA="]},
    {"array": ["<i8", [1], "AAAA"]},
    {"array": ["<i8", [1], "!"]},
    {"array": ["<M8[parsec]", [1], "AAAAAAAAAAA="]},
    {"array": [3, 4, 5]},
    {"array": []},
    {"objects": [[3], 1]},
    {"deque": ["many", 1]},
    {"deque": []},
    {"set": [{"dict": []}]},
    {"bytes": 3},
    {"generator": {"dict": [["bit_generator", "system"]]}},
    {"generator": {"dict": [["bit_generator", "PCG64"], ["state", 1]]}},
    {"class": ["os:system", "true"]},
    {"class": ["antigravity:X"]},
    {"class": [["x"]]},
    {"class": []},
    {"class": [f"{__name__}:Place", 1]},
    {"class": [f"{__name__}:Mood", "bad"]},
    {"class": [f"{__name__}:Note", 1, 2, 3]},
    _deep(5000),
]


@pytest.mark.parametrize("stored", HOSTILE, ids=range(len(HOSTILE)))
def test_invalid_stored_values_are_rejected_and_nothing_is_imported(stored: Any) -> None:
    with pytest.raises(ValueError):
        decode(stored)
    assert "antigravity" not in sys.modules


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "NaN is no number"),
        ("[1e999]", "1e999 is no finite number"),
        ("[-1e999]", "no finite number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ("1" * 5000, "damaged"),
        ('{"a"', "damaged"),
        ("", "damaged"),
    ],
    ids=lambda text: text[:12],
)
def test_damaged_json_names_its_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.json.*{message}"):
        read_json(tmp_path / "a.json")


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    import os

    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(100 * MIB)
    for name, message in (
        ("link", "link is a symbolic link"),
        ("fifo", "fifo is no regular file"),
        ("large", "large is too large"),
    ):
        with pytest.raises(ValueError, match=message):
            read_bytes(tmp_path / name)
    with pytest.raises(ValueError, match="folder is no regular file"):
        read_bytes(tmp_path / "folder")
    for name in ("link", "fifo"):
        with pytest.raises(ValueError, match=name), locked(tmp_path / name):
            pass
        with pytest.raises(ValueError, match=name):
            open_regular(tmp_path / name, "r+b")
    with pytest.raises(ValueError, match=r"fifo is no regular file|link is a symbolic link"):
        refuse_irregular(tmp_path)
    assert (tmp_path / "target").read_text() == "kept"


def test_writing_does_not_follow_a_link(tmp_path: Path) -> None:
    import os
    import threading

    (tmp_path / "target").write_text("kept")
    beside = tmp_path / f".a.json.{os.getpid()}-{threading.get_ident()}.unfinished"
    beside.symlink_to("target")
    (tmp_path / "a.json").symlink_to("target")
    write_atomically(tmp_path / "a.json", "new")
    assert (tmp_path / "target").read_text() == "kept"
    assert (tmp_path / "a.json").read_text() == "new" and not (tmp_path / "a.json").is_symlink()


def test_lock_excludes_others_and_keeps_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("kept")
    with locked(tmp_path / "lock"), pytest.raises(BlockingIOError), locked(tmp_path / "lock"):
        pass
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == "kept"


@pytest.mark.parametrize("position", [-1, 625, 10**8, 1.5])
def test_generator_with_a_position_outside_its_buffer_is_rejected(position: float) -> None:
    """NumPy would read the memory there."""
    twister = json.dumps(encode(np.random.Generator(np.random.MT19937(3)))).replace('"pos", 623', f'"pos", {position}')
    philox = json.dumps(encode(np.random.Generator(np.random.Philox(3)))).replace('_pos", 4', f'_pos", {position}')
    for stored in (twister, philox):
        assert str(position) in stored
        with pytest.raises(ValueError, match="a random generator has the position"):
            decode(json.loads(stored))
