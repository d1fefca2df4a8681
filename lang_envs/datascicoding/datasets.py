"""Data sets as arrays of numbers: looked up on this machine, and pruned to at most 2000 rows."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.datascicoding.catalog import DATASETS, DatasetEntry, find
from lang_envs.datascicoding.fetching import cache_folder, cached, fetch, fetch_command
from lang_envs.datascicoding.generated import GENERATED, generated_table
from lang_envs.datascicoding.pruning import prune
from lang_envs.datascicoding.tables import Column, Table, read_table
from lang_envs.files import at_home

__all__ = ["DATASETS", "Dataset", "DatasetEntry", "fetch", "find", "load_dataset", "place_of"]


_TITLE_CHARACTERS = 100


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table of numbers and a class for each row.

    Parameters
    ----------
    name : str
        Name for programs.
    title : str
        Public name: one line of at most 100 characters.
    x : float64 array of shape ``(rows, features)``
        Finite numbers; becomes read-only.
    y : int64 array of shape ``(rows,)``
        Classes 0, 1, …, at least two; becomes read-only.

    Raises
    ------
    ValueError
        If an argument has another form.
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
        if len(self.title) > _TITLE_CHARACTERS or not self.title.isprintable():
            raise ValueError(
                f"{self.name}: the title must be one line of at most {_TITLE_CHARACTERS} characters, not "
                f"{self.title[:120]!r}"
            )
        for name, array in (("x", np.ascontiguousarray(x)), ("y", np.ascontiguousarray(y))):
            array = array.copy() if array.flags.writeable else array
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # copies and pickles of read-only arrays are writable

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; equal for data sets with equal arrays."""
        content = hashlib.sha256(f"{self.x.shape}".encode())
        content.update(self.x.tobytes())
        content.update(self.y.tobytes())
        return content.hexdigest()[:16]


def load_dataset(name: str) -> Dataset:
    """Load a data set from this machine; nothing is downloaded.

    The data set is pruned: rows with a missing value and columns of identifiers are dropped, categories become
    integers, rows are shuffled with a fixed seed, and at most 2000 rows are kept. The rows of an unregistered data set
    then get an order that depends on all values and labels.

    The places are searched in this order:

    1. the folder ``LANG_ENVS_DATA_DIR`` and its subfolders, for ``<name>.arff`` or ``<name>.csv``,
    2. the cache (see :func:`fetch`),
    3. the rule of a generated data set,
    4. scikit-learn.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``, or ``"openml:61"``, ``"kaggle:owner/name?file=a.csv&target=label"``,
        ``"csv:path?target=label&drop=id"``, ``"sklearn:wine"``.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError
        If the data set is not on this machine; the message names the searched places and the command that downloads it.
    ValueError
        If there is no such data set, or its file is invalid; the message names the file and the line or column.
    ImportError
        If it belongs to scikit-learn, and scikit-learn is not installed.
    """
    place, path, entry = _locate(find(name))
    if place is None:
        folder = os.environ.get("LANG_ENVS_DATA_DIR") or "(not set)"
        raise FileNotFoundError(
            f"the data set {entry.name} is not on this machine. Searched: the folder LANG_ENVS_DATA_DIR {folder} for "
            f"{entry.stem}.arff or {entry.stem}.csv, and the cache {cache_folder()}. To download it, run: "
            f"{fetch_command(name)}"
        )
    if path is None:
        return load_entry(entry, place, None, ())
    file = path.stat()
    return load_entry(entry, place, path.resolve(), (file.st_ino, file.st_ctime_ns, file.st_mtime_ns, file.st_size))


@functools.lru_cache(maxsize=16)
def load_entry(entry: DatasetEntry, place: str, path: Path | None, version: tuple[int, ...]) -> Dataset:
    """Load and prune a data set; environments share the result until ``version``, the state of the file, changes."""
    if path is not None:
        table = read_table(path)
    else:
        table = generated_table(entry.name) if place == "generated" else _shipped(entry)
    x, y = prune(table, entry)
    if entry.name not in DATASETS:
        # An order that cannot be computed without all labels: if a file is sorted by class and features, its own order
        # tells labels. Registered data sets keep their order, because published scores depend on it.
        content = hashlib.sha256(x.tobytes() + y.tobytes()).digest()
        order = np.random.default_rng(int.from_bytes(content, "big")).permutation(len(y))
        x, y = x[order], y[order]
    return Dataset(entry.name, entry.title, x, y)


def place_of(name: str) -> str | None:
    """Return where :func:`load_dataset` finds a data set.

    Returns
    -------
    str or None
        ``"data folder"``, ``"cache"``, ``"generated"``, ``"scikit-learn"``, ``"file"``; None if it is not on this
        machine.

    Raises
    ------
    ValueError
        If there is no such data set, or its file in the cache is damaged.
    FileNotFoundError
        If it is a file that does not exist.
    """
    return _locate(find(name))[0]


def _locate(entry: DatasetEntry) -> tuple[str | None, Path | None, DatasetEntry]:
    if entry.kind == "csv":
        path = at_home(entry.address)
        if not path.is_file():
            raise FileNotFoundError(f"the file {path} of the data set {entry.name} does not exist")
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


def _in_data_folder(entry: DatasetEntry) -> Path | None:
    given = os.environ.get("LANG_ENVS_DATA_DIR")
    if not given:
        return None
    folder = at_home(given)
    if not folder.is_dir():
        raise FileNotFoundError(f"LANG_ENVS_DATA_DIR is {given}, but this folder does not exist")
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [place / f"{entry.stem}{suffix}" for place in (folder, *inner) for suffix in (".arff", ".csv")]
    return next((file for file in files if file.is_file()), None)


def _shipped(entry: DatasetEntry) -> Table:
    try:
        from sklearn import datasets
    except ImportError:
        raise ImportError(f"the data set {entry.name} needs scikit-learn. Run: pip install 'lang-envs[data]'") from None
    found = getattr(datasets, f"load_{entry.address}")()
    columns = (*(Column(str(name), number=True) for name in found.feature_names), Column("target", number=True))
    rows = np.column_stack((found.data, found.target)).tolist()
    return Table(f"scikit-learn's {entry.address}", columns, ((k, list(map(repr, row))) for k, row in enumerate(rows)))
