"""What run folders say, checked: types, sizes and finite numbers. Errors name the file and what is wrong in it."""

from __future__ import annotations

import dataclasses
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
    """A dataclass from an object of JSON, whose values must be of the types that the class declares.

    Parameters
    ----------
    cls : type
        A dataclass whose fields are of plain types, unions, literals, tuples of one type, paths, and dataclasses.
    saved : Any
        What the file holds.
    where : str
        The file, for errors.
    optional : tuple of str
        Fields that may be missing.

    Raises
    ------
    ValueError
        Naming the file, the field, and what is wrong with it.
    """
    if not isinstance(saved, dict):
        raise ValueError(f"{where} is damaged: it holds no object")
    hints = get_type_hints(cls)
    if unknown := saved.keys() - hints.keys():
        raise ValueError(f"{where} is not of this version, which has no {min(unknown)!r:.80}")
    if missing := [name for name in hints if name not in saved and name not in optional]:
        raise ValueError(f"{where} is not of this version: {missing[0]!r} is missing")
    return cls(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in saved.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        allowed = type(value) is str and value in arguments
    elif origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = [one for one in arguments if one is not type(None)]
        return _value(hint, value, where)
    elif origin is tuple:
        if isinstance(value, list) and len(value) <= _MAX_ITEMS:
            return tuple(_value(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(value))
        allowed = False
    elif dataclasses.is_dataclass(hint):
        return typed(hint, value, where, tuple(get_type_hints(hint)))  # type: ignore[arg-type]
    elif hint is Path:
        return Path(_value(str, value, where))
    elif hint is float:
        allowed = is_number(value)
    elif hint is int:
        allowed = type(value) is int and abs(value) < _MAX_INT
    else:
        allowed = type(value) is hint and (hint is not str or len(value) <= _MAX_TEXT)
    if not allowed:
        raise ValueError(f"{where} is {value!r:.80}, which is no {getattr(hint, '__name__', hint)} of a usual size")
    return value


def require_numbers(found: Any, names: tuple[str, ...], where: str) -> None:
    """Refuse what is not an object in which each of ``names`` is a finite number.

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


def one_line(text: str) -> str:
    """What a file of a stranger says in an error must not move the terminal's cursor, or fill its window."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]} …"
