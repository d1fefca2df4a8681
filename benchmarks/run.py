"""Run a benchmark: its cells in processes side by side, a live display, a table and a figure at the end."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.cell import Cell, run_cell
from benchmarks.config import BenchmarkConfig, parse_variant
from benchmarks.display import Display
from benchmarks.report import draw_curves, summarise, write_tables

CONFIG_FILE = "config.json"
_PACKAGES = ("lang-envs", "torch", "transformers", "peft", "gymnasium", "numpy", "tokenizers", "bitsandbytes")


def run(config: BenchmarkConfig) -> Path:
    """Run a benchmark from its beginning; returns its folder."""
    config.check()
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    names = "+".join(dict.fromkeys(parse_variant(algo)[0].rpartition(":")[2] for algo in config.algos))
    folder = config.runs_dir / f"{config.env}-{names}-{stamp}"
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


def _run_cells(config: BenchmarkConfig, folder: Path) -> Path:
    console = Console()
    cells = [
        Cell(folder, algo, seed)
        for algo in config.algos
        for seed in range(config.first_seed, config.first_seed + config.seeds)
    ]
    waiting = [cell for cell in cells if cell.result is None]
    workers = min(config.workers or _default_workers(config), len(waiting)) if waiting else 0
    console.print(f"{config.env}: {len(waiting)} of {len(cells)} runs to do, {workers} at a time, in {folder}")
    started = time.monotonic()
    try:
        if waiting:
            _run_in_processes(config, waiting, workers, Display(config, cells, console))
    except BaseException as error:
        console.print(f"stopped ({type(error).__name__}); go on with: make bench RESUME={folder}", style="yellow")
        raise
    summary = summarise(config, cells)
    write_tables(summary, folder, console)
    figure = draw_curves(config, cells, summary, folder / "curves.png")
    console.print(f"figure: {figure}")
    console.print(f"adapters (PEFT): {cells[0].path.parent / 'seed-*' / 'checkpoints' / 'best' / 'adapter'}")
    console.print(f"done in {time.monotonic() - started:.0f} s")
    return folder


def _run_in_processes(config: BenchmarkConfig, cells: list[Cell], workers: int, display: Display) -> None:
    # Operations on the embedded model are too small to share; threads that wait for each other only slow it down.
    embedded = config.model in (None, "embedded")
    threads = 1 if embedded else max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    # One process for each run: nothing of one is left for the next.
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool, display:
        futures: dict[Future[None], Cell] = {pool.submit(run_cell, config, cell, threads): cell for cell in cells}
        try:
            running = set(futures)
            while running:
                finished, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                display.update()
                for future in finished:
                    _explain(future, futures[future])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _explain(future: Future[None], cell: Cell) -> None:
    try:
        future.result()
    except Exception as error:
        error.add_note(f"in the run of {cell.algo} with seed {cell.seed} ({cell.path})")
        raise


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
