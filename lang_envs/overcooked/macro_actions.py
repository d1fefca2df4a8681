"""Macro-actions of the cook. A macro-action runs primitive steps until it is over.

Its reward is the sum of its primitive rewards, discounted by 0.99 per primitive step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from lang_envs.overcooked.kitchen import CHOPS_NEEDED, IN_BOWL, NOTHING, Cell, Kitchen, State, is_next_to

DISCOUNT = 0.99
"""Discount per primitive step."""


Step = tuple[State, float, bool]
"""A primitive step: the next state, the reward, whether the right dish was delivered."""


class MacroAction(NamedTuple):
    """What the cook tries to do."""

    kind: str
    """``get``, ``go``, ``deliver`` or ``chop``."""
    target: int = 0
    """Index of the item to get, or of the board to go to."""


class MacroResult(NamedTuple):
    """The result of a macro-action."""

    state: State
    reward: float
    """Discounted sum of the primitive rewards."""
    delivered: bool
    primitive_steps: int


def macro_actions(kitchen: Kitchen) -> tuple[MacroAction, ...]:
    """List the macro-actions of a kitchen: get each food, get the bowl, go to each board, deliver, chop."""
    return (
        *(MacroAction("get", item) for item in range(len(kitchen.foods) + 1)),
        *(MacroAction("go", board) for board in range(len(kitchen.boards))),
        MacroAction("deliver"),
        MacroAction("chop"),
    )


class Cook:
    """Performs macro-actions in one kitchen. Results are cached: states are few, and rules are deterministic."""

    def __init__(self, kitchen: Kitchen) -> None:
        self.kitchen = kitchen
        self._results: dict[tuple[State, MacroAction], MacroResult] = {}
        self._observations: dict[State, tuple[int, ...]] = {}

    def __reduce__(self) -> tuple[Callable[[Kitchen], Cook], tuple[Kitchen]]:
        return cook_in, (self.kitchen,)  # copies and pickles share the cache of their process

    def perform(self, state: State, macro: MacroAction) -> MacroResult:
        """Perform a macro-action."""
        key = state, macro
        result = self._results.get(key)
        if result is None:
            result = self._results[key] = self._run(state, macro)
        return result

    def observe(self, state: State) -> tuple[int, ...]:
        """Return the symbolic observation of a state; see :meth:`Kitchen.symbolic_observation`."""
        observation = self._observations.get(state)
        if observation is None:
            observation = self._observations[state] = self.kitchen.symbolic_observation(state)
        return observation

    def _run(self, state: State, macro: MacroAction) -> MacroResult:
        steps = list(self.primitive_steps(state, macro))
        reward = sum(DISCOUNT**k * step_reward for k, (_, step_reward, _) in enumerate(steps))
        end, _, delivered = steps[-1]
        return MacroResult(end, reward, delivered, len(steps))

    def primitive_steps(self, state: State, macro: MacroAction) -> Iterator[Step]:
        """Yield the primitive steps of a macro-action; at least one."""
        if macro.kind == "chop":
            return self._chop(state)
        if macro.kind == "get":
            return self._get(state, macro.target)
        kitchen = self.kitchen
        return self._go_and_act(state, kitchen.delivery if macro.kind == "deliver" else kitchen.boards[macro.target])

    def _go_and_act(self, state: State, target: Cell) -> Iterator[Step]:
        """Walk to a place; act on it if the cook carries something, otherwise stop next to it."""
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
    """Return the cook of a kitchen, one for each process, so that its cache is shared."""
    return Cook(kitchen)
