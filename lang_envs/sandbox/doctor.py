"""Report how well this machine can isolate programs: ``python -m lang_envs doctor``."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy

from lang_envs.sandbox.pool import Sandbox
from lang_envs.sandbox.tiers import LAYERS, SandboxError

_TIMED = 50
"""Number of programs whose run time is measured."""
_SWAP_HEADER_LINES = 1


def examine() -> tuple[bool, list[str]]:
    """Return whether this machine can isolate programs, and the lines of the report."""
    lines = [f"{platform.system()} {platform.release()} on {platform.machine()}, Python {platform.python_version()}"]
    started = time.perf_counter()
    try:
        sandbox = Sandbox()
    except SandboxError as error:
        table = [] if error.absent is None else ["", *_table(error.absent)]
        return False, [*lines, *table, "", str(error)]
    with sandbox:
        lines.append(f"the sandbox started, imported its libraries and passed its self-test in {_since(started):.1f} s")
        lines += ["", *_table(sandbox.absent), "", f"tier: {sandbox.tier}"]
        lines.append(f"cgroup v2 limits: {f'no, only rlimits ({sandbox.no_cgroup})' if sandbox.no_cgroup else 'yes'}")
        seconds = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            sandbox.run("output = [1.0]", {})
            seconds.append(_since(started))
        lines.append(f"an empty program takes {1000 * statistics.median(seconds):.1f} ms (median of {_TIMED})")
    return True, lines + [f"warning: {line}" for line in advice()]


def advice(root: Path = Path("/"), environment: Path = Path(sys.prefix)) -> list[str]:
    """Return a line for each setting of this machine that weakens the sandbox, with the command that changes it.

    Parameters
    ----------
    root : path
        Root of the file system to examine.
    environment : path
        The Python environment that programs run in.
    """
    lines = []
    if _first_line(root / "sys/kernel/mm/ksm/run") == "1":
        lines.append(
            "the kernel merges equal pages of memory (KSM): by timing, a program can learn the content of another "
            "process's memory. As root, run: echo 2 > /sys/kernel/mm/ksm/run"
        )
    with contextlib.suppress(OSError):
        if len((root / "proc/swaps").read_text().splitlines()) > _SWAP_HEADER_LINES:
            lines.append(
                "swap is on: a program can slow the machine down, and memory can be written to disk. As root, run: "
                "swapoff -a"
            )
    user = os.geteuid()
    owned = [path for path in _code(environment) if path.stat().st_uid == user or os.access(path, os.W_OK)]
    if user and owned:
        lines.append(
            f"programs run as the user {user}, who can change {owned[0]}: only the filter of system calls prevents "
            f"that. As root, run: chown -R root {environment}; or start as another user"
        )
    return lines


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""


def _code(environment: Path) -> list[Path]:
    """Return folders and files whose memory pages all programs share."""
    return [environment, Path(numpy.__file__).parent, Path(numpy.random.mtrand.__file__)]


def _since(started: float) -> float:
    return time.perf_counter() - started


def _table(absent: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, LAYERS))
    for layer, meaning in LAYERS.items():
        standing = f"no   {absent[layer]}" if layer in absent else f"yes  {meaning}"
        yield f"  {layer:<{width}}  {standing}"
