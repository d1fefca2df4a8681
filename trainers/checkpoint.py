"""Checkpoints that a killed run leaves whole, and from which the next run goes on exactly."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from lang_envs.files import MIB, parse_json, read_bytes, sync
from lang_envs.storage import check_generator_position, decode, encode

LAST, BEST = "last", "best"
PROGRESS_FILE = "progress.json"
_OURS = re.compile(r"(\.unfinished-)?step-\d{10}")
MAX_PROGRESS = 64 * MIB
"""Bytes of the largest progress that is read."""
_PICKLE = "progress.pkl"
_READS_PICKLES = "lang-envs 0.1.0 at commit 4dc5cab is the last to read it"

logger = logging.getLogger(__name__)


class DamagedRunError(ValueError):
    """A run cannot be resumed from what its folder holds; the message names the file and what is wrong."""


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
        Whatever the loop wants back, such as :func:`lang_envs.storage.encode` takes it; it is written as JSON, with the
        state of all global random generators.
    best : bool
        Whether this is the best agent so far.

    Raises
    ------
    lang_envs.storage.UnstorableError
        If progress cannot be stored. No file is changed.
    OSError
        If the disk is full, for instance. The checkpoints before are whole.
    """
    stored = json.dumps(encode({"progress": progress, "random": _random_states()}))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:010d}"
    unfinished = folder / f".unfinished-{target.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        save_agent(unfinished)
        (unfinished / PROGRESS_FILE).write_text(stored)
        for path in [*unfinished.rglob("*"), unfinished]:
            sync(path)
    except BaseException as error:  # on a full disk what is left would be in the way
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, SafetensorError) and (number := re.search(r"os error (\d+)", str(error))):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(unfinished)) from error
        raise
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    sync(folder)
    for name in (BEST, LAST) if best else (LAST,):
        _point(folder / name, target.name)
    kept = {(folder / name).resolve() for name in (LAST, BEST)}
    for other in (path for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.is_dir()):
        if other.resolve() not in kept:
            shutil.rmtree(other)


def load_checkpoint(folder: Path, load_agent: Callable[[Path], None]) -> Any:
    """Load the last checkpoint: the agent, all global random generators, and the loop's progress, which is returned.

    Nothing that the files say is run, and no module that they name is imported.

    Raises
    ------
    FileNotFoundError
        If there is none.
    DamagedRunError
        If it is damaged, or of a version that wrote pickles; names it.
    """
    checkpoint = newest(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint to resume from")
    refuse_pickle(checkpoint / _PICKLE)
    try:
        load_agent(checkpoint)
        file = checkpoint / PROGRESS_FILE
        saved = decode(parse_json(read_bytes(file, MAX_PROGRESS), str(file)))
        _set_random_states(saved["random"])
        return saved["progress"]
    except Exception as error:  # whatever a third party's agent makes of damaged files
        raise DamagedRunError(
            f"{checkpoint} cannot be loaded: {error}. If it is damaged, delete {folder.parent} and begin anew"
        ) from error


def refuse_pickle(file: Path) -> None:
    """Refuse a checkpoint that holds a file which earlier versions wrote.

    Raises
    ------
    DamagedRunError
        If the file is there; says which version reads it.
    """
    if file.exists():
        raise DamagedRunError(
            f"{file} is a pickle, which could run code when read, so this version does not read it: {_READS_PICKLES}"
        )


def newest(folder: Path) -> Path | None:
    """The checkpoint to go on from: what ``last`` names; in a copy that has lost its links, the one of most steps.

    Raises
    ------
    DamagedRunError
        If ``last`` is a link to anything but a checkpoint beside it.
    """
    last = folder / LAST
    if not last.exists():
        return max((path for path in folder.glob("step-*") if path.is_dir()), default=None)
    if not is_checkpoint_link(last) and last.is_symlink():
        raise DamagedRunError(f"{last} is a link to {last.readlink()}, which is no checkpoint beside it")
    return folder / last.readlink() if last.is_symlink() else last


def is_checkpoint_link(path: Path) -> bool:
    """Whether a path is the link ``last`` or ``best`` in a folder of checkpoints, to one of them."""
    if path.name not in (LAST, BEST) or not path.is_symlink():
        return False
    target = path.readlink()
    return target.parent == Path() and target.name.startswith("step-") and not (path.parent / target).is_symlink()


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
        "torch": torch.get_rng_state().numpy(),
        # To ask whether there is a GPU opens a context on it, which a run on a CPU has no use for.
        "cuda": [state.numpy() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else [],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    check_generator_position({"pos": states["numpy"][2]})
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(states["torch"]))
    saved = states["cuda"]
    here = torch.cuda.device_count() if saved and torch.cuda.is_initialized() else 0
    for device, state in enumerate(saved[:here]):
        torch.cuda.set_rng_state(torch.from_numpy(state), device)
    if here < len(saved):
        logger.warning(
            "the checkpoint holds the random generators of %d GPUs, and %d are in use: the others are not restored, so "
            "sampling on a GPU may differ from that of an uninterrupted run",
            len(saved),
            here,
        )
