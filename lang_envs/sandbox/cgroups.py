"""Limits of memory and processes for a whole worker, by cgroup v2 where this process may make a group."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

PROCESSES = 16
"""The most processes of a worker. It needs four: two of its own, a program, and the child that stands by."""
_CONTROLLERS = {"memory", "pids"}
_PREFIX = "lang-envs"
_numbers = itertools.count()


class Group:
    """A cgroup for one worker, beside the one that this process is in.

    Its processes join by writing to ``path / "cgroup.procs"``. It has no swap, and ``memory`` bounds what all of them
    use together, page cache and the kernel's own tables included, which a limit of address space does not.

    Parameters
    ----------
    proc : path
        Where the kernel says which group this process is in, and where groups are mounted.

    Raises
    ------
    OSError
        If no group can be made; the message says why.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        parent = _place(proc)
        _remove_left(parent, proc)
        self.path = parent / f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.path.mkdir()
        try:
            self._write("pids.max", PROCESSES)
            with contextlib.suppress(FileNotFoundError):  # of a kernel without swap
                self._write("memory.swap.max", 0)
        except OSError:
            self.remove()
            raise
        self._memory = 0

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))

    def bound(self, idle: int, program: int) -> None:
        """Set the limit of memory: of an idle worker and a program, with room for a copy of the idle process."""
        memory = 2 * idle + program + (64 << 20)
        if memory != self._memory:
            self._write("memory.max", memory)
            self._memory = memory

    def remove(self) -> None:
        """End what is left in it and remove it."""
        deadline = time.monotonic() + 2
        while True:
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    return
            with contextlib.suppress(OSError):  # before Linux 5.14 the processes end when their parent does
                (self.path / "cgroup.kill").write_text("1")
            time.sleep(0.01)


def _place(proc: Path) -> Path:
    """The group in which one for a worker can be made."""
    mounts = [line.split() for line in (proc / "self" / "mounts").read_text().splitlines()]
    found = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    own = [line[3:] for line in (proc / "self" / "cgroup").read_text().splitlines() if line.startswith("0::")]
    if not found or not own:
        raise OSError("there is no cgroup v2")
    here = found[0] / own[0].strip("/")
    reasons = []
    for parent in dict.fromkeys((here, here.parent)):
        if parent != found[0] and found[0] not in parent.parents:
            continue
        enabled = (parent / "cgroup.subtree_control").read_text().split()
        if missing := _CONTROLLERS - set(enabled):
            reasons.append(f"{parent} does not hand on the controllers {', '.join(sorted(missing))}")
        elif not os.access(parent, os.W_OK) or not os.access(parent / "cgroup.procs", os.W_OK):
            reasons.append(f"{parent} cannot be written to")
        else:
            return parent
    raise OSError("; ".join(reasons))


def _remove_left(parent: Path, proc: Path) -> None:
    """Groups of trainers that were killed: only empty ones can be removed."""
    for group in parent.glob(f"{_PREFIX}-*-*"):
        owner = group.name.split("-")[-2]
        if owner.isdecimal() and not (proc / owner).exists():
            with contextlib.suppress(OSError):
                group.rmdir()
