"""Exact conversion of values to JSON and back, for checkpoints.

Reading a file is safe: it creates plain data, NumPy arrays and instances of classes declared with :func:`storable`. It
imports no module and runs no code of the file.
"""

from __future__ import annotations

import base64
import math
import re
from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import numpy as np

_DTYPE = re.compile(r"[<>|][biufcSUmM]\d{1,6}(\[\w{1,10}\])?")
_MAX_INT_BITS = 10_000
"""JSON readers reject longer numbers."""
_MT19937_WORDS, _BUFFER_WORDS = 624, 4
"""Sizes of the buffers of NumPy's bit generators."""
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_CLASSES: dict[str, type[Any]] = {}

Class = TypeVar("Class", bound=type[Any])


class UnstorableError(TypeError):
    """A value cannot be stored without a pickle; the message names it and its place."""


def storable(cls: Class) -> Class:
    """Declare that instances of a class can be stored in checkpoints; use it as a decorator.

    Reading a checkpoint calls the class with values from the file, so its constructor must be safe for any values.

    Parameters
    ----------
    cls : type
        A named tuple, a dataclass or an enumeration.

    Returns
    -------
    type
        The same class.

    Raises
    ------
    ValueError
        If the class is none of these.
    """
    if not (is_dataclass(cls) or issubclass(cls, Enum) or hasattr(cls, "_fields")):
        raise ValueError(f"{cls.__qualname__} is not a named tuple, dataclass or enumeration")
    _CLASSES[_name_of(cls)] = cls
    return cls


def encode(value: Any, where: str = "") -> Any:
    """Return a value as JSON types; :func:`decode` returns an equal value of the same types.

    Parameters
    ----------
    value : Any
        None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, deque, NumPy arrays, scalars and random
        generators, and :func:`storable` classes, nested in any way. Subclasses of these are refused.
    where : str
        Name of the value in error messages.

    Raises
    ------
    UnstorableError
        If a part of the value cannot be stored; the message names its place and its type.
    """
    try:
        return _encode(value, where)
    except RecursionError:
        raise UnstorableError(f"{where or 'the value'} is nested too deeply, or contains itself") from None


def decode(stored: Any) -> Any:
    """Return the value that :func:`encode` stored.

    Raises
    ------
    ValueError
        If ``stored`` is not a result of :func:`encode`, or names a class that is not :func:`storable`.
    """
    try:
        return _decode(stored)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"it holds no stored value: {error}") from error


def _encode(value: Any, where: str) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int and value.bit_length() <= _MAX_INT_BITS:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is list:
        return [_encode(item, f"{where}[{n}]") for n, item in enumerate(value)]
    if kind is tuple:
        return {"tuple": [_encode(item, f"{where}[{n}]") for n, item in enumerate(value)]}
    if kind is dict:
        return {"dict": [[_encode(key, where), _encode(own, f"{where}[{key!r:.80}]")] for key, own in value.items()]}
    if kind in (set, frozenset):
        return {kind.__name__: [_encode(item, where) for item in value]}
    if kind is deque:
        return {"deque": [value.maxlen, *(_encode(item, where) for item in value)]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is np.ndarray and value.dtype == object:
        return {"objects": [list(value.shape), *(_encode(item, where) for item in value.ravel())]}
    if (kind is np.ndarray or issubclass(kind, np.generic)) and _DTYPE.fullmatch(value.dtype.str):
        data = base64.b64encode(value.tobytes()).decode()
        return {"array" if kind is np.ndarray else "scalar": [value.dtype.str, list(value.shape), data]}
    if kind is np.random.Generator and type(value.bit_generator).__name__ in _BIT_GENERATORS:
        return {"generator": _encode(value.bit_generator.state, where)}
    if kind in _CLASSES.values():
        return {"class": [_name_of(kind), *(_encode(own, f"{where}.{name}") for name, own in _parts(value))]}
    raise UnstorableError(
        f"{where or 'the value'} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored without a pickle: "
        "use plain data, or a named tuple, dataclass or enumeration declared with lang_envs.storable"
    )


def _decode(stored: Any) -> Any:
    if stored is None or isinstance(stored, bool | int | float | str):
        return stored
    if isinstance(stored, list):
        return [_decode(item) for item in stored]
    if len(stored) != 1:
        raise ValueError(f"it holds no stored value: {stored!r:.80}")
    ((kind, content),) = stored.items()
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if kind == "dict":
        return {_decode(key): _decode(value) for key, value in content}
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind in ("array", "scalar"):
        found = _array(*content)
        return found if kind == "array" else found[()]
    if kind == "generator":
        return _generator(_decode(content))
    if not isinstance(content, list):
        raise ValueError(f"it holds no stored value: {kind!r:.80}")
    if kind == "tuple":
        return tuple(_decode(item) for item in content)
    if kind in ("set", "frozenset"):
        return (set if kind == "set" else frozenset)(_decode(item) for item in content)
    first, *items = content
    if kind == "deque":
        return deque([_decode(item) for item in items], maxlen=first)
    if kind == "objects":
        found = np.empty(len(items), dtype=object)
        for n, item in enumerate(items):
            found[n] = _decode(item)
        return found.reshape(first)
    if kind == "class":
        return _instance(first, [_decode(item) for item in items])
    raise ValueError(f"it holds no stored value: {kind!r:.80}")


def _array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"an array has the type {dtype!r:.80}, which is not read")
    raw, kind = base64.b64decode(data, validate=True), np.dtype(dtype)
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) * kind.itemsize != len(raw):
        raise ValueError(f"an array has {len(raw):,} bytes, and its shape is {shape!r:.80}")
    return np.ndarray(tuple(shape), kind, buffer=raw).copy()


def _generator(state: dict[str, Any]) -> np.random.Generator:
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"there is no random generator {state['bit_generator']!r:.80}")
    found = getattr(np.random, state["bit_generator"])(0)
    check_generator_position(state)
    found.state = state
    return np.random.Generator(found)


def check_generator_position(state: dict[str, Any]) -> None:
    """Check that the position in the state of a NumPy generator is inside its buffer; NumPy does not check this.

    Raises
    ------
    ValueError
        If it is not; the message names the position.
    """
    inner = state.get("state")
    positions = (
        (inner.get("pos") if isinstance(inner, dict) else None, _MT19937_WORDS),
        (state.get("pos"), _MT19937_WORDS),
        (state.get("buffer_pos"), _BUFFER_WORDS),
    )
    for position, most in positions:
        if position is not None and (type(position) is not int or not 0 <= position <= most):
            raise ValueError(f"a random generator has the position {position!r:.80}: expected 0 to {most}")


def _instance(name: str, values: list[Any]) -> Any:
    if name not in _CLASSES:
        raise ValueError(f"it holds a {name!r:.120}, a class that no imported module declares storable")
    cls = _CLASSES[name]
    if is_dataclass(cls):
        names = [own.name for own in fields(cls) if own.init]
        return cls(**dict(zip(names, values, strict=True)))
    return cls(*values)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return the arguments, with their names, with which the class makes an equal value."""
    if isinstance(value, Enum):
        return [("value", value.value)]
    if is_dataclass(value):
        return [(own.name, getattr(value, own.name)) for own in fields(value) if own.init]
    return list(zip(value._fields, value, strict=True))


def _name_of(cls: type[Any]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
