"""Lossless tokenizers: the embedded one, or the tokenizer of any Hugging Face model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.normalizers import NFC

from lang_envs.assets import TOKENIZER_FILE

EMBEDDED = "embedded"
HOLE = "<FILL_ME>"
"""Marks the place in a text that a model fills in; it becomes the infill markers of the tokenizer."""
_INFILL_MARKERS = (
    ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),  # Code Llama
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", None),  # Qwen Coder, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", None),  # StarCoder
)
"""Infill markers by model family: prefix, suffix, middle, and the end of the filled-in text."""
_SENTINEL = "\n"
"""Text before every text, for tokenizers that change the first space."""
_PROBES = ("a", " a", "A b  c\n", "\n", "\n\n  a", "don't .", "x = [1,\n    2]", "\u00e9", "e\u0301")
"""Texts that a tokenizer must decode to what was encoded."""


class Tokenizer:
    """Converts text to token ids and back without loss. Text is never encoded as a special token.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        The tokenizer of the library ``tokenizers`` that does the work; it is copied.
    name : str
        The name that :func:`load_tokenizer` knows it by: ``"embedded"``, a Hugging Face name or a folder.
    end_id : int
        Id of the token that ends an action.
    pad_id : int, optional
        Id of the padding token; default ``end_id``.
    begin_id : int, optional
        Id of the token before a prompt; default none.
    chat_template : tuple of str, optional
        The text that the chat template of an instruct model puts before and after the user's message.
    infill : tuple of int, optional
        Ids of the infill markers prefix, suffix and middle, if the model was trained with them.
    infill_end_id : int, optional
        Id of the token that ends a filled-in text; default ``end_id``.

    Attributes
    ----------
    vocab_size : int
        Greatest token id plus one.
    stop_ids : tuple of int
        Ids that end an action: end, padding, and the end of a filled-in text.
    fingerprint : str
        16 hexadecimal digits; two tokenizers are equal if their fingerprints are.

    Raises
    ------
    ValueError
        If decoding does not return the encoded text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        name: str,
        *,
        end_id: int,
        pad_id: int | None = None,
        begin_id: int | None = None,
        chat_template: tuple[str, str] | None = None,
        infill: tuple[int, int, int] | None = None,
        infill_end_id: int | None = None,
    ) -> None:
        self.name = name
        self.end_id = end_id
        self.pad_id = end_id if pad_id is None else pad_id
        self.begin_id = begin_id
        self.infill = infill
        self.stop_ids = tuple(dict.fromkeys(i for i in (end_id, self.pad_id, infill_end_id) if i is not None))
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.chat_template = chat_template
        around = chat_template or ("", "")
        self._prompt_start = tuple(backend.encode(around[0], add_special_tokens=False).ids)
        self._prompt_end = tuple(backend.encode(around[1], add_special_tokens=False).ids)
        if begin_id is not None and begin_id not in self._prompt_start:
            self._prompt_start = (begin_id, *self._prompt_start)

        backend = tokenizers.Tokenizer.from_str(backend.to_str())
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True
        if isinstance(backend.normalizer, NFC):
            backend.normalizer = None  # it merges a letter and its accent into one character, which loses information
        self._backend = backend
        vocabulary = sorted(backend.get_vocab(with_added_tokens=True).items())
        identity = json.dumps([vocabulary, self.end_id, self.pad_id, self.begin_id, chat_template])
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._sentinel_ids: list[int] = []
        if not self._keeps_probes():
            # Tokenizers like SentencePiece add a space before the text and remove one when they decode. With a sentinel
            # before the text, this happens to the sentinel, which is cut off.
            self._sentinel_ids = backend.encode(_SENTINEL, add_special_tokens=False).ids
            if not self._keeps_probes():
                raise ValueError(f"the tokenizer {name!r} does not give every text back unchanged; use another one")

    def _keeps_probes(self) -> bool:
        joined = self.decode((*self.encode("a"), *self.encode(" b")))  # actions and prompts are encoded separately
        return joined == "a b" and all(self.decode(self.encode(probe)) == probe for probe in _PROBES)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text, without special tokens.

        Raises
        ------
        ValueError
            If ``text`` is not a string, or holds a lone surrogate, which no Unicode encoding can carry.
        """
        if not isinstance(text, str):
            raise ValueError(f"text must be a str, not {type(text).__name__}: {text!r:.200}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text is not valid Unicode at character {error.start}: {error.reason}") from None
        if not self._sentinel_ids:
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        ids = self._backend.encode(_SENTINEL + text, add_special_tokens=False).ids
        return tuple(ids[len(self._sentinel_ids) :])

    def encode_observation(self, text: str, max_length: int | None = None) -> tuple[tuple[int, ...], int]:
        """Return the ids of an observation, cut to a length.

        If the text contains :data:`HOLE` and the tokenizer has infill markers, the markers enclose the parts before and
        after it.

        Parameters
        ----------
        text : str
        max_length : int, optional
            Greatest number of ids.

        Returns
        -------
        ids : tuple of int
        lost : int
            Number of ids that were removed at the beginning; infill markers are kept.
        """
        before, hole, after = text.partition(HOLE)
        if not hole or self.infill is None:
            ids = self.encode(text)
            lost = 0 if max_length is None else max(0, len(ids) - max_length)
            return ids[lost:], lost
        prefix, suffix, middle = self.infill
        ids, end = self.encode(before), (suffix, *self.encode(after), middle)
        lost = 0 if max_length is None else max(0, 1 + len(ids) + len(end) - max_length)
        return (prefix, *ids[lost:], *end), lost

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are not valid UTF-8 become U+FFFD."""
        text = self._backend.decode([*self._sentinel_ids, *map(int, ids)], skip_special_tokens=False)
        return text[len(_SENTINEL) :] if self._sentinel_ids else text

    def encode_action(self, phrase: str) -> tuple[int, ...]:
        """Return the ids of a phrase as a continuation of a prompt: with a space before it and the end token after."""
        return (*self.encode(" " + phrase), self.end_id)

    def prompt(self, observation_ids: Sequence[int]) -> tuple[int, ...]:
        """Return a model's prompt: observation ids after the begin token, or inside the chat template."""
        return (*self._prompt_start, *map(int, observation_ids), *self._prompt_end)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._backend.encode_special_tokens = True  # copies and pickles of the backend lose this setting

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size}, fingerprint={self.fingerprint})"


def load_tokenizer(tokenizer: Any = EMBEDDED) -> Tokenizer:
    """Load a tokenizer.

    Parameters
    ----------
    tokenizer : str, Path, Tokenizer or transformers.PreTrainedTokenizerFast
        ``"embedded"``, the name of a Hugging Face model, a folder with such a model, or a tokenizer object.

    Returns
    -------
    Tokenizer

    Raises
    ------
    ImportError
        If it is a Hugging Face tokenizer and transformers is not installed.
    ValueError
        If there is no such tokenizer, or it has no fast backend or no end token, or is not lossless.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, str | Path):
        return _load_by_name(str(tokenizer))
    return _from_hugging_face(tokenizer, getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


@lru_cache(maxsize=16)
def _load_by_name(name: str) -> Tokenizer:
    if name == EMBEDDED:
        backend = tokenizers.Tokenizer.from_file(str(TOKENIZER_FILE))
        pad, begin, end = (backend.get_vocab()[token] for token in ("<|pad|>", "<|begin|>", "<|end|>"))
        return Tokenizer(backend, EMBEDDED, end_id=end, pad_id=pad, begin_id=begin)
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ImportError(
            f"the tokenizer {name!r} needs transformers: pip install 'lang-envs[train]' (or use 'embedded')"
        ) from None
    try:
        found = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"there is no tokenizer {name!r}, neither a folder nor a Hugging Face name: {error}"
        ) from error
    return _from_hugging_face(found, name)


def _from_hugging_face(tokenizer: Any, name: str) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokenizer {name!r} ({type(tokenizer).__name__}) has no fast backend of `tokenizers`")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer {name!r} has no end-of-sequence token, and actions end with one")
    vocabulary = backend.get_vocab(with_added_tokens=True)
    markers = next((found for found in _INFILL_MARKERS if all(m in vocabulary for m in found[:3])), None)
    prefix, suffix, middle, end = [None if m is None else vocabulary.get(m) for m in markers or [None] * 4]
    return Tokenizer(
        backend,
        name,
        end_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        begin_id=tokenizer.bos_token_id,
        chat_template=_chat_template(tokenizer),
        infill=None if prefix is None or suffix is None or middle is None else (prefix, suffix, middle),
        infill_end_id=end,
    )


def _chat_template(tokenizer: Any) -> tuple[str, str] | None:
    if not getattr(tokenizer, "chat_template", None):
        return None
    marker = "\u2402OBSERVATION\u2403"
    message = [{"role": "user", "content": marker}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, found, after = text.partition(marker)
    if not found:
        raise ValueError("the tokenizer's chat template does not contain the user's message")
    return before, after
