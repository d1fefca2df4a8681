"""The trainer's side: workers that each hold a zygote, and the one way to run a program in them."""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import queue
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.sandbox import protocol
from lang_envs.sandbox.tiers import LAYERS, UNISOLATED, SandboxError, check_platform, tier_of

MODES = ("auto", "process")
SOURCE_BYTES = 64 << 10
"""A program's text may be that long."""
_START_SECONDS, _BEGIN_SECONDS, _GRACE_SECONDS = 120.0, 10.0, 2.0
"""For a zygote to be ready, for a program to begin, for a killed one to be gone."""
_LONGEST, _LARGEST = 1e6, 1 << 62
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
    # joblib runs everything in sequence, whatever n_jobs says
    "JOBLIB_MULTIPROCESSING": "0",
}
_PATH = re.compile(rf"/(?:{'|'.join(re.escape(path.name) for path in Path('/').iterdir())})(?:/[^\s/'\"<>:;,()]*)*")
"""From a folder of this machine's root onwards."""


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


@dataclass(frozen=True)
class Result:
    """What came of a program.

    Attributes
    ----------
    status : str
        ``"ok"``; ``"error"``: it raised, or ended without a result; ``"timeout"`` and ``"cpu limit"``: it took too
        long; ``"violation"``: it tried what nothing of the kind needs; ``"crash"``: a signal ended it; ``"rejected"``:
        what it sent was no finite float64 array of the size it said.
    output : float64 array, or None
        With one or two dimensions, where ``status`` is ``"ok"``.
    error : str
        Otherwise what went wrong, for the program's author: at most 1 KiB, without paths of the machine. Written by
        the program as it likes: never to be trusted.
    seconds : float
        On the clock, from the program's beginning until its result was here.
    """

    status: str
    output: np.ndarray | None
    error: str
    seconds: float


class _Broken(Exception):
    """A worker can't go on; what it was doing can be tried once more."""


class _Worker:
    """A zygote, and the socket on which it takes requests."""

    def __init__(self, config: dict[str, Any]) -> None:
        here, there = socket.socketpair()
        with (
            there,
            tempfile.NamedTemporaryFile("w", prefix="lang-envs-canary-") as canary,
            tempfile.TemporaryFile() as complaints,
        ):
            canary.write("not for a program")
            canary.flush()
            Path(canary.name).chmod(0o644)
            command = [sys.executable, "-s", "-P", str(Path(__file__).with_name("zygote.py")), str(there.fileno())]
            self.process = subprocess.Popen(
                [*command, json.dumps({**config, "canary": canary.name})],
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
            there.close()
            self.control = here
            self.number = 0
            self.alone = bool(config["process"])
            try:
                self.report = self._hear(time.monotonic() + _START_SECONDS)
            except BaseException as error:
                self.close()
                if isinstance(error, _Broken):
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

    def _hear(self, deadline: float) -> dict[str, Any]:
        (length,) = struct.unpack("=I", self._receive(4, deadline))
        report: dict[str, Any] = json.loads(self._receive(length, deadline))
        return report

    def _receive(self, size: int, deadline: float) -> bytes:
        """Exactly so many bytes from the zygote."""
        message = b""
        while len(message) < size:
            if not _readable(self.control.fileno(), deadline):
                raise _Broken("the sandbox's process does not answer")
            try:
                part = self.control.recv(size - len(message))
            except OSError:
                part = b""
            if not part:
                raise _Broken("the sandbox's process has ended")
            message += part
        return message

    def run(self, task: int, limits: Limits) -> tuple[str, np.ndarray | None, str, float]:
        """Status, output, error and seconds of one program.

        Raises
        ------
        _Broken
            If it was the machinery that failed.
        """
        wall = min(limits.wall_seconds, _LONGEST)
        self.number += 1
        read, write = os.pipe()
        try:
            try:
                request = protocol.REQUEST.pack(self.number, wall + _BEGIN_SECONDS + _GRACE_SECONDS)
                descriptors = array.array("i", [task, write])
                self.control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            except OSError as error:
                raise _Broken(f"the sandbox's process has ended: {error}") from None
            finally:
                os.close(write)
            if _read(read, 1, time.monotonic() + _BEGIN_SECONDS) != protocol.BEGUN:
                raise _Broken("no process could be started for the program")
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
                self.control.send(protocol.REQUEST.pack(0, 0.0))

    def _explain(self, kind: int, code: int, cpu: float, limits: Limits) -> tuple[str, None, str]:
        """Why a program that ended by itself left no result."""
        if kind == protocol.EXITED:
            return "error", None, "the program ended its process without a result"
        if code == signal.SIGXCPU or (code == signal.SIGKILL and cpu >= limits.cpu_seconds):
            return "cpu limit", None, f"the program took more than {limits.cpu_seconds:g} s of processor time"
        if code == signal.SIGKILL:
            raise _Broken("the program's process was killed from outside, as when the machine runs out of memory")
        if code == signal.SIGSYS:
            return "violation", None, "the program was ended: it made a system call that no program may make"
        known = code in signal.Signals.__members__.values()
        return "crash", None, f"the program crashed ({signal.Signals(code).name if known else f'signal {code}'})"

    def _ending(self, deadline: float) -> tuple[int, int, float] | None:
        """How the program's process ended: a constant of the protocol, exit status or signal, processor time in s.

        None if it had not ended by the deadline.
        """
        if self.alone:
            try:
                code = self.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            return protocol.SIGNALLED if code < 0 else protocol.EXITED, abs(code), math.inf
        number = 0
        while number != self.number:  # earlier ones belong to programs that had answered
            if not _readable(self.control.fileno(), deadline):
                return None
            ending = self._receive(protocol.ENDING.size, time.monotonic() + _GRACE_SECONDS)
            number, kind, code, cpu = protocol.ENDING.unpack(ending)
        return kind, code, cpu

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


def _readable(descriptor: int, deadline: float) -> bool:
    """Whether there is something to read, or the end, by the deadline.

    Raises
    ------
    _Broken
        If the descriptor has been closed meanwhile.
    """
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLIN)
    except ValueError:
        raise _Broken("closed in the middle") from None
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


class Sandbox:
    """Runs programs, each in a process of its own that keeps nothing and from which nothing can be reached.

    A program is Python text. It finds its ``inputs``, a dict of arrays of its own, and leaves an ``output``: real
    numbers in one or two dimensions. NumPy's and ``random``'s generators are seeded, there is one thread, and the text
    it prints is lost: the same program, inputs and seed give the same output in every process.

    Parameters
    ----------
    max_workers : int
        Programs that run at the same time; each worker is a process with NumPy and scikit-learn, started when it is
        first needed.
    mode : str
        ``"auto"`` isolates programs or refuses to; ``"process"`` only gives each a process and limits.
    packages : sequence of str
        Distributions whose modules programs may import, with all that these require.
    without : sequence of str
        Layers of :data:`lang_envs.sandbox.LAYERS` to leave out, for tests of the others; no self-test is made.

    Raises
    ------
    SandboxError
        If programs can't be isolated here; the message says why and what to do.
    ValueError
        If a parameter is not known.
    """

    def __init__(
        self,
        max_workers: int = 1,
        mode: str = "auto",
        packages: Sequence[str] = ("scikit-learn",),
        without: Sequence[str] = (),
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"sandbox mode {mode!r} is not one of {MODES}")
        if isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1:
            raise ValueError(f"max_workers={max_workers!r} must be a whole number of at least 1")
        if strange := [layer for layer in without if layer not in LAYERS]:
            raise ValueError(f"there is no layer {strange[0]!r}; the layers are {', '.join(LAYERS)}")
        if mode == "auto":
            check_platform()
        else:
            warnings.warn(
                "sandbox='process': programs run with all that this user may do, and rewards can be forged",
                stacklevel=2,
            )
        self.max_workers = max_workers
        self.mode = mode
        self._config = {"packages": ["numpy", *packages], "without": list(without), "process": mode == "process"}
        self._closed = False
        self._begin()
        _all_sandboxes.add(self)
        worker = self._take()  # so that a machine that can't isolate programs says so now
        self.absent: dict[str, str] = worker.report["absent"]
        """The layers that could not be had here, and why."""
        try:
            self.tier: str = UNISOLATED if mode == "process" else tier_of(self.absent, tuple(without))
            """The name of the set of layers in force."""
        except SandboxError:
            worker.close()
            raise
        self._idle.put(worker)

    def _begin(self) -> None:
        """The state of a sandbox in which nothing has run, in this process."""
        self._lock = threading.Lock()
        self._started: list[_Worker] = []
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.max_workers - 1):
            self._idle.put(None)
        self._finalizer = weakref.finalize(self, _close_all, self._started, os.getpid())

    def _take(self, worker: _Worker | None = None) -> _Worker:
        """``worker`` if it can go on, or a new one."""
        if worker is not None:
            try:
                worker.drain()
                return worker
            except _Broken:
                self._discard(worker)
        try:
            worker = _Worker(self._config)
        except (OSError, MemoryError) as error:
            raise SandboxError(f"no process could be started for the sandbox: {error}") from error
        with self._lock:
            self._started.append(worker)
        return worker

    def _discard(self, worker: _Worker) -> None:
        worker.close()
        with self._lock:
            if worker in self._started:
                self._started.remove(worker)

    def run(
        self, program: str, inputs: Mapping[str, np.ndarray], limits: Limits | None = None, *, seed: int = 0
    ) -> Result:
        """Run one program to its end; may be called from several threads at once.

        Parameters
        ----------
        program : str
            At most 64 KiB of Python.
        inputs : mapping of str to array
            Arrays of numbers.
        limits : Limits, optional
        seed : int
            Of NumPy's and ``random``'s global generators, 0 to 2³² − 1.

        Raises
        ------
        SandboxError
            If the machinery failed twice, or the sandbox is closed.
        ValueError
            If ``program`` is no text of that length, or an input no array of numbers.
        """
        limits = limits or Limits()
        size = len(_utf8(program))
        if size > SOURCE_BYTES:
            return Result("error", None, f"the program has {size} bytes, and {SOURCE_BYTES} is the limit", 0.0)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 32:
            raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2**32 - 1")
        cpu, memory = math.ceil(min(limits.cpu_seconds, _LONGEST)), int(min(limits.memory_bytes, _LARGEST))
        task = protocol.write_task(program, inputs, seed=int(seed), cpu_seconds=cpu, memory_bytes=memory)
        slot = self._idle.get()
        try:
            for attempt in range(2):
                if self._closed:
                    raise SandboxError("this sandbox is closed")
                worker = slot = self._take(slot)
                try:
                    status, output, error, seconds = worker.run(task, limits)
                    return Result(status, output, clean_error(error), seconds)
                except _Broken as broken:
                    self._discard(worker)
                    slot = None
                    if attempt:
                        raise SandboxError(f"the sandbox failed twice: {broken}") from None
                finally:
                    if worker.alone and slot is not None:
                        self._discard(worker)
                        slot = None
            raise AssertionError("two attempts are made")
        except BaseException:
            if slot is not None:  # interrupted in the middle: what the worker does now is not known
                self._discard(slot)
                slot = None
            raise
        finally:
            os.close(task)
            self._idle.put(slot)

    def close(self) -> None:
        """End all processes; what is still running is lost."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shared_sandbox(mode: str = "auto", max_workers: int = 1) -> Sandbox:
    """The sandbox that all in this process share who ask for the same; it ends with the last of them."""
    key = (mode, max_workers)
    with _sharing:
        found = _shared.get(key)
        if found is None or found._closed:
            found = _shared[key] = Sandbox(max_workers, mode)
        return found


def clean_error(text: str) -> str:
    """A program's error without paths of the machine and unprintable characters, at most 1 KiB of UTF-8."""
    text = _PATH.sub(lambda path: path[0].rstrip("/").rpartition("/")[2], text)
    text = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    return text.strip().encode()[-protocol.ERROR_BYTES :].decode(errors="ignore")


def _utf8(program: str) -> bytes:
    if not isinstance(program, str):
        raise ValueError(f"a program is a str, not {type(program).__name__}")
    return program.encode(errors="replace")


def _hint(error: str) -> str:
    return "; pip install 'lang-envs[data]'" if "scikit-learn" in error or "sklearn" in error else ""


def _close_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.close()
    workers.clear()


def _forget_after_fork() -> None:
    """A forked process has no part in its parent's workers: it lets go of them, so that they end with the parent."""
    global _sharing
    _sharing = threading.Lock()
    _shared.clear()
    for sandbox in list(_all_sandboxes):
        sandbox._finalizer.detach()
        for worker in sandbox._started:
            worker.control.close()
            worker.process.returncode = 0  # it is no child of this process
        sandbox._begin()
        sandbox._idle.put(None)


_all_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[tuple[str, int], Sandbox] = weakref.WeakValueDictionary()
_sharing = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
