"""Safe files: written in one piece, and read without trust in what they contain."""

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
"""Default limit of a file's size, in bytes."""
_MAX_NUMBER = 1e300
"""Greater numbers are rejected, because float64 has no room to compute with them."""
_MAX_ENTRIES = 1_000_000


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part; of parallel writers, one wins.

    Text is encoded as UTF-8. A symbolic link at ``path`` is replaced; the file that it leads to is not changed.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.unfinished")
    beside.unlink(missing_ok=True)
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def open_regular(path: Path, mode: Literal["rb", "r+b"] = "rb") -> BufferedIOBase:
    """Open a regular file, but no symbolic link; ``"r+b"`` creates a missing file and never truncates one.

    Raises
    ------
    ValueError
        If it is a symbolic link, a FIFO, a device or anything else.
    OSError
        If it cannot be opened.
    """
    access = os.O_RDONLY if mode == "rb" else os.O_RDWR | os.O_CREAT
    try:  # O_NONBLOCK: opening a FIFO would wait for its other end
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
    """Return the content of a regular file.

    Raises
    ------
    ValueError
        If it is not a regular file, or has more than ``limit`` bytes.
    """
    with open_regular(path) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise ValueError(f"{path} is too large: expected at most {limit // MIB or 1} MiB")
    return found


def read_text(path: Path, limit: int = MAX_READ) -> str:
    """Return the content of a regular file of UTF-8 text; raises as :func:`read_bytes`, also for other encodings."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def read_json(path: Path, limit: int = MAX_READ) -> Any:
    """Return the value in a JSON file.

    Raises
    ------
    ValueError
        If the file is damaged, or contains a number that is not finite; the message names the file.
    """
    return parse_json(read_bytes(path, limit), str(path))


def read_object(path: Path, *keys: str) -> dict[str, Any]:
    """Return the object in a JSON file; raises as :func:`read_json`, also if one of ``keys`` is missing."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    if missing := [key for key in keys if key not in found]:
        raise ValueError(f"{path} is damaged: {missing[0]!r} is missing")
    return found


def parse_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text; ``where`` names its source in error messages."""
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
    """Return whether a JSON value is a number that fits into a float64."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER


def refuse_irregular(folder: Path, links: Callable[[Path], bool] = lambda path: False) -> None:
    """Reject a folder that contains anything but folders and regular files; call this before reading any of them.

    Parameters
    ----------
    folder : Path
        The folder; it may itself be a symbolic link.
    links : callable, optional
        Returns whether a symbolic link is accepted; default: none is.

    Raises
    ------
    ValueError
        If there is a symbolic link, FIFO, socket or device, or too many files; the message names the first.
    """
    waiting, seen = [folder], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_ENTRIES:
                    raise ValueError(f"{folder} contains more than {_MAX_ENTRIES:,} files")
                if entry.is_symlink():
                    if not links(Path(entry.path)):
                        raise ValueError(f"{entry.path} is a symbolic link, and links are not followed")
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    raise ValueError(f"{entry.path} is no regular file")


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock file; the system releases it when the process ends for any reason.

    Parameters
    ----------
    path : Path
        The file; it is created if it is missing, and its content is not changed.
    waiting : callable, optional
        Called before waiting for another process; without it, the lock is not waited for.

    Raises
    ------
    BlockingIOError
        If another process holds the lock, and ``waiting`` is not given.
    ValueError
        If the file is a symbolic link or not a regular file.
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
    """Return a path with ``~`` and ``~user`` expanded to a home folder.

    Raises
    ------
    ValueError
        If the home folder is unknown.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from None


def sync(path: Path) -> None:
    """Wait until a file, or the list of files of a folder, is written to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
