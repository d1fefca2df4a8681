"""Time that the sandbox adds to a program, and what it leaves behind: ``python -m benchmarks.throughput.sandbox``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lang_envs
from lang_envs.datascicoding.programs import random_program
from lang_envs.sandbox import Sandbox, SandboxError

PROGRAMS = {
    "empty": "output = inputs['x_test'][:, 0]",
    "scaler + LogisticRegression": "make_pipeline(StandardScaler(), LogisticRegression())",
    "SVC": "SVC(probability=True, random_state=0)",
    "RandomForest(100)": "RandomForestClassifier(100, random_state=0)",
}
IMPORTS = """
import numpy
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
"""
FIT = "\noutput = {}.fit(inputs['x_train'], inputs['y_train']).predict_proba(inputs['x_test'])\n"
FRESH = """
import numpy, sys
with numpy.load(sys.argv[1]) as file:
    inputs = dict(file)
"""
ENVIRONMENT = "DataSciCoding-balance-scale-v0"
ENVS = 8
BATCH = 250
LIMIT_MS = 15.0
"""Maximum time that the sandbox may add to a program."""


def programs_of(name: str) -> tuple[str, str]:
    """Return a program for a warm process, whose imports are done, and one for a new interpreter."""
    body = PROGRAMS[name]
    if name == "empty":
        return body, FRESH + body
    return IMPORTS + FIT.format(body), FRESH + IMPORTS + FIT.format(body)


def timed(act: Callable[[], Any]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - began)


def one_program(rounds: int, fresh_rounds: int) -> None:
    """Time until the output is here, by turns: executed in this process, in the sandbox, in a new interpreter."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 20)), rng.integers(2, size=600)
    x[:, 0] += y
    inputs = {"x_train": x[:400], "y_train": y[:400], "x_test": x[400:]}
    print(f"one program, 400 x 20 rows to fit and 200 to predict; median (p10) of {rounds} rounds by turns, in ms\n")
    heads = ("in process", "sandbox", "overhead", "new interpreter", "times as fast")
    print(f"{'program':28}" + "".join(f"{head:>18}" for head in heads))
    with Sandbox() as sandbox, tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, **inputs)  # type: ignore[arg-type]
        for name in PROGRAMS:
            bare, whole = programs_of(name)
            code = compile(bare, "<program>", "exec")

            def in_process(code: Any = code) -> None:
                exec(code, {"inputs": {key: array.copy() for key, array in inputs.items()}})

            def sandboxed(bare: str = bare) -> None:
                result = sandbox.run(bare, inputs)
                assert result.status == "ok", result

            def new_interpreter(whole: str = whole) -> None:
                subprocess.run([sys.executable, "-W", "ignore", "-c", whole, str(data)], check=True)

            in_process()
            sandboxed()
            times = np.array([(timed(in_process), timed(sandboxed)) for _ in range(rounds)]).T
            fresh = np.array([timed(new_interpreter) for _ in range(fresh_rounds)])
            over = times[1] - times[0]
            columns = [f"{np.median(ms):.2f} ({np.percentile(ms, 10):.2f})" for ms in (*times, over, fresh)]
            verdict = "" if np.median(over) <= LIMIT_MS else f"   more than {LIMIT_MS:g}"
            faster = f"{np.median(fresh) / np.median(times[1]):.0f}x"
            print(f"{name:28}" + "".join(f"{column:>18}" for column in (*columns, faster)) + verdict)
        print(f"\ntier of the sandbox: {sandbox.tier}\n")


def random_actions(envs: Any, number: int, seed: int) -> list[np.ndarray]:
    """Batches of programs of the grammar, as actions of a vector environment."""
    rng = np.random.default_rng(seed)
    texts = [random_program(rng) for _ in range(number)]
    return batches(envs, texts)


def batches(envs: Any, texts: list[str]) -> list[np.ndarray]:
    space = envs.single_action_space
    return [np.stack([space.encode(text) for text in texts[i : i + ENVS]]) for i in range(0, len(texts), ENVS)]


def step_all(envs: Any, actions: Iterable[np.ndarray], seen: Counter[str]) -> None:
    envs.reset(seed=0)
    for action in actions:
        infos = envs.step(action)[-1]
        seen.update(str(status) for status in statuses(infos))


def statuses(infos: dict[str, Any], key: str = "status") -> list[Any]:
    """What each environment said of its program, also where an episode ended with it."""
    found = list(infos.get(key, [None] * ENVS))
    final = infos.get("final_info")
    if final is not None:
        ended = infos["_final_info"]
        found = [final[key][i] if ended[i] else found[i] for i in range(ENVS)]
    return found


def throughput(evaluations: int, repeats: int) -> None:
    """Print programs scored per second, each on five splits; the second pass over the same programs is cached."""
    print(
        f"{ENVIRONMENT}: {ENVS} environments, {evaluations} programs of the grammar, five splits each; "
        f"median (p10) of {repeats}\n"
    )
    print(f"{'workers':10}{'new programs/s':>22}{'the same again/s':>22}{'programs that work':>22}")
    for workers in (1, 2):
        rates: dict[str, list[float]] = {"new": [], "again": []}
        seen: Counter[str] = Counter()
        envs = lang_envs.make_vec(ENVIRONMENT, ENVS, max_workers=workers)
        step_all(envs, random_actions(envs, ENVS * workers, 10_000), Counter())  # starts the workers
        for repeat in range(repeats):
            actions = random_actions(envs, evaluations // ENVS * ENVS, repeat)  # the same for one worker and for two
            for kind in rates:
                milliseconds = timed(partial(step_all, envs, actions, seen))
                rates[kind].append(1000 * ENVS * len(actions) / milliseconds)
        envs.close()
        columns = [f"{np.median(values):,.1f} ({np.percentile(values, 10):,.1f})" for values in rates.values()]
        print(f"{workers:<10}" + "".join(f"{column:>22}" for column in columns) + f"{seen['ok'] / seen.total():>21.0%}")
    print()


def with_noise(text: str, rng: np.random.Generator) -> str:
    """A few bytes of a program changed, taken away or put in."""
    noisy = bytearray(text.encode())
    for _ in range(rng.integers(1, 9)):
        at = int(rng.integers(len(noisy) + 1))
        noisy[at : at + int(rng.integers(3))] = rng.bytes(int(rng.integers(3)))
    return noisy.decode(errors="replace")


def endurance(programs: int) -> bool:
    """Many programs, half of them noise: whether nothing is left, nothing grows, and every failure says what it is."""
    print(f"{programs:,} programs, half of them with noise in their bytes, through {ENVS} environments on one worker\n")
    rng = np.random.default_rng(1)
    before = descendants()
    envs = lang_envs.make_vec(ENVIRONMENT, ENVS)
    seen: Counter[str] = Counter()
    silent = machinery = restarts = 0
    sizes: list[tuple[int, int]] = []
    known: set[int] = set()
    envs.reset(seed=0)
    done, began = 0, time.perf_counter()
    while done < programs:
        texts = [random_program(rng) for _ in range(min(BATCH, programs - done) + ENVS - 1 & -ENVS)]
        texts = [with_noise(text, rng) if number % 2 else text for number, text in enumerate(texts)]
        for action in batches(envs, texts):
            try:
                infos = envs.step(action)[-1]
            except SandboxError as error:
                print(f"the machinery failed: {error}", flush=True)
                machinery += 1
                envs.reset()
                continue
            for status, said in zip(statuses(infos), statuses(infos, "error"), strict=True):
                seen[str(status)] += 1
                silent += status != "ok" and not str(said or "").strip()
        done += len(texts)
        pids = descendants() - before
        restarts += bool(known) and not pids & known
        known = pids
        sizes.append((max((resident(pid) for pid in pids), default=0), resident()))
        print(
            f"{done:>8,}  {done / (time.perf_counter() - began):6.1f}/s   zygote {sizes[-1][0] / 1024:6.1f} MiB   "
            f"this process {sizes[-1][1] / 1024:6.1f} MiB   processes {len(pids)}   {dict(seen.most_common())}",
            flush=True,
        )
    zombies = [pid for pid in descendants() - before if stat_of(pid)[0] == "Z"]
    envs.close()
    del envs
    deadline = time.monotonic() + 10
    while (left := descendants() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    growth = sizes[-1][0] - sizes[min(1, len(sizes) - 1)][0]
    rows = {
        "programs": f"{seen.total():,}",
        "that work": f"{seen['ok'] / max(1, seen.total()):.1%}",
        "failures without a message": f"{silent} ({silent / max(1, seen.total() - seen['ok']):.1%})",
        "crashes of programs": f"{seen['crash']:,}",
        "failures of the machinery": f"{machinery}, workers started anew {restarts}",
        "growth of the zygote": f"{growth / 1024:+.2f} MiB",
        "zombies, processes left": f"{len(zombies)}, {len(left)}",
    }
    print("\n" + "\n".join(f"{name:32}{value}" for name, value in rows.items()))
    return not (silent or machinery or zombies or left)


def stat_of(pid: int) -> tuple[str, int]:
    """State and parent of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])


def descendants() -> set[int]:
    """Every process that comes from this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = stat_of(int(entry.name))[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in found | {os.getpid()}} - found:
        found |= more
    return found


def resident(pid: int | None = None) -> int:
    """ActionRecord of a process in KiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text().split("\n")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of the single programs; 0 leaves them out")
    parser.add_argument("--fresh-rounds", type=int, default=5, help="rounds of the new interpreter")
    parser.add_argument("--evaluations", type=int, default=200, help="programs of one rate; 0 leaves the rates out")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of a rate")
    parser.add_argument("--programs", type=int, default=1_000, help="programs of the long run; 0 leaves it out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of programs executed in this process
    if options.rounds:
        one_program(options.rounds, max(1, options.fresh_rounds))
    if options.evaluations:
        throughput(max(ENVS, options.evaluations), max(1, options.repeats))
    return 0 if not options.programs or endurance(options.programs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
