"""Files that are whole whenever they are there, and files of strangers, which are only data."""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal

MIB = 1 << 20
MAX_READ = 64 * MIB
"""The largest file that is read at once, unless a reader says otherwise."""
_MAX_ENTRIES = 1_000_000


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text in one rename; of several who write at once, one wins."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.unfinished")
    beside.unlink(missing_ok=True)
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def open_regular(path: Path, mode: Literal["rb", "r+b"] = "rb") -> BufferedIOBase:
    """Open a regular file that is no link; ``"r+b"`` makes it where it is missing, and never truncates it.

    Raises
    ------
    ValueError
        If it is a link, a FIFO, a device or anything else.
    OSError
        If it cannot be opened.
    """
    access = os.O_RDONLY if mode == "rb" else os.O_RDWR | os.O_CREAT
    try:  # a FIFO would wait for its other end
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link, and no file is read or written through one") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb") if mode == "rb" else os.fdopen(descriptor, "r+b")


def read_bytes(path: Path, limit: int = MAX_READ) -> bytes:
    """What a regular file holds.

    Raises
    ------
    ValueError
        If it is no regular file, or holds more than ``limit`` bytes.
    """
    with open_regular(path) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise ValueError(f"{path} is too large: more than {limit // MIB or 1} MiB")
    return found


def read_text(path: Path, limit: int = MAX_READ) -> str:
    """The same as text in UTF-8."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def read_json(path: Path, limit: int = MAX_READ) -> Any:
    """What a file of JSON holds.

    Raises
    ------
    ValueError
        If the file is damaged, or holds a number that is not finite; names it.
    """
    return parse_json(read_bytes(path, limit), str(path))


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
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}") from None
    except RecursionError:
        raise ValueError(f"{where} is damaged: it is nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.40} is no finite number")
    return value


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number that fits into a float64."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def refuse_irregular(folder: Path, links: Callable[[Path], bool] = lambda path: False) -> None:
    """Refuse a folder that holds anything but folders and regular files, to be called before any of it is read.

    Parameters
    ----------
    folder : Path
        Itself it may be a link.
    links : callable, optional
        Whether a link may be where it is.

    Raises
    ------
    ValueError
        Naming the first link, FIFO, socket or device.
    """
    waiting, seen = [folder], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_ENTRIES:
                    raise ValueError(f"{folder} holds more than {_MAX_ENTRIES:,} files")
                if entry.is_symlink():
                    if not links(Path(entry.path)):
                        raise ValueError(f"{entry.path} is a symbolic link, and links are not followed")
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    raise ValueError(f"{entry.path} is no regular file")


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock file, which the system lets go when the process ends, however it ends.

    Parameters
    ----------
    path : Path
        The file; it is made where it is missing, and what it holds is left alone.
    waiting : callable, optional
        Called before waiting for another process; without it there is no waiting.

    Raises
    ------
    BlockingIOError
        If another process holds the lock, and ``waiting`` is not given.
    ValueError
        If the file is a link or no regular file.
    """
    with open_regular(path, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
