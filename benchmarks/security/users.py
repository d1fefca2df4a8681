"""Change the user of this process: attacks depend on the user that runs the sandbox."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)
_MOUNT, _OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 0x00020000, 428, 429, 442


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _mount(source: Path | str, to: Path, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(to), kind, ctypes.c_ulong(flags), data))


def become(user: bool, repository: Path) -> str:
    """As root, make Python readable to all users, in mounts of this process alone; become an ordinary user if asked.

    The ordinary user then owns Python's environment, as users usually do: its files appear as theirs, read-only.

    Returns
    -------
    str
        Why the user does not own it; empty if they do.

    Raises
    ------
    OSError
        If this system allows no other user.
    """
    if os.geteuid() != 0:
        return "" if Path(sys.prefix).stat().st_uid == os.geteuid() else "the environment is somebody else's"
    places = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix)}
    _show([*places, repository, *map(Path, sys.path)])
    if not user:
        return ""
    reason = ""
    try:
        for place in places:
            _give(place, NOBODY)
    except OSError as error:
        reason = f"the environment cannot be shown as another user's: {error}"
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    return reason


def _show(paths: Iterable[Path]) -> None:
    """Mount an open folder over each folder that others may not enter, with only these paths in it."""
    bind, private = 4096 | 16384, (1 << 18) | 16384
    _check(_libc.unshare(_MOUNT))
    _mount("none", Path("/"), None, private)
    closed: dict[Path, set[Path]] = {}
    for path in {path.resolve() for path in paths}:
        for parent in [*reversed(path.parents), path]:
            if parent.exists() and not parent.stat().st_mode & 1 and parent.is_dir():
                closed.setdefault(parent, set()).add(path)
                break
    for folder, inside in closed.items():
        kept = {path: Path(tempfile.mkdtemp()) for path in inside if path != folder and path.is_dir()}
        for path, stash in kept.items():
            _mount(path, stash, None, bind)
        _mount("none", folder, b"tmpfs", 0, b"mode=755")
        for path, stash in kept.items():
            path.mkdir(parents=True, exist_ok=True)
            _mount(stash, path, None, bind)
            _check(_libc.umount2(os.fsencode(stash), 2))
            stash.rmdir()


def _give(place: Path, user: int) -> None:
    """Show files of root in a folder as another user's, read-only, by a mount with mapped ids."""
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        _libc.unshare(0x10000000)
        os.write(write, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(read, 1)
        for kind in ("uid", "gid"):
            Path(f"/proc/{holder}/{kind}_map").write_text(f"0 {user} 1")
        names = os.open(f"/proc/{holder}/ns/user", os.O_RDONLY)
        path, here, long = os.fsencode(place), ctypes.c_int(-100), ctypes.c_long
        tree = _check(_libc.syscall(long(_OPEN_TREE), here, path, ctypes.c_uint(0x88001)))  # a copy, with its mounts
        attributes = struct.pack("=QQQQ", 0x100001, 0, 0, names)  # mapped ids, read-only
        empty = ctypes.c_uint(0x1000)
        _check(_libc.syscall(long(_MOUNT_SETATTR), tree, b"", empty, attributes, ctypes.c_size_t(32)))
        _check(_libc.syscall(long(_MOVE_MOUNT), tree, b"", here, path, ctypes.c_uint(4)))
        os.close(tree)
        os.close(names)
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)
        os.close(read)
        os.close(write)
