"""Overcooked as a text environment: the class that is registered with Gymnasium."""

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
"""Best discounted return of each dish, computed by value iteration over all reachable states; a test recomputes it."""


class OvercookedEnv(LanguageEnv):
    """One cook prepares a salad in a small kitchen and delivers it.

    Description
    -----------
    The kitchen is a grid of 7×7 cells: a border of counters around a floor of 5×5 cells. Foods, one bowl, cutting
    boards and a delivery counter are on the border. Each food of the dish must be chopped on a board and put into the
    bowl; then the bowl must be delivered.

    ============================================  =====  ======  =======  ======  ===========  =============
    environment                                   foods  boards  phrases  states  best return  shortest plan
    ============================================  =====  ======  =======  ======  ===========  =============
    ``Overcooked-tomato-salad-v0``                1      1       5        25      0.9205       6
    ``Overcooked-lettuce-salad-v0``               3      2       8        1165    0.9205       6
    ``Overcooked-onion-salad-v0``                 3      2       8        1165    0.9187       6
    ``Overcooked-tomato-lettuce-salad-v0``        3      2       8        1161    0.9477       10
    ``Overcooked-tomato-onion-salad-v0``          3      2       8        1161    0.9477       10
    ``Overcooked-lettuce-onion-salad-v0``         3      2       8        1161    0.9477       10
    ``Overcooked-tomato-lettuce-onion-salad-v0``  3      2       8        1157    0.9447       16
    ============================================  =====  ======  =======  ======  ===========  =============

    The best return is discounted (0.99 per primitive step); the length of the shortest plan is in actions.

    Action Space
    ------------
    Phrases. Each one starts a *macro-action*, which runs primitive steps (one cell, one chop, one pick-up …) until it
    is over. All phrases are available in every state. A phrase that has no effect takes one primitive step.

    =======================================  ===================================================================
    phrase                                   effect
    =======================================  ===================================================================
    get the tomato (lettuce, onion)          walk to the food and take it (a bowl in hand takes it, if it is
                                             chopped); if it is on a board and not chopped, stop next to it
    get the bowl                             walk to the bowl and take it; a chopped food in hand goes into the
                                             bowl first
    go to the (first, second) cutting board  walk to the board; if the cook carries something, put it there. A
                                             chopped food goes into the bowl instead, if one of them is on the
                                             board and the other in hand; the cook then carries the bowl
    deliver the dish                         walk to the delivery counter; if the cook carries something,
                                             deliver it
    chop                                     chop three times, if the cook is next to a board with a food that
                                             is not chopped
    =======================================  ===================================================================

    Observation Space
    -----------------
    Text: the dish, where the cook stands, what it carries, and what it sees. The cook sees cells that are at most two
    rows and two columns away. The first observation of tomato salad is::

        Make a tomato salad. You stand at a counter. Your hands are empty. On a counter is a raw tomato.

    ``symbolic_observation()`` is an int64 vector of 18 entries (tomato salad) or 26 (all others), in this order:

    - row, column and number of chops (0 to 3) of each food,
    - row and column of the bowl, of each board, and of the delivery counter,
    - row and column of the cook,
    - the dish, one-hot: tomato, lettuce, onion, tomato-lettuce, tomato-onion, lettuce-onion, tomato-lettuce-onion.

    Entries of things out of view are 0. Rows and columns count from 0.

    Starting State
    --------------
    Always the same: the cook is in row 1, column 4 with empty hands; foods and bowl are on their counters.

    Rewards
    -------
    =============================================  ======
    event                                          reward
    =============================================  ======
    each primitive step                            −0.001
    third chop of a food that belongs to the dish  +0.2
    delivery of the right dish                     +1
    delivery of anything else                      −0.1
    =============================================  ======

    The reward of a macro-action is the sum of its primitive rewards, discounted by 0.99 per primitive step. After a
    wrong delivery, everything that was delivered is back where it started, and unchopped.

    Episode End
    -----------
    *Terminated* when the right dish is delivered. *Truncated* at the first end of a macro-action after 200 or more
    primitive steps.

    Information
    -----------
    ========================  ==================================================================================
    entry                     meaning
    ========================  ==================================================================================
    ``text``                  the observation as text (str)
    ``available_actions``     all phrases (tuple of str)
    ``available_action_ids``  their indices (tuple of int)
    ``success``               whether the right dish has been delivered (bool)
    ``action_valid``          after a step: whether the action was a phrase (bool); any other text takes one
                              primitive step and changes nothing
    ``primitive_steps``       after a step: number of primitive steps of the macro-action (int)
    ========================  ==================================================================================

    Arguments
    ---------
    dish : str or sequence of str
        Ingredients in the order tomato, lettuce, onion: ``["tomato", "onion"]`` or ``"tomato-onion"``. Each registered
        id sets it.
    render_mode : str, optional
        ``"ansi"``: a map as text. ``"rgb_array"``: a picture, uint8 of shape (height, width, 3).

    References
    ----------
    - Source: the single-agent version of gym-macro-overcooked, map A, as used by TWOSOME (arXiv:2401.14151) and POAD
      (arXiv:2405.15821).
    - Differences from the source: the wording of observations and phrases is ours. The rules are the same: every
      recorded transition of the source replays exactly. The source gives the cook a memory of where it last saw each
      item; with one cook this memory is always right, so it is not part of the state here.

    Version History
    ---------------
    - v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012
    discount = DISCOUNT
    state_fields: ClassVar[tuple[str, ...]] = ("kitchen_state", "primitive_steps", "delivered")
    clock_fields: ClassVar[tuple[str, ...]] = ("primitive_steps",)

    def __init__(self, dish: str | Sequence[str] = ("tomato",), render_mode: str | None = None) -> None:
        ingredients = tuple(dish.split("-") if isinstance(dish, str) else dish)
        if ingredients not in DISHES:
            known = ", ".join("-".join(dish) for dish in DISHES)
            raise ValueError(f"dish {'-'.join(map(str, ingredients))!r} is not one of {known}")
        self.kitchen = make_kitchen(ingredients)
        self._cook = cook_in(self.kitchen)
        self.action_names = action_phrases(self.kitchen)
        self._macros = macro_actions(self.kitchen)
        self.symbolic_fields = self.kitchen.symbolic_fields
        self.text_parts = text_parts(self.kitchen)
        self.optimal_return = OPTIMAL_RETURNS[ingredients]
        self.kitchen_state: State = self.kitchen.initial_state()
        self.primitive_steps = 0
        self.delivered = False
        super().__init__(max_text_length=sum(max(map(len, part)) for part in self.text_parts), render_mode=render_mode)

    def start(self, options: dict[str, Any]) -> None:
        self.kitchen_state = self.kitchen.initial_state()
        self.primitive_steps = 0
        self.delivered = False

    def advance(self, action: int | str | None) -> Transition:
        if isinstance(action, int):
            result = self._cook.perform(self.kitchen_state, self._macros[action])
            self.kitchen_state, reward, self.delivered, steps = result
        else:
            reward, steps = STEP_REWARD, 1
        self.primitive_steps += steps
        truncated = self.primitive_steps >= MAX_PRIMITIVE_STEPS and not self.delivered
        return Transition(reward, self.delivered, truncated, {"primitive_steps": steps})

    def _info(self, text: str) -> dict[str, Any]:
        return super()._info(text) | {"success": self.delivered}

    def narrate(self) -> str:
        return narrate(self.kitchen, self._cook.observe(self.kitchen_state))

    def symbolic_observation(self) -> np.ndarray:
        return np.array(self._cook.observe(self.kitchen_state), dtype=np.int64)

    def render(self) -> Any:
        """Return the kitchen as text (``ansi``) or as a uint8 picture of shape (height, width, 3) (``rgb_array``)."""
        from lang_envs.overcooked.rendering import draw, write

        if self.render_mode == "ansi":
            return write(self.kitchen, self.kitchen_state)
        if self.render_mode == "rgb_array":
            return draw(self.kitchen, self.kitchen_state)
        return None
