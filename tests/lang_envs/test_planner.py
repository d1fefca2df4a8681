"""Tests of the planner against closed forms, and of the environments that it rejects."""

from typing import Any, ClassVar

import gymnasium as gym
import pytest

from lang_envs import LanguageEnv, Transition
from lang_envs.planner import PlanningError, solve


class Corridor(LanguageEnv):
    """Twelve cells in a row. A step costs 0.01, a jump of three cells lasts as long as two steps and costs 0.03; the
    last cell ends the episode with a reward of 1, a door in the first with one of 0.3 and no success."""

    action_names = ("step", "jump", "leave")
    discount = 0.9
    text_parts = (tuple(f"Cell {n}." for n in range(12)),)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 1}
    state_fields: ClassVar[tuple[str, ...]] = ("cell", "time")
    clock_fields: ClassVar[tuple[str, ...]] = ("time",)
    last = 11

    def __init__(self) -> None:
        super().__init__(max_text_length=10)
        self.cell = self.time = 0

    def start(self, options: dict[str, Any]) -> None:
        self.cell = self.time = 0

    def available_action_ids(self) -> tuple[int, ...]:
        return (0, 1, 2) if self.cell == 0 else (0, 1)

    def advance(self, action: int | str | None) -> Transition:
        if action == 2:
            return Transition(0.3, True, False, {"success": False})
        lasts = 2 if action == 1 else 1
        self.time += lasts
        self.cell = min(self.cell + (3 if action == 1 else 1), self.last)
        there = self.cell == self.last
        reward = -0.03 if action == 1 else -0.01
        return Transition(reward + there, there, False, {"success": there, "primitive_steps": lasts})

    def narrate(self) -> str:
        return f"Cell {self.cell}."


def test_shortest_solution_and_best_return_of_a_corridor() -> None:
    found = solve(Corridor())
    assert found.shortest == ("jump",) * 4
    assert found.states == 11 + 2, "eleven cells to be in, and two ends: in the last cell, and through the door"
    # The best of all sequences of jumps and steps, by trying every one of them.
    best = 0.3
    for pattern in range(2**12):
        cell, total, weight = 0, 0.0, 1.0
        for k in range(12):
            jump = pattern >> k & 1
            cell = min(cell + (3 if jump else 1), Corridor.last)
            total += weight * ((-0.03 if jump else -0.01) + (cell == Corridor.last))
            weight *= 0.9 ** (2 if jump else 1)
            if cell == Corridor.last:
                best = max(best, total)
                break
    assert found.optimal_return == pytest.approx(best, abs=1e-12)
    assert found.best is not None


def test_best_return_need_not_need_success() -> None:
    class Dear(Corridor):
        discount = 0.5

    found = solve(Dear())
    assert found.best == ("leave",)
    assert found.optimal_return == pytest.approx(0.3)
    assert found.shortest == ("jump",) * 4


@pytest.mark.parametrize("id", ["Overcooked-tomato-salad-v0", "Overcooked-tomato-lettuce-onion-salad-v0"])
def test_planner_finds_the_best_returns_of_overcooked(id: str) -> None:
    environment = gym.make(id, interface="text").unwrapped
    found = solve(environment)
    assert found.optimal_return == pytest.approx(environment.optimal_return, abs=1e-6)
    environment.reset(seed=0)
    earned, elapsed = 0.0, 0
    for phrase in found.best:
        _, reward, terminated, _, info = environment.step(phrase)
        earned += environment.discount**elapsed * reward
        elapsed += info["primitive_steps"]
    assert terminated
    assert earned == pytest.approx(found.optimal_return, abs=1e-9)


def test_door(door: LanguageEnv) -> None:
    found = solve(door)
    assert (found.states, found.shortest, found.optimal_return) == (3, ("open the door", "walk through the door"), 0.5)


def test_free_text_cannot_be_planned(diary: LanguageEnv) -> None:
    with pytest.raises(PlanningError, match="any text is an action"):
        solve(diary)


def test_random_results_are_rejected() -> None:
    class Dice(Corridor):
        def advance(self, action: int | str | None) -> Transition:
            self.np_random.random()
            return super().advance(action)

    with pytest.raises(PlanningError, match="random result"):
        solve(Dice())


def test_environments_without_a_hashable_state_are_rejected() -> None:
    class Stateless(Corridor):
        state_fields = None

    class Unhashable(Corridor):
        def start(self, options: dict[str, Any]) -> None:
            super().start(options)
            self.cell = [0]

    for environment, message in ((Stateless(), "state_fields"), (Unhashable(), "unhashable")):
        with pytest.raises(PlanningError, match=message):
            solve(environment)


def test_too_many_states_and_unbounded_returns_are_rejected() -> None:
    with pytest.raises(PlanningError, match="more than 5 states"):
        solve(Corridor(), max_states=5)

    class Mint(Corridor):
        discount = 1.0

        def advance(self, action: int | str | None) -> Transition:
            return Transition(1.0, False, False, {})

    with pytest.raises(PlanningError, match="have not converged after"):
        solve(Mint())


def test_endless_optimum_has_a_value_and_no_plan() -> None:
    class Interest(Corridor):
        def advance(self, action: int | str | None) -> Transition:
            return Transition(1.0, False, False, {})

    found = solve(Interest())
    assert found.optimal_return == pytest.approx(10.0, abs=1e-9)
    assert found.best is None
    assert found.shortest is None


class Graph(LanguageEnv):
    """States with numbered phrases: (next state or None at the end, reward)."""

    graph: ClassVar[dict[int, list[tuple[int | None, float]]]] = {}
    action_names = ("a", "b")
    text_parts = (("x",),)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 1}
    state_fields: ClassVar[tuple[str, ...]] = ("at",)

    def __init__(self) -> None:
        super().__init__(max_text_length=1)
        self.at = 0

    def start(self, options: dict[str, Any]) -> None:
        self.at = 0

    def available_action_ids(self) -> tuple[int, ...]:
        return tuple(range(len(self.graph[self.at])))

    def advance(self, action: int | str | None) -> Transition:
        following, reward = self.graph[self.at][action]
        self.at = self.at if following is None else following
        return Transition(reward, following is None, False, {})

    def narrate(self) -> str:
        return "x"


def test_best_plan_without_a_discount_reaches_the_end() -> None:
    class Patient(Graph):
        graph: ClassVar = {0: [(0, 0.0), (1, 0.0)], 1: [(1, 0.0), (None, 1.0)]}

    found = solve(Patient())
    assert (found.best, found.optimal_return) == (("b", "b"), 1.0)


@pytest.mark.parametrize("graph", [{0: []}, {0: [(1, 0.0), (None, 1.0)], 1: []}])
def test_states_without_available_phrases_are_rejected(graph: Any) -> None:
    environment = Graph()
    environment.graph = graph
    with pytest.raises(PlanningError, match="no phrase is available"):
        solve(environment)


def test_step_limits_are_ignored() -> None:
    from lang_envs.virtualhome.env import VirtualHomeEnv

    assert solve(VirtualHomeEnv("cheese", max_steps=1)) == solve(VirtualHomeEnv("cheese"))


def test_as_many_states_as_allowed_are_searched() -> None:
    assert solve(Corridor(), max_states=11) == solve(Corridor())


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    solve(Corridor(), on_state=lambda searched, known: seen.append((searched, known)))
    assert [searched for searched, _ in seen] == list(range(1, 12))
    assert seen[-1][1] == 11
