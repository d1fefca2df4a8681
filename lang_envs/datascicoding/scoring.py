"""Scoring of programs: each one runs in the sandbox on five splits; its probabilities are scored in this process.

The labels of a test half never leave this process. The sandbox returns only numbers, which are checked before use.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import queue
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from lang_envs.datascicoding.datasets import Dataset
from lang_envs.files import at_home, is_number, read_object, write_atomically
from lang_envs.sandbox import Limits, Result, shared_sandbox
from lang_envs.storage import storable

REPETITIONS = 5
"""Number of splits."""
_VERSION = 2
"""Version of the scoring. A cached score of another version is not used."""
_SCORES_CACHED = 20_000
_RANGE_TOLERANCE = 1e-5
"""Probabilities may be outside of 0 to 1 by so much."""
RUN = """
model = build_model(inputs["x_train"], inputs["y_train"])
output = model.predict_proba(inputs["x_test"])
"""
"""Appended to a definition of ``build_model`` in the sandbox."""


@storable
@dataclass(frozen=True)
class Score:
    """The score of a program: mean and standard deviation of its ROC AUC over the splits; or the error."""

    mean: float | None
    std: float | None
    error: str
    status: str

    @property
    def works(self) -> bool:
        """Whether there is a score."""
        return self.mean is not None

    @property
    def certain(self) -> bool:
        """Whether another run would give the same; after a timeout, the machine may have been busy."""
        return self.status not in ("timeout", "cpu limit")


@dataclass(frozen=True)
class Split:
    """A data set in two halves."""

    inputs: dict[str, np.ndarray]
    """``x_train``, ``y_train`` and ``x_test``, which the program gets."""
    y_test: np.ndarray
    """Labels of the test half, which it does not get."""


def split(dataset: Dataset, seed: int) -> Split:
    """Return a random split into halves, not stratified.

    The halves and the order of the training rows are those of ``sklearn.model_selection.train_test_split`` with this
    seed. The test rows are sorted by their values, because the random order is public: a program that knows the seed
    could compute the place of each test row in the file, and files are often sorted by class. The order of equal rows
    depends on a hash of the whole data set with its labels, so it cannot be computed without all labels.

    Parameters
    ----------
    dataset : Dataset
    seed : int

    Raises
    ------
    ValueError
        If a class is missing from a half, so no program could be scored.
    """
    order = np.random.RandomState(seed).permutation(len(dataset.y))
    tested = math.ceil(len(order) / 2)
    test, train = order[:tested], order[tested:]
    classes = np.unique(dataset.y)
    for name, half in (("training", train), ("test", test)):
        if len(np.unique(dataset.y[half])) != len(classes):
            rare = sorted({*classes} - {*dataset.y[half]})[0]
            raise ValueError(
                f"{dataset.name}: class {rare} has too few rows: it is missing from the {name} half of the split with "
                f"seed {seed}. Use a data set with more rows of each class"
            )
    test = test[_order_of_values(dataset.x[test], _tie_breakers(dataset, seed, tested))]
    inputs = {"x_train": dataset.x[train], "y_train": dataset.y[train], "x_test": dataset.x[test]}
    return Split(inputs, dataset.y[test])


def _order_of_values(x: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Return the order that sorts rows by the first column, then by the second, and so on; equal rows by ``ties``."""
    return np.lexsort((ties, *x.T[::-1]))


def _tie_breakers(dataset: Dataset, seed: int, rows: int) -> np.ndarray:
    secret = hashlib.sha256(f"order of equal test rows, split {seed}".encode())
    secret.update(dataset.x.tobytes())
    secret.update(dataset.y.tobytes())
    return np.random.default_rng(int.from_bytes(secret.digest(), "big")).random(rows)


def roc_auc(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the area under the ROC curve, as ``sklearn.metrics.roc_auc_score`` computes it.

    Parameters
    ----------
    labels : int array (rows,)
        Classes from 0, each present.
    probabilities : float64 array (rows, classes)
        For two classes, the second column counts. For more, the result is the mean over all ordered pairs of classes
        (one against one; Hand and Till, 2001).
    """
    classes = probabilities.shape[1]
    if classes == 2:
        return _binary_auc(labels == 1, probabilities[:, 1])
    areas = []
    for a in range(classes):
        for b in range(a + 1, classes):
            pair = (labels == a) | (labels == b)
            areas += [_binary_auc(labels[pair] == c, probabilities[pair, c]) for c in (a, b)]
    return float(np.mean(areas))


def _binary_auc(positive: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of pairs in which the positive has the higher score than the negative; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(positive.sum())
    wins = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * (len(positive) - positives)))


def check_probabilities(output: np.ndarray, rows: int, classes: int) -> str:
    """Return why an array is not a matrix of probabilities of shape (rows, classes); empty if it is one."""
    if output.shape != (rows, classes):
        return f"predict_proba must give shape ({rows}, {classes}), not {output.shape}"
    if output.min() < -_RANGE_TOLERANCE or output.max() > 1 + _RANGE_TOLERANCE:
        return f"probabilities must lie between 0 and 1, not {output.min():.4g} and {output.max():.4g}"
    if classes > 2 and not np.allclose(output.sum(axis=1), 1):
        return "the probabilities of a row must sum to one"
    return ""


def kept_score(file: Path) -> Score | None:
    """Return a score from the cache; None if the file is missing or its content cannot be a score."""
    try:
        score = Score(**read_object(file, "mean", "std", "error", "status"))
    except (OSError, ValueError, TypeError):  # missing, incomplete after a crash of the machine, or forged
        return None
    numbers, texts = (score.mean, score.std), (score.error, score.status)
    works = all(is_number(value) and 0 <= (value or 0) <= 1 for value in numbers) and texts == ("", "ok")
    fails = numbers == (None, None) and all(isinstance(text, str) and text for text in texts) and score.status != "ok"
    return score if works or (fails and score.certain) else None


class Scorer:
    """Scores programs on one data set, and caches the scores.

    Parameters
    ----------
    dataset : Dataset
    limits : Limits
        ``wall_seconds`` is the limit for all splits together.
    sandbox : str
        Mode of the sandbox, ``"auto"`` or ``"process"``.
    max_workers : int
        Number of programs that run at the same time.
    cache_dir : str, optional
        Folder in which scores are kept for other processes.

    Raises
    ------
    ValueError
        If a class has too few rows, see :func:`split`.
    lang_envs.sandbox.SandboxError
        If this machine cannot isolate programs.
    """

    def __init__(
        self, dataset: Dataset, limits: Limits, sandbox: str, max_workers: int, cache_dir: str | None = None
    ) -> None:
        self.owner = os.getpid()
        self._splits = [split(dataset, seed) for seed in range(REPETITIONS)]
        self._classes = len(np.unique(dataset.y))
        self._limits = limits
        self._sandbox = shared_sandbox(sandbox, max_workers)
        self._threads = _Threads(max_workers)
        self._lock = threading.Lock()
        self.scores: OrderedDict[str, Future[Score]] = OrderedDict()
        """The cache in memory, by a hash of program, data set, limits and versions."""
        self._folder = None if cache_dir is None else at_home(cache_dir)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        versions = [platform.python_version(), *(metadata.version(name) for name in ("numpy", "scipy", "scikit-learn"))]
        self._identity = json.dumps(
            [_VERSION, dataset.fingerprint, asdict(limits), self._sandbox.tier, REPETITIONS, versions]
        )
        weakref.finalize(self, self._threads.end)

    @property
    def tier(self) -> str:
        """The tier of the sandbox."""
        return self._sandbox.tier

    def submit(self, function: str) -> Future[Score]:
        """Score a definition of ``build_model`` in the background.

        Returns
        -------
        Future of Score
            For the same program, the same future. It raises :class:`lang_envs.sandbox.SandboxError` if the sandbox
            failed. Such failures and timeouts are not cached.
        """
        key = hashlib.sha256(f"{self._identity}\n{function}".encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            if (known := self.scores.get(key)) is not None:
                self.scores.move_to_end(key)
                return known
            future = self.scores[key] = self._threads.submit(self._score, key, function)
            if len(self.scores) > _SCORES_CACHED:
                self.scores.popitem(last=False)
        return future

    def _score(self, key: str, function: str) -> Score:
        """Look up or run; what must not be cached leaves the cache before the future has a result."""
        try:
            score = self._look_up_or_run(key, function)
        except BaseException:
            self.forget(key)
            raise
        if not score.certain:
            self.forget(key)
        return score

    def forget(self, key: str) -> None:
        """Remove a score from the cache in memory."""
        with self._lock:
            self.scores.pop(key, None)

    def _look_up_or_run(self, key: str, function: str) -> Score:
        file = None if self._folder is None else self._folder / key[:2] / f"{key}.json"
        if file is not None and (kept := kept_score(file)) is not None:
            return kept
        score = self._run(function)
        if file is not None and score.certain:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, json.dumps(asdict(score)))
            except OSError as error:
                warnings.warn(f"a score could not be written to {self._folder}: {error}", stacklevel=2)
        return score

    def _run(self, function: str) -> Score:
        areas = []
        left = self._limits.wall_seconds
        for number, part in enumerate(self._splits):
            # The generators of the program have the number of the split as their seed; the order of test rows follows
            # neither from it nor from the seed of the split. The limit of processor time is the same for each split,
            # because a program can read it: the time that is left would tell how long the last split took.
            limits = replace(self._limits, wall_seconds=left)
            result = self._sandbox.run(function + "\n" + RUN, part.inputs, limits, seed=number)
            error, status = self._judge(result, len(part.y_test))
            if error:
                return Score(None, None, error, status)
            assert result.output is not None
            areas.append(roc_auc(part.y_test, result.output))
            left -= result.seconds  # waiting for a free worker does not count
            if left <= 0:
                return Score(None, None, self._too_slow(), "timeout")
        return Score(float(np.mean(areas)), float(np.std(areas)), "", "ok")

    def _judge(self, result: Result, rows: int) -> tuple[str, str]:
        """Return why a result cannot be scored, and its status; an empty text and ``"ok"`` if it can be."""
        if result.status in ("timeout", "cpu limit"):
            return self._too_slow(), result.status
        if result.output is None:
            return result.error or result.status, result.status
        error = check_probabilities(result.output, rows, self._classes)
        return error, "rejected" if error else "ok"

    def _too_slow(self) -> str:
        return f"TimeoutError: the program took longer than {self._limits.wall_seconds:g} s"


class _Threads:
    """Threads that process a queue. Unlike those of an executor, they do not keep the interpreter from ending."""

    def __init__(self, size: int) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._queue = queue.SimpleQueue()
        self._size = size
        for number in range(size):
            threading.Thread(target=self._work, args=(self._queue,), name=f"scoring-{number}", daemon=True).start()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.put((future, call, arguments))
        return future

    @staticmethod
    def _work(waiting: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]) -> None:
        while (job := waiting.get()) is not None:
            future, call, arguments = job
            try:
                future.set_result(call(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del job, future, call, arguments  # a waiting thread must not keep them alive

    def end(self) -> None:
        for _ in range(self._size):
            self._queue.put(None)


def shared_scorer(
    dataset: Dataset, limits: Limits, sandbox: str, max_workers: int, cache_dir: str | None = None
) -> Scorer:
    """Return the scorer with these parameters that this process shares; it ends with the last reference to it."""
    key = (dataset.fingerprint, limits, sandbox, max_workers, cache_dir)
    with _sharing:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = Scorer(dataset, limits, sandbox, max_workers, cache_dir)
        return found


_SCRIPT = '''"""ROC AUC {mean:.4f} ± {std:.4f} on {title}: a program written by an agent in the environment DataSciCoding."""

{function}


if __name__ == "__main__":  # it scores itself with scikit-learn, without the sandbox
    import random

    import numpy as np
    from sklearn.experimental import enable_halving_search_cv, enable_iterative_imputer
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import train_test_split

    from lang_envs.datascicoding import load_dataset

    data = {data}
    scores = []
    for seed in range({repetitions}):
        x_train, x_test, y_train, y_test = train_test_split(data.x, data.y, test_size=0.5, random_state=seed)
        order = np.lexsort(x_test.T[::-1])
        x_test, y_test = x_test[order], y_test[order]
        random.seed(seed)
        np.random.seed(seed)
        found = build_model(x_train, y_train).predict_proba(x_test)
        scores.append(roc_auc_score(y_test, found[:, 1] if found.shape[1] == 2 else found, multi_class="ovo"))
    print(f"ROC AUC {{np.mean(scores):.4f}} ± {{np.std(scores):.4f}}")
'''  # noqa: E501


def script_of(function: str, dataset: Dataset, score: Score, source: str | None) -> str:
    """Return a Python file that computes the score of a program with scikit-learn, without the sandbox.

    Parameters
    ----------
    function : str
        Definition of ``build_model``.
    dataset : Dataset
    score : Score
        Score of the program.
    source : str or None
        Name of the data set for :func:`load_dataset`; without it, the file contains a placeholder.
    """
    title = dataset.title.replace("\\", "/").replace('"', "'")
    data = f"load_dataset({source!r})" if source else "...  # a Dataset that was made by hand: put it here"
    return _SCRIPT.format(
        mean=score.mean, std=score.std, title=title, function=function, data=data, repetitions=REPETITIONS
    )


_shared: weakref.WeakValueDictionary[tuple[Any, ...], Scorer] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def _forget_after_fork() -> None:
    """In a forked process, drop the scorers, whose threads and locks do not work there."""
    global _sharing
    _sharing = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
