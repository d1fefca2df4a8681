"""The base class of every environment. It speaks text; :class:`lang_envs.TokenEnv` turns text into token ids."""

from __future__ import annotations

import string
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from lang_envs.tokenizer import Tokenizer

TEXT_CHARACTERS = string.printable
"""The characters that the environments' own text is made of."""
ACTION_MAX_CHARACTERS = 256


class Transition(NamedTuple):
    """The result of one time step.

    ``info`` may contain, besides entries of the environment's own:

    - ``success`` (bool): whether the episode was successful, at its end;
    - ``primitive_steps`` (int): units of environment time that the step took; 1 if absent;
    - ``metrics`` (dict of str to float or str): training reports the mean of each over the steps that have it, and the
      first one of words;
    - ``artifact`` (dict with ``score``, ``file`` and ``text``): training writes the one with the highest score of a run
      as a file into the run's folder.
    """

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class LanguageEnv(gym.Env[str, str]):
    """An environment that describes itself in text and is acted upon in text.

    An environment sets the attributes below and implements ``start``, ``advance``, ``narrate`` and, where not every phrase
    is always available, ``available_action_ids``. Everything Gymnasium asks for is done here.

    Attributes
    ----------
    action_names : tuple of str
        Every phrase of the environment, in index order; empty where any text is an action.
    discount : float
        Discount of one unit of time with which the environment's published returns are counted. A step lasts
        ``info["primitive_steps"]`` units, one where that is absent.
    optimal_return : float or None
        Best discounted return from the start, where known.
    symbolic_fields : tuple of str
        Names of the entries of :meth:`symbolic_observation`.
    text_parts : tuple of tuple of str, or None
        Every observation is one choice from each part, joined without anything between; None where text is open-ended.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012 — as Gymnasium declares it

    action_names: tuple[str, ...] = ()
    discount: float = 1.0
    optimal_return: float | None = None
    symbolic_fields: tuple[str, ...] = ()
    text_parts: tuple[tuple[str, ...], ...] | None = None

    state_fields: ClassVar[tuple[str, ...] | None] = None
    """Names of the attributes that change during an episode; without them there is no :attr:`state`."""
    clock_fields: ClassVar[tuple[str, ...]] = ()
    """Those of them that only count time: situations that differ in nothing else are one to the planner."""

    def __init__(
        self, *, max_text_length: int, max_action_length: int = ACTION_MAX_CHARACTERS, render_mode: str | None = None
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r} is not one of {self.metadata['render_modes']} or None")
        self.render_mode = render_mode
        self.observation_space = Text(max_text_length, min_length=1, charset=TEXT_CHARACTERS)
        self.action_space = Text(max_action_length, min_length=0, charset=TEXT_CHARACTERS)
        self._running = False

    # ------------------------------------------------------------------------------------- what an environment implements

    def start(self, options: dict[str, Any]) -> None:
        """Begin an episode; draw what is random from ``self.np_random``."""
        raise NotImplementedError

    def advance(self, action: int | str | None) -> Transition:
        """Let one time step pass.

        ``action`` is the index of an available phrase, or None where an unavailable phrase was said (time passes and
        nothing else changes); the text itself in an environment without ``action_names``.
        """
        raise NotImplementedError

    def narrate(self) -> str:
        """The present observation in words."""
        raise NotImplementedError

    def symbolic_observation(self) -> np.ndarray:
        """The present observation as an int64 array of shape ``(len(symbolic_fields),)``."""
        raise NotImplementedError

    def available_action_ids(self) -> tuple[int, ...]:
        """Indices of the phrases that can be said now; all of them unless an environment says otherwise."""
        return tuple(range(len(self.action_names)))

    def random_text(self, rng: np.random.Generator) -> str:
        """What a random policy says in an environment where any text is an action."""
        raise NotImplementedError

    def configure_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Learn with which tokenizer this environment is going to be read, where that matters to how it speaks."""

    def prefetch(self, action: str) -> None:
        """Begin in the background what the next step, with this very action, will have to wait for."""

    # ----------------------------------------------------------------------------------------------- Gymnasium's part

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.start(options or {})
        self._running = True
        text = self.narrate()
        return text, self._info(text)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Say one phrase, or send one text, and let the environment answer.

        Raises
        ------
        ValueError
            If ``action`` is not a string.
        gymnasium.error.ResetNeeded
            Before the first reset and after the end of an episode.
        """
        if not isinstance(action, str):
            raise ValueError(f"an action of a text environment is a str, not {type(action).__name__}: {action!r:.200}")
        if not self._running:
            raise ResetNeeded("no episode is running: call reset() before the first step() and after an episode's end")
        if self.action_names:
            choice = self._index_of(action.strip())
            valid = choice is not None
            reward, terminated, truncated, extra = self.advance(choice)
        else:
            valid = True
            reward, terminated, truncated, extra = self.advance(action)
        self._running = not (terminated or truncated)
        text = self.narrate()
        return text, reward, terminated, truncated, self._info(text) | {"action_valid": valid} | extra

    def _index_of(self, phrase: str) -> int | None:
        if phrase in self.action_names:
            index = self.action_names.index(phrase)
            if index in self.available_action_ids():
                return index
        return None

    def _info(self, text: str) -> dict[str, Any]:
        if not self.action_names:
            return {"text": text}
        ids = self.available_action_ids()
        return {
            "text": text,
            "available_actions": tuple([self.action_names[i] for i in ids]),
            "available_action_ids": ids,
        }

    # --------------------------------------------------------------------------------------------------- exact resume

    @property
    def state(self) -> dict[str, Any]:
        """All that changes in this environment, its random generator included; assign it to another to go on there.

        A checkpoint can hold it where its values are plain data, NumPy arrays, and classes declared with
        :func:`lang_envs.storable`.
        """
        if self.state_fields is None:
            raise AttributeError(f"{type(self).__name__} names no state_fields, so its state cannot be had")
        fields = {name: getattr(self, name) for name in (*self.state_fields, "_running")}
        return {"fields": fields, "random": self.np_random.bit_generator.state}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        if state["fields"].keys() != {*(self.state_fields or ()), "_running"}:
            raise ValueError(f"{type(self).__name__} has no state of the fields {', '.join(map(str, state['fields']))}")
        for name, value in state["fields"].items():
            setattr(self, name, value)
        self.np_random.bit_generator.state = state["random"]
