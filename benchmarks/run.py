"""Run a benchmark: its cells in processes side by side, a live display, a table and a figure at the end."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.cell import CONFIG_FILE, Benchmark, Cell, run_cell
from benchmarks.comparison import write_comparison
from benchmarks.config import BenchmarkConfig, parse_variant
from benchmarks.credit_study import draw as draw_credit
from benchmarks.credit_study import study
from benchmarks.display import Display
from benchmarks.language_ability import harness_table, perplexity_table
from benchmarks.programs import write_programs, wrote_programs
from benchmarks.transfer import write_transfer
from benchmarks.versions import COMMAND, VERSIONS_FILE, versions
from lang_envs.files import write_atomically
from trainers.agents.common import ADAPTER_FOLDER
from trainers.checkpoint import LAST
from trainers.loop import CHECKPOINTS_FOLDER, alone_in

PRELOADED = ("benchmarks.__main__",)
"""What is imported once for all runs where they are forks."""
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""For the runs' processes: glibc would give the memory of every large tensor back and take it anew, page by page."""


def run(config: BenchmarkConfig) -> Path:
    """Run a benchmark from its beginning; returns its folder."""
    config.check()
    usual = config.usual  # in force from now on, so that going on later goes on alike
    config = replace(config, steps=usual.steps, num_envs=usual.num_envs, rollout_steps=usual.rollout_steps)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    names = "+".join(dict.fromkeys(parse_variant(algo)[0].rpartition(":")[2] for algo in config.algos))
    folder = config.runs_dir / f"{config.env.rpartition(':')[2]}-{names}-{stamp}"
    folder.mkdir(parents=True)
    config.save(folder / CONFIG_FILE)
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    write_atomically(folder / VERSIONS_FILE, "\n".join([COMMAND + command, *versions()]) + "\n")
    return _run_benchmark(Benchmark(config, folder))


def resume(folder: Path, imports: tuple[str, ...] = ()) -> Path:
    """Go on with a benchmark that was stopped; finished cells are not run again.

    Parameters
    ----------
    folder : Path
    imports : tuple of str
        Modules that may be imported because the folder's configuration names them.

    Raises
    ------
    ValueError
        If the folder is not that of a benchmark, or names other modules.
    """
    benchmark = Benchmark.load(folder, imports)
    benchmark.check_imports()
    try:
        benchmark.config.check()
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from error
    return _run_benchmark(benchmark)


def tabulate_programs(folders: Sequence[Path], output: Path, imports: tuple[str, ...] = ()) -> None:
    """One table of the programs of several finished runs.

    Raises
    ------
    ValueError
        If there is no folder, or one that is not that of a benchmark which wrote programs and is done.
    """
    runs = [Benchmark.finished(folder, imports) for folder in folders]
    for run in runs:
        if not wrote_programs(run):
            raise ValueError(f"in {run.folder} no programs were written")
    if not runs:
        raise ValueError("name the folders of one or more runs")
    output.mkdir(parents=True, exist_ok=True)
    write_programs(runs, output, Console())


def study_credit(folder: Path | None, output: Path, imports: tuple[str, ...] = ()) -> None:
    """The case study of credit inside an action, with the critics of a finished run where one is given.

    Raises
    ------
    ValueError
        If the folder is not that of a finished benchmark in the study's environment.
    """
    found, console = study(None if folder is None else Benchmark.finished(folder, imports)), Console()
    output.mkdir(parents=True, exist_ok=True)
    found.tabulate().keep(output / "credit.md")
    console.print(f"table: {output / 'credit.md'}", soft_wrap=True)
    console.print(f"figure: {draw_credit(found, output / 'credit.png')}", soft_wrap=True)


def language_ability(
    folder: Path,
    tasks: Sequence[str],
    include: Path | None,
    limit: int | None,
    output: Path,
    imports: tuple[str, ...] = (),
) -> None:
    """What training did to a model's language: perplexity, or tasks of the lm-evaluation-harness.

    Raises
    ------
    ImportError
        If tasks are named and the harness is not installed.
    ValueError
        If the folder is not that of a finished benchmark of two seeds or more with language models.
    """
    run = Benchmark.finished(folder, imports)
    run.check_imports()
    table = harness_table(run, tasks, include, limit) if tasks else perplexity_table(run)
    output.mkdir(parents=True, exist_ok=True)
    table.keep(output / "language-ability.md")
    console = Console()
    console.print((output / "language-ability.md").read_text(), markup=False, highlight=False, soft_wrap=True)


def _run_benchmark(benchmark: Benchmark) -> Path:
    config, folder = benchmark.config, benchmark.folder
    console = Console()
    started = time.monotonic()
    go_on = f"make bench RESUME={shlex.quote(str(folder))}"
    if modules := sorted(set(config.modules.values())):
        go_on += f" ARGS={shlex.quote(f'--allow-import {shlex.join(modules)}')}"
    run_cells(benchmark.cells, config.env, folder, config.workers, console, go_on)
    write_comparison(benchmark, folder, console)
    if wrote_programs(benchmark):
        write_programs([benchmark], folder, console)
    if config.transfer:
        write_transfer(benchmark, folder, console)
    where = Path("*", "seed-*", CHECKPOINTS_FOLDER, LAST, ADAPTER_FOLDER)
    if any(folder.glob(str(where))):
        console.print(f"adapters (PEFT): {folder / where}", markup=False, soft_wrap=True)
    console.print(f"done in {time.monotonic() - started:.0f} s")
    return folder


def run_cells(
    cells: Sequence[Cell], title: str, folder: Path, workers: int | None, console: Console, go_on: str
) -> None:
    """Run what is not finished, in processes side by side; ``go_on`` is the command that goes on where this stops.

    Raises
    ------
    ValueError
        If a cell was begun with another plan, or there are no workers.
    BlockingIOError
        If another process is at work in the folder.
    CellFailed
        If runs failed, after all others are done.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    for cell in cells:
        cell.check()
    waiting = [cell for cell in cells if not cell.finished]
    workers = workers or _default_workers(waiting)
    at_a_time = min(workers, len(waiting))
    console.print(
        f"{title}: {len(waiting)} of {len(cells)} runs to do, {at_a_time} at a time, in {folder}",
        markup=False,
        soft_wrap=True,
    )
    try:
        if waiting:
            with alone_in(folder):
                _run_in_processes(waiting, workers, Display(cells, console))
    except BaseException as error:
        why = "" if isinstance(error, KeyboardInterrupt) else f" ({type(error).__name__})"
        console.print(
            f"stopped{why}; go on from the last checkpoint of each run with: {go_on}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
        raise


def _run_in_processes(cells: Sequence[Cell], workers: int, display: Display) -> None:
    for name, value in KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # read when a process starts, too late for this one
    context = _process_context()
    waiting, running, failed = deque(cells), dict[Cell, Any](), list[str]()
    try:
        with display:
            while waiting or running:
                while waiting and len(running) < workers:
                    cell = waiting.popleft()
                    # Operations on small models are too small to share; threads that wait for each other only slow
                    # them down.
                    threads = 1 if cell.config.embedded else max(1, (os.cpu_count() or 1) // workers)
                    # A process for each run: nothing of one is left for the next.
                    running[cell] = context.Process(target=run_cell, args=(cell, threads))
                    with _deaf_to_interrupts():
                        running[cell].start()
                multiprocessing.connection.wait([process.sentinel for process in running.values()], timeout=0.5)
                display.update()
                for cell in [cell for cell, process in running.items() if not process.is_alive()]:
                    if (code := running.pop(cell).exitcode) != 0:
                        failed.append(f"{cell.name} ended with code {code}")
        if failed:
            raise CellFailed(f"{'; '.join(failed)}: errors stand above")
    finally:
        for process in running.values():
            process.terminate()
            process.join()


def _process_context() -> Any:
    """Return the multiprocessing context that starts a process for each run.

    The imports take 5.5 s and a run half a minute, so a fork server does them once for all runs. Where torch sees a
    GPU, it cannot: peft imports bitsandbytes, which initialises CUDA, and CUDA does not work in forks of a process that
    has done so. There every run starts in a new interpreter and does the imports itself.
    """
    if torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started here leaves Ctrl-C to this process, which ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class CellFailed(RuntimeError):
    """Runs within a benchmark failed; their own processes have said why."""


def _default_workers(cells: Sequence[Cell]) -> int:
    on_gpu = torch.cuda.is_available() and any(cell.config.device != "cpu" for cell in cells)
    return 1 if on_gpu else os.cpu_count() or 1
