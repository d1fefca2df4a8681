"""What this machine gives a sandbox: ``python -m lang_envs doctor``."""

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


def examine() -> tuple[bool, list[str]]:
    """Whether programs can be isolated here, and the report, line by line."""
    lines = [f"{platform.system()} {platform.release()} on {platform.machine()}, Python {platform.python_version()}"]
    started = time.perf_counter()
    try:
        sandbox = Sandbox()
    except SandboxError as error:
        table = [] if error.absent is None else ["", *_table(error.absent)]
        return False, [*lines, *table, "", str(error)]
    with sandbox:
        lines.append(f"the sandbox starts, imports its libraries and proves itself in {_since(started):.1f} s")
        lines += ["", *_table(sandbox.absent), "", f"tier: {sandbox.tier}"]
        lines.append(f"cgroup v2 limits: {f'no, rlimits alone: {sandbox.no_cgroup}' if sandbox.no_cgroup else 'yes'}")
        seconds = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            sandbox.run("output = [1.0]", {})
            seconds.append(_since(started))
        lines.append(f"an empty program takes {1000 * statistics.median(seconds):.1f} ms (median of {_TIMED})")
    return True, lines + [f"warning: {line}" for line in advice()]


def advice(root: Path = Path("/"), environment: Path = Path(sys.prefix)) -> list[str]:
    """What of this machine weakens the sandbox, and how to mend it, a line each."""
    lines = []
    if _first_line(root / "sys/kernel/mm/ksm/run") == "1":
        lines.append(
            "the kernel merges equal pages of memory (KSM), so that a program can learn by timing what is in the "
            "memory of another; as root: echo 2 > /sys/kernel/mm/ksm/run"
        )
    with contextlib.suppress(OSError):
        if len((root / "proc/swaps").read_text().splitlines()) > 1:
            lines.append(
                "swap is on, so that a program can slow the machine down and memory can be written to disk; as root: "
                "swapoff -a"
            )
    user = os.geteuid()
    owned = [path for path in _code(environment) if path.stat().st_uid == user or os.access(path, os.W_OK)]
    if user and owned:
        lines.append(
            f"programs run as the user {user}, who can change {owned[0]}: the filter of system calls alone keeps them "
            f"from what an owner may do to it; as root: chown -R root {environment}, or start as another user"
        )
    return lines


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""


def _code(environment: Path) -> list[Path]:
    """Folders and files whose pages all programs share."""
    return [environment, Path(numpy.__file__).parent, Path(numpy.random.mtrand.__file__)]


def _since(started: float) -> float:
    return time.perf_counter() - started


def _table(absent: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, LAYERS))
    for layer, meaning in LAYERS.items():
        standing = f"no   {absent[layer]}" if layer in absent else f"yes  {meaning}"
        yield f"  {layer:<{width}}  {standing}"
