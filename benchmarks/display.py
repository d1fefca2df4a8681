"""The live display of a benchmark: a line for each run, read from the files that the runs write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.runs import READ_METRICS, RUN_FILE, Run
from benchmarks.stored import require_numbers
from benchmarks.worker import EVALUATION_FILE
from lang_envs.files import parse_json, read_text
from trainers.metrics import METRICS_FILE

_SECONDS_BETWEEN_LINES = 15.0
_FEW = 12  # runs that fit on a screen
_MAX_LINE = 1_000
_LONGEST_METRICS = 1 << 20


class Display(Progress):
    """Progress bars in a terminal; elsewhere plain lines every 15 seconds.

    With more than 12 runs, it shows those that are running and the progress of all.
    """

    def __init__(self, runs: Sequence[Run], console: Console) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>7,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            speed_estimate_period=20,
        )
        self._few = len(runs) <= _FEW
        self._all = self.add_task("all", total=len(runs), numbers="runs", visible=not self._few)
        self._tasks_of = {
            run: self.add_task(
                escape(self._name(run)),  # rich reads brackets as markup
                total=run.config.run_defaults.steps,
                start=False,
                numbers="waiting",
                visible=self._few,
            )
            for run in runs
        }
        self._done: set[Run] = set()
        self._lines: dict[Run | None, str] = {}
        self._printed: set[str] = set()
        self._last_time = time.monotonic()

    def stop(self) -> None:
        """Show the last state, and end the display."""
        self.show(last=True)
        super().stop()

    def _name(self, run: Run) -> str:
        return run.name if self._few else f"{run.folder.name}: {run.name}"

    def show(self, *, last: bool = False) -> None:
        """Read the progress of every run; with ``last``, print all lines that have changed."""
        for run in [run for run in self._tasks_of if run not in self._done]:
            task, total = self._tasks_of[run], run.config.run_defaults.steps
            if (line := last_metrics(run.path / METRICS_FILE)) is None:
                if (run.path / RUN_FILE).exists():
                    self.update(task, numbers="starting")
                continue
            self.start_task(task)
            if run.finished:
                self._done.add(run)
            completed, numbers = min(line["step"], total), _numbers(run, line)
            self.update(task, completed=completed, numbers=numbers, visible=self._few or run not in self._done)
            self._lines[run] = f"{self._name(run)}: {completed:,}/{total:,} steps, {numbers}"
        self.update(self._all, completed=len(self._done))
        if not self._few:
            self._lines[None] = f"{len(self._done)} of {len(self._tasks_of)} runs done"
        if not self.console.is_terminal and (last or time.monotonic() - self._last_time > _SECONDS_BETWEEN_LINES):
            self._last_time = time.monotonic()
            if new := [line for line in self._lines.values() if line not in self._printed]:
                self.console.print("\n".join(new), highlight=False, markup=False, soft_wrap=True)
            self._printed.update(new)


def _numbers(run: Run, line: dict[str, Any]) -> str:
    """Describe a run whose last metrics are ``line``."""
    if (result := run.result) is not None:
        found = f"return {result['sampled']['return']:+.3f} success {result['sampled']['success']:4.0%} "
        found += "done" if run.finished else evaluation(run)
    else:
        ended = "recent_return" in line
        found = f"return {line['recent_return']:+.3f} " if ended else "no episode has ended yet "
        found += f"success {line['recent_success']:4.0%} " if ended else ""
        over = line["step"] >= run.config.run_defaults.steps
        found += evaluation(run) if over else f"{line['timing']['steps_per_second']:4.0f} steps/s"
    best = f" best {line['best_score']:.4f} (by step {line['best_score_step']:,})" if "best_score_step" in line else ""
    return found + best


def evaluation(run: Run) -> str:
    """Return the progress of a run's evaluation."""
    try:
        return read_text(run.path / EVALUATION_FILE, _MAX_LINE)
    except (OSError, ValueError):  # between two evaluations there is no such file
        return "evaluating"


def last_metrics(path: Path) -> dict[str, Any] | None:
    """Return the last complete line of a file of metrics that is being written; None if there is none."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _LONGEST_METRICS))
        lines = file.read().split(b"\n")
    try:
        found = parse_json(lines[-2], str(path))
        require_numbers(found, ("step", *(found.keys() & READ_METRICS)), str(path))
        require_numbers(found["timing"], ("steps_per_second",), str(path))
    except (AttributeError, IndexError, KeyError, ValueError):  # none yet, or damaged, which resuming reports
        return None
    return found
