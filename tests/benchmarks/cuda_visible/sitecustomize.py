"""On PYTHONPATH: every Python process sees one CUDA GPU, and CUDA does not work in a fork of a process that used it.

Nothing can be computed on this GPU. It is there for what asks CUDA something while it is imported, and for what torch
itself asks CUDA during a run on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

_used_in: int | None = None


def _answer(value: Any, *, raises: bool = True) -> Callable[..., Any]:
    """A function that uses CUDA and returns ``value``."""

    def ask(*_: Any, **__: Any) -> Any:
        global _used_in
        if _used_in not in (None, os.getpid()) and raises:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        _used_in = _used_in or os.getpid()
        return value

    return ask


torch.backends.cuda.is_built = lambda: True
torch.version.cuda = "13.0"
torch._C._cuda_getCurrentRawStream = _answer(0)
torch.cuda.is_available = _answer(True, raises=False)  # as CUDA's own: it initialises the driver, and never raises
torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
torch.accelerator.current_stream = lambda device=None: SimpleNamespace(is_capturing=_answer(False))
for name, value in (
    ("init", None),
    ("_lazy_init", None),
    ("device_count", 1),
    ("current_device", 0),
    ("get_device_capability", (9, 0)),
    ("get_device_name", "a GPU that is not there"),
    ("is_current_stream_capturing", False),
    ("get_rng_state_all", []),
    ("set_rng_state_all", None),
    ("synchronize", None),
):
    setattr(torch.cuda, name, _answer(value))
