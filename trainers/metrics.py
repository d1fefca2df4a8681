"""Metrics of updates, and the file to which a run writes them."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.files import open_regular
from trainers.checkpoint import DamagedRunError

METRICS_FILE = "metrics.jsonl"

logger = logging.getLogger(__name__)


class Metrics:
    """Means of values that are measured several times in one update."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self._values.items()}


class MetricsLog:
    """Writes one line of metrics for each iteration to ``metrics.jsonl``, and to TensorBoard if it is installed.

    Parameters
    ----------
    folder : Path or None
        The folder of the run; None writes nothing.
    size : int
        Bytes of the file at the last checkpoint. Lines after it are removed: the resumed run writes them again.
    step : int
        Environment steps at the last checkpoint.

    Raises
    ------
    DamagedRunError
        If the file is shorter than at the last checkpoint.
    """

    def __init__(self, folder: Path | None, *, size: int = 0, step: int = 0) -> None:
        self._file = None
        self._board = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        file = open_regular(path, "r+b")
        if (found := file.seek(0, os.SEEK_END)) < size:
            file.close()
            raise DamagedRunError(
                f"{path} has lost lines: it has {found:,} bytes, at the last checkpoint it had {size:,}; "
                f"delete {folder} and start the run again"
            )
        file.truncate(size)
        file.seek(size)
        self._file = file
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            logger.info("tensorboard is not installed: metrics are written to %s only", path)
            return
        self._board = SummaryWriter(str(folder), purge_step=step or None)

    def write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        if self._board is not None:
            for name, value in {**line, **line["timing"]}.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, line["step"])

    def flush(self) -> int:
        """Write everything to disk; return the size of the file in bytes."""
        if self._file is None:
            return 0
        if self._board is not None:
            self._board.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
