"""A worker: one fork server process and the socket to it, seen from the trainer."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import select
import signal
import socket
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

START_SECONDS, BEGIN_SECONDS, END_SECONDS = 120.0, 10.0, 2.0
"""How long to wait until a fork server is ready, until a program begins, and until a killed process has ended."""
_JITTER_SECONDS = 0.0018
"""A program starts after a random delay of up to this: without it, the end of one program tells the next one a time."""
LONGEST = 1e6
"""A limit in seconds that is longer counts as this one."""
_PROCESS_ENVIRONMENT = {
    "HOME": "/",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # One thread: OpenMP does not survive a fork with more, and results would depend on the number of cores.
    "OMP_NUM_THREADS": "1",
    "OMP_THREAD_LIMIT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    # Large pages where the system has them: fewer of them to copy after a fork.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    # joblib runs everything in sequence, whatever the value of n_jobs.
    "JOBLIB_MULTIPROCESSING": "0",
}


_USERS = range(61184, 65520)
"""User ids that own no file and no other process: systemd keeps them free for services."""
_system_random = random.SystemRandom()
_users = itertools.cycle(_system_random.sample(_USERS, len(_USERS)))
"""If the trainer runs as root, each worker runs its programs as a user of its own."""


@dataclass(frozen=True)
class Limits:
    """The resources that a program may use.

    Raises
    ------
    ValueError
        If a limit is not positive and finite.
    """

    wall_seconds: float = 30.0
    """Time on the clock, in s; after it the program is killed from outside."""
    cpu_seconds: float = 30.0
    """Processor time, in s, rounded up to a whole number."""
    memory_bytes: int = 1 << 30
    """Address space, in bytes, in addition to that of the idle process."""
    output_bytes: int = 16 << 20
    """Size of the output as float64, in bytes."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} must be a positive, finite number")


_KILLED = (-signal.SIGKILL, -signal.SIGKILL & 0xFF)
"""Exit status of a fork server that was killed from outside, or of the process that waited for it."""


class Broken(Exception):
    """A worker cannot continue; its request can be tried once more with another one."""


class Worker:
    """A fork server and the socket to it.

    Parameters
    ----------
    config : dict
        ``packages`` and ``without`` of :class:`lang_envs.sandbox.Sandbox`, and ``process``: whether the started process
        itself runs one program without isolation.

    Raises
    ------
    Broken
        If the process was killed while it started.
    SandboxError
        If it cannot start, or fails its self-test.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.group: Group | None = None
        self.no_group = ""
        """Reason why no cgroup limits the processes; empty where one does."""
        try:
            self.group = Group()
        except OSError as error:
            self.no_group = str(error)
        joins = None if self.group is None else str(self.group.path / "cgroup.procs")
        self.control, there = socket.socketpair()
        with there, tempfile.TemporaryFile() as errors:
            script = Path(__file__).with_name("fork_server.py")
            command = [sys.executable, "-s", "-P", str(script), str(there.fileno())]
            try:
                self.process = subprocess.Popen(
                    [*command, json.dumps({**config, "user": next(_users), "joins": joins})],
                    env=_PROCESS_ENVIRONMENT,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
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
                self.report = self._read_report()
            except BaseException as error:
                self.close()
                if isinstance(error, Broken):
                    if self.process.returncode in _KILLED:
                        raise Broken("the sandbox's process was killed while it started") from None
                    errors.seek(0)
                    last_line = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                    raise SandboxError(f"the sandbox's process did not start: {last_line or error}") from None
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

    def _read_report(self) -> dict[str, Any]:
        deadline = time.monotonic() + START_SECONDS
        return protocol.read_report(lambda size: self._receive(size, deadline))

    def _receive(self, size: int, deadline: float) -> bytes:
        """Return exactly ``size`` bytes from the fork server."""
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
        """Run one program.

        Parameters
        ----------
        task : int
            Descriptor of the task, see :func:`protocol.write_task`.
        limits : Limits

        Returns
        -------
        tuple
            Status, output, error and seconds, the fields of :class:`lang_envs.sandbox.Result`.

        Raises
        ------
        Broken
            If the sandbox failed, not the program.
        """
        wall = min(limits.wall_seconds, LONGEST)
        self.number += 1
        if self.group is not None:
            self.group.bound(self.report["memory"], int(limits.memory_bytes))
        time.sleep(_system_random.uniform(0, _JITTER_SECONDS))
        read, write = os.pipe()
        try:
            try:
                protocol.send(self.control, protocol.REQUEST.pack(self.number), [task, write])
            except OSError as error:
                raise Broken(f"the sandbox's process has ended: {error}") from None
            finally:
                os.close(write)
            if _read(read, len(protocol.BEGUN), time.monotonic() + BEGIN_SECONDS) != protocol.BEGUN:
                raise Broken("no process could be started for the program")
            started = time.monotonic()  # the time before does not count as the program's
            status, output, error_text = self._outcome(read, started + wall, limits)
            return status, output, error_text, time.monotonic() - started
        finally:
            os.close(read)

    def _outcome(self, pipe: int, deadline: float, limits: Limits) -> tuple[str, np.ndarray | None, str]:
        """Return status, output and error of a program that has begun."""
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
        """Ask the fork server to kill the child: it has answered, or its time is over."""
        if not self.alone:
            with contextlib.suppress(OSError):  # the next request detects it
                self.control.send(protocol.REQUEST.pack(protocol.END_CHILD))

    def _explain(self, code: int, cpu: float, limits: Limits) -> tuple[str, None, str]:
        """Return status, output and error of a program that ended without a result."""
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
        """Return the exit code, or −signal, and the processor time in s of the program's process.

        None if it has not ended by the deadline.
        """
        if self.alone:
            try:
                code = self.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            return code, math.inf
        number = 0
        while number != self.number:  # earlier messages are about programs that had answered
            if not _readable(self.control.fileno(), deadline):
                return None
            ending = self._receive(protocol.ENDING.size, time.monotonic() + END_SECONDS)
            number, status, seconds, microseconds, more_seconds, more_microseconds = protocol.ENDING.unpack(ending)
        try:
            code = os.waitstatus_to_exitcode(status)
        except ValueError:
            raise Broken(f"the sandbox's process sent the invalid wait status {status}") from None
        return code, seconds + more_seconds + (microseconds + more_microseconds) / 1e6

    def drain(self) -> None:
        """Read and discard messages about programs that had answered."""
        while _readable(self.control.fileno(), 0.0):
            self._receive(protocol.ENDING.size, time.monotonic() + END_SECONDS)

    def close(self) -> None:
        """End the fork server and its children: it ends when it sees that this end of the socket is closed."""
        self.control.close()
        if self.alone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session, so with everything that it has forked
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._remove_group()


def _readable(descriptor: int, deadline: float) -> bool:
    """Return whether there is something to read, or the end of the stream, by the deadline.

    Raises
    ------
    Broken
        If the descriptor has been closed meanwhile.
    """
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLIN)
    except ValueError:
        raise Broken("the connection was closed in the middle of a message") from None
    return bool(poll.poll(math.ceil(1000 * max(0.0, deadline - time.monotonic()))))


def _read(pipe: int, size: int, deadline: float) -> bytes:
    """Return ``size`` bytes, or fewer where the stream ends or the deadline passes before."""
    received = bytearray()
    while len(received) < size and _readable(pipe, deadline):
        part = os.read(pipe, min(size - len(received), 1 << 16))
        if not part:
            break
        received += part
    return bytes(received)


def _hint(error: str) -> str:
    return "; pip install 'lang-envs[data]'" if "scikit-learn" in error or "sklearn" in error else ""
