"""The live display of a benchmark: a line for each run, read from the metrics that the runs write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from benchmarks.cell import Cell
from benchmarks.config import BenchmarkConfig
from trainers.loop import METRICS_FILE

_SECONDS_BETWEEN_LINES = 15.0


class Display:
    """Bars where there is a terminal; where there is none, a plain line every 15 seconds."""

    def __init__(self, config: BenchmarkConfig, cells: list[Cell], console: Console) -> None:
        self._cells = cells
        self._console = console
        self._steps = config.usual.steps
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>7,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            speed_estimate_period=20,
        )
        self._tasks: dict[Cell, TaskID] = {}
        for cell in cells:
            name = escape(f"{cell.algo} seed {cell.seed}")  # brackets are markup to rich
            self._tasks[cell] = self._progress.add_task(name, total=config.usual.steps, start=False, numbers="waiting")
        self._last_line = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.update()
        self._progress.stop()

    def update(self) -> None:
        """Read how far every run is."""
        plain = []
        for cell, task in self._tasks.items():
            line = _last_metrics(cell.path / METRICS_FILE)
            if line is None:
                continue
            if not self._progress.tasks[task].started:
                self._progress.start_task(task)
            result = cell.result
            if result is None:
                numbers = (
                    f"return {line.get('recent_return', float('nan')):+.3f}  "
                    f"success {line.get('recent_success', 0):4.0%}  {line['timing']['steps_per_second']:4.0f} steps/s"
                )
            else:
                numbers = (
                    f"return {result['sampled']['return']:+.3f}  success {result['sampled']['success']:4.0%}  done"
                )
            if "best_score" in line:
                numbers += f"  best {line['best_score']:.4f} (by step {line['best_score_step']:,})"
            completed = min(line["step"], self._steps)
            self._progress.update(task, completed=completed, numbers=numbers)
            plain.append(f"{cell.algo} seed {cell.seed}: {completed:,}/{self._steps:,} steps, {numbers}")
        due = time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES
        if due and plain and not self._console.is_terminal:
            self._last_line = time.monotonic()
            self._console.print("\n".join(plain), highlight=False, markup=False)


def _last_metrics(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file that is being written to."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8192))
        lines = file.read().split(b"\n")
    return json.loads(lines[-2]) if len(lines) > 1 else None
