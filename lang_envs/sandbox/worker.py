"""One worker: a zygote, and the socket on which it takes requests."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import math
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.sandbox import protocol
from lang_envs.sandbox.cgroups import Group
from lang_envs.sandbox.tiers import SandboxError

_START_SECONDS, _BEGIN_SECONDS, _GRACE_SECONDS = 120.0, 10.0, 2.0
"""For a zygote to be ready, for a program to begin, for a killed one to be gone."""
_JITTER_SECONDS = 0.0018
"""A program starts up to so much later, at random: the time at which the last one ended is a message to it."""
LONGEST = 1e6
"""No limit in seconds is taken for more than this."""
_ENVIRONMENT = {
    "HOME": "/",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # One thread: OpenMP does not survive a fork with more, and results would depend on the machine.
    "OMP_NUM_THREADS": "1",
    "OMP_THREAD_LIMIT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    # large pages where the system has them: fewer of them to copy after a fork
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    # joblib runs everything in sequence, whatever n_jobs says
    "JOBLIB_MULTIPROCESSING": "0",
}


_USERS = range(61184, 65520)
"""Users that no file and no other process belongs to: systemd keeps them free for services."""
_jitter = random.SystemRandom()
_users = itertools.cycle(_jitter.sample(_USERS, len(_USERS)))
"""Each worker of root's runs programs as a user of its own."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Raises
    ------
    ValueError
        If a limit is not positive and finite.
    """

    wall_seconds: float = 30.0
    """Time on the clock, in s; beyond it the program is killed from outside."""
    cpu_seconds: float = 30.0
    """Processor time in s, rounded up to whole ones."""
    memory_bytes: int = 1 << 30
    """Address space beyond that of the idle process."""
    output_bytes: int = 16 << 20
    """Size of the output as float64."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} must be a positive, finite number")


_KILLED = (-signal.SIGKILL, -signal.SIGKILL & 0xFF)
"""Exit status of a zygote that somebody has killed, or of the process that waited for it."""


class Broken(Exception):
    """A worker can't go on; what it was doing can be tried once more."""


class Worker:
    """A zygote, and the socket on which it takes requests."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.group: Group | None = None
        self.no_group = ""
        """Why the processes are not limited by a cgroup; empty where they are."""
        try:
            self.group = Group()
        except OSError as error:
            self.no_group = str(error)
        joins = None if self.group is None else str(self.group.path / "cgroup.procs")
        self.control, there = socket.socketpair()
        with there, tempfile.TemporaryFile() as complaints:
            command = [sys.executable, "-s", "-P", str(Path(__file__).with_name("zygote.py")), str(there.fileno())]
            try:
                self.process = subprocess.Popen(
                    [*command, json.dumps({**config, "user": next(_users), "joins": joins})],
                    env=_ENVIRONMENT,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    pass_fds=[there.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                self.control.close()
                self._remove_group()
                raise
            there.close()
            self.number = 0
            self.alone = bool(config["process"])
            try:
                self.report = self._hear(time.monotonic() + _START_SECONDS)
            except BaseException as error:
                self.close()
                if isinstance(error, Broken):
                    if self.process.returncode in _KILLED:
                        raise Broken("the sandbox's process was killed while it started") from None
                    complaints.seek(0)
                    said = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
                    raise SandboxError(f"the sandbox's process did not start: {said or error}") from None
                raise
        if "error" in self.report:
            self.close()
            raise SandboxError(f"the sandbox could not start: {self.report['error']}{_hint(self.report['error'])}")
        if self.report["failures"]:
            self.close()
            raise SandboxError("the sandbox failed its self-test: " + "; ".join(self.report["failures"]))
        if self.report["no_group"]:
            self.no_group = self.report["no_group"]
            self._remove_group()

    def _remove_group(self) -> None:
        if self.group is not None:
            self.group.remove()
            self.group = None

    def _hear(self, deadline: float) -> dict[str, Any]:
        (length,) = struct.unpack("=I", self._receive(4, deadline))
        report: dict[str, Any] = json.loads(self._receive(length, deadline))
        return report

    def _receive(self, size: int, deadline: float) -> bytes:
        """Exactly so many bytes from the zygote."""
        message = b""
        while len(message) < size:
            if not _readable(self.control.fileno(), deadline):
                raise Broken("the sandbox's process does not answer")
            try:
                part = self.control.recv(size - len(message))
            except OSError:
                part = b""
            if not part:
                raise Broken("the sandbox's process has ended")
            message += part
        return message

    def run(self, task: int, limits: Limits) -> tuple[str, np.ndarray | None, str, float]:
        """Status, output, error and seconds of one program.

        Raises
        ------
        Broken
            If it was the machinery that failed.
        """
        wall = min(limits.wall_seconds, LONGEST)
        self.number += 1
        if self.group is not None:
            self.group.bound(self.report["memory"], int(limits.memory_bytes))
        time.sleep(_jitter.uniform(0, _JITTER_SECONDS))
        read, write = os.pipe()
        try:
            try:
                request = protocol.REQUEST.pack(self.number)
                descriptors = array.array("i", [task, write])
                self.control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            except OSError as error:
                raise Broken(f"the sandbox's process has ended: {error}") from None
            finally:
                os.close(write)
            if _read(read, 1, time.monotonic() + _BEGIN_SECONDS) != protocol.BEGUN:
                raise Broken("no process could be started for the program")
            started = time.monotonic()  # the program's clock: whatever went before is none of its doing
            status, output, said = self._outcome(read, started + wall, limits)
            return status, output, said, time.monotonic() - started
        finally:
            os.close(read)

    def _outcome(self, pipe: int, deadline: float, limits: Limits) -> tuple[str, np.ndarray | None, str]:
        """What a program that has begun comes to."""
        try:
            header = _read(pipe, protocol.RESULT.size, deadline)
            if len(header) == protocol.RESULT.size:
                size = protocol.unpack_header(header, limits.output_bytes)
                body = _read(pipe, size, deadline)
                if len(body) == size:
                    result = protocol.unpack_result(header, body)
                    self._end()
                    return ("ok", result, "") if isinstance(result, np.ndarray) else ("error", None, result)
        except protocol.Rejected as rejected:
            self._end()
            return "rejected", None, str(rejected)
        if time.monotonic() >= deadline or (ending := self._ending(deadline)) is None:
            self._end()
            return "timeout", None, f"the program took longer than {limits.wall_seconds:g} s"
        return self._explain(*ending, limits)

    def _end(self) -> None:
        """Have the child killed: it has answered, or its time is over."""
        if not self.alone:
            with contextlib.suppress(OSError):  # found out at the next request
                self.control.send(protocol.REQUEST.pack(0))

    def _explain(self, code: int, cpu: float, limits: Limits) -> tuple[str, None, str]:
        """Why a program that ended by itself left no result."""
        if code >= 0:
            return "error", None, "the program ended its process without a result"
        code = -code
        if code == signal.SIGXCPU or (code == signal.SIGKILL and cpu >= limits.cpu_seconds):
            return "cpu limit", None, f"the program took more than {limits.cpu_seconds:g} s of processor time"
        if code == signal.SIGKILL:
            raise Broken("the program's process was killed from outside, as when the machine runs out of memory")
        if code == signal.SIGSYS:
            return "violation", None, "the program was ended: it made a system call that no program may make"
        known = code in signal.Signals.__members__.values()
        return "crash", None, f"the program crashed ({signal.Signals(code).name if known else f'signal {code}'})"

    def _ending(self, deadline: float) -> tuple[int, float] | None:
        """How the program's process ended: exit status or −signal, and processor time in s.

        None if it had not ended by the deadline.
        """
        if self.alone:
            try:
                code = self.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            return code, math.inf
        number = 0
        while number != self.number:  # earlier ones belong to programs that had answered
            if not _readable(self.control.fileno(), deadline):
                return None
            ending = self._receive(protocol.ENDING.size, time.monotonic() + _GRACE_SECONDS)
            number, status, seconds, microseconds, more_seconds, more_microseconds = protocol.ENDING.unpack(ending)
        try:
            code = os.waitstatus_to_exitcode(status)
        except ValueError:
            raise Broken(f"the sandbox's process speaks of a status {status}") from None
        return code, seconds + more_seconds + (microseconds + more_microseconds) / 1e6

    def drain(self) -> None:
        """Take in what the zygote said of programs that had answered."""
        while _readable(self.control.fileno(), 0.0):
            self._receive(protocol.ENDING.size, time.monotonic() + _GRACE_SECONDS)

    def close(self) -> None:
        """End the zygote and whatever it has forked: it sees that this end is closed, and takes all with it."""
        self.control.close()
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session: with all that it has forked
        try:
            self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._remove_group()


def _readable(descriptor: int, deadline: float) -> bool:
    """Whether there is something to read, or the end, by the deadline.

    Raises
    ------
    Broken
        If the descriptor has been closed meanwhile.
    """
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLIN)
    except ValueError:
        raise Broken("closed in the middle") from None
    return bool(poll.poll(math.ceil(1000 * max(0.0, deadline - time.monotonic()))))


def _read(pipe: int, size: int, deadline: float) -> bytes:
    """So many bytes, or fewer where there is the end or the deadline before."""
    received = bytearray()
    while len(received) < size and _readable(pipe, deadline):
        part = os.read(pipe, min(size - len(received), 1 << 16))
        if not part:
            break
        received += part
    return bytes(received)


def _hint(error: str) -> str:
    return "; pip install 'lang-envs[data]'" if "scikit-learn" in error or "sklearn" in error else ""
