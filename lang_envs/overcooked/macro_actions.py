"""What the cook can set out to do. A macro-action runs primitive steps until it is over.

The reward of a macro-action is the sum of its primitive rewards, discounted by 0.99 a primitive step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from lang_envs.overcooked.kitchen import CHOPS_NEEDED, IN_BOWL, NOTHING, Cell, Kitchen, State, is_next_to

DISCOUNT = 0.99
"""Discount of one primitive step."""


Step = tuple[State, float, bool]
"""State after a primitive step, its reward, whether the dish was delivered."""


class MacroAction(NamedTuple):
    """``kind`` is one of ``get``, ``go``, ``deliver``, ``chop``; ``target`` the index of an item or of a board."""

    kind: str
    target: int = 0


class Outcome(NamedTuple):
    state: State
    reward: float
    delivered: bool
    primitive_steps: int


def macro_actions(kitchen: Kitchen) -> tuple[MacroAction, ...]:
    """Every macro-action of a kitchen: get each food, get the bowl, go to each board, deliver, chop."""
    return (
        *(MacroAction("get", item) for item in range(len(kitchen.foods) + 1)),
        *(MacroAction("go", board) for board in range(len(kitchen.boards))),
        MacroAction("deliver"),
        MacroAction("chop"),
    )


class Cook:
    """Carries out macro-actions in one kitchen and remembers every outcome: states are few, the rules fixed."""

    def __init__(self, kitchen: Kitchen) -> None:
        self.kitchen = kitchen
        self._outcomes: dict[tuple[State, MacroAction], Outcome] = {}
        self._observations: dict[State, tuple[int, ...]] = {}

    def __reduce__(self) -> tuple[Callable[[Kitchen], Cook], tuple[Kitchen]]:
        return cook_in, (self.kitchen,)  # copies and pickles share what is remembered instead of carrying it

    def perform(self, state: State, macro: MacroAction) -> Outcome:
        """The state after a macro-action, its discounted reward, whether the dish was delivered, and its length."""
        key = state, macro
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._run(state, macro)
        return outcome

    def observe(self, state: State) -> tuple[int, ...]:
        """The symbolic observation of a state; see :meth:`Kitchen.symbolic_observation`."""
        observation = self._observations.get(state)
        if observation is None:
            observation = self._observations[state] = self.kitchen.symbolic_observation(state)
        return observation

    def _run(self, state: State, macro: MacroAction) -> Outcome:
        steps = list(self._primitive_steps(state, macro))
        reward = sum(DISCOUNT**k * step_reward for k, (_, step_reward, _) in enumerate(steps))
        end, _, delivered = steps[-1]
        return Outcome(end, reward, delivered, len(steps))

    def _primitive_steps(self, state: State, macro: MacroAction) -> Iterator[Step]:
        if macro.kind == "chop":
            return self._chop(state)
        if macro.kind == "get":
            return self._get(state, macro.target)
        kitchen = self.kitchen
        return self._go_and_act(state, kitchen.delivery if macro.kind == "deliver" else kitchen.boards[macro.target])

    def _go_and_act(self, state: State, target: Cell) -> Iterator[Step]:
        """Walk to a place; act on it when carrying something, else stand next to it."""
        kitchen, stood_still = self.kitchen, True
        while not is_next_to(state.cook, target):
            yield (step := kitchen.step_to(state, kitchen.next_cell(state.cook, target)))
            state, stood_still = step[0], False
        if state.held != NOTHING:
            yield kitchen.step_to(state, target)
        elif stood_still:
            yield kitchen.wait(state)

    def _get(self, state: State, item: int) -> Iterator[Step]:
        kitchen, place = self.kitchen, self.kitchen.position(state, item)
        stood_still = True
        while True:
            if place == state.cook or kitchen.is_seen_in_bowl(state, item):
                yield kitchen.wait(state)
                return
            if is_next_to(state.cook, place):
                break
            yield (step := kitchen.step_to(state, kitchen.next_cell(state.cook, place)))
            state, stood_still = step[0], False
        if place in kitchen.boards and kitchen.is_unchopped_food(state, item):
            if stood_still:
                yield kitchen.wait(state)
            return
        held = state.held
        yield (step := kitchen.step_to(state, place))
        state = step[0]
        food_went_in = item == kitchen.bowl and held != NOTHING and state.locations[held] == IN_BOWL
        if food_went_in:
            yield kitchen.step_to(state, place) if state.held == NOTHING else kitchen.wait(state)

    def _chop(self, state: State) -> Iterator[Step]:
        kitchen = self.kitchen
        for board in kitchen.boards:
            if is_next_to(state.cook, board) and kitchen.is_unchopped_food(state, kitchen.item_at(state, board)):
                for _ in range(CHOPS_NEEDED):
                    yield (step := kitchen.step_to(state, board))
                    state = step[0]
                return
        yield kitchen.wait(state)


@cache
def cook_in(kitchen: Kitchen) -> Cook:
    """The one cook of a kitchen in this process."""
    return Cook(kitchen)
