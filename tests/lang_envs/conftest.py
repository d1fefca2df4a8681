"""Two small environments of the kinds that Overcooked is not, and a plan for Overcooked."""

from typing import Any, ClassVar

import numpy as np
import pytest

from lang_envs import LanguageEnv, Transition


class Door(LanguageEnv):
    """The available phrases depend on the state: open the door, then walk through it."""

    action_names = ("open the door", "close the door", "walk through the door")
    discount = 0.5
    optimal_return = 0.5
    symbolic_fields = ("open",)
    text_parts = (("The door is open.", "The door is closed."),)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 1}
    state_fields: ClassVar[tuple[str, ...]] = ("_open",)

    def __init__(self) -> None:
        super().__init__(max_text_length=40)
        self._open = False

    def start(self, options: dict[str, Any]) -> None:
        self._open = False

    def available_action_ids(self) -> tuple[int, ...]:
        return (1, 2) if self._open else (0,)

    def advance(self, action: int | str | None) -> Transition:
        through = action == 2
        self._open = {0: True, 1: False}.get(action, self._open)
        return Transition(float(through), through, False, {})

    def narrate(self) -> str:
        return "The door is open." if self._open else "The door is closed."

    def symbolic_observation(self) -> np.ndarray:
        return np.array([int(self._open)])


class Diary(LanguageEnv):
    """Any text is an action. Observations contain all earlier actions, each with a random number after it."""

    symbolic_fields = ("entries",)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 1}
    state_fields: ClassVar[tuple[str, ...]] = ("_entries",)

    def __init__(self) -> None:
        super().__init__(max_text_length=100_000)
        self._entries: tuple[str, ...] = ()

    def start(self, options: dict[str, Any]) -> None:
        self._entries = ()

    def advance(self, action: int | str | None) -> Transition:
        self._entries += (f"{action} {self.np_random.integers(1_000_000)}",)
        return Transition(1.0, action == "the end", len(self._entries) == 50, {})

    def narrate(self) -> str:
        return "\n".join(("Dear diary:", *self._entries))

    def symbolic_observation(self) -> np.ndarray:
        return np.array([len(self._entries)])


@pytest.fixture
def door() -> LanguageEnv:
    return Door()


@pytest.fixture
def diary() -> LanguageEnv:
    return Diary()


@pytest.fixture
def tomato_plan() -> tuple[str, ...]:
    """An optimal plan for Overcooked-tomato-salad-v0."""
    return (
        "get the tomato",
        "go to the cutting board",
        "chop",
        "get the tomato",
        "get the bowl",
        "deliver the dish",
    )
