"""Limits of memory and processes for a whole worker, by cgroup v2, where this process may make a group."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

PROCESSES = 16
"""Greatest number of processes of a worker. It needs four: two of its own, a program, and the child that stands by."""
_HEADROOM_BYTES = 64 << 20
_REMOVAL_SECONDS, _RETRY_SECONDS = 2, 0.01
_CONTROLLERS = {"memory", "pids"}
_PREFIX = "lang-envs"
_numbers = itertools.count()


class Group:
    """A cgroup for one worker, in or beside the group of this process.

    A process joins it by writing to ``path / "cgroup.procs"``. The group has no swap. Its limit of memory covers all
    its processes together, including page cache and the kernel's own tables; a limit of address space does not.

    Parameters
    ----------
    proc : path
        The proc file system: it names the group of this process and where groups are mounted.

    Raises
    ------
    OSError
        If no group can be made; the message gives the reason.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        parent = _place(proc)
        _remove_left(parent, proc)
        self.path = parent / f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.path.mkdir()
        try:
            self._write("pids.max", PROCESSES)
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap
                self._write("memory.swap.max", 0)
        except OSError:
            self.remove()
            raise
        self._memory = 0

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))

    def bound(self, idle: int, program: int) -> None:
        """Limit memory to that of an idle worker, a copy of it, and a program; ``idle`` and ``program`` in bytes."""
        memory = 2 * idle + program + _HEADROOM_BYTES
        if memory != self._memory:
            self._write("memory.max", memory)
            self._memory = memory

    def remove(self) -> None:
        """Kill the processes that are left in the group, and remove it."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
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
            time.sleep(_RETRY_SECONDS)


def _place(proc: Path) -> Path:
    """Return the group in which one for a worker can be made."""
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
    """Remove the empty groups of trainers that were killed."""
    for group in parent.glob(f"{_PREFIX}-*-*"):
        owner = group.name.split("-")[-2]
        if owner.isdecimal() and not (proc / owner).exists():
            with contextlib.suppress(OSError):
                group.rmdir()
