"""Data sets for programs to learn from: small tables of numbers, found where they are and always pruned alike."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.datascicoding.catalog import DATASETS, Entry, find
from lang_envs.datascicoding.fetching import cache_folder, cached, fetch, fetch_command
from lang_envs.datascicoding.generated import GENERATED, generated_table
from lang_envs.datascicoding.pruning import prune
from lang_envs.datascicoding.tables import Column, Table, read_table
from lang_envs.files import at_home

__all__ = ["DATASETS", "Dataset", "Entry", "fetch", "find", "load_dataset", "place_of"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table of numbers and a class for each row.

    ``x`` is float64 of shape ``(rows, features)``, ``y`` int64 of shape ``(rows,)`` with classes from 0; both are
    read-only. ``title`` is the name for people, a line of at most 100 characters.

    Raises
    ------
    ValueError
        If the arrays are not such a table.
    """

    name: str
    title: str
    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        x, y = np.asarray(self.x), np.asarray(self.y)
        if x.dtype != np.float64 or x.ndim != 2 or not np.isfinite(x).all():
            raise ValueError(f"{self.name}: x must be finite float64 numbers (rows, features), not {x.dtype} {x.shape}")
        if y.dtype != np.int64 or y.shape != x.shape[:1]:
            raise ValueError(f"{self.name}: y must be int64 of shape ({len(x)},), not {y.dtype} {y.shape}")
        classes = np.unique(y).tolist()
        if len(classes) < 2 or classes != list(range(len(classes))):
            raise ValueError(f"{self.name}: the classes in y must be 0, 1, … and at least two, not {classes[:10]}")
        if len(self.title) > 100 or not self.title.isprintable():
            raise ValueError(f"{self.name}: the title must be one line of at most 100 characters: {self.title[:120]!r}")
        for name, array in (("x", np.ascontiguousarray(x)), ("y", np.ascontiguousarray(y))):
            array = array.copy() if array.flags.writeable else array
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # copies and pickles of arrays can be written to

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell whether two sets hold the same numbers."""
        content = hashlib.sha256(f"{self.x.shape}".encode())
        content.update(self.x.tobytes())
        content.update(self.y.tobytes())
        return content.hexdigest()[:16]


def load_dataset(name: str) -> Dataset:
    """A data set of the table, or one of your own, pruned; nothing is downloaded.

    Rows with a missing value and identifiers are dropped, categories become integers, rows are shuffled with a fixed
    seed, and at most 2000 are kept. Rows of a set that is not in the table are then put into an order that follows from
    all of their values and labels. A set is taken from the first place that has it: the folder
    ``LANG_ENVS_DATA_DIR`` (``<name>.arff`` or ``<name>.csv``, also one folder down), the cache (see `fetch`), the rule
    it follows from, scikit-learn.

    Parameters
    ----------
    name
        A key of `DATASETS`, or ``"openml:61"``, ``"kaggle:owner/name?file=a.csv&target=label"``,
        ``"csv:path?target=label&drop=id"``, ``"sklearn:wine"``.

    Raises
    ------
    FileNotFoundError
        If the set is nowhere on this machine; the error says where it was looked for and what fetches it.
    ValueError
        If there is no such set, or its file can't be used; the error names the file and the line or column.
    ImportError
        If a set of scikit-learn is asked for and scikit-learn is not installed.
    """
    place, path, entry = _locate(find(name))
    if place is None:
        folder = os.environ.get("LANG_ENVS_DATA_DIR") or "(not set)"
        raise FileNotFoundError(
            f"the data set {entry.name} is not on this machine. It was looked for in the folder LANG_ENVS_DATA_DIR "
            f"{folder}, as {entry.stem}.arff or {entry.stem}.csv, and in the cache {cache_folder()}. "
            f"To fetch it: {fetch_command(name)}"
        )
    if path is None:
        return _load(entry, place, None, ())
    file = path.stat()
    return _load(entry, place, path.resolve(), (file.st_ino, file.st_ctime_ns, file.st_mtime_ns, file.st_size))


@functools.lru_cache(maxsize=16)
def _load(entry: Entry, place: str, path: Path | None, version: tuple[int, ...]) -> Dataset:
    """Environments side by side share one set; a file that has changed since is read again."""
    if path is not None:
        table = read_table(path)
    else:
        table = generated_table(entry.name) if place == "generated" else _shipped(entry)
    x, y = prune(table, entry)
    if entry.name not in DATASETS:
        # In an order that nobody can compute who does not know all labels: where a file is sorted by class and by
        # features, its own order tells labels. The sets of the table keep theirs, with which scores are published.
        content = hashlib.sha256(x.tobytes() + y.tobytes()).digest()
        order = np.random.default_rng(int.from_bytes(content, "big")).permutation(len(y))
        x, y = x[order], y[order]
    return Dataset(entry.name, entry.title, x, y)


def place_of(name: str) -> str | None:
    """Where `load_dataset` takes a set from: data folder, cache, generated, scikit-learn, file; None is nowhere."""
    return _locate(find(name))[0]


def _locate(entry: Entry) -> tuple[str | None, Path | None, Entry]:
    if entry.kind == "csv":
        path = at_home(entry.address)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path} for the data set {entry.name}")
        return "file", path, entry
    if own := _in_data_folder(entry):
        return "data folder", own, entry
    if found := cached(entry):
        return "cache", found[0], found[1]
    if entry.name in GENERATED:
        return "generated", None, entry
    if entry.kind == "sklearn":
        return "scikit-learn", None, entry
    return None, None, entry


def _in_data_folder(entry: Entry) -> Path | None:
    given = os.environ.get("LANG_ENVS_DATA_DIR")
    if not given:
        return None
    folder = at_home(given)
    if not folder.is_dir():
        raise FileNotFoundError(f"LANG_ENVS_DATA_DIR is {given}, but there is no such folder")
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [place / f"{entry.stem}{suffix}" for place in (folder, *inner) for suffix in (".arff", ".csv")]
    return next((file for file in files if file.is_file()), None)


def _shipped(entry: Entry) -> Table:
    try:
        from sklearn import datasets
    except ImportError:
        raise ImportError(f"the data set {entry.name} needs scikit-learn: pip install 'lang-envs[data]'") from None
    found = getattr(datasets, f"load_{entry.address}")()
    columns = (*(Column(str(name), number=True) for name in found.feature_names), Column("target", number=True))
    rows = np.column_stack((found.data, found.target)).tolist()
    return Table(f"scikit-learn's {entry.address}", columns, ((k, list(map(repr, row))) for k, row in enumerate(rows)))
