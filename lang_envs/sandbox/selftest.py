"""Proof, before any program is run, that the layers hold: programs that try what must fail and do what must work."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from lang_envs.sandbox import protocol

if TYPE_CHECKING:
    from lang_envs.sandbox.zygote import Zygote

_MUST_FAIL = {
    "open a file of the system": "open('/etc/passwd')",
    "open a library": "open(os.__file__)",
    "look for a file": "os.stat('/')",
    "list a folder": "os.listdir('/')",
    "change a folder's mode": "os.chmod('/tmp', 0o1777)",  # what it is
    "create a file": "open('/tmp/lang-envs-probe', 'w')",
    "create shared memory": "open('/dev/shm/lang-envs-probe', 'w')",
    "fork": "os.fork() or os._exit(0)",
    "open an internet socket": "socket.socket(socket.AF_INET)",
    "open a local socket": "socket.socket(socket.AF_UNIX)",
    "open a virtual machine's socket": "socket.socket(40)",
    "signal the parent": "os.kill(os.getppid(), 0)",
    "read the parent's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "create System V shared memory": "call(libc.shmget(0, 4096, 0o1600))",
    "create a file in memory": "os.memfd_create('probe')",
    "change the parent's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
}
_DATA = {"read data that comes with scikit-learn": "import sklearn.datasets as d; d.load_breast_cancer()"}
_MUST_DIE = {
    "execute a program": "os.execv('/bin/true', ['true'])",
    "trace the parent": "libc.ptrace(16, os.getppid(), 0, 0)",
}
_IMPORTS = "import ctypes, os, resource, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_TRY = (
    _IMPORTS
    + """
def call(result):
    if result < 0:
        raise OSError
done = []
for name, act in ACTS.items():
    try:
        exec(act)
        done.append(name)
    except (OSError, PermissionError):
        pass
assert not done, done
output = [1.0]
"""
)
_MUST_WORK = """
import numpy
from sklearn.cluster import KMeans
from sklearn.covariance import EmpiricalCovariance
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
x = numpy.random.rand(40, 3)
y = numpy.arange(40) % 2
KMeans(2, n_init=1).fit(x)
EmpiricalCovariance().fit(x)
RandomForestClassifier(5, n_jobs=-1).fit(x, y)
for model in (LogisticRegression(), KNeighborsClassifier(), HistGradientBoostingClassifier(max_iter=3)):
    output = model.fit(x, y).predict_proba(x)
"""


def run(zygote: Zygote) -> list[str]:
    """What does not hold, in words; nothing where all is well."""
    failures = []
    learns = "scikit-learn" in zygote.packages
    forbidden = _MUST_FAIL | (_DATA if learns else {})
    acts = f"ACTS = {forbidden | {'open a file of this package': f'open({__file__!r})'}!r}\n" + _TRY
    output, ending = _play(zygote, acts)
    if output != protocol.OUTPUT:
        failures.append(f"a program can do what it must not: {ending}")
    for name, act in _MUST_DIE.items():
        output, ending = _play(zygote, f"{_IMPORTS}{act}\noutput = [1.0]")
        if ending != f"signal {signal.SIGSYS:d}":
            failures.append(f"a program that tries to {name} is not ended ({ending})")
    if learns:
        output, ending = _play(zygote, _MUST_WORK)
        if output != protocol.OUTPUT:
            failures.append(f"scikit-learn does not work in here: {ending}")
    return failures


def _play(zygote: Zygote, program: str) -> tuple[int | None, str]:
    """The kind of result that a program sent, and in words how it ended."""
    read, write = os.pipe()
    task = protocol.write_task(program, {}, seed=0, cpu_seconds=20, memory_bytes=1 << 30)
    zygote.stand_by()
    child = zygote.dispatch([task, write])
    if child is None:
        return None, "no process could be started"
    _, status, *_ = protocol.ENDING.unpack(zygote.watch(0, child, 20.0))
    code = os.waitstatus_to_exitcode(status)
    with os.fdopen(read, "rb") as pipe:
        sent = pipe.read()[len(protocol.BEGUN) :]
    if code < 0 or len(sent) < protocol.RESULT.size:
        return None, f"signal {-code}" if code < 0 else f"exit {code}"
    header = sent[: protocol.RESULT.size]
    return protocol.RESULT.unpack(header)[1], sent[protocol.RESULT.size :].decode(errors="replace")
