"""The trainer's side: workers side by side, and the one way to run a program in them."""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lang_envs.sandbox import protocol
from lang_envs.sandbox.tiers import LAYERS, UNISOLATED, SandboxError, check_platform, tier_of
from lang_envs.sandbox.worker import LONGEST, Broken, Limits, Worker

MODES = ("auto", "process")
SOURCE_BYTES = 64 << 10
"""A program's text may be that long."""
_LARGEST = 1 << 62
_STARTS = 3
"""How often a worker is started that somebody kills while it starts."""
_PATH = re.compile(rf"/(?:{'|'.join(re.escape(path.name) for path in Path('/').iterdir())})(?:/[^\s/'\"<>:;,()]*)*")
"""From a folder of this machine's root onwards."""


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
        self._config = {"packages": ["numpy", *packages], "without": list(without), "process": mode == "process"}
        self._closed = False
        self._begin()
        _all_sandboxes.add(self)
        worker = self._take()  # so that a machine that can't isolate programs says so now
        self.absent: dict[str, str] = worker.report["absent"]
        """The layers that could not be had here, and why."""
        self.no_cgroup: str = worker.no_group
        """Why a cgroup does not limit the memory and processes of a worker; empty where it does."""
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
        self._started: list[Worker] = []
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(self.max_workers - 1):
            self._idle.put(None)
        self._finalizer = weakref.finalize(self, _close_all, self._started, os.getpid())

    def _take(self, worker: Worker | None = None) -> Worker:
        """``worker`` if it can go on, or a new one."""
        if worker is not None:
            try:
                worker.drain()
                return worker
            except Broken:
                self._discard(worker)
        for attempt in range(_STARTS):
            try:
                worker = Worker(self._config)
            except (OSError, MemoryError) as error:
                raise SandboxError(f"no process could be started for the sandbox: {error}") from error
            except Broken as broken:
                if attempt == _STARTS - 1:
                    raise SandboxError(f"the sandbox could not be started {_STARTS} times: {broken}") from None
            else:
                with self._lock:
                    self._started.append(worker)
                return worker
        raise AssertionError("a worker is started, or an error is raised")

    def _discard(self, worker: Worker) -> None:
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
        cpu, memory = math.ceil(min(limits.cpu_seconds, LONGEST)), int(min(limits.memory_bytes, _LARGEST))
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
                except Broken as broken:
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


def _close_all(workers: list[Worker], owner: int) -> None:
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
