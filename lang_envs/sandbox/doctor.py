"""What this machine gives a sandbox: ``python -m lang_envs doctor``."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator, Mapping

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
        seconds = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            sandbox.run("output = [1.0]", {})
            seconds.append(_since(started))
        lines.append(f"an empty program takes {1000 * statistics.median(seconds):.1f} ms (median of {_TIMED})")
    return True, lines


def _since(started: float) -> float:
    return time.perf_counter() - started


def _table(absent: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, LAYERS))
    for layer, meaning in LAYERS.items():
        standing = f"no   {absent[layer]}" if layer in absent else f"yes  {meaning}"
        yield f"  {layer:<{width}}  {standing}"
