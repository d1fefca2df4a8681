"""Tests of every attack on the sandbox, in every tier, as both kinds of user, and with each layer left out.

Attacks run in rounds, each in a process of its own that writes what came of it as JSON: this file is also the program
of that process. Where the tests run as root, the rounds of an ordinary user change to one first.
"""

import contextlib
import ctypes
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sandbox_attacks import ATTACKS, LAYERS, Attack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of layers of the Linux kernel")

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = """
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(inputs["x_train"], inputs["y_train"])
output = model.predict_proba(inputs["x_test"])
"""
SECRET = "LANG_ENVS_ATTACK"
"""A variable of the environment that stands for a key the user has there."""


# ------------------------------------------------------------------------------------------------------ the range


class Range:
    """What the attacks aim at: files, listeners, a process, a secret; made anew, so that nothing else is at risk."""

    def __enter__(self) -> "Range":
        self._stack = contextlib.ExitStack()
        self.secret = secrets.token_hex(16)
        os.environ[SECRET] = self.secret
        self.labels = np.frombuffer(self.secret.encode(), np.uint8)
        self.folder = Path(tempfile.mkdtemp(prefix="range-"))
        self._stack.callback(shutil.rmtree, self.folder, True)
        self.word = secrets.token_hex(8)
        self.victim: subprocess.Popen[bytes] | None = None
        self._stack.callback(self._end_victim)
        lines = Path(tempfile.mkdtemp(prefix="lines-"))
        self._stack.callback(shutil.rmtree, lines, True)
        lines.chmod(0o755)
        tcp = self._listen(socket.socket(), ("127.0.0.1", 0))
        self._listen(socket.socket(socket.AF_UNIX), str(lines / "stream"))
        self._listen(socket.socket(socket.AF_UNIX), f"\0{self.word}")
        udp = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        datagrams = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(str(lines / "datagrams"))
        for line in lines.iterdir():
            line.chmod(0o777)
        self.places = {
            "LABELS": str(self.folder / "labels"),
            "CANARY": str(self.folder / "canary"),
            "FOLDER": str(self.folder),
            "UNIX": str(lines / "stream"),
            "DATAGRAM": str(lines / "datagrams"),
            "TCP": str(tcp.getsockname()[1]),
            "UDP": str(udp.getsockname()[1]),
            "WORD": self.word,
            "TERCES": self.secret[::-1],
            "PARENT": str(os.getpid()),
        }
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _listen(self, line: socket.socket, address: Any) -> socket.socket:
        self._stack.enter_context(line)
        line.bind(address)
        line.listen()
        threading.Thread(target=self._answer, args=(line,), daemon=True).start()
        return line

    @staticmethod
    def _answer(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller = line.accept()[0]
                with caller, contextlib.suppress(OSError):
                    caller.settimeout(0.2)
                    caller.recv(4096)
                    caller.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")

    def reset(self) -> None:
        """Undo what an attack may have done."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o777)
        for name in ("labels", "canary"):
            (self.folder / name).write_text(self.secret)
            (self.folder / name).chmod(0o666)
        if self.victim is None or self.victim.poll() is not None:
            self.victim = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
            self.places["VICTIM"] = str(self.victim.pid)

    def _end_victim(self) -> None:
        if self.victim is not None:
            self.victim.kill()
            self.victim.wait()

    def fill(self, attack: Attack) -> str:
        """The attack's program with its words replaced."""
        program = attack.program
        for word, place in self.places.items():
            program = program.replace(f"@{word}@", place)
        return program

    def touched(self) -> bool:
        """Whether an attack left its mark, or killed."""
        assert self.victim is not None
        return (self.folder / "marker").exists() or self.victim.poll() is not None


def make_inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((90, 4))
    return {"x_train": x[:60], "y_train": (x[:60, 0] > 0).astype(np.int64), "x_test": x[60:]}


def descendants(pid: int, but: Sequence[int]) -> dict[int, str]:
    """State of every process below this one."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append((int(entry.name), state))
    found, waiting = {}, [pid]
    while waiting:
        for child, state in children.get(waiting.pop(), []):
            if child not in but:
                found[child] = state
                waiting.append(child)
    return found


# ------------------------------------------------------------------------------------------------------- the rounds


def sandbox_round(without: Sequence[str], numbers: Sequence[int], checks: bool) -> dict[str, Any]:
    """Run attacks; with ``checks``, after each one the reference program and a count of the processes."""
    from lang_envs.sandbox import Limits, Sandbox, SandboxError

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans come to this process, where they are counted
    inputs, results = make_inputs(), {}
    attacks = [attack for attack in ATTACKS if attack.number in numbers]
    with Range() as target, Sandbox(without=tuple(without)) as sandbox:
        reference = sandbox.run(REFERENCE, inputs, Limits())
        assert reference.status == "ok" and reference.output is not None, reference.error
        assert target.victim is not None
        usual = len(descendants(os.getpid(), [target.victim.pid]))
        for attack in attacks:
            target.reset()
            limits = Limits(wall_seconds=attack.seconds, cpu_seconds=attack.cpu, memory_bytes=256 << 20)
            outcome: dict[str, Any] = {}
            try:
                for _ in range(1 + attack.twice):
                    result = sandbox.run(target.fill(attack), inputs, limits)
                done = result.output is not None and result.output.tolist() == [1.0]
                outcome = {"status": result.status, "error": result.error, "open": done or target.touched()}
            except SandboxError as error:
                outcome = {"status": "SandboxError", "error": str(error), "open": True}
            secret_places = [str(REPOSITORY), sys.prefix, sys.base_prefix, target.places["FOLDER"], target.secret]
            known = target.fill(attack)  # what a program says of its own accord is no leak
            outcome["leaks"] = [p for p in secret_places if p in outcome["error"] and p.strip("/") not in known]
            if checks:
                again = sandbox.run(REFERENCE, inputs, Limits())
                same = again.output is not None and again.output.tobytes() == reference.output.tobytes()
                outcome["reference"] = "same" if same else f"{again.status}: {again.error}"
                left: dict[int, str] = {}
                for _ in range(300):
                    left = descendants(os.getpid(), [target.victim.pid])
                    if len(left) <= usual and "Z" not in left.values():
                        break
                    time.sleep(0.01)
                else:
                    outcome["left"] = f"{len(left)} processes for {usual}: {left}"
            results[attack.number] = outcome
        layers = {"tier": sandbox.tier, "absent": sandbox.absent}
    for _ in range(300):
        if not any(state != "Z" for state in descendants(os.getpid(), []).values()):
            break
        time.sleep(0.01)
    alive = [pid for pid, state in descendants(os.getpid(), []).items() if state != "Z"]
    return {"results": results, "left": alive, **layers}


def bare_round(numbers: Sequence[int]) -> dict[str, Any]:
    """Run attacks in a forked process without any sandbox."""
    results = {}
    with Range() as target, tempfile.TemporaryFile() as file, socket.socket() as line:
        inputs = make_inputs()
        inputs["x_train"].tofile(file)
        file.flush()
        folder = os.open("/", os.O_RDONLY)
        for attack in ATTACKS:
            if attack.number not in numbers:
                continue
            target.reset()
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                said = "no exception"
                try:
                    os.chdir("/")
                    labels = target.labels.copy()
                    for _ in range(1 + attack.twice):
                        scope: dict[str, Any] = {"inputs": inputs}
                        with contextlib.suppress(*([AssertionError] if attack.twice and not _ else [])):
                            exec(target.fill(attack), scope)
                    said = "open" if scope["output"] == [1.0] and labels.size and folder and line else "closed"
                except BaseException as error:
                    said = f"{type(error).__name__}: {error}"
                finally:
                    with contextlib.suppress(BaseException):
                        os.write(write, said.encode()[:500])
                    os._exit(0)
            os.close(write)
            with os.fdopen(read, "rb") as pipe:
                timer = threading.Timer(20, os.kill, (child, signal.SIGKILL))
                timer.start()
                said = pipe.read().decode(errors="replace")
                status = os.waitpid(child, 0)[1]
                timer.cancel()
            results[attack.number] = "open" if target.touched() else said or f"status {status}"
    return {"results": results}


# -------------------------------------------------------------------------------------------------------- the tests

ROOT = sys.platform == "linux" and os.geteuid() == 0
PRESENT = not ROOT
"""Whether the user of the tests is an ordinary one."""
USERS = [
    pytest.param(False, id="root", marks=pytest.mark.skipif(not ROOT, reason="needs root")),
    pytest.param(True, id="user"),
]
FAST = tuple(attack.number for attack in ATTACKS if attack.alone_succeeds and attack.seconds >= 10)
ALL = tuple(attack.number for attack in ATTACKS)
BRIEF = tuple(attack.number for attack in ATTACKS if not 1 < attack.seconds < 10)
"""Those that need some seconds to come to their end are run once, in the tier of this machine and user."""
TIERS: tuple[tuple[str, ...], ...] = ((), ("namespaces",))
SEVERAL = (
    ("uid", "seccomp"),
    ("namespaces", "landlock"),
    ("namespaces", "seccomp"),
    ("nested-landlock", "seccomp"),
    ("namespaces", "nested-landlock", "seccomp"),
    ("namespaces", "landlock", "seccomp"),
)
REDUCED = (
    ("private-root",),
    ("uid",),
    ("landlock",),
    ("rlimits",),
    ("nested-landlock",),
    ("seccomp",),
    *(SEVERAL if os.environ.get("LANG_ENVS_SLOW_TESTS") else ()),
    ("namespaces", "landlock", "rlimits", "nested-landlock", "seccomp"),
)
"""Sets of layers left out: each one alone, then nearly all; those that stand in for one another where there is time."""
BY_USER = (("landlock",), ("seccomp",))
"""Those that an ordinary user tries as well where the tests run as root; larger ones only an ordinary user may."""


class Rounds:
    """The rounds, each run once, two at a time, when the first test asks for one of them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._rounds: dict[Any, Future[dict[str, Any]]] = {}

    def start(self, user: bool, without: Sequence[str] | None, numbers: Sequence[int], checks: bool) -> None:
        task = {
            "sandbox": without is not None,
            "without": without,
            "user": user,
            "numbers": numbers,
            "checks": checks,
            # what is most used is also tried without help: the Python as it lies on this machine
            "enter": without not in (None, ()) or user != PRESENT,
        }
        self._rounds[user, without] = self._pool.submit(self._run, task)

    @staticmethod
    def _run(task: dict[str, Any]) -> dict[str, Any]:
        command = [sys.executable, "-B", __file__, "enter", json.dumps(task)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if ended.returncode:
            pytest.fail(f"the round {task['without']} did not end well: {ended.stderr[-2000:]}", pytrace=False)
        report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        report["results"] = {int(number): result for number, result in report["results"].items()}
        return report

    def get(self, user: bool, without: Sequence[str] | None) -> dict[str, Any]:
        report = self._rounds[user, without].result()
        if "skip" in report:
            pytest.skip(report["skip"])
        return report

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def rounds() -> Iterator[Rounds]:
    pytest.importorskip("sklearn")
    rounds = Rounds()
    users = (False, True) if ROOT else (True,)
    rounds.start(PRESENT, (), ALL, True)
    for user in users:
        for without in TIERS:
            if (user, without) != (PRESENT, ()):
                rounds.start(user, without, BRIEF, True)
    rounds.start(PRESENT, None, [attack.number for attack in ATTACKS if shown_alone(attack)], False)
    for user, without in reduced_rounds(users):
        rounds.start(user, without, FAST, False)
    yield rounds
    rounds.close()


def shown_alone(attack: Attack) -> bool:
    """Whether the attack can be shown to be one on this machine, outside of the sandbox."""
    who = {"any", "root"} if ROOT else {"any"}
    return attack.alone in who and platform.machine() in attack.machines


def reduced_rounds(users: Sequence[bool]) -> list[tuple[bool, tuple[str, ...]]]:
    """Those that say something: an ordinary user has no other user to change to, and root is not let loose."""
    if len(users) == 1:
        return [(users[0], without) for without in REDUCED if "uid" not in without]
    root = [(False, without) for without in REDUCED if len(without) < 4]
    return root + [(True, without) for without in REDUCED if without in BY_USER or len(without) > 3]


def landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_long(0), 1))


def missing(user: bool, report: dict[str, Any]) -> set[str]:
    """The layers a round has to do without."""
    return {*report["absent"], *(["user"] if user else [])}


def opens(attack: Attack, absent: set[str]) -> bool:
    return any(layers <= absent for layers in attack.opens_without)


def complaints(attack: Attack, outcome: dict[str, Any], absent: set[str]) -> list[str]:
    """What is not as it should be after one attack."""
    found = []
    if opens(attack, absent):
        if not outcome["open"]:
            found.append(f"was thought to be open, and is not: {outcome['status']}, {outcome['error']}")
    elif outcome["open"]:
        found.append(f"SUCCEEDED ({outcome['status']})")
    elif outcome["status"] not in attack.ends:
        found.append(f"ended as {outcome['status']!r} ({outcome['error']}), not as {sorted(attack.ends)}")
    if outcome.get("reference", "same") != "same":
        found.append(f"changed the reference program: {outcome['reference']}")
    if "left" in outcome:
        found.append(f"left processes behind: {outcome['left']}")
    if outcome["leaks"]:
        found.append(f"its error names places of the machine: {outcome['error']}")
    if len(outcome["error"].encode()) > 1024:
        found.append("its error is longer than 1 KiB")
    return [f"{attack} {complaint}" for complaint in found]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attack_ends_as_expected(rounds: Rounds, attack: Attack) -> None:
    """Under all layers; the next program notices nothing, and nothing stays behind."""
    if platform.machine() not in attack.machines:
        pytest.skip(f"there is no such thing on {platform.machine()}")
    report = rounds.get(PRESENT, ())
    assert complaints(attack, report["results"][attack.number], missing(PRESENT, report)) == []


def test_the_ordinary_user_owns_the_environment(rounds: Rounds) -> None:
    """What an owner may do to the files of a library, a program of theirs might."""
    reason = rounds.get(True, TIERS[-1])["not_owner"]
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("without", TIERS, ids=lambda without: "no namespaces" if without else "all layers")
@pytest.mark.parametrize("user", USERS)
def test_attacks_end_as_expected_in_every_tier(rounds: Rounds, user: bool, without: tuple[str, ...]) -> None:
    report = rounds.get(user, without)
    absent = missing(user, report)
    here = [a for a in ATTACKS if a.number in report["results"] and platform.machine() in a.machines]
    found = [line for attack in here for line in complaints(attack, report["results"][attack.number], absent)]
    assert found == []
    assert report["left"] == [], "processes outlived the sandbox"
    assert not absent & {"uid", "rlimits", "seccomp"}, "the sandbox should have refused to start"


def test_attacks_succeed_where_nothing_stops_them(rounds: Rounds) -> None:
    """Otherwise a slip of the pen in an attack would pass for a refusal for ever."""
    report = rounds.get(PRESENT, None)
    lacking = ("[Errno 38]", "[Errno 93]", "[Errno 97]")  # of a kernel built without it
    failed = {number: said for number, said in report["results"].items() if said != "open"}
    assert {number: said for number, said in failed.items() if not any(word in said for word in lacking)} == {}
    assert len(report["results"]) >= 140
    assert len(failed) <= 12


@pytest.mark.parametrize(
    ("user", "without"),
    [
        pytest.param(user, without, id=f"{'user' if user else 'root'} without {' '.join(without)}")
        for user, without in reduced_rounds((False, True) if ROOT else (True,))
    ],
)
def test_layers_stop_the_attacks_that_the_table_names(rounds: Rounds, user: bool, without: tuple[str, ...]) -> None:
    """Which attacks succeed with layers switched off is what the table says, neither more nor less."""
    if landlock_version() < 6:
        pytest.skip("what stands in for what was measured on a kernel with Landlock 6, and depends on it")
    report = rounds.get(user, without)
    absent = missing(user, report)
    numbers = report["results"]
    here = [attack for attack in ATTACKS if attack.number in numbers and platform.machine() in attack.machines]
    succeeded = {str(attack) for attack in here if numbers[attack.number]["open"]}
    expected = {str(attack) for attack in here if opens(attack, absent)}
    print(f"\n{'an ordinary user' if user else 'root'} without {', '.join(without)}: {len(succeeded)} succeed")
    for line in sorted(succeeded, key=lambda name: int(name.split()[0])):
        print(f"  {line}")
    assert succeeded <= expected
    assert expected - succeeded <= {str(attack) for attack in here if attack.unsure}


def test_the_table_of_layers(rounds: Rounds) -> None:
    """For the eye, with `-s`: what stands open (*) with which layers off."""
    columns = [(user, without) for user, without in reduced_rounds((False, True) if ROOT else (True,))]
    found = [rounds.get(user, without)["results"] for user, without in columns]
    for place, (user, without) in enumerate(columns):
        print(f"\n{'| ' * place}{'user' if user else 'root'} without {', '.join(without)}", end="")
    print()
    for attack in ATTACKS:
        row = ["*" if results.get(attack.number, {}).get("open") else "." for results in found]
        if "*" in row:
            print(f"{' '.join(row)}  {attack}")
    alone = {
        without[0]: sum(v["open"] for v in r.values())
        for (_, without), r in zip(columns, found, strict=True)
        if len(without) == 1
    }
    print("stopped by one layer alone:", ", ".join(f"{layer} {count}" for layer, count in alone.items()))
    assert alone["seccomp"] > 20


def test_each_layer_stops_something_that_nothing_else_does() -> None:
    """Some only once another layer is gone: that is what depth means."""
    named = {layer for attack in ATTACKS for layers in attack.opens_without for layer in layers}
    assert set(LAYERS) <= named
    assert all(layer in (*LAYERS, "user") for layer in named)


@pytest.mark.parametrize("number", [87, 231, 232, 233, 234, 314, 323])
def test_errors_of_attacks_are_short_and_printable(rounds: Rounds, number: int) -> None:
    """Whatever an exception does when it is turned into text, and whatever a program sends in its place."""
    outcome = rounds.get(PRESENT, ())["results"][number]
    assert outcome["status"] == "error"
    assert 0 < len(outcome["error"].encode()) <= 1024
    assert all(character.isprintable() or character == "\n" for character in outcome["error"])


def test_numbers_and_names_are_unique() -> None:
    assert len({attack.number for attack in ATTACKS}) == len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 104


# ------------------------------------------------------------------------------------- the program of a round


def main(step: str, specification: str) -> None:
    task = json.loads(specification)
    if step == "enter":
        sys.path.insert(0, str(REPOSITORY))
        from benchmarks.security.users import become

        not_owner = "not asked for"
        try:
            if task["enter"]:
                not_owner = become(task["user"], REPOSITORY)
        except OSError as error:
            print(json.dumps({"skip": f"cannot become an ordinary user here: {error}", "results": {}}))
            return
        specification = json.dumps({**task, "not_owner": not_owner})
        command = [sys.executable, "-B", __file__, "run", specification]
        os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/"})
    began = time.monotonic()
    if task["sandbox"]:
        report = sandbox_round(task["without"], task["numbers"], task["checks"])
    else:
        report = bare_round(task["numbers"])
    seconds = time.monotonic() - began
    print("\n" + json.dumps({**report, "not_owner": task["not_owner"], "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
