"""The base class of every environment. Its actions and observations are text; :class:`TokenEnv` adds token ids."""

from __future__ import annotations

import string
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from lang_envs.tokenizer import Tokenizer

TEXT_CHARACTERS = string.printable
"""The characters of observations and actions: printable ASCII."""
ACTION_MAX_CHARACTERS = 256


class Transition(NamedTuple):
    """What one step changes, returned by :meth:`LanguageEnv.advance`.

    These entries of ``info`` have a meaning for training and for the planner; all are optional:

    - ``success`` (bool): whether the task is done; default ``terminated``.
    - ``primitive_steps`` (int): units of time that the step took; default 1.
    - ``metrics`` (dict of str to float or str): training reports the mean of each number over the steps that have it,
      and the first of each text.
    - ``artifact`` (dict with ``score``, ``file`` and ``text``): training writes the text with the highest score of a
      run into the run's folder. The file name must begin with ``best_``.
    """

    reward: float
    terminated: bool
    """Whether the episode ends because of a rule of the environment, such as success."""
    truncated: bool
    """Whether the episode ends because its time is over."""
    info: dict[str, Any]
    """Further entries of the ``info`` that ``step`` returns."""


class LanguageEnv(gym.Env[str, str]):
    """A Gymnasium environment whose observations and actions are text.

    A new environment is a subclass that implements three methods (*hooks*): :meth:`start` begins an episode,
    :meth:`advance` performs an action, and :meth:`narrate` describes the state. This class implements the rest of
    Gymnasium's interface. A complete environment::

        from lang_envs import LanguageEnv, Transition

        class Door(LanguageEnv):
            action_names = ("open the door", "walk through the door")
            state_fields = ("is_open",)

            def __init__(self):
                super().__init__(max_text_length=40)

            def start(self, options):
                self.is_open = bool(self.np_random.random() < 0.1)

            def advance(self, action):
                through = action == 1 and self.is_open
                self.is_open = self.is_open or action == 0
                return Transition(reward=float(through), terminated=through, truncated=False, info={})

            def narrate(self):
                return "The door is open." if self.is_open else "The door is closed."

    Register it with ``gym.register("Door-v0", entry_point=lambda: TokenEnv(Door()))``. Observations of
    ``gym.make("Door-v0")`` are then token ids; without ``TokenEnv`` they are text. If both are in ``my_module.py``,
    ``python -m lang_envs play my_module:Door-v0`` lets you play it.

    Most environments have a fixed list of *phrases* (``action_names``); at each step some of them are *available*. An
    environment without ``action_names`` accepts any text as an action.

    =============================  ==============================================  ====================================
    hook                           called                                          implement it
    =============================  ==============================================  ====================================
    :meth:`start`                  by ``reset``                                    always
    :meth:`advance`                by ``step``                                     always
    :meth:`narrate`                after ``start`` and after ``advance``           always
    :meth:`available_action_ids`   after ``start`` and after ``advance``           if not all phrases are available
    :meth:`symbolic_observation`   by non-language agents and by tests             if numbers can describe it
    :meth:`random_text`            by random agents                                if any text is an action
    :meth:`configure_tokenizer`    once, by :class:`lang_envs.TokenEnv`            if the text depends on the tokenizer
    :meth:`prefetch`               before ``step``, in :func:`lang_envs.make_vec`  if a step waits for something slow
    =============================  ==============================================  ====================================

    Parameters
    ----------
    max_text_length : int
        Number of characters of the longest observation.
    max_action_length : int
        Number of characters of the longest action.
    render_mode : str, optional
        One of ``metadata["render_modes"]``.

    Attributes
    ----------
    action_names : tuple of str
        Every phrase, in index order; empty where any text is an action. No phrase starts or ends with a space.
    discount : float
        Discount γ for each unit of time. The returns that training and evaluation report use it, and agents use it
        by default. A step lasts ``info["primitive_steps"]`` units of time, or one unit if that entry is absent.
    optimal_return : float or None
        Largest possible discounted return of an episode; None if it is not known.
    symbolic_fields : tuple of str
        Names of the entries of :meth:`symbolic_observation`.
    text_parts : tuple of tuple of str, or None
        The texts of which observations consist: an observation is one text of the first part, then one text of the
        second part, and so on. :class:`lang_envs.TokenEnv` computes the length of its observation space from them.
        None if the possible observations cannot be listed.
    state_fields : tuple of str, or None
        Names of the attributes that change during an episode; :attr:`state` saves and restores them. None: the state
        cannot be saved. Checkpoints of a training run then contain the agent, but not the states of the environments,
        so a resumed run begins new episodes.
    clock_fields : tuple of str
        Those of ``state_fields`` that only count time. The planner (``python -m lang_envs solve``) treats states that
        differ only in these fields as equal.
    metadata : dict
        Gymnasium's metadata; ``render_modes`` lists the modes that the environment's ``render`` knows.

    Raises
    ------
    ValueError
        If ``render_mode`` is not one of ``metadata["render_modes"]``.
    """

    metadata: dict[str, Any] = {"render_modes": [], "render_fps": 2}  # noqa: RUF012

    action_names: tuple[str, ...] = ()
    discount: float = 1.0
    optimal_return: float | None = None
    symbolic_fields: tuple[str, ...] = ()
    text_parts: tuple[tuple[str, ...], ...] | None = None
    state_fields: ClassVar[tuple[str, ...] | None] = None
    clock_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, *, max_text_length: int, max_action_length: int = ACTION_MAX_CHARACTERS, render_mode: str | None = None
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r} is not one of {self.metadata['render_modes']} or None")
        self.render_mode = render_mode
        self.observation_space = Text(max_text_length, min_length=1, charset=TEXT_CHARACTERS)
        self.action_space = Text(max_action_length, min_length=0, charset=TEXT_CHARACTERS)
        self._running = False

    # ------------------------------------------------------------------------------------------------------- hooks

    def start(self, options: dict[str, Any]) -> None:
        """Set the state at the beginning of an episode. Called by ``reset``.

        Parameters
        ----------
        options : dict
            The ``options`` of ``reset``; empty if there are none.

        Notes
        -----
        Draw random numbers from ``self.np_random`` only; ``reset`` has seeded it.
        """
        raise NotImplementedError

    def advance(self, action: int | str | None) -> Transition:
        """Perform an action: change the state by one step. Called by ``step``.

        Parameters
        ----------
        action : int, str or None
            Index in ``action_names`` of an available phrase. None if the agent's text is not an available phrase: time
            passes, and nothing else should change. In an environment without ``action_names``, the agent's text.

        Returns
        -------
        Transition
            Reward, terminated, truncated and further entries of ``info``.
        """
        raise NotImplementedError

    def narrate(self) -> str:
        """Describe the state. Called after :meth:`start` and after :meth:`advance`.

        Returns
        -------
        str
            The observation: 1 to ``max_text_length`` characters of printable ASCII.
        """
        raise NotImplementedError

    def available_action_ids(self) -> tuple[int, ...]:
        """List the phrases that are available in the present state. Called after :meth:`start` and :meth:`advance`.

        Returns
        -------
        tuple of int
            Indices in ``action_names``, ascending; at least one while an episode runs. Default: all.
        """
        return tuple(range(len(self.action_names)))

    def symbolic_observation(self) -> np.ndarray:
        """Describe the present state as numbers, for agents without a language model.

        Returns
        -------
        int64 array of shape ``(len(symbolic_fields),)``

        Raises
        ------
        NotImplementedError
            By default: the environment has no such form.
        """
        raise NotImplementedError

    def random_text(self, rng: np.random.Generator) -> str:
        """Draw an action for a random agent, in an environment without ``action_names``.

        Parameters
        ----------
        rng : numpy.random.Generator
            The agent's generator; draw from it only.

        Returns
        -------
        str
            An action of at most ``max_action_length`` characters.

        Raises
        ------
        NotImplementedError
            By default.
        """
        raise NotImplementedError

    def configure_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Adapt to the tokenizer that will read the observations. Called once by :class:`lang_envs.TokenEnv`.

        DataSciCoding chooses its prompt style here. Default: do nothing.

        Parameters
        ----------
        tokenizer : Tokenizer
            The tokenizer of the agent.

        Raises
        ------
        ValueError
            If the environment cannot be used with this tokenizer.
        """

    def prefetch(self, action: str) -> None:
        """Start, in the background, the slow part of the next step. Default: do nothing.

        :class:`lang_envs.LanguageVectorEnv` calls this for all its environments before it calls ``step`` for the first
        of them, so the slow parts run in parallel. The result of ``step`` must not depend on this call.

        Parameters
        ----------
        action : str
            The action of the next ``step``.
        """

    # ------------------------------------------------------------------------------------------ Gymnasium's interface

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Parameters
        ----------
        seed : int, optional
            Seed of ``self.np_random``; without it, the generator continues.
        options : dict, optional
            Passed to :meth:`start`.

        Returns
        -------
        observation : str
        info : dict
            ``text`` (the observation); with ``action_names`` also ``available_actions`` (tuple of phrases) and
            ``available_action_ids`` (tuple of their indices).
        """
        super().reset(seed=seed)
        self.start(options or {})
        self._running = True
        text = self.narrate()
        return text, self._info(text)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Perform an action.

        Parameters
        ----------
        action : str
            A phrase, with or without outer spaces; or any text, in an environment without ``action_names``.

        Returns
        -------
        observation : str
        reward : float
        terminated, truncated : bool
        info : dict
            The entries of :meth:`reset`, ``action_valid`` (bool: False for a text that is not an available phrase) and
            those of the :class:`Transition`.

        Raises
        ------
        ValueError
            If ``action`` is not a string.
        gymnasium.error.ResetNeeded
            Before the first ``reset`` and after the end of an episode.
        """
        if not isinstance(action, str):
            raise ValueError(
                f"an action of a text environment must be a str, not {type(action).__name__}: {action!r:.200}"
            )
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

    # -------------------------------------------------------------------------------------------- saving and restoring

    @property
    def state(self) -> dict[str, Any]:
        """Everything that changes during an episode, including the random generator. Assign it to restore it.

        It can be assigned to another environment with the same arguments, which then continues identically. A
        checkpoint can hold it if its values are plain data, NumPy arrays, or instances of classes declared with
        :func:`lang_envs.storable`.

        Raises
        ------
        AttributeError
            If the class has no ``state_fields``.
        ValueError
            On assignment, if the state has other fields than this environment.
        """
        if self.state_fields is None:
            raise AttributeError(
                f"{type(self).__name__} has no state_fields, so its state cannot be saved: set state_fields to the "
                "names of the attributes that change during an episode"
            )
        fields = {name: getattr(self, name) for name in (*self.state_fields, "_running")}
        return {"fields": fields, "random": self.np_random.bit_generator.state}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        expected = {*(self.state_fields or ()), "_running"}
        if state["fields"].keys() != expected:
            raise ValueError(
                f"this state has the fields {', '.join(map(str, state['fields']))}, but a {type(self).__name__} has "
                f"{', '.join(sorted(expected))}"
            )
        for name, value in state["fields"].items():
            setattr(self, name, value)
        self.np_random.bit_generator.state = state["random"]
