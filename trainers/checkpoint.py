"""Checkpoints: complete even if the process is killed while writing, and exact when a run resumes."""

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
from trainers.random_stream import set_cpu_generator

LAST, BEST = "last", "best"
PROGRESS_FILE = "progress.json"
_CHECKPOINT_NAME = re.compile(r"(\.unfinished-)?step-\d{10}")
MAX_PROGRESS = 64 * MIB
"""Size limit of ``progress.json`` on reading, in bytes."""
_PICKLE = "progress.pkl"
_LAST_PICKLE_READER = "lang-envs 0.1.0 at commit 4dc5cab"

logger = logging.getLogger(__name__)


class DamagedRunError(ValueError):
    """A run cannot be resumed because a file in its folder is damaged; the message names the file."""


def save_checkpoint(folder: Path, step: int, save_agent: Callable[[Path], None], progress: Any, *, best: bool) -> None:
    """Write a checkpoint, then link ``last`` (and ``best``) to it, each by one rename.

    ``last`` always links to a complete checkpoint, whenever the process is killed. Checkpoints without a link are
    removed.

    Parameters
    ----------
    folder : Path
        Folder of all checkpoints of a run.
    step : int
        Environment steps so far; part of the checkpoint's name.
    save_agent : callable
        Writes the agent into the folder that it receives.
    progress : Any
        State of the training loop: values that :func:`lang_envs.storage.encode` can encode. It is written as JSON, with
        the state of all global random generators.
    best : bool
        Whether this is the best agent so far.

    Raises
    ------
    lang_envs.storage.UnstorableError
        If ``progress`` cannot be stored. No file is changed.
    OSError
        If writing fails, for instance on a full disk. Earlier checkpoints are complete.
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
    except BaseException as error:  # an unfinished checkpoint would take space on a full disk
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, SafetensorError) and (number := re.search(r"os error (\d+)", str(error))):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(unfinished)) from error
        raise
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    sync(folder)
    for name in (BEST, LAST) if best else (LAST,):
        _link(folder / name, target.name)
    kept = {(folder / name).resolve() for name in (LAST, BEST)}
    for other in (path for path in folder.iterdir() if _CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()):
        if other.resolve() not in kept:
            shutil.rmtree(other)


def load_checkpoint(folder: Path, load_agent: Callable[[Path], None]) -> Any:
    """Restore the agent and all global random generators from the last checkpoint; return the progress of the loop.

    No code in the files is run, and no module that they name is imported.

    Raises
    ------
    FileNotFoundError
        If there is no checkpoint.
    DamagedRunError
        If the checkpoint is damaged, or was written as a pickle by an earlier version.
    """
    checkpoint = newest(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} contains no checkpoint to resume from: start the run without resume")
    refuse_pickle(checkpoint / _PICKLE)
    try:
        load_agent(checkpoint)
        file = checkpoint / PROGRESS_FILE
        saved = decode(parse_json(read_bytes(file, MAX_PROGRESS), str(file)))
        _set_random_states(saved["random"])
        return saved["progress"]
    except Exception as error:  # agents of third parties may raise anything on damaged files
        raise DamagedRunError(
            f"{checkpoint} cannot be loaded: {error}. If it is damaged, delete {folder.parent} and start the run again"
        ) from error


def refuse_pickle(file: Path) -> None:
    """Raise if ``file``, a pickle that earlier versions wrote, exists.

    Raises
    ------
    DamagedRunError
        With the last version that reads the file.
    """
    if file.exists():
        raise DamagedRunError(
            f"{file} is a pickle, which can run code when it is read, so this version does not read it; "
            f"{_LAST_PICKLE_READER} is the last version that does"
        )


def newest(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, or None: the target of ``last``, or without links the one of most steps.

    A copy of a folder may lack the links, or contain a copy of the checkpoint in place of ``last``.

    Raises
    ------
    DamagedRunError
        If ``last`` is a link to anything other than a checkpoint in the same folder.
    """
    last = folder / LAST
    if not last.exists():
        return max((path for path in folder.glob("step-*") if path.is_dir()), default=None)
    if not is_checkpoint_link(last) and last.is_symlink():
        raise DamagedRunError(f"{last} is a link to {last.readlink()}, expected a checkpoint in the same folder")
    return folder / last.readlink() if last.is_symlink() else last


def is_checkpoint_link(path: Path) -> bool:
    """Return whether a path is the link ``last`` or ``best`` to a checkpoint in the same folder."""
    if path.name not in (LAST, BEST) or not path.is_symlink():
        return False
    target = path.readlink()
    return target.parent == Path() and target.name.startswith("step-") and not (path.parent / target).is_symlink()


def _link(link: Path, target: str) -> None:
    """Make ``link`` a symbolic link to ``target`` by one rename."""
    new = link.with_name(f".{link.name}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    if link.is_dir() and not link.is_symlink():  # in a copy of the folder that followed links
        shutil.rmtree(link)
    new.replace(link)
    sync(link.parent)


def _random_states() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 — third parties may use the global generator
        "torch": torch.get_rng_state().numpy(),
        # Other queries would open a CUDA context, which a run on a CPU does not need.
        "cuda": [state.numpy() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else [],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    check_generator_position({"pos": states["numpy"][2]})
    np.random.set_state(states["numpy"])  # noqa: NPY002
    set_cpu_generator(torch.from_numpy(states["torch"]))
    saved = states["cuda"]
    gpus = torch.cuda.device_count() if saved and torch.cuda.is_initialized() else 0
    for device, state in enumerate(saved[:gpus]):
        torch.cuda.set_rng_state(torch.from_numpy(state), device)
    if gpus < len(saved):
        logger.warning(
            "the checkpoint contains the random generators of %d GPUs, and %d are in use: the others are not restored, "
            "so samples drawn on a GPU may differ from those of an uninterrupted run",
            len(saved),
            gpus,
        )
