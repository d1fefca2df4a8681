"""The live display of a benchmark: a line for each run, read from the files that the runs write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from benchmarks.runs import RUN_FILE, Run
from benchmarks.stored import require_numbers
from benchmarks.worker import EVALUATION_FILE
from lang_envs.files import parse_json, read_text
from trainers.metrics import METRICS_FILE

_SECONDS_BETWEEN_LINES = 15.0
_FEW = 12  # runs that fit on a screen
_MAX_LINE = 1_000


class Display:
    """Progress bars in a terminal; elsewhere plain lines every 15 seconds.

    With more than 12 runs, it shows those that are running and the progress of all.
    """

    def __init__(self, runs: Sequence[Run], console: Console) -> None:
        self._console = console
        self._progress = Progress(
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
        self._all = self._progress.add_task("all", total=len(runs), numbers="runs", visible=not self._few)
        self._tasks: dict[Run, TaskID] = {}
        self._shares: dict[Run, float] = {}
        for run in runs:
            self._tasks[run] = self._progress.add_task(
                escape(self._name(run)),  # rich reads brackets as markup
                total=run.config.run_defaults.steps,
                start=False,
                numbers="waiting",
                visible=self._few,
            )
        self._started = self._last_time = time.monotonic()
        self._shown: list[str] = []
        self._share_at_start: float | None = None

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.update(last=True)
        self._progress.stop()

    def _name(self, run: Run) -> str:
        return run.name if self._few else f"{run.folder.name}: {run.name}"

    def update(self, *, last: bool = False) -> None:
        """Read the progress of every run; with ``last``, print all lines that have changed."""
        plain = []
        for run, task in self._tasks.items():
            if self._shares.get(run) == 1 and not self._few:
                continue
            line = last_metrics(run.path / METRICS_FILE)
            if line is None:
                if (run.path / RUN_FILE).exists():
                    self._progress.update(task, numbers="starting")
                continue
            if not self._progress.tasks[task].started:
                self._progress.start_task(task)
            result = run.result
            if result is None:
                ended = "recent_return" in line
                numbers = f"return {line['recent_return']:+.3f} " if ended else "no episode has ended yet "
                numbers += f"success {line['recent_success']:4.0%} " if ended else ""
                over = line["step"] >= run.config.run_defaults.steps
                numbers += evaluation(run) if over else f"{line['timing']['steps_per_second']:4.0f} steps/s"
            else:
                numbers = f"return {result['sampled']['return']:+.3f} success {result['sampled']['success']:4.0%} "
                numbers += "done" if run.finished else evaluation(run)
            if "best_score_step" in line:
                numbers += f" best {line['best_score']:.4f} (by step {line['best_score_step']:,})"
            total = run.config.run_defaults.steps
            completed = min(line["step"], total)
            self._shares[run] = 1 if run.finished else 0.99 * completed / total
            self._progress.update(
                task, completed=completed, numbers=numbers, visible=self._few or self._shares[run] < 1
            )
            plain.append(f"{self._name(run)}: {completed:,}/{total:,} steps, {numbers}")
        plain.append(self._overall())
        due = time.monotonic() - self._last_time > _SECONDS_BETWEEN_LINES
        if (due or last) and not self._console.is_terminal:
            self._last_time = time.monotonic()
            new = [line for line in plain if line and line not in self._shown]
            self._shown = plain
            if new:
                self._console.print("\n".join(new), highlight=False, markup=False, soft_wrap=True)

    def _overall(self) -> str:
        """The number of finished runs, and the expected time of the others."""
        if self._few:
            return ""
        share, done = sum(self._shares.values()), sum(share == 1 for share in self._shares.values())
        if self._share_at_start is None:
            self._share_at_start = share
        gained, left = share - self._share_at_start, len(self._tasks) - share
        seconds = (time.monotonic() - self._started) * left / gained if gained > 0 else None
        estimate = "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
        self._progress.update(self._all, completed=share)
        return f"{done} of {len(self._tasks)} runs done {estimate}"


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
        size, lines = file.seek(0, 2), list[bytes]()
        for read in (1 << 13, 1 << 20):  # lines may be long
            file.seek(max(0, size - read))
            lines = file.read().split(b"\n")
            if len(lines) > 2 or read >= size:
                break
    try:
        found = parse_json(lines[-2], str(path))
        require_numbers(found, ("step", *(found.keys() - {"timing", "sandbox"})), str(path))
        require_numbers(found["timing"], ("steps_per_second",), str(path))
    except (AttributeError, IndexError, KeyError, ValueError):  # none yet, or damaged, which resuming reports
        return None
    return found
