"""The command line: ``python -m benchmarks --help``."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.config import BenchmarkConfig
from benchmarks.paper import PaperConfig, run_paper
from benchmarks.processes import RunFailed
from benchmarks.report import render, write_report
from benchmarks.run import language_ability, resume, run, study_credit, tabulate_programs
from benchmarks.stored import one_line


@dataclass(frozen=True)
class ResumeConfig:
    """Resume a benchmark that was stopped; finished runs are not repeated. Its options cannot be changed."""

    folder: tyro.conf.Positional[Path]
    """The benchmark's folder."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that the folder names and that may be imported; their code runs."""


@dataclass(frozen=True)
class ReportConfig:
    """Analyse finished benchmarks, or the paper's experiments: records, Markdown pages, and one HTML page that needs no
    network."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished benchmarks, or of `paper`."""
    output: Path | None = None
    """The HTML page (default: report.html in the first folder)."""
    tables: Path | None = None
    """Folder for records, Markdown pages and figures (default: the page's path without .html)."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that the folders name and that may be imported; their code runs."""


@dataclass(frozen=True)
class RenderConfig:
    """Render pages and figures again from stored records, without the runs."""

    folder: tyro.conf.Positional[Path]
    """A folder of records that `report` wrote, such as benchmarks/results."""
    output: Path | None = None
    """Also write one HTML page of all records."""


@dataclass(frozen=True)
class ProgramsConfig:
    """Show the programs of several benchmarks on one page, with published results."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished benchmarks, one for each data set."""
    output: Path = Path("runs")
    """Where programs.md, programs.json and figures are written."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that the folders name and that may be imported; their code runs."""


@dataclass(frozen=True)
class CreditConfig:
    """Credit inside an action: the paper's case study, from exact values and from trained critics."""

    run: tyro.conf.Positional[Path | None] = None
    """Folder of a finished benchmark in VirtualHome-food-preparation-v0, to show its critics too."""
    output: Path = Path("runs")
    """Where credit.md, credit.json and the figure are written."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that the folder names and that may be imported; their code runs."""


@dataclass(frozen=True)
class LanguageAbilityConfig:
    """What training does to a model's language ability: perplexity, or tasks of the lm-evaluation-harness."""

    run: tyro.conf.Positional[Path]
    """Folder of a finished benchmark."""
    tasks: tuple[str, ...] = ()
    """Tasks of the lm-evaluation-harness (default: perplexity of the embedded model on text of the environments)."""
    include: Path | None = None
    """Folder with definitions of further tasks."""
    limit: int | None = None
    """Maximum number of examples of each task."""
    output: Path = Path("runs")
    """Where language.md, language.json and the figure are written."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that the folder names and that may be imported; their code runs."""


def main() -> None:
    """Parse the command line and run the command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    config = tyro.extras.subcommand_cli_from_dict(
        {
            "run": BenchmarkConfig,
            "resume": ResumeConfig,
            "paper": PaperConfig,
            "report": ReportConfig,
            "render": RenderConfig,
            "programs": ProgramsConfig,
            "credit": CreditConfig,
            "language-ability": LanguageAbilityConfig,
        },
        prog="python -m benchmarks",
        description="Train and compare agents, and show results.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    try:
        if isinstance(config, ResumeConfig):
            resume(config.folder, config.allow_import)
        elif isinstance(config, PaperConfig):
            if (folder := run_paper(config)) is not None:
                _report(ReportConfig((folder,)))
        elif isinstance(config, ReportConfig):
            _report(config)
        elif isinstance(config, RenderConfig):
            render(config.folder, config.output)
        elif isinstance(config, ProgramsConfig):
            tabulate_programs(config.folders, config.output, config.allow_import)
        elif isinstance(config, LanguageAbilityConfig):
            language_ability(config.run, config.tasks, config.include, config.limit, config.output, config.allow_import)
        elif isinstance(config, CreditConfig):
            study_credit(config.run, config.output, config.allow_import)
        else:
            run(config)
    except (ValueError, OSError, ImportError, RunFailed) as error:
        # Errors that the user can correct: unknown names, values out of range, missing or damaged files.
        sys.exit(f"error: {one_line(str(error))}")
    except KeyboardInterrupt:
        sys.exit(130)


def _report(config: ReportConfig) -> None:
    page = config.output or Path(*config.folders[:1], "report.html")
    page = page.with_suffix(page.suffix or ".html")
    tables = config.tables or page.with_suffix("")
    write_report(config.folders, page, tables, config.allow_import)
    print(f"page: {page}\nrecords, Markdown pages and figures: {tables}")


if __name__ == "__main__":
    main()
