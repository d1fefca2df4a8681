"""Pages of results, rendered from stored records: one Markdown page for each, and one HTML page of all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2
import tyro

from benchmarks import figures
from benchmarks.analyses import Presentation, is_number
from benchmarks.experiments import EXPERIMENTS, LIMITATIONS_7B
from benchmarks.records import ANALYSES, Picture, Record, store_folders, stored_names
from benchmarks.stored import in_markdown
from lang_envs.files import refuse_irregular, write_atomically
from trainers.checkpoint import is_checkpoint_link


@dataclass(frozen=True)
class Page:
    """What is shown of one record."""

    record: Record
    shown: Presentation
    pictures: Sequence[Picture]

    question: str = ""
    """The experiment's question; empty for other benchmarks."""
    limitations: str = ""

    @property
    def markdown(self) -> str:
        """The page in Markdown."""
        record, shown = self.record, self.shown
        parts = [f"# {in_markdown(record.title)}"]
        if record.warning:
            parts.append(f"**Note:** {in_markdown(record.warning)}")
        if self.question:
            parts += ["## Question", self.question]
        if shown.claims:
            parts += ["## Answer", "\n".join(f"- {in_markdown(claim)}" for claim in shown.claims)]
        if self.pictures:
            parts.append("## Figures")
            named = [(in_markdown(own.caption), quote(own.file.name)) for own in self.pictures]
            parts += [f"![{caption}]({file})\n\n*{caption}*" for caption, file in named]
        parts.append("## Tables")
        parts += [f"**{in_markdown(table.title)}**\n\n{table.markdown}" for table in shown.tables]
        parts += ["\n".join(f"- {in_markdown(note)}" for note in shown.notes)] if shown.notes else []
        if self.limitations:
            parts += ["## Limitations", self.limitations]
        parts += ["## Reproduce", *([_fenced(record.command)] if record.command else [])]
        parts += ["Made with:", _fenced(record.made_with)] if record.made_with else []
        parts += [f"### {in_markdown(heading)}\n\n{_fenced(text.strip())}" for heading, text in shown.details]
        return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    """A code block in Markdown that programs cannot end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def render_page(folder: Path, name: str) -> Page:
    """Render one record of a folder: its Markdown page and its figures as SVG.

    Raises
    ------
    ValueError
        If the record is damaged; names it.
    """
    record = Record.load(folder, name)
    try:
        shown = ANALYSES[record.analysis].present(record.data)
        pictures = [
            Picture(figures.save(own.figure, folder / f"{name}-{own.name}.svg"), own.caption) for own in shown.drawings
        ]
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / name}.json is damaged, or of another version: {error!r:.200}") from error
    pictures += [Picture(folder / kept.file.name, kept.caption) for kept in record.kept_figures]
    page = Page(record, shown, pictures)
    if record.experiment:
        experiment = EXPERIMENTS[record.experiment]
        limitations = LIMITATIONS_7B if record.scale == "7b" else experiment.limitations
        page = Page(record, shown, pictures, experiment.question, limitations)
    write_atomically(folder / f"{name}.md", page.markdown)
    return page


def render(folder: tyro.conf.Positional[Path], output: Path | None = None) -> None:
    """Render pages and figures again from stored records, without the runs.

    Parameters
    ----------
    folder : Path
        A folder of records that ``report`` wrote, such as benchmarks/results.
    output : Path, optional
        Also write one HTML page of all records.

    Raises
    ------
    ValueError
        If the folder has no records, contains links or other things that are no regular files, or a record is damaged.
    """
    refuse_irregular(folder, is_checkpoint_link)
    names = stored_names(folder)
    pages = [render_page(folder, name) for name in names]
    print("pages: " + " ".join(str(folder / f"{name}.md") for name in names))
    if output is not None:
        _write_html(output, folder.resolve().name, pages)
        print(f"HTML page: {output}")


def write_report(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    output: Path | None = None,
    tables: Path | None = None,
    allow_import: tuple[str, ...] = (),
) -> Path:
    """Analyse finished benchmarks, or the paper's experiments: records, Markdown pages, and one HTML page that needs no
    network.

    Parameters
    ----------
    folders : tuple of Path
        Folders of finished benchmarks, or of paper.
    output : Path, optional
        The HTML page (default: report.html in the first folder).
    tables : Path, optional
        Folder for records, Markdown pages and figures (default: the page's path without .html).
    allow_import : tuple of str
        Modules of agents and environments that the folders name and that may be imported; their code runs. For
        environments of other modules the page has no optimal return and no random policy.

    Raises
    ------
    ValueError
        If a folder has no runs, a run is not finished, or two folders have the same name.
    """
    if not folders:
        raise ValueError("name the folders of one or more runs")
    names = [folder.resolve().name for folder in folders]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two folders have the same name: {', '.join(sorted(twice))}")
    output = output or folders[0] / "report.html"
    output = output.with_suffix(output.suffix or ".html")
    tables = tables or output.with_suffix("")
    stored = store_folders(folders, tables, allow_import)
    if not stored:
        raise ValueError(f"{folders[0]} has no finished runs")
    title = " and ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else "")
    _write_html(output, title, [render_page(tables, name) for name in stored])
    print(f"page: {output}\nrecords, Markdown pages and figures: {tables}")
    return output


def _write_html(output: Path, title: str, pages: Sequence[Page]) -> None:
    environment = jinja2.Environment(loader=jinja2.PackageLoader("benchmarks"), autoescape=True)
    environment.tests["number"] = is_number
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, environment.get_template("report.html").render(title=title, pages=pages))
