"""Token ids as actions and observations: the space of token sequences, and the wrapper of text environments."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import MultiDiscrete

from lang_envs.core import LanguageEnv
from lang_envs.tokenizer import Tokenizer, load_tokenizer

CACHE_ENTRIES = 4096
"""Number of encoded observations that a wrapper keeps."""
FREE_ACTION_TOKENS, FREE_OBSERVATION_TOKENS = 128, 1024
"""Default lengths of the spaces where actions, and where observations, are open-ended text."""


class TokenSequence(MultiDiscrete):
    """The space of sequences of at most ``max_length`` token ids.

    An element is an int64 array of shape ``(max_length,)``: ids, then padding. Everything from the first end or padding
    token on is ignored. The space is a subclass of ``MultiDiscrete``, so other libraries can use it.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the ids.
    max_length : int
        Number of tokens, including the end token of an action.
    seed : int or numpy.random.Generator, optional
        Seed of :meth:`sample`.

    Raises
    ------
    ValueError
        If ``max_length`` is below 1.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {max_length}")
        self.tokenizer = tokenizer
        self.max_length = max_length
        super().__init__(np.full(max_length, tokenizer.vocab_size, dtype=np.int64), dtype=np.int64, seed=seed)

    def pad(self, ids: tuple[int, ...]) -> np.ndarray:
        """Return ids as a new element of this space.

        Parameters
        ----------
        ids : tuple of int
            At most ``max_length`` token ids.

        Returns
        -------
        int64 array of shape ``(max_length,)``

        Raises
        ------
        ValueError
            If there are more ids than fit.
        """
        if len(ids) > self.max_length:
            raise ValueError(f"{len(ids)} tokens do not fit into a space of {self.max_length}")
        array = np.full(self.max_length, self.tokenizer.pad_id, dtype=np.int64)
        array[: len(ids)] = ids
        return array

    def unpad(self, array: np.ndarray) -> tuple[int, ...]:
        """Return the ids before the first end or padding token."""
        stops = np.flatnonzero(np.isin(array, self.tokenizer.stop_ids))
        return tuple(array[: stops[0]].tolist() if len(stops) else array.tolist())

    def encode(self, phrase: str) -> np.ndarray:
        """Return the ids of a phrase, with a space before it and the end token after it, as an element."""
        return self.pad(self.tokenizer.encode_action(phrase))

    def decode(self, array: np.ndarray) -> str:
        """Return the text of an element of this space."""
        return self.tokenizer.decode(self.unpad(array))

    def check(self, array: Any) -> np.ndarray:
        """Check that a value is an integer array of this space's shape; return it as int64.

        Raises
        ------
        ValueError
            If its type, dtype or shape is wrong; the message names the wrong and the expected one.
        """
        if not isinstance(array, np.ndarray):
            raise ValueError(f"a token sequence must be a NumPy array, not {type(array).__name__}: {array!r:.200}")
        if array.dtype.kind not in "iu":
            raise ValueError(f"a token sequence must hold integers, not {array.dtype}")
        if array.shape != (self.max_length,):
            raise ValueError(f"a token sequence of this space must have shape {self.shape}, not {array.shape}")
        return array.astype(np.int64, copy=False)

    def check_ids(self, array: np.ndarray) -> np.ndarray:
        """Check that all ids of an array are in the vocabulary; return it.

        Raises
        ------
        ValueError
            If one is not; the message names the first such id.
        """
        wrong = array[(array < 0) | (array >= self.tokenizer.vocab_size)]
        if len(wrong):
            raise ValueError(
                f"token id {wrong[0]} is outside the vocabulary: expected 0 to {self.tokenizer.vocab_size - 1}"
            )
        return array

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """Return random ids of a random length, then padding."""
        array = super().sample(mask=mask, probability=probability)
        array[self.np_random.integers(1, self.max_length, endpoint=True) :] = self.tokenizer.pad_id
        return array

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TokenSequence)
            and self.max_length == other.max_length
            and self.tokenizer == other.tokenizer
        )

    def __repr__(self) -> str:
        return f"TokenSequence({self.tokenizer!r}, max_length={self.max_length})"


class TokenEnv(gym.Wrapper[Any, Any, np.ndarray, np.ndarray], gym.utils.RecordConstructorArgs):
    """A wrapper that turns the text of an environment into token ids.

    Its observations and actions are elements of :class:`TokenSequence` spaces.

    Parameters
    ----------
    env : gymnasium.Env
        A :class:`LanguageEnv`, wrapped or not.
    tokenizer : str, Path, Tokenizer or transformers.PreTrainedTokenizerFast
        See :func:`lang_envs.load_tokenizer`.
    max_observation_tokens, max_action_tokens : int, optional
        Lengths of the spaces. Default: the number of tokens of the longest observation and of the longest phrase. Where
        text is open-ended: 1024 and 128. A longer open-ended observation loses tokens at its beginning;
        ``info["trimmed_tokens"]`` is their number.

    Raises
    ------
    ValueError
        If ``env`` is not a ``LanguageEnv``, a phrase is empty or has outer spaces, or the longest observation or phrase
        does not fit into the given length.
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        tokenizer: Any = "embedded",
        max_observation_tokens: int | None = None,
        max_action_tokens: int | None = None,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            tokenizer=tokenizer,
            max_observation_tokens=max_observation_tokens,
            max_action_tokens=max_action_tokens,
        )
        gym.Wrapper.__init__(self, env)
        environment = env.unwrapped
        if not isinstance(environment, LanguageEnv):
            raise ValueError(f"TokenEnv wraps a LanguageEnv, not a {type(environment).__name__}")
        if spaced := [name for name in environment.action_names if name != name.strip() or not name]:
            raise ValueError(f"phrases must not be empty or have outer spaces, but these do: {spaced[:5]}")
        self.tokenizer = load_tokenizer(tokenizer)
        environment.configure_tokenizer(self.tokenizer)
        needed = _longest_observation(environment, self.tokenizer)
        self._trims = needed is None
        if needed is not None and max_observation_tokens is not None and max_observation_tokens < needed:
            raise ValueError(
                f"max_observation_tokens={max_observation_tokens} cannot hold the longest observation of "
                f"{environment}: expected at least {needed} for the tokenizer {self.tokenizer.name!r}"
            )
        if max_observation_tokens is None:
            max_observation_tokens = FREE_OBSERVATION_TOKENS if needed is None else needed
        self._observations = TokenSequence(self.tokenizer, max_observation_tokens)
        longest = max(
            (len(self.tokenizer.encode_action(name)) for name in environment.action_names),
            default=FREE_ACTION_TOKENS,
        )
        if environment.action_names and max_action_tokens is not None and max_action_tokens < longest:
            raise ValueError(
                f"max_action_tokens={max_action_tokens} cannot hold the longest phrase of {environment}: "
                f"expected at least {longest} for the tokenizer {self.tokenizer.name!r}, including the end token"
            )
        self._actions = TokenSequence(self.tokenizer, longest if max_action_tokens is None else max_action_tokens)
        self._phrases = {self._actions.encode(name).tobytes(): name for name in environment.action_names}
        self.observation_space = self._observations
        self.action_space = self._actions
        self.encoded_observations: dict[str, tuple[np.ndarray, int]] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode; see :meth:`LanguageEnv.reset`. The observation is an element of ``observation_space``."""
        text, info = self.env.reset(seed=seed, options=options)
        return self._observe(text, info), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """Perform the action with these token ids; see :meth:`LanguageEnv.step`.

        Parameters
        ----------
        action : int array of shape ``(max_action_tokens,)``
            Everything from the first end or padding token on is ignored.

        Raises
        ------
        ValueError
            If ``action`` is not an element of the action space. The environment does not change then.
        """
        text, reward, terminated, truncated, info = self.env.step(self._phrase(action))
        return self._observe(text, info), reward, terminated, truncated, info

    def prefetch(self, action: np.ndarray) -> None:
        """Start the slow part of the next step; see :meth:`LanguageEnv.prefetch`."""
        environment = self.env.unwrapped
        assert isinstance(environment, LanguageEnv)
        environment.prefetch(self._phrase(action))

    def _phrase(self, action: np.ndarray) -> str:
        action = self._actions.check(action)
        phrase = self._phrases.get(action.tobytes())
        return self._actions.decode(self._actions.check_ids(action)) if phrase is None else phrase

    def _observe(self, text: str, info: dict[str, Any]) -> np.ndarray:
        known = self.encoded_observations.get(text)
        if known is None:
            known = self._encode_observation(text)
            if len(self.encoded_observations) >= CACHE_ENTRIES:
                self.encoded_observations.clear()
            if self._phrases:  # with free text as actions, observations hardly ever repeat
                self.encoded_observations[text] = known
        array, trimmed = known
        if trimmed:
            info["trimmed_tokens"] = trimmed
        return array.copy()

    def _encode_observation(self, text: str) -> tuple[np.ndarray, int]:
        ids, trimmed = self.tokenizer.encode_observation(text, self._observations.max_length if self._trims else None)
        return self._observations.pad(ids), trimmed


def _longest_observation(environment: LanguageEnv, tokenizer: Tokenizer) -> int | None:
    if environment.text_parts is None:
        return None
    return sum(max(len(tokenizer.encode(text)) for text in part) for part in environment.text_parts)
