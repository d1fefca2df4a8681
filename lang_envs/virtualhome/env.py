"""A household task as a text environment."""

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
from lang_envs.virtualhome.task import Task
from lang_envs.virtualhome.tasks import TASKS, load_task

DISCOUNT = 0.95
"""Discount of one step."""
MAX_STEPS = 50
_OUTCOMES_SEARCHED = 100_000  # a few seconds
_TASKS_KEPT = 256
_REMEMBERED = 100_000


class View(NamedTuple):
    """What a state looks like, and the indices of the actions offered in it."""

    text: str
    symbolic: tuple[int, ...]
    offered: tuple[int, ...]


class Course:
    """A task, its outcomes and views remembered: states are mostly few, the rules fixed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._outcomes: dict[tuple[State, int], tuple[State, bool]] = {}
        self._views: dict[State, View] = {}

    def __reduce__(self) -> tuple[Callable[[Task], Course], tuple[Task]]:
        return course_of, (self.task,)  # copies and pickles share what is remembered instead of carrying it

    def perform(self, state: State, action: int) -> tuple[State, bool]:
        """The state after an action, and whether the task is done."""
        outcome = self._outcomes.get((state, action))
        if outcome is None:
            if len(self._outcomes) >= _REMEMBERED:  # a large household has more situations than there is memory
                self._outcomes.clear()
            after = self.task.household.perform(state, self.task.household.actions[action])
            outcome = self._outcomes[state, action] = after, self.task.is_done(after)
        return outcome

    def view(self, state: State) -> View:
        view = self._views.get(state)
        if view is None:
            if len(self._views) >= _REMEMBERED:
                self._views.clear()
            seen = self.task.household.observe(state)
            text = narrate(self.task.household, self.task.instruction, seen)
            offered = self.task.offered(state)
            if not offered and not self.task.is_done(state):
                raise ValueError(f"menu: it offers nothing at all in this situation: {text}")
            view = self._views[state] = View(text, tuple(map(int, seen.values())), offered)
        return view


@lru_cache(_TASKS_KEPT)
def course_of(task: Task) -> Course:
    """The one course of a task in this process."""
    return Course(task)


@lru_cache(_TASKS_KEPT)
def _optimal_return(task: Task) -> float | None:
    environment = VirtualHomeEnv(task)
    try:
        return solve(environment, max_states=_OUTCOMES_SEARCHED // len(environment.action_names)).optimal_return
    except ValueError:  # too many situations, or one in which the menu offers nothing
        return None


class VirtualHomeEnv(LanguageEnv):
    """Somebody does a chore in a household of four rooms.

    ## Description
    A kitchen, a bathroom, a bedroom and a living room. Things stand in them, lie in or on others, or are held. What is
    to be done and what there is to do it with is a :class:`lang_envs.virtualhome.Task`, a row of data.

    ## Action Space
    Phrases, each one step. Which of them are offered depends on what is seen (``info["available_actions"]``).

    | phrase | what it needs | what it does |
    |---|---|---|
    | walk to the kitchen (bathroom, …) | another room, standing | one is there, near nothing but what one holds |
    | walk to the X | X is seen and not in hand, standing | one is near X alone (or a container and all in it) |
    | grab the X | X is near, a free hand | X is in hand, and goes where one goes |
    | put the X in (on) the Y | X in hand, Y near and no closed container | X is there |
    | open, close the Y | Y is near, a free hand | what is in something closed is not seen |
    | turn on, turn off the Y | Y is near, a free hand | |
    | sit on the Y | Y is near | one does not walk while one sits |
    | stand up from the Y | sitting on it | |

    An action whose need is not met changes nothing and takes its step all the same. One has two hands. The source's
    tasks offer some actions in vain and leave some out (once one sits, no standing up, for instance); other tasks offer
    what changes something.

    ## Observation Space
    The task, the room, whether both hands are empty, and a sentence on each thing that is seen: what is in one's room
    and not inside something closed, and what one holds. As integers (``symbolic_observation``) zeros and ones, named by
    ``symbolic_fields``; zero also where a thing is not seen.

    ## Starting State
    In the task's room, near nothing, hands empty; containers closed, switches off.

    ## Rewards
    1 when the task is done, otherwise 0.

    ## Episode End
    Terminated when the task is done; truncated after 50 steps.

    ## Information
    ``text``, ``available_actions``, ``available_action_ids`` and ``success`` (the task is done); after a step also
    ``action_valid`` (a phrase that is not offered takes a step and changes nothing).

    ## Arguments
    ``task``: a :class:`lang_envs.virtualhome.Task`, a mapping of its fields, the name of a task of the suite, or the
    path of a YAML file. ``max_steps``: steps of an episode, 50. ``render_mode``: ``"ansi"`` or ``"rgb_array"``.

    ## References
    The two tasks in VirtualHome (Puig et al., 2018) that TWOSOME (arXiv 2401.14151) and POAD (arXiv 2405.15821) use,
    and unseen ones after POAD's Table 1; the wording is our own. Every recorded transition of the two replays exactly.

    ## Version History
    v0: first release.
    """

    discount = DISCOUNT
    state_fields: ClassVar[tuple[str, ...]] = ("_household_state", "_steps", "_done")
    clock_fields: ClassVar[tuple[str, ...]] = ("_steps",)

    def __init__(
        self,
        task: Task | Mapping[str, Any] | str | Path | None = None,
        max_steps: int = MAX_STEPS,
        render_mode: str | None = None,
    ) -> None:
        if task is None:
            raise ValueError(
                f"task: none was given; give a Task, the path of a YAML file, or one of {', '.join(TASKS)} "
                "(on the command line --set task=FILE)"
            )
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise ValueError(f"max_steps: {max_steps!r} is not a whole number of at least 1")
        self.task = load_task(task)
        self.max_steps = max_steps
        self._course = course_of(self.task)
        household = self.task.household
        self.action_names = action_phrases(household)
        self.symbolic_fields = tuple(fact.field for fact in household.facts)
        self.text_parts = text_parts(household, self.task.instruction)
        self._household_state = household.initial_state()
        self._steps = 0
        self._done = False
        super().__init__(max_text_length=sum(max(map(len, part)) for part in self.text_parts), render_mode=render_mode)

    @property
    def optimal_return(self) -> float | None:  # type: ignore[override]
        """By breadth-first search, when it is asked for; None where there are too many situations to search."""
        return _optimal_return(self.task)

    def start(self, options: dict[str, Any]) -> None:
        self._household_state = self.task.household.initial_state()
        self._steps = 0
        self._done = False

    def advance(self, action: int | str | None) -> Transition:
        if isinstance(action, int):
            self._household_state, self._done = self._course.perform(self._household_state, action)
        self._steps += 1
        truncated = self._steps >= self.max_steps and not self._done
        return Transition(float(self._done), self._done, truncated, {})

    def available_action_ids(self) -> tuple[int, ...]:
        return self._course.view(self._household_state).offered

    def _info(self, text: str) -> dict[str, Any]:
        return super()._info(text) | {"success": self._done}

    def narrate(self) -> str:
        return self._course.view(self._household_state).text

    def symbolic_observation(self) -> np.ndarray:
        return np.array(self._course.view(self._household_state).symbolic, dtype=np.int64)

    def render(self) -> Any:
        """The floor plan as text (``ansi``) or as a picture of shape (height, width, 3), uint8 (``rgb_array``)."""
        from lang_envs.virtualhome.rendering import draw, write

        if self.render_mode == "ansi":
            return write(self.task, self._household_state)
        if self.render_mode == "rgb_array":
            return draw(self.task, self._household_state)
        return None
