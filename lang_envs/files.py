"""Files that are whole whenever they are there."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text in one rename; of several who write at once, one wins."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.unfinished")
    try:
        beside.write_text(text, encoding="utf-8")
        sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """What a file of JSON holds.

    Raises
    ------
    ValueError
        If the file is damaged, or holds a number that is not finite; names it.
    """
    return parse_json(path.read_bytes(), str(path))


def read_object(path: Path, *keys: str) -> dict[str, Any]:
    """The same of a file that holds an object in which ``keys`` must not be missing."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    if missing := [key for key in keys if key not in found]:
        raise ValueError(f"{path} is damaged: {missing[0]!r} is missing")
    return found


def parse_json(text: str | bytes, where: str) -> Any:
    """What a text says; ``where`` it stands is for the error."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def at_home(path: str | Path) -> Path:
    """A path in which ``~`` stands for somebody's home.

    Raises
    ------
    ValueError
        If nobody knows where that is.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from None


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
