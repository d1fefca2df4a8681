"""Overcooked as a text environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lang_envs.core import LanguageEnv, Transition
from lang_envs.overcooked.kitchen import DISHES, STEP_REWARD, State, make_kitchen
from lang_envs.overcooked.macro_actions import DISCOUNT, cook_in, macro_actions
from lang_envs.overcooked.narration import action_phrases, narrate, text_parts

MAX_PRIMITIVE_STEPS = 200

OPTIMAL_RETURNS: dict[tuple[str, ...], float] = {
    ("tomato",): 0.920518,
    ("lettuce",): 0.920518,
    ("onion",): 0.918691,
    ("tomato", "lettuce"): 0.947656,
    ("tomato", "onion"): 0.947656,
    ("lettuce", "onion"): 0.947656,
    ("tomato", "lettuce", "onion"): 0.944705,
}
"""Best discounted return of each dish, by value iteration over every reachable state (a test does it again)."""


class OvercookedEnv(LanguageEnv):
    """One cook makes a salad in a small kitchen and delivers it.

    ## Description
    A 7×7 kitchen: counters around the wall, floor inside. Foods, one bowl, cutting boards and a delivery counter stand
    on the counters. Each food of the dish is chopped on a board, put into the bowl, and the bowl is delivered.

    ## Action Space
    Phrases, each a macro-action that runs primitive steps of one cell until it is over. All are always available;
    one that makes no sense where it is said passes one primitive step.

    | phrase | what it does |
    |---|---|
    | get the tomato (lettuce, onion) | walk to the food and take it; stop next to it if it lies unchopped on a board |
    | get the bowl | walk to the bowl and take it; chopped food in hand goes into it first |
    | go to the (first, second) cutting board | walk there and, if carrying something, act on the board |
    | deliver the dish | walk to the delivery counter and, if carrying something, hand it over |
    | chop | three chops, next to a board with unchopped food |

    Tomato salad is made in a kitchen with one food and one board (5 phrases), all other dishes in one with three foods
    and two boards (8 phrases).

    ## Observation Space
    A few sentences: the dish, where the cook stands, what it carries, and what it sees within two cells in both
    directions. As integers (``symbolic_observation``), 0 where out of view: x, y, chops of each food; x, y of the
    bowl, of each board, of the delivery counter, of the cook; then a one-hot of the dish among tomato, lettuce, onion,
    lettuce-tomato, onion-tomato, lettuce-onion and lettuce-onion-tomato.

    ## Starting State
    The cook stands at (1, 4) with empty hands, foods and bowl on their counters.

    ## Rewards
    Each primitive step −0.001; the last chop of a food that belongs into the dish +0.2; the right dish delivered +1;
    anything else delivered −0.1, and it returns to where it started, unchopped. A macro-action earns the sum of its
    primitive rewards discounted by 0.99 a primitive step.

    ## Episode End
    Terminated when the right dish is delivered; truncated when 200 primitive steps are over, which is looked at when a
    macro-action ends.

    ## Information
    ``text``, ``available_actions``, ``available_action_ids`` and ``success`` (the dish was delivered); after a step
    also ``action_valid`` (an unknown phrase passes one primitive step) and ``primitive_steps`` (of this macro-action).

    ## Arguments
    ``dish``: the ingredients, in the order tomato, lettuce, onion, as a list or as in ``"tomato-onion"``.
    ``render_mode``: ``"ansi"`` or ``"rgb_array"``.

    ## References
    The single-agent Overcooked of gym-macro-overcooked, map A, as used by TWOSOME (arXiv 2401.14151) and POAD
    (arXiv 2405.15821); the wording is our own. Every recorded transition of theirs replays exactly.

    ## Version History
    v0: first release.
    """

    discount = DISCOUNT
    state_fields: ClassVar[tuple[str, ...]] = ("_kitchen_state", "_primitive_steps", "_delivered")
    clock_fields: ClassVar[tuple[str, ...]] = ("_primitive_steps",)

    def __init__(self, dish: str | Sequence[str] = ("tomato",), render_mode: str | None = None) -> None:
        ingredients = tuple(dish.split("-") if isinstance(dish, str) else dish)
        if ingredients not in DISHES:
            known = ", ".join("-".join(dish) for dish in DISHES)
            raise ValueError(f"dish {'-'.join(map(str, ingredients))!r} is not known; the dishes are {known}")
        self.kitchen = make_kitchen(ingredients)
        self._cook = cook_in(self.kitchen)
        self.action_names = action_phrases(self.kitchen)
        self._macros = macro_actions(self.kitchen)
        self.symbolic_fields = self.kitchen.symbolic_fields
        self.text_parts = text_parts(self.kitchen)
        self.optimal_return = OPTIMAL_RETURNS[ingredients]
        self._kitchen_state: State = self.kitchen.initial_state()
        self._primitive_steps = 0
        self._delivered = False
        super().__init__(max_text_length=sum(max(map(len, part)) for part in self.text_parts), render_mode=render_mode)

    def start(self, options: dict[str, Any]) -> None:
        self._kitchen_state = self.kitchen.initial_state()
        self._primitive_steps = 0
        self._delivered = False

    def advance(self, action: int | str | None) -> Transition:
        if isinstance(action, int):
            outcome = self._cook.perform(self._kitchen_state, self._macros[action])
            self._kitchen_state, reward, self._delivered, steps = outcome
        else:
            reward, steps = STEP_REWARD, 1
        self._primitive_steps += steps
        truncated = self._primitive_steps >= MAX_PRIMITIVE_STEPS and not self._delivered
        return Transition(reward, self._delivered, truncated, {"primitive_steps": steps})

    def _info(self, text: str) -> dict[str, Any]:
        return super()._info(text) | {"success": self._delivered}

    def narrate(self) -> str:
        return narrate(self.kitchen, self._cook.observe(self._kitchen_state))

    def symbolic_observation(self) -> np.ndarray:
        return np.array(self._cook.observe(self._kitchen_state), dtype=np.int64)

    def render(self) -> Any:
        """The kitchen as text (``ansi``) or as a picture of shape (height, width, 3), uint8 (``rgb_array``)."""
        from lang_envs.overcooked.rendering import draw, write

        if self.render_mode == "ansi":
            return write(self.kitchen, self._kitchen_state)
        if self.render_mode == "rgb_array":
            return draw(self.kitchen, self._kitchen_state)
        return None
