"""Do runs in parallel processes, with a live display."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.display import Display
from benchmarks.runs import Run
from benchmarks.worker import execute
from trainers.loop import alone_in

PRELOADED = ("benchmarks.__main__",)
"""Modules that the fork server imports once for all runs."""
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment variables of the runs' processes: glibc keeps the memory of freed tensors for the next ones."""


def run_all(runs: Sequence[Run], title: str, folder: Path, workers: int | None, console: Console, go_on: str) -> None:
    """Do the unfinished runs in parallel processes; ``go_on`` is the command that resumes them after an interruption.

    Raises
    ------
    ValueError
        If a run was started with another configuration, or there are no workers.
    BlockingIOError
        If another process works in the folder.
    RunFailed
        If runs failed, after all others have ended.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    for run in runs:
        run.check()
    waiting = [run for run in runs if not run.finished]
    workers = workers or _default_workers(waiting)
    at_a_time = min(workers, len(waiting))
    console.print(
        f"{title}: {len(waiting)} of {len(runs)} runs to do, {at_a_time} at a time; folder: {folder}",
        markup=False,
        soft_wrap=True,
    )
    try:
        if waiting:
            with alone_in(folder):
                _run_in_processes(waiting, workers, Display(runs, console))
    except BaseException as error:
        why = "" if isinstance(error, KeyboardInterrupt) else f" ({type(error).__name__})"
        console.print(
            f"stopped{why}; to resume each run from its last checkpoint: {go_on}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
        raise


def _run_in_processes(runs: Sequence[Run], workers: int, display: Display) -> None:
    for name, value in KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # for new processes: glibc reads it when a process starts
    context = _process_context()
    waiting, running, failed = deque(runs), dict[Run, Any](), list[str]()
    try:
        with display:
            while waiting or running:
                while waiting and len(running) < workers:
                    run = waiting.popleft()
                    # One thread for small models: their operations are too short to be shared.
                    threads = 1 if run.config.embedded else max(1, (os.cpu_count() or 1) // workers)
                    # A new process for each run: no state is shared between runs.
                    running[run] = context.Process(target=execute, args=(run, threads))
                    with _without_interrupts():
                        running[run].start()
                multiprocessing.connection.wait([process.sentinel for process in running.values()], timeout=0.5)
                display.update()
                for run in [run for run, process in running.items() if not process.is_alive()]:
                    if (code := running.pop(run).exitcode) != 0:
                        failed.append(f"{run.name} ended with code {code}")
        if failed:
            raise RunFailed(f"{'; '.join(failed)}: see the errors above")
    finally:
        for process in running.values():
            process.terminate()
            process.join()


def _process_context() -> Any:
    """Return the multiprocessing context that starts a process for each run.

    The imports take 5.5 s and a run half a minute, so a fork server does them once for all runs. With a GPU it cannot:
    peft imports bitsandbytes, which initialises CUDA, and CUDA does not work in forks of such a process. There every
    run starts a new interpreter.
    """
    if torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C; this process ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class RunFailed(RuntimeError):
    """Runs of a benchmark failed; their processes have printed the errors."""


def _default_workers(runs: Sequence[Run]) -> int:
    on_gpu = torch.cuda.is_available() and any(run.config.device != "cpu" for run in runs)
    return 1 if on_gpu else os.cpu_count() or 1
