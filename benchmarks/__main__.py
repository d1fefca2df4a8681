"""``python -m benchmarks run`` compares agents, ``resume`` goes on with a run that was stopped.

``paper`` runs the paper's experiments, and ``report`` puts runs on a page. ``programs`` makes one table of the programs
that several runs wrote, ``credit`` shows where in an action credit goes, and ``language-ability`` what training does to
a model's language.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.config import BenchmarkConfig
from benchmarks.paper import PaperConfig, run_paper
from benchmarks.report import write_report
from benchmarks.run import CellFailed, language_ability, resume, run, study_credit, tabulate_programs
from benchmarks.stored import one_line


@dataclass(frozen=True)
class ResumeConfig:
    """Go on with a run that was stopped; what is finished is not done again."""

    folder: tyro.conf.Positional[Path]
    """The run's folder."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that may be imported because the run names them; their code runs."""


@dataclass(frozen=True)
class ProgramsConfig:
    """One table of the programs that several runs wrote, beside published numbers."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """The runs' folders, one for each data set."""
    output: Path = Path("runs")
    """Where programs.md and programs.json are written."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that may be imported because a run names them; their code runs."""


@dataclass(frozen=True)
class CreditConfig:
    """Where credit goes inside an action: the paper's case study, from exact values and from trained critics."""

    run: tyro.conf.Positional[Path | None] = None
    """The folder of a finished run in VirtualHome-food-preparation-v0, whose critics are asked too."""
    output: Path = Path("runs")
    """Where credit.md, credit.json and credit.png are written."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that may be imported because the run names them; their code runs."""


@dataclass(frozen=True)
class LanguageAbilityConfig:
    """What training did to a model's language: perplexity of the embedded model, or tasks of the
    lm-evaluation-harness."""

    run: tyro.conf.Positional[Path]
    """The folder of a finished run."""
    tasks: tuple[str, ...] = ()
    """Names of tasks that the harness knows; without any, perplexity on text of the environments (the embedded model)."""
    include: Path | None = None
    """A folder with definitions of further tasks."""
    limit: int | None = None
    """At most this many examples of each task."""
    output: Path = Path("runs")
    """Where language-ability.md and language-ability.json are written."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that may be imported because the run names them; their code runs."""


@dataclass(frozen=True)
class ReportConfig:
    """One HTML page of finished runs, or of the paper's experiments; it needs no network."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Their folders."""
    output: Path | None = None
    """The page (default: report.html in the first folder)."""
    tables: Path | None = None
    """Where texts, tables, pictures and a line of each run are kept too (default: a folder beside the page, of its
    name without the suffix)."""
    allow_import: tuple[str, ...] = ()
    """Modules of agents and environments that may be imported because a run names them; their code runs."""


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    config = tyro.extras.subcommand_cli_from_dict(
        {
            "run": BenchmarkConfig,
            "resume": ResumeConfig,
            "paper": PaperConfig,
            "report": ReportConfig,
            "programs": ProgramsConfig,
            "credit": CreditConfig,
            "language-ability": LanguageAbilityConfig,
        },
        prog="python -m benchmarks",
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
        elif isinstance(config, ProgramsConfig):
            tabulate_programs(config.folders, config.output, config.allow_import)
        elif isinstance(config, LanguageAbilityConfig):
            language_ability(config.run, config.tasks, config.include, config.limit, config.output, config.allow_import)
        elif isinstance(config, CreditConfig):
            study_credit(config.run, config.output, config.allow_import)
        else:
            run(config)
    except (ValueError, OSError, ImportError, CellFailed) as error:
        # What a user can mend: an unknown name, a value out of range, a file that is not there or cannot be written.
        sys.exit(f"error: {one_line(str(error))}")
    except KeyboardInterrupt:
        sys.exit(130)


def _report(config: ReportConfig) -> None:
    page = config.output or Path(*config.folders[:1], "report.html")
    page = page.with_suffix(page.suffix or ".html")
    tables = config.tables or page.with_suffix("")
    write_report(config.folders, page, tables, config.allow_import)
    print(f"page: {page}\ntexts, tables and pictures: {tables}")


if __name__ == "__main__":
    main()
