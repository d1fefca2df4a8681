"""Files that are whole whenever they are there."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text in one rename; of several who write at once, one wins."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.unfinished")
    try:
        beside.write_text(text, encoding="utf-8")
        sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
