"""The sandbox as its users see it: several workers, and :meth:`Sandbox.run`."""

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
"""Greatest length of a program's text in UTF-8."""
_MOST_MEMORY = 1 << 62
"""A limit of memory in bytes that is greater counts as this one; ``setrlimit`` takes no greater one."""
_STARTS = 3
"""Attempts to start a worker that is killed while it starts."""
_ATTEMPTS = 2
"""Attempts to run a program whose worker breaks."""
_SEEDS = 1 << 32
_PATH = re.compile(rf"/(?:{'|'.join(re.escape(path.name) for path in Path('/').iterdir())})(?:/[^\s/'\"<>:;,()]*)*")
"""An absolute path that begins with a folder of this machine's root."""


@dataclass(frozen=True)
class Result:
    """The result of one program.

    Attributes
    ----------
    status : str
        ``"ok"``
            The program left a valid ``output``.
        ``"error"``
            It raised an error, or ended without a result.
        ``"timeout"``, ``"cpu limit"``
            It took longer than ``Limits.wall_seconds`` or ``Limits.cpu_seconds``.
        ``"violation"``
            It made a system call that no program needs, and was killed.
        ``"crash"``
            A signal ended it.
        ``"rejected"``
            Its output is not a finite array of the announced size.
    output : float64 array or None
        Array with one or two dimensions where ``status`` is ``"ok"``.
    error : str
        Otherwise the reason, for the program's author: at most 1 KiB, without paths of the machine. The program can
        write anything here: do not trust it.
    seconds : float
        Time on the clock from the program's beginning until the result arrived.
    """

    status: str
    output: np.ndarray | None
    error: str
    seconds: float


class Sandbox:
    """Runs untrusted programs, each in an isolated process of its own that ends with the program.

    A program is Python text. It reads ``inputs``, a dict of arrays, and assigns ``output``: real numbers in one or two
    dimensions. The generators of NumPy and ``random`` are seeded, there is one thread, and printed text is discarded.
    The same program, inputs and seed give the same output in every process.

    Parameters
    ----------
    max_workers : int
        Number of programs that run at the same time. Each worker is a process with NumPy and scikit-learn, started
        when it is first needed.
    mode : str
        ``"auto"`` isolates programs, or raises ``SandboxError`` where the machine cannot. ``"process"`` only gives each
        program a process and limits: no protection.
    packages : sequence of str
        Distributions whose modules programs may import; their requirements are included.
    without : sequence of str
        Layers of :data:`lang_envs.sandbox.LAYERS` to leave out, in order to test the others; this skips the self-test.

    Raises
    ------
    SandboxError
        If this machine cannot isolate programs; the message names the missing layers and what to do.
    ValueError
        If a parameter has an unknown value.

    Examples
    --------
    >>> with Sandbox() as sandbox:  # doctest: +SKIP
    ...     sandbox.run("output = inputs['x'] * 2", {"x": np.arange(3)}).output
    array([0., 2., 4.])
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
        worker = self._take()  # raises now where the machine cannot isolate programs
        self.absent: dict[str, str] = worker.report["absent"]
        """The layers that this machine does not have, each with the reason."""
        self.no_cgroup: str = worker.no_group
        """Reason why no cgroup limits the memory and processes of a worker; empty where one does."""
        try:
            self.tier: str = UNISOLATED if mode == "process" else tier_of(self.absent, tuple(without))
            """Name of the set of layers in force, see :func:`tier_of`."""
        except SandboxError:
            worker.close()
            raise
        self._idle.put(worker)

    def _begin(self) -> None:
        """Set the state of a sandbox without workers, in this process."""
        self._lock = threading.Lock()
        self.workers: list[Worker] = []
        """The workers that have been started and not closed."""
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(self.max_workers - 1):
            self._idle.put(None)
        self._finalizer = weakref.finalize(self, _close_all, self.workers, os.getpid())

    def _take(self, worker: Worker | None = None) -> Worker:
        """Return ``worker`` if it can continue, otherwise a new one."""
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
                    self.workers.append(worker)
                return worker
        raise AssertionError("a worker is started, or an error is raised")

    def _discard(self, worker: Worker) -> None:
        worker.close()
        with self._lock:
            if worker in self.workers:
                self.workers.remove(worker)

    def run(
        self, program: str, inputs: Mapping[str, np.ndarray], limits: Limits | None = None, *, seed: int = 0
    ) -> Result:
        """Run one program to its end. Several threads may call this at the same time.

        Parameters
        ----------
        program : str
            At most 64 KiB of Python.
        inputs : mapping of str to array
            Arrays of numbers, of any shape; the program gets copies.
        limits : Limits, optional
            Default: ``Limits()``.
        seed : int
            Seed of the global generators of NumPy and ``random``, 0 to 2³² − 1.

        Returns
        -------
        Result
            A program that fails, or is longer than 64 KiB, has a ``status`` other than ``"ok"``; it raises nothing.

        Raises
        ------
        SandboxError
            If the sandbox itself failed twice, or is closed.
        ValueError
            If ``program`` is not a str, ``seed`` is out of range, or an input is not an array of numbers.
        """
        limits = limits or Limits()
        size = len(_utf8(program))
        if size > SOURCE_BYTES:
            return Result("error", None, f"the program has {size} bytes, and {SOURCE_BYTES} is the limit", 0.0)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < _SEEDS:
            raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2**32 - 1")
        cpu, memory = math.ceil(min(limits.cpu_seconds, LONGEST)), int(min(limits.memory_bytes, _MOST_MEMORY))
        task = protocol.write_task(program, inputs, seed=int(seed), cpu_seconds=cpu, memory_bytes=memory)
        slot = self._idle.get()
        try:
            for attempt in range(_ATTEMPTS):
                if self._closed:
                    raise SandboxError("this sandbox is closed: make a new one")
                worker = slot = self._take(slot)
                try:
                    status, output, error, seconds = worker.run(task, limits)
                    return Result(status, output, clean_error(error), seconds)
                except Broken as broken:
                    self._discard(worker)
                    slot = None
                    if attempt == _ATTEMPTS - 1:
                        raise SandboxError(f"the sandbox failed twice: {broken}") from None
                finally:
                    if worker.alone and slot is not None:
                        self._discard(worker)
                        slot = None
            raise AssertionError("two attempts are made")
        except BaseException:
            if slot is not None:  # interrupted: the state of the worker is unknown
                self._discard(slot)
                slot = None
            raise
        finally:
            os.close(task)
            self._idle.put(slot)

    def close(self) -> None:
        """End all processes; programs that still run are killed."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shared_sandbox(mode: str = "auto", max_workers: int = 1) -> Sandbox:
    """Return the sandbox with these parameters that this process shares; it ends with the last reference to it."""
    key = (mode, max_workers)
    with _sharing:
        found = _shared.get(key)
        if found is None or found._closed:
            found = _shared[key] = Sandbox(max_workers, mode)
        return found


def clean_error(text: str) -> str:
    """Return an error's text without paths of the machine and unprintable characters, at most 1 KiB of UTF-8."""
    text = _PATH.sub(lambda path: path[0].rstrip("/").rpartition("/")[2], text)
    text = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    return text.strip().encode()[-protocol.ERROR_BYTES :].decode(errors="ignore")


def _utf8(program: str) -> bytes:
    if not isinstance(program, str):
        raise ValueError(f"a program must be a str, not {type(program).__name__}")
    return program.encode(errors="replace")


def _close_all(workers: list[Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.close()
    workers.clear()


def _forget_after_fork() -> None:
    """In a forked process, drop the parent's workers without ending them: they belong to the parent."""
    global _sharing
    _sharing = threading.Lock()
    _shared.clear()
    for sandbox in list(_all_sandboxes):
        sandbox._finalizer.detach()
        for worker in sandbox.workers:
            worker.control.close()
            worker.process.returncode = 0  # not a child of this process
        sandbox._begin()
        sandbox._idle.put(None)


_all_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[tuple[str, int], Sandbox] = weakref.WeakValueDictionary()
_sharing = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
