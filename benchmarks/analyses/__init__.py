"""Analyses of finished runs: what is stored of them, and what is shown of what is stored.

An analysis is a module with three functions. ``applies`` says whether it can analyse a benchmark. ``collect`` reads the
folders of runs and returns plain numbers, which are stored as JSON. ``present`` makes claims, tables and figures from
these numbers alone, so that pages can be worded and drawn anew without the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from matplotlib.figure import Figure

from benchmarks.runs import Benchmark
from benchmarks.tables import Table


@dataclass(frozen=True)
class Drawing:
    """A figure with the last part of its file name and its caption."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Presentation:
    """What a page shows of an analysis."""

    claims: Sequence[str]
    """Sentences that answer the question, with numbers."""
    tables: Sequence[Table]
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = ()
    """How to read the tables."""
    details: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """Headings and longer texts, such as programs."""


class Analysis(Protocol):
    """The protocol of the modules of this package."""

    def applies(self, benchmark: Benchmark) -> bool:
        """Whether the benchmark's runs can be analysed in this way."""

    def collect(self, benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
        """Read runs and return what is stored as JSON; learning curves under the key ``"curves"``."""

    def present(self, data: dict[str, Any]) -> Presentation:
        """Make claims, tables and figures of what :meth:`collect` returned; ``"curves"`` may be missing."""
