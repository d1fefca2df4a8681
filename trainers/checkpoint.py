"""Checkpoints that a killed run leaves whole, and from which the next run goes on exactly."""

from __future__ import annotations

import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lang_envs.files import sync

LAST, BEST = "last", "best"
_PROGRESS = "progress.pkl"


def save_checkpoint(folder: Path, step: int, save_agent: Callable[[Path], None], progress: Any, *, best: bool) -> None:
    """Write a checkpoint beside the others, then point ``last`` (and ``best``) to it in one rename each.

    Whenever the process dies, ``last`` names a complete checkpoint. Checkpoints that neither name points to are
    removed.

    Parameters
    ----------
    folder : Path
        Holds all checkpoints of a run.
    step : int
        Environment steps so far; names the checkpoint.
    save_agent : callable
        Writes the agent into the folder it is given.
    progress : Any
        Whatever the loop wants back; pickled, with the state of all global random generators.
    best : bool
        Whether this is the best agent so far.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:010d}"
    unfinished = folder / f".unfinished-{target.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    save_agent(unfinished)
    with (unfinished / _PROGRESS).open("wb") as file:
        pickle.dump({"progress": progress, "random": _random_states()}, file)
    for path in [*unfinished.rglob("*"), unfinished]:
        sync(path)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    sync(folder)
    for name in (BEST, LAST) if best else (LAST,):
        _point(folder / name, target.name)
    kept = {(folder / name).resolve() for name in (LAST, BEST)}
    for other in folder.glob("*step-*"):
        if other.resolve() not in kept:
            shutil.rmtree(other)


def load_checkpoint(folder: Path, load_agent: Callable[[Path], None]) -> Any:
    """Load the last checkpoint: the agent, all global random generators, and the loop's progress, which is returned.

    Only load what you trust: progress is a pickle.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is damaged; names it.
    """
    checkpoint = newest(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint to resume from")
    try:
        load_agent(checkpoint)
        saved = pickle.loads((checkpoint / _PROGRESS).read_bytes())
        _set_random_states(saved["random"])
        return saved["progress"]
    except Exception as error:  # whatever a pickle, or a third party's agent, makes of damaged files
        raise ValueError(
            f"{checkpoint} cannot be loaded: {error}. If it is damaged, delete {folder.parent} and begin anew"
        ) from error


def newest(folder: Path) -> Path | None:
    """The checkpoint to go on from: what ``last`` names; in a copy that has lost its links, the one of most steps."""
    last = folder / LAST
    return last.resolve() if last.exists() else max(folder.glob("step-*"), default=None)


def _point(link: Path, target: str) -> None:
    beside = link.with_name(f".{link.name}.link")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    if link.is_dir() and not link.is_symlink():  # in a copy whose links were followed
        shutil.rmtree(link)
    beside.replace(link)
    sync(link.parent)


def _random_states() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 — the global generator, which others may use
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
