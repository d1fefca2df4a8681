"""The self-test of the layers, before any real program runs: programs that must fail, must be killed and must work."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lang_envs.sandbox import protocol

_MUST_FAIL = {
    "open a file of the system": "open('/etc/passwd')",
    "open a library": "open(os.__file__)",
    "open a file of this package": f"open({__file__!r})",
    "look for a file": "os.stat('/')",
    "list a folder": "os.listdir('/')",
    "change a folder's mode": "os.chmod('/tmp', 0o1777)",  # the mode that it has
    "create a file": "open('/tmp/lang-envs-probe', 'w')",
    "create shared memory": "open('/dev/shm/lang-envs-probe', 'w')",
    "fork": "os.fork() or os._exit(0)",
    "open an internet socket": "socket.socket(socket.AF_INET)",
    "open a local socket": "socket.socket(socket.AF_UNIX)",
    "open a virtual machine's socket": "socket.socket(40)",  # AF_VSOCK
    "signal the parent": "os.kill(os.getppid(), 0)",
    "read the parent's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "create System V shared memory": "call(libc.shmget(0, 4096, 0o1600))",  # IPC_CREAT, mode 600
    "create a file in memory": "os.memfd_create('probe')",
    "change the parent's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
}
_MUST_FAIL_WITH_SCIKIT_LEARN = {
    "read data that comes with scikit-learn": "import sklearn.datasets as d; d.load_breast_cancer()"
}
_MUST_BE_KILLED = {
    "execute a program": "os.execv('/bin/true', ['true'])",
    "trace the parent": "libc.ptrace(16, os.getppid(), 0, 0)",  # PTRACE_ATTACH
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


class Outcome(NamedTuple):
    """How a program of the self-test ended."""

    result: int | None
    """``protocol.OUTPUT``, ``protocol.ERROR``, or None where the program sent no result."""
    description: str


def run(play: Callable[[str], Outcome], packages: Sequence[str]) -> list[str]:
    """Run the self-test.

    Parameters
    ----------
    play : callable
        Runs a program, given as its text, inside the layers.
    packages : sequence of str
        Distributions that programs may import; with scikit-learn there are more tests.

    Returns
    -------
    list of str
        Descriptions of what failed; empty where all layers hold.
    """
    failures = []
    with_scikit_learn = "scikit-learn" in packages
    forbidden = _MUST_FAIL | (_MUST_FAIL_WITH_SCIKIT_LEARN if with_scikit_learn else {})
    result, description = play(f"ACTS = {forbidden!r}\n{_TRY}")
    if result != protocol.OUTPUT:
        failures.append(f"a program can do what it must not: {description}")
    for name, act in _MUST_BE_KILLED.items():
        _, description = play(f"{_IMPORTS}{act}\noutput = [1.0]")
        if description != f"signal {signal.SIGSYS:d}":
            failures.append(f"a program that tries to {name} is not killed ({description})")
    if with_scikit_learn:
        result, description = play(_MUST_WORK)
        if result != protocol.OUTPUT:
            failures.append(f"scikit-learn does not work in the sandbox: {description}")
    return failures
