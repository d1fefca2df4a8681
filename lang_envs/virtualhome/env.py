"""VirtualHome as a text environment: the class that is registered with Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lang_envs.core import LanguageEnv, Transition
from lang_envs.planner import solve
from lang_envs.virtualhome.household import State
from lang_envs.virtualhome.narration import action_phrases, narrate, text_parts
from lang_envs.virtualhome.task import HouseholdTask
from lang_envs.virtualhome.tasks import TASKS, load_task

DISCOUNT = 0.95
"""Discount per step."""
MAX_STEPS = 50
_TRANSITIONS_SEARCHED = 100_000
"""Greatest number of states times phrases for which the optimal return is computed; takes a few seconds."""
_TASKS_CACHED = 256
TRANSITIONS_CACHED = 100_000
"""Number of transitions, and of views, that are cached for each task."""


class View(NamedTuple):
    """What the agent observes of a state."""

    text: str
    symbolic: tuple[int, ...]
    available: tuple[int, ...]
    """Indices of the available phrases."""


class CachedTask:
    """A task that caches its transitions and observations: states are usually few, and rules are deterministic."""

    def __init__(self, task: HouseholdTask) -> None:
        self.task = task
        self.transitions: dict[tuple[State, int], tuple[State, bool]] = {}
        self.views: dict[State, View] = {}

    def __reduce__(self) -> tuple[Callable[[HouseholdTask], CachedTask], tuple[HouseholdTask]]:
        return cached_task, (self.task,)  # copies and pickles share the cache of their process

    def perform(self, state: State, action: int) -> tuple[State, bool]:
        """Return the state after an action, and whether the task is done then."""
        transition = self.transitions.get((state, action))
        if transition is None:
            if len(self.transitions) >= TRANSITIONS_CACHED:  # a large household has more states than fit into memory
                self.transitions.clear()
            after = self.task.household.perform(state, self.task.household.actions[action])
            transition = self.transitions[state, action] = after, self.task.is_done(after)
        return transition

    def view(self, state: State) -> View:
        """Return what the agent observes of a state.

        Raises
        ------
        ValueError
            If no phrase is available although the task is not done.
        """
        view = self.views.get(state)
        if view is None:
            if len(self.views) >= TRANSITIONS_CACHED:
                self.views.clear()
            seen = self.task.household.observe(state)
            text = narrate(self.task.household, self.task.instruction, seen)
            available = self.task.available_actions(state)
            if not available and not self.task.is_done(state):
                raise ValueError(f"menu: no phrase is available in this state, add one that is: {text}")
            view = self.views[state] = View(text, tuple(map(int, seen.values())), available)
        return view


@lru_cache(_TASKS_CACHED)
def cached_task(task: HouseholdTask) -> CachedTask:
    """Return the cache of a task, one for each process."""
    return CachedTask(task)


@lru_cache(_TASKS_CACHED)
def _optimal_return(task: HouseholdTask) -> float | None:
    env = VirtualHomeEnv(task)
    try:
        return solve(env, max_states=_TRANSITIONS_SEARCHED // len(env.action_names)).optimal_return
    except ValueError:  # too many states, or one in which no phrase is available
        return None


class VirtualHomeEnv(LanguageEnv):
    """A person does a household task in a home of four rooms.

    Description
    -----------
    The rooms are a kitchen, a bathroom, a bedroom and a living room. Things are in a room, in a container, on a
    surface, or in one of the person's two hands. A :class:`lang_envs.virtualhome.HouseholdTask` defines the things, the
    goal and the available actions. The first two tasks are those of the source; the others are meant for evaluation on
    tasks that the agent was not trained on. The id of a task is ``VirtualHome-TASK-v0``; ``VirtualHome-v0`` takes a
    task of your own.

    ================  =======  ======  ===========  =============  ===================================================
    task              phrases  states  best return  shortest plan  instruction
    ================  =======  ======  ===========  =============  ===================================================
    food-preparation  10       28      0.7738       6              Heat the pancake in the microwave.
    entertainment     17       136     0.5987       11             Sit on the sofa and watch TV with the chips and the
                                                                   milk at hand.
    cheese            10       28      0.7738       6              Heat the cheese in the microwave.
    hamburger         10       28      0.7738       6              Heat the hamburger in the microwave.
    apple-pie         10       28      0.7738       6              Heat the apple pie in the microwave.
    pizza             10       28      0.7738       6              Heat the pizza in the microwave.
    washing-plate     10       28      0.7738       6              Wash the dirty plate in the dishwasher.
    laundry           10       28      0.7738       6              Wash the clothes in the washing machine.
    juice             10       28      0.6983       8              Cool the juice in the fridge. (The juice starts in
                                                                   the living room.)
    towel             10       28      0.6983       8              Wash the towel in the washing machine. (The towel
                                                                   starts in the bedroom, the machine is in the
                                                                   bathroom.)
    ================  =======  ======  ===========  =============  ===================================================

    The best return is discounted (0.95 per step); the length of the shortest plan is in actions.

    Action Space
    ------------
    Phrases; each one takes one step. An action whose precondition does not hold takes its step and changes nothing.

    =================================  ======================================  =======================================
    phrase                             precondition                            effect
    =================================  ======================================  =======================================
    walk to the kitchen (bathroom, …)  in another room, not sitting            the person is in that room, near
                                                                               nothing except what it holds
    walk to the X                      X is seen, not held; not sitting        the person is near X only, or near the
                                                                               container of X and everything in it
    grab the X                         X is near, one hand is free             X is in hand, and moves with the person
    put the X in (on) the Y            X in hand, Y near; a container is open  X is in (on) Y
    open, close the Y                  Y is near, one hand is free             things in a closed container are not
                                                                               seen
    turn on, turn off the Y            Y is near, one hand is free             Y is on, off
    sit on the Y                       Y is near, not sitting                  the person sits, and faces the screens
                                                                               of the room
    stand up from the Y                sitting on Y                            the person stands
    =================================  ======================================  =======================================

    Which phrases are available depends on what the person sees (``info["available_actions"]``). The *menu* of a task
    lists conditions for some phrases; all other phrases are available if they would change something. The menus of the
    registered tasks follow the source: they offer some actions that change nothing, and lack some that would (for
    example standing up from the sofa).

    Observation Space
    -----------------
    Text: the instruction, the room, whether both hands are empty, and a sentence for each thing that the person sees or
    holds. A thing is seen if it is in the same room and not in a closed container. The first observation of food
    preparation is::

        Heat the pancake in the microwave. You are in the kitchen. Your hands are empty. The pancake is here. The closed
        microwave is here.

    ``symbolic_observation()`` is an int64 vector of zeros and ones: 11 entries, 21 for entertainment. The names in
    ``symbolic_fields`` are explained in :class:`lang_envs.virtualhome.HouseholdTask`. Entries of things that are not
    seen are 0.

    Starting State
    --------------
    Always the same: the person is in the task's start room, near nothing, with empty hands. Containers are closed and
    switches are off.

    Rewards
    -------
    1 when the task is done, otherwise 0.

    Episode End
    -----------
    *Terminated* when the task is done. *Truncated* after ``max_steps`` steps (50).

    Information
    -----------
    ========================  ==================================================================================
    entry                     meaning
    ========================  ==================================================================================
    ``text``                  the observation as text (str)
    ``available_actions``     the available phrases (tuple of str)
    ``available_action_ids``  their indices (tuple of int)
    ``success``               whether the task is done (bool)
    ``action_valid``          after a step: whether the action was an available phrase (bool); any other text
                              takes one step and changes nothing
    ========================  ==================================================================================

    Arguments
    ---------
    task : HouseholdTask, mapping, str or Path
        A task, a mapping of its fields, the name of a task in the table above (``"cheese"``), or the path of a YAML
        file. Each registered id except ``VirtualHome-v0`` sets it.
    max_steps : int
        Greatest number of steps of an episode; default 50.
    render_mode : str, optional
        ``"ansi"``: a floor plan as text. ``"rgb_array"``: a picture, uint8 of shape (height, width, 3).

    Raises
    ------
    ValueError
        If no task is given, or it is invalid; the message names the field, its value and the possible values.
    FileNotFoundError
        If the YAML file does not exist.

    References
    ----------
    - Source: two tasks in VirtualHome (Puig et al., 2018) as used by TWOSOME (arXiv:2401.14151) and POAD
      (arXiv:2405.15821). The unseen tasks follow POAD's Table 1.
    - Differences from the source: the wording of observations and phrases is ours. The rules are the same: every
      recorded transition of the two tasks of the source replays exactly.

    Version History
    ---------------
    - v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012
    discount = DISCOUNT
    state_fields: ClassVar[tuple[str, ...]] = ("household_state", "steps", "done")
    clock_fields: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(
        self,
        task: HouseholdTask | Mapping[str, Any] | str | Path | None = None,
        max_steps: int = MAX_STEPS,
        render_mode: str | None = None,
    ) -> None:
        if task is None:
            raise ValueError(
                "task is missing: expected a HouseholdTask, the path of a YAML file, or one of "
                f"{', '.join(TASKS)} (on the command line: --set task=FILE)"
            )
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise ValueError(f"max_steps={max_steps!r} is not valid: expected a whole number of at least 1")
        self.task = load_task(task)
        self.max_steps = max_steps
        self.cached = cached_task(self.task)
        household = self.task.household
        self.action_names = action_phrases(household)
        self.symbolic_fields = tuple(fact.field for fact in household.facts)
        self.text_parts = text_parts(household, self.task.instruction)
        self.household_state = household.initial_state()
        self.steps = 0
        self.done = False
        super().__init__(max_text_length=sum(max(map(len, part)) for part in self.text_parts), render_mode=render_mode)

    @property
    def optimal_return(self) -> float | None:  # type: ignore[override]
        """Best discounted return, computed by breadth-first search when it is read; None for too many states."""
        return _optimal_return(self.task)

    def start(self, options: dict[str, Any]) -> None:
        self.household_state = self.task.household.initial_state()
        self.steps = 0
        self.done = False

    def advance(self, action: int | str | None) -> Transition:
        if isinstance(action, int):
            self.household_state, self.done = self.cached.perform(self.household_state, action)
        self.steps += 1
        truncated = self.steps >= self.max_steps and not self.done
        return Transition(float(self.done), self.done, truncated, {})

    def available_action_ids(self) -> tuple[int, ...]:
        return self.cached.view(self.household_state).available

    def _info(self, text: str) -> dict[str, Any]:
        return super()._info(text) | {"success": self.done}

    def narrate(self) -> str:
        return self.cached.view(self.household_state).text

    def symbolic_observation(self) -> np.ndarray:
        return np.array(self.cached.view(self.household_state).symbolic, dtype=np.int64)

    def render(self) -> Any:
        """Return the floor plan as text (``ansi``) or a uint8 picture of shape (height, width, 3) (``rgb_array``)."""
        from lang_envs.virtualhome.rendering import draw, write

        if self.render_mode == "ansi":
            return write(self.task, self.household_state)
        if self.render_mode == "rgb_array":
            return draw(self.task, self.household_state)
        return None
