"""Kill training, or fill its disk, and resume it: ``python -m benchmarks.security.faults``.

``kill`` ends the trainer with SIGKILL at random moments, every third of them while a checkpoint is written, and resumes
it. ``disk`` fills a small file system (tmpfs, which only root can mount) while metrics, checkpoints and caches are
written. Both compare the final metrics and adapter, byte for byte, with those of an undisturbed run.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import tyro

import lang_envs
import trainers
from lang_envs.datascicoding import load_dataset
from lang_envs.datascicoding.catalog import find
from lang_envs.datascicoding.fetching import store as store_data
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import function_of
from lang_envs.datascicoding.scoring import Scorer
from lang_envs.sandbox import Limits
from trainers.checkpoint import PROGRESS_FILE, newest
from trainers.loop import CHECKPOINTS_FOLDER
from trainers.metrics import METRICS_FILE

ENV = "Overcooked-tomato-salad-v0"
_NUM_ENVS, _ROLLOUT, _ITERATIONS = 2, 16, 24
_DISK_FULL = 28
_POLL = 0.005


@dataclass(frozen=True)
class Kill:
    """Kill the trainer at random moments."""

    times: int = 50
    """How often."""
    checkpoint_every: int = 1
    """Iterations between two checkpoints."""
    seed: int = 0
    """Of the moments."""


@dataclass(frozen=True)
class Disk:
    """Fill the disk while a run writes to it; needs root."""

    times: int = 20
    """How often."""
    checkpoint_every: int = 1
    """Iterations between two checkpoints."""
    seed: int = 0
    """Of how much room is left each time."""


def train(folder: Path, checkpoint_every: int) -> None:
    """Train or resume; the exit code says whether the disk was full."""
    torch.set_num_threads(1)
    try:
        envs = lang_envs.make_vec(ENV, _NUM_ENVS)
        agent = trainers.make("poad", envs, seed=5)
        steps = _ITERATIONS * _NUM_ENVS * _ROLLOUT
        resume = (folder / METRICS_FILE).exists()
        options: dict[str, Any] = {"seed": 7, "rollout_steps": _ROLLOUT, "checkpoint_every": checkpoint_every}
        trainers.train(agent, envs, steps, run_dir=folder, resume=resume, **options)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            os._exit(_DISK_FULL)
        raise


def start(folder: Path, checkpoint_every: int) -> Any:
    # Forked, so that the seconds which imports take are neither waited for nor aimed at.
    process = multiprocessing.get_context("fork").Process(target=train, args=(folder, checkpoint_every))
    process.start()
    return process


def half_written(folder: Path) -> set[tuple[str, int]]:
    """Return unfinished checkpoints: their names and when they were last written."""
    found = set()
    for path in (folder / CHECKPOINTS_FOLDER).glob(".unfinished*"):
        with suppress(FileNotFoundError):  # it was just renamed
            found.add((path.name, path.stat().st_ctime_ns))
    return found


def lines_of(folder: Path) -> int:
    """Return the number of iterations whose metrics are written."""
    file = folder / METRICS_FILE
    return file.read_bytes().count(b"\n") if file.exists() else 0


def saved_iteration(folder: Path) -> int:
    """Return the iteration of the last checkpoint."""
    checkpoint = newest(folder / CHECKPOINTS_FOLDER)
    if checkpoint is None:
        return 0
    stored = json.loads((checkpoint / PROGRESS_FILE).read_text())
    entries = dict(map(tuple, dict(map(tuple, stored["dict"]))["progress"]["dict"]))
    return int(entries["iteration"])


def outcome(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Return the metrics of a finished run without timing, and its adapter."""
    lines = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    for line in lines:
        del line["timing"]
    last = newest(folder / CHECKPOINTS_FOLDER)
    assert last is not None
    return lines, (last / "adapter" / "adapter_model.safetensors").read_bytes()


@dataclass
class Tally:
    """Counts of faults and what they cost."""

    done_again: list[int] = field(default_factory=list)
    """For each fault, the finished iterations that no checkpoint held."""
    recovery: list[float] = field(default_factory=list)
    """Seconds from the start of the process that goes on until it is where the last one was."""

    def show(self, what: str, differing: int, runs: int) -> None:
        again = f"{sum(self.done_again)} finished iterations made again, {max(self.done_again, default=0)} at most"
        print(f"tried      {len(self.done_again)} {what}, in {runs} runs of {_ITERATIONS} iterations")
        print(f"lost       {differing} runs differ from an undisturbed one; {again} for one fault")
        if self.recovery:
            print(
                f"recovery   {median(self.recovery):.2f} s (median), {max(self.recovery):.2f} s (longest), "
                "imports not counted"
            )


def goes_on(
    folder: Path, checkpoint_every: int, reached: int, tally: Tally, until: float | None, saving: bool = False
) -> int | None:
    """Resume a run that was at ``reached``, until it ends or until a moment (with ``saving``: until the next checkpoint
    is written). Return its exit code, None if it was killed."""
    started, left_over = time.monotonic(), half_written(folder)
    process, recovered = start(folder, checkpoint_every), reached == 0
    while process.is_alive():
        now = time.monotonic() - started
        if until is not None and now >= until and (not saving or half_written(folder) - left_over):
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            break
        # Lines after the last checkpoint are cut off first: the process is where it was once it is beyond them.
        if not recovered and lines_of(folder) > reached:
            tally.recovery.append(now)
            recovered = True
        time.sleep(_POLL)
    process.join()
    return None if process.exitcode == -signal.SIGKILL else int(process.exitcode or 0)


def undisturbed(folder: Path, checkpoint_every: int) -> tuple[tuple[list[dict[str, Any]], bytes], float]:
    started = time.monotonic()
    if goes_on(folder, checkpoint_every, 0, Tally(), None) != 0:
        sys.exit("the undisturbed run failed")
    return outcome(folder), time.monotonic() - started


def kill(config: Kill) -> int:
    rng, tally, unfinished, starting = random.Random(config.seed), Tally(), 0, 0
    with tempfile.TemporaryDirectory() as place:
        whole, seconds = undisturbed(Path(place, "whole"), config.checkpoint_every)
        print(f"undisturbed: {seconds:.1f} s for {_ITERATIONS} iterations", flush=True)
        number, differing = 0, 0
        while len(tally.done_again) < config.times:
            number += 1
            folder, reached = Path(place, f"run-{number}"), 0
            while True:
                left = len(tally.done_again) < config.times
                before, left_over = saved_iteration(folder), half_written(folder)
                until = rng.uniform(0, seconds / 4) if left else None
                saving = len(tally.done_again) % 3 == 2
                if goes_on(folder, config.checkpoint_every, reached, tally, until, saving) is not None:
                    break
                reached = max(reached, lines_of(folder))
                starting += lines_of(folder) <= before
                unfinished += bool(half_written(folder) - left_over)
                tally.done_again.append(lines_of(folder) - saved_iteration(folder))
            differing += outcome(folder) != whole
    print(f"moments    {starting} before the first iteration was done, {unfinished} while a checkpoint was written")
    tally.show("kills (SIGKILL)", differing, number)
    return differing


@contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", place]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"a small disk can be mounted by root alone ({done.stderr.strip()}): nothing was tried")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def fill(disk: Path, left: int) -> Path:
    """Fill a disk up to ``left`` bytes."""
    stat, filler = os.statvfs(disk), disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(stat.f_bavail * stat.f_frsize - left, 1))
    return filler


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def disk(config: Disk) -> int:
    rng, tally, full = random.Random(config.seed), Tally(), 0
    with tempfile.TemporaryDirectory() as place, small_disk(256) as mounted:
        whole, _ = undisturbed(Path(place, "whole"), config.checkpoint_every)
        last = newest(Path(place, "whole", CHECKPOINTS_FOLDER))
        assert last is not None
        room = size_of(last)
        print(f"a checkpoint takes {room / 2**20:.2f} MiB", flush=True)
        differing, number = 0, 0
        while len(tally.done_again) < config.times:
            number += 1
            folder, reached = mounted / f"run-{number}", 0
            while True:
                left = len(tally.done_again) < config.times
                room_left = rng.choice((0, 4_096, 16_384, int(rng.uniform(0, 4 * room))))
                filler = fill(mounted, room_left) if left else None
                ended = goes_on(folder, config.checkpoint_every, reached, tally, None)
                if filler is not None:
                    filler.unlink()
                if ended == 0:
                    break
                if ended != _DISK_FULL:
                    sys.exit(f"on a full disk the trainer ended with code {ended}")
                full += 1
                reached = max(reached, lines_of(folder))
                tally.done_again.append(lines_of(folder) - saved_iteration(folder))
                if left and lines_of(folder) < _ITERATIONS // 2:  # somewhat further, so that other moments are met
                    goes_on(folder, config.checkpoint_every, reached, tally, rng.uniform(1, 4))
                    reached = max(reached, lines_of(folder))
            differing += outcome(folder) != whole
        tally.show("full disks", differing, number)
        lost = caches(mounted, config.times)
    return differing + lost


def caches(mounted: Path, times: int) -> int:
    """Store scores and data sets on a full disk; return how many are damaged."""
    rng = random.Random(0)
    limits = Limits(wall_seconds=30, cpu_seconds=30, memory_bytes=1 << 30)
    data, damaged, refused = load_dataset("balance-scale"), 0, 0
    programs = np.random.default_rng(0)
    for _ in range(times):
        function = function_of(random_program(programs))
        filler = fill(mounted, rng.choice((0, 4096, 8192)))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            score = Scorer(data, limits, "auto", 1, str(mounted / "scores")).submit(function).result()
        refused += any("could not be kept" in str(one.message) for one in told)
        filler.unlink()
        damaged += Scorer(data, limits, "auto", 1, str(mounted / "scores")).submit(function).result() != score
    print(f"scores     {times} programs scored on a full disk: {refused} not kept and said so, {damaged} damaged")
    lost = refused = 0
    entry = find("openml:61")
    staging = mounted / "datasets" / ".partial"
    staging.mkdir(parents=True)
    os.environ["LANG_ENVS_CACHE_DIR"] = str(mounted)
    for number in range(times):
        with tempfile.TemporaryDirectory() as place:
            source = Path(place, "a.csv")
            source.write_text("x,label\n" + f"{number},a\n" * rng.randrange(1, 40_000))
            filler = fill(mounted, rng.randrange(0, 1 << 18))
            try:
                store_data(entry, source, staging)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                refused += 1
            filler.unlink()
            try:
                stored = store_data(entry, source, staging)
                lost += stored.read_bytes() != source.read_bytes()
            except (OSError, ValueError):
                lost += 1
            stored.unlink()
    print(f"data sets  {times} stored on a full disk: {refused} refused (ENOSPC), {lost} damaged")
    return damaged + lost


def main() -> None:
    chosen = tyro.cli(
        Annotated[Kill, tyro.conf.subcommand("kill")] | Annotated[Disk, tyro.conf.subcommand("disk")],
        prog="python -m benchmarks.security.faults",
    )
    torch.set_num_threads(1)
    sys.exit(min(1, kill(chosen) if isinstance(chosen, Kill) else disk(chosen)))


if __name__ == "__main__":
    main()
