"""Checks of what is read from folders of runs: types, sizes, finite numbers. Errors name the file and the value.

Also texts of messages.
"""

from __future__ import annotations

import dataclasses
import re
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lang_envs.files import is_number

Config = TypeVar("Config")

_MAX_INT = 1 << 53
_MAX_TEXT = 4_096
_MAX_ITEMS = 1_000
_LONGEST_ERROR = 2_000


def typed(cls: type[Config], saved: Any, where: str, optional: tuple[str, ...] = ()) -> Config:
    """Make a dataclass from a JSON object whose values have the types that the class declares.

    Parameters
    ----------
    cls : type
        A dataclass whose fields are plain types, unions with None, literals, tuples of one type, paths, dictionaries
        (unchecked), and dataclasses.
    saved : Any
        Content of the file.
    where : str
        The file, for messages.
    optional : tuple of str
        Fields that may be missing.

    Raises
    ------
    ValueError
        Naming the file, the field, and its value.
    """
    if not isinstance(saved, dict):
        raise ValueError(f"{where} is damaged: it holds no object")
    hints = get_type_hints(cls)
    if unknown := saved.keys() - hints.keys():
        raise ValueError(f"{where} is of another version: this one has no {min(unknown)!r:.80}")
    if missing := [name for name in hints if name not in saved and name not in optional]:
        raise ValueError(f"{where} is of another version: {missing[0]!r} is missing")
    return cls(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in saved.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = [one for one in arguments if one is not type(None)]
        return _value(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return typed(hint, value, where, tuple(get_type_hints(hint)))  # type: ignore[arg-type]
    if hint is Path:
        return Path(_value(str, value, where))
    if origin is tuple and isinstance(value, list) and len(value) <= _MAX_ITEMS:
        return tuple(_value(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is Literal:
        allowed = type(value) is str and value in arguments
    elif hint is float:
        allowed = is_number(value)
    elif hint is int:
        allowed = type(value) is int and abs(value) < _MAX_INT
    else:
        allowed = type(value) is (origin or hint) and (hint is not str or len(value) <= _MAX_TEXT)
    if not allowed:
        raise ValueError(f"{where} is {value!r:.80}, expected: {getattr(hint, '__name__', hint)} of a plausible size")
    return value


def require_numbers(found: Any, names: tuple[str, ...], where: str) -> None:
    """Refuse anything but a JSON object in which each of ``names`` is a finite number.

    Raises
    ------
    ValueError
        Naming the file and the value.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{where} is damaged: {found!r:.80} is no object")
    for name in names:
        if name not in found:
            raise ValueError(f"{where} is damaged: {name!r} is missing")
        if not is_number(found[name]):
            raise ValueError(f"{where} is damaged: {name} is {found[name]!r:.80}, which is no number")


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``"1 seed"``, ``"2 seeds"``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def in_markdown(text: str) -> str:
    """Return a text of one line for Markdown, in which it starts no HTML, no link and no heading."""
    text = " ".join(text.replace("\\", "\\\\").split("\n"))
    return re.sub(r"\](?=[(:\[])", r"]\\", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text))


def one_line(text: str) -> str:
    """Remove control characters from a message and shorten it: files of strangers must not control the terminal."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]} …"
