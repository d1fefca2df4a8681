"""Pages of results, rendered from stored records: one Markdown page for each, and one HTML page of all."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from benchmarks import figures
from benchmarks.analyses import Presentation
from benchmarks.experiments import EXPERIMENTS, LIMITATIONS_7B
from benchmarks.records import ANALYSES, Record, store_folder, stored_names
from benchmarks.tables import is_number
from lang_envs.files import read_bytes, write_atomically

_MIME = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Picture:
    """A figure's file and caption."""

    file: Path
    caption: str

    @property
    def data(self) -> str:
        """The file as an address that needs no network."""
        return f"data:{_MIME[self.file.suffix]};base64,{base64.b64encode(read_bytes(self.file)).decode()}"


@dataclass(frozen=True)
class Page:
    """What is shown of one record."""

    record: Record
    shown: Presentation
    pictures: Sequence[Picture]

    @property
    def question(self) -> str:
        """The experiment's question; empty for other benchmarks."""
        return EXPERIMENTS[self.record.experiment].question if self.record.experiment else ""

    @property
    def limitations(self) -> str:
        """The experiment's limitations; empty for other benchmarks."""
        if not self.record.experiment:
            return ""
        return LIMITATIONS_7B if self.record.scale == "7b" else EXPERIMENTS[self.record.experiment].limitations

    @property
    def markdown(self) -> str:
        """The page in Markdown."""
        record, shown = self.record, self.shown
        parts = [f"# {record.title}"]
        if record.warning:
            parts.append(f"**Note:** {record.warning}")
        if self.question:
            parts += ["## Question", self.question]
        if shown.claims:
            parts += ["## Answer", "\n".join(f"- {claim}" for claim in shown.claims)]
        if self.pictures:
            parts.append("## Figures")
            parts += [f"![{own.caption}]({own.file.name})\n\n*{own.caption}*" for own in self.pictures]
        parts.append("## Tables")
        parts += [f"**{table.title}**\n\n{table.markdown}" for table in shown.tables]
        parts += ["\n".join(f"- {note}" for note in shown.notes)] if shown.notes else []
        if self.limitations:
            parts += ["## Limitations", self.limitations]
        parts += ["## Reproduce", *([_fenced(record.command)] if record.command else [])]
        parts += ["Made with:", _fenced(record.made_with)] if record.made_with else []
        parts += [f"### {heading}\n\n{_fenced(text.strip())}" for heading, text in shown.details]
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
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / name}.json is damaged, or of another version: {error!r:.200}") from error
    pictures = [
        Picture(figures.save(own.figure, folder / f"{name}-{own.name}.svg"), own.caption) for own in shown.drawings
    ]
    pictures += [Picture(folder / Path(kept.file).name, kept.caption) for kept in record.kept_figures]
    page = Page(record, shown, pictures)
    write_atomically(folder / f"{name}.md", page.markdown)
    return page


def render(folder: Path, output: Path | None = None, names: Sequence[str] = (), title: str = "") -> list[Page]:
    """Render the records of a folder, all or those named, and one HTML page of them if ``output`` is given."""
    pages = [render_page(folder, name) for name in names or stored_names(folder)]
    if output is not None:
        environment = jinja2.Environment(loader=jinja2.PackageLoader("benchmarks"), autoescape=True)
        environment.tests["number"] = is_number
        template = environment.get_template("report.html")
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, template.render(title=title or folder.resolve().name, pages=pages))
    return pages


def write_report(folders: Sequence[Path], output: Path, records: Path, imports: tuple[str, ...] = ()) -> Path:
    """Store the analyses of finished runs, or of the paper's experiments, as records; render them and one HTML page.

    Modules that the folders name are not imported, except ``imports``; for environments of other modules the page has
    no optimal return and no random policy.

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
    stored = [name for folder in folders for name in store_folder(folder, records, imports)]
    if not stored:
        raise ValueError(f"{folders[0]} has no finished runs")
    title = " and ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else "")
    render(records, output, stored, title)
    return output
