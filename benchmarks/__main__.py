"""The command line: ``python -m benchmarks --help``."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from benchmarks.analyses import language
from benchmarks.config import BenchmarkConfig
from benchmarks.paper import PaperConfig, run_paper
from benchmarks.processes import RunFailed, run_all
from benchmarks.records import Record, store, store_after_runs
from benchmarks.report import render, render_page, write_report
from benchmarks.runs import CONFIG_FILE, Benchmark
from benchmarks.stored import one_line
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
    write_atomically(folder / VERSIONS_FILE, "\n".join([COMMAND + _command(), *versions()]) + "\n")
    return _run(Benchmark(config, folder))


def resume(folder: tyro.conf.Positional[Path], allow_import: tuple[str, ...] = ()) -> None:
    """Resume a benchmark that was stopped; finished runs are not repeated. Its options cannot be changed.

    Parameters
    ----------
    folder : Path
        The benchmark's folder.
    allow_import : tuple of str
        Modules of agents and environments that the folder names and that may be imported; their code runs.

    Raises
    ------
    ValueError
        If the folder is not that of a benchmark, or names other modules.
    """
    benchmark = Benchmark.load(folder, allow_import)
    benchmark.check_imports()
    try:
        benchmark.config.check()
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from error
    _run(benchmark)


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


def language_ability(
    run: tyro.conf.Positional[Path],
    tasks: tuple[str, ...] = (),
    include: Path | None = None,
    limit: int | None = None,
    output: Path = Path("runs"),
    allow_import: tuple[str, ...] = (),
) -> None:
    """What training does to a model's language ability: perplexity, or tasks of the lm-evaluation-harness.

    Parameters
    ----------
    run : Path
        Folder of a finished benchmark.
    tasks : tuple of str
        Tasks of the lm-evaluation-harness (default: perplexity of the embedded model on text of the environments).
    include : Path, optional
        Folder with definitions of further tasks.
    limit : int, optional
        Maximum number of examples of each task.
    output : Path
        Where language.md, language.json and the figure are written.
    allow_import : tuple of str
        Modules of agents and environments that the folder names and that may be imported; their code runs.

    Raises
    ------
    ImportError
        If tasks are named and the harness is not installed.
    ValueError
        If the benchmark is not finished, has one seed, or no agent with a language model.
    """
    benchmark = Benchmark.finished(run, allow_import)
    data = language.collect_tasks(benchmark, tasks, include, limit) if tasks else language.collect([benchmark])
    store(output, "language", Record("language", "Language ability", data, command=_command()), [benchmark])
    _show(output, "language", Console())


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])


def main() -> None:
    """Parse the command line and run the command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    commands: dict[str, Any] = {
        "run": BenchmarkConfig,
        "resume": resume,
        "paper": PaperConfig,
        "report": write_report,
        "render": render,
        "language-ability": language_ability,
    }
    try:
        asked: Any = tyro.extras.subcommand_cli_from_dict(  # calls the functions
            commands,
            prog="python -m benchmarks",
            description="Train and compare agents, and show results.",
            config=(tyro.conf.OmitArgPrefixes,),
        )
        if isinstance(asked, BenchmarkConfig):
            run(asked)
        elif isinstance(asked, PaperConfig) and (folder := run_paper(asked)) is not None:
            write_report((folder,))
    except (ValueError, OSError, ImportError, RunFailed) as error:
        # Errors that the user can correct: unknown names, values out of range, missing or damaged files.
        sys.exit(f"error: {one_line(str(error))}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
