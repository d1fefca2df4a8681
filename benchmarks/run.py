"""Run a benchmark: its cells in processes side by side, a live display, a table and a figure at the end."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.cell import Cell, run_cell
from benchmarks.config import BenchmarkConfig, parse_variant
from benchmarks.credit_study import study
from benchmarks.display import Display
from benchmarks.programs import write_programs, wrote_programs
from benchmarks.report import draw_curves, summarise, write_tables
from benchmarks.transfer import write_transfer
from trainers.agents.common import ADAPTER_FOLDER
from trainers.checkpoint import LAST
from trainers.loop import CHECKPOINTS_FOLDER

CONFIG_FILE = "config.json"
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""For the runs' processes: glibc would give the memory of every large tensor back and take it anew, page by page."""
_PACKAGES = ("lang-envs", "torch", "transformers", "peft", "gymnasium", "numpy", "tokenizers", "bitsandbytes")


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
    (folder / "versions.txt").write_text("\n".join(_versions()) + "\n")
    return _run_cells(config, folder)


def resume(folder: Path) -> Path:
    """Go on with a benchmark that was stopped; finished cells are not run again.

    Raises
    ------
    ValueError
        If the folder is not that of a benchmark.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder} is no benchmark's folder: it has no {CONFIG_FILE}")
    return _run_cells(BenchmarkConfig.load(folder / CONFIG_FILE), folder)


def tabulate_programs(folders: Sequence[Path], output: Path) -> None:
    """One table of the programs of several finished runs.

    Raises
    ------
    ValueError
        If there is no folder, or one that is not that of a benchmark which wrote programs and is done.
    """
    runs = [_finished(folder) for folder in folders]
    for folder, (_, cells) in zip(folders, runs, strict=True):
        if not wrote_programs(cells):
            raise ValueError(f"in {folder} no programs were written")
    if not runs:
        raise ValueError("name the folders of one or more runs")
    output.mkdir(parents=True, exist_ok=True)
    write_programs(runs, output, Console())


def study_credit(folder: Path | None, output: Path) -> None:
    """The case study of credit inside an action, with the critics of a finished run where one is given.

    Raises
    ------
    ValueError
        If the folder is not that of a finished benchmark in the study's world.
    """
    output.mkdir(parents=True, exist_ok=True)
    study(None if folder is None else _finished(folder), output, Console())


def _finished(folder: Path) -> tuple[BenchmarkConfig, list[Cell]]:
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder} is no benchmark's folder: it has no {CONFIG_FILE}")
    config = BenchmarkConfig.load(folder / CONFIG_FILE)
    cells = cells_of(config, folder)
    if unfinished := [cell.path for cell in cells if cell.result is None]:
        raise ValueError(f"{unfinished[0]} is not finished: make bench RESUME={folder}")
    return config, cells


def _run_cells(config: BenchmarkConfig, folder: Path) -> Path:
    console = Console()
    cells = cells_of(config, folder)
    waiting = [cell for cell in cells if cell.result is None]
    workers = min(config.workers or _default_workers(config), len(waiting)) if waiting else 0
    console.print(
        f"{config.env}: {len(waiting)} of {len(cells)} runs to do, {workers} at a time, in {folder}", soft_wrap=True
    )
    started = time.monotonic()
    try:
        if waiting:
            _run_in_processes(config, waiting, workers, Display(config, cells, console))
    except BaseException as error:
        console.print(
            f"stopped ({type(error).__name__}); go on with: make bench RESUME={folder}", style="yellow", soft_wrap=True
        )
        raise
    summary = summarise(config, cells)
    write_tables(summary, folder, console)
    if wrote_programs(cells):
        write_programs([(config, cells)], folder, console)
    if config.transfer:
        write_transfer(config, cells, folder, console)
    figure = draw_curves(config, cells, summary, folder / "curves.png")
    console.print(f"figure: {figure}", soft_wrap=True)
    adapters = [cell.path / CHECKPOINTS_FOLDER / LAST / ADAPTER_FOLDER for cell in cells]
    for adapter in filter(Path.exists, adapters):
        console.print(f"adapter (PEFT): {adapter}", soft_wrap=True)
    console.print(f"done in {time.monotonic() - started:.0f} s")
    return folder


def cells_of(config: BenchmarkConfig, folder: Path) -> list[Cell]:
    """The runs of a benchmark, whether they are done or not."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    return [Cell(folder, algo, seed) for algo in config.algos for seed in seeds]


def _run_in_processes(config: BenchmarkConfig, cells: list[Cell], workers: int, display: Display) -> None:
    # Operations on the embedded model are too small to share; threads that wait for each other only slow it down.
    embedded = config.model in (None, "embedded")
    threads = 1 if embedded else max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # read when a process starts, too late for this one
    waiting, running = deque(cells), dict[Cell, Any]()
    try:
        with display:
            while waiting or running:
                while waiting and len(running) < workers:
                    cell = waiting.popleft()
                    # A process for each run: nothing of one is left for the next.
                    running[cell] = context.Process(target=run_cell, args=(config, cell, threads))
                    running[cell].start()
                multiprocessing.connection.wait([process.sentinel for process in running.values()], timeout=0.5)
                display.update()
                for cell in [cell for cell, process in running.items() if not process.is_alive()]:
                    if (code := running.pop(cell).exitcode) != 0:
                        raise CellFailed(
                            f"{cell.algo}, seed {cell.seed}, ended with code {code}; its error stands above"
                        )
    finally:
        for process in running.values():
            process.terminate()
            process.join()


class CellFailed(RuntimeError):
    """A run within a benchmark failed; its own process has said why."""


def _default_workers(config: BenchmarkConfig) -> int:
    on_gpu = torch.cuda.is_available() and config.device != "cpu"
    return 1 if on_gpu else os.cpu_count() or 1


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield f"command: {' '.join(['python -m benchmarks', *sys.argv[1:]])}"
    for package in _PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            yield f"{package} is not installed"
