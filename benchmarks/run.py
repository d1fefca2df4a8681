"""The commands of ``python -m benchmarks`` that run agents or analyse runs."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.analyses import credit, language, programs
from benchmarks.config import BenchmarkConfig
from benchmarks.processes import run_all
from benchmarks.records import Record, store, store_after_runs
from benchmarks.report import render_page
from benchmarks.runs import CONFIG_FILE, Benchmark
from benchmarks.versions import COMMAND, VERSIONS_FILE, versions
from lang_envs.files import write_atomically
from trainers.checkpoint import LAST
from trainers.language_agent import ADAPTER_FOLDER
from trainers.loop import CHECKPOINTS_FOLDER


def run(config: BenchmarkConfig) -> Path:
    """Run a benchmark from the beginning and return its folder."""
    config.check()
    size = config.run_defaults  # stored, so that a resumed run is the same whatever the defaults are then
    config = replace(config, steps=size.steps, num_envs=size.num_envs, rollout_steps=size.rollout_steps)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    names = "+".join(dict.fromkeys(spec.algorithm.rpartition(":")[2] for spec in config.agents))
    folder = config.runs_dir / f"{config.env.rpartition(':')[2]}-{names}-{stamp}"
    folder.mkdir(parents=True)
    config.save(folder / CONFIG_FILE)
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    write_atomically(folder / VERSIONS_FILE, "\n".join([COMMAND + command, *versions()]) + "\n")
    return _run(Benchmark(config, folder))


def resume(folder: Path, imports: tuple[str, ...] = ()) -> Path:
    """Resume a benchmark that was stopped; finished runs are not repeated.

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
    return _run(benchmark)


def _run(benchmark: Benchmark) -> Path:
    config, folder = benchmark.config, benchmark.folder
    console = Console()
    started = time.monotonic()
    go_on = f"make bench RESUME={shlex.quote(str(folder))}"
    if modules := sorted(set(config.modules.values())):
        go_on += f" ARGS={shlex.quote(f'--allow-import {shlex.join(modules)}')}"
    run_all(benchmark.runs, config.env, folder, config.workers, console, go_on)
    for name in store_after_runs(benchmark):
        _show(folder, name, console)
    adapters = Path("*", "seed-*", CHECKPOINTS_FOLDER, LAST, ADAPTER_FOLDER)
    if any(folder.glob(str(adapters))):
        console.print(f"adapters (PEFT): {folder / adapters}", markup=False, soft_wrap=True)
    console.print(f"finished in {time.monotonic() - started:.0f} s")
    return folder


def _show(folder: Path, name: str, console: Console) -> None:
    """Render a record, and print its tables, its claims, and where its files are."""
    page = render_page(folder, name)
    for table in page.shown.tables:
        table.show(console)
    for claim in page.shown.claims:
        console.print(claim, markup=False, highlight=False)
    files = [folder / f"{name}.md", *(picture.file for picture in page.pictures)]
    console.print(f"page and figures: {' '.join(map(str, files))}", markup=False, highlight=False, soft_wrap=True)


def analyse(analysis: str, data: dict[str, Any], title: str, benchmarks: Sequence[Benchmark], output: Path) -> None:
    """Store what an analysis collected in a folder, render it, and print it."""
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    store(output, analysis, Record(analysis, title, data, command=command), benchmarks)
    _show(output, analysis, Console())


def tabulate_programs(folders: Sequence[Path], output: Path, imports: tuple[str, ...] = ()) -> None:
    """Show the programs of several finished benchmarks on one page.

    Raises
    ------
    ValueError
        If there is no folder, or one without finished runs that wrote programs.
    """
    benchmarks = [Benchmark.finished(folder, imports) for folder in folders]
    for benchmark in benchmarks:
        if not programs.applies(benchmark):
            raise ValueError(f"the runs in {benchmark.folder} wrote no programs")
    if not benchmarks:
        raise ValueError("name the folders of one or more runs")
    analyse("programs", programs.collect(benchmarks), "Programs", benchmarks, output)


def study_credit(folder: Path | None, output: Path, imports: tuple[str, ...] = ()) -> None:
    """Show the case study of credit inside an action, with the critics of a finished benchmark if one is given.

    Raises
    ------
    ValueError
        If the benchmark is not finished, or of another environment.
    """
    benchmarks = [] if folder is None else [Benchmark.finished(folder, imports)]
    analyse("credit", credit.collect(benchmarks), "Credit inside an action", benchmarks, output)


def language_ability(
    folder: Path,
    tasks: Sequence[str],
    include: Path | None,
    limit: int | None,
    output: Path,
    imports: tuple[str, ...] = (),
) -> None:
    """Show what training does to a model's language ability: perplexity, or tasks of the lm-evaluation-harness.

    Raises
    ------
    ImportError
        If tasks are named and the harness is not installed.
    ValueError
        If the benchmark is not finished, has one seed, or no agent with a language model.
    """
    benchmark = Benchmark.finished(folder, imports)
    data = language.collect_tasks(benchmark, tasks, include, limit) if tasks else language.collect([benchmark])
    analyse("language", data, "Language ability", [benchmark], output)
