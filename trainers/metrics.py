"""Metrics of an update."""

from __future__ import annotations

import numpy as np


class Metrics:
    """Means of values that are measured several times in one update."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self._values.items()}
