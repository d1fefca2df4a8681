"""The command line: ``python -m benchmarks --help``."""

from __future__ import annotations

import logging
import sys

import tyro

from benchmarks.config import BenchmarkConfig
from benchmarks.paper import PaperConfig, run_paper
from benchmarks.processes import RunFailed
from benchmarks.report import render, write_report
from benchmarks.run import language_ability, resume, run
from benchmarks.stored import one_line


def main() -> None:
    """Parse the command line and run the command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    commands = {
        "run": BenchmarkConfig,
        "resume": resume,
        "paper": PaperConfig,
        "report": write_report,
        "render": render,
        "language-ability": language_ability,
    }
    try:
        asked = tyro.extras.subcommand_cli_from_dict(  # calls the functions
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
