"""Cause faults in the sandbox: ``python -m benchmarks.security.sandbox_faults``.

Many programs run; every tenth ends itself, in many ways, while a loop kills processes of the sandbox at random moments.
All other programs must return their results.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lang_envs.sandbox import Limits, Sandbox, SandboxError

WORKERS = 2
ENDS = {
    "exit": ("import os; os._exit({n} % 256)", "error"),
    "exit as the machinery does": ("import os; os._exit(99)", "error"),
    "sys.exit": ("raise SystemExit({n})", "error"),
    "an exception": ("raise ValueError('x' * {n})", "error"),
    "an exception that cannot be shown": ("class E(BaseException):\n def __str__(self): raise self\nraise E", "error"),
    "no output": ("pass", "error"),
    "abort": ("import os; os.abort()", "crash"),
    "a null pointer": ("import ctypes; ctypes.string_at({n} % 4096)", "crash"),
    "a broken interpreter": ("import ctypes; ctypes.memset(id(int), 255, 256); output = [int('1')]", "crash error"),
    "a stack without end": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return [f()]\nf()",
        "crash error timeout",
    ),
    "another program": ("import os; os.execv('/bin/true', ['true'])", "violation"),
    "tracing": ("import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)", "violation"),
    "memory": ("x = [bytearray(1 << 24) for _ in range(1000)]", "error"),
    "much output": ("import numpy; output = numpy.zeros(1 << 22)", "rejected"),
    "output that is not finite": ("output = [float('nan')] * ({n} % 100 + 1)", "rejected"),
    "a closed pipe": ("import os; os.close(3); output = [1.0]", "error"),
    "all descriptors closed": ("import os; os.closerange(0, 64); output = [1.0]", "error"),
    "garbage": ("import os; os.write(3, bytes({n} % 5000 + 30)); os._exit(0)", "rejected"),
    "half a header": ("import os; os.write(3, b'rslt'); os._exit(0)", "error"),
    "sleep": ("import time; time.sleep(1000)", "timeout"),
    "a loop": ("while True: pass", "timeout"),
    "signals blocked": ("import signal; signal.pthread_sigmask(0, range(1, 65))\nwhile True: pass", "timeout"),
}
_LIMITS = Limits(wall_seconds=5, cpu_seconds=5, memory_bytes=256 << 20, output_bytes=1 << 20)
_SHORT = Limits(wall_seconds=0.2, cpu_seconds=5, memory_bytes=256 << 20)
_RESTARTED_SECONDS = 0.5
"""An honest program takes some milliseconds: where it takes longer than this, a worker was started anew."""


def descendants(pid: int) -> list[int]:
    """Return all descendants of this process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, above in parents.items() if above == parent]
        found += children
        waiting += children
    return found


class Killer(threading.Thread):
    """Kills a random process of the sandbox at random moments: outer process, fork server, program or spare process."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self.every, self.killed = every, 0
        self.over = threading.Event()
        self.random = random.Random(0)

    def run(self) -> None:
        while not self.over.wait(self.random.expovariate(1 / self.every)):
            pids = descendants(os.getpid())
            if pids:
                try:
                    os.kill(self.random.choice(pids), signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    pass


def one(sandbox: Sandbox, number: int) -> tuple[str, str, float]:
    """What was run, what came of it ("" where it is as it must be), and the seconds it took."""
    began = time.perf_counter()
    if number % 10:
        x = np.arange(5.0) + number
        name, program, limits = "honest", "output = inputs['x'] * 2 + 1", _LIMITS
    else:
        name = list(ENDS)[number // 10 % len(ENDS)]
        program, limits = ENDS[name][0].replace("{n}", str(number)), _SHORT if "timeout" in ENDS[name][1] else _LIMITS
        x = np.zeros(1)
    try:
        result = sandbox.run(program, {"x": x}, limits)
    except SandboxError as error:
        return name, f"lost: {error}", time.perf_counter() - began
    seconds = time.perf_counter() - began
    if name != "honest":
        return name, "" if result.status in ENDS[name][1].split() else f"wrong: {name}: {result.status}", seconds
    right = result.output is not None and np.array_equal(result.output, x * 2 + 1)
    return name, "" if right else f"wrong: honest: {result.status} {result.error}", seconds


def report(came: Sequence[tuple[str, str, float]], killer: Killer, left: int) -> bool:
    honest = [seconds for name, _, seconds in came if name == "honest"]
    restarts = [seconds for name, _, seconds in came if name == "honest" and seconds > _RESTARTED_SECONDS]
    lost = [said for _, said, _ in came if said.startswith("lost")]
    wrong = [said for _, said, _ in came if said.startswith("wrong")]
    rows = {
        "programs tried": f"{len(came):,}",
        "that end themselves": f"{len(came) - len(honest):,}, in {len(ENDS)} ways",
        "processes killed at random": f"{killer.killed:,}",
        "programs lost": f"{len(lost)}",
        "wrong answers": f"{len(wrong)}",
        "an honest program": f"{1000 * np.median(honest):.1f} ms (median)",
        "time to recover": f"{np.median(restarts):.2f} s (median), {max(restarts):.2f} s at most, {len(restarts)} times"
        if restarts
        else "never needed",
        "processes left": f"{left}",
    }
    print("\n".join(f"{name:32}{value}" for name, value in rows.items()))
    for said, count in Counter([*lost, *wrong]).most_common(10):
        print(f"  {count} x {said}")
    return not wrong and not left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--kill-every", type=float, default=5.0, help="mean seconds between two kills")
    options = parser.parse_args()
    before = set(descendants(os.getpid()))
    with Sandbox(max_workers=WORKERS) as sandbox, ThreadPoolExecutor(WORKERS) as threads:
        killer = Killer(options.kill_every)
        killer.start()
        came = list(threads.map(lambda number: one(sandbox, number), range(options.programs)))
        killer.over.set()
        killer.join()
    deadline = time.monotonic() + 10
    while (left := set(descendants(os.getpid())) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return 0 if report(came, killer, len(left)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
