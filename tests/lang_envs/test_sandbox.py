"""Tests of the sandbox: inputs and outputs, limits, failures that are not the program's, and leftover processes.

`test_sandbox_attacks.py` tests hostile programs. These tests start a small sandbox without scikit-learn and self-test,
which takes a fraction of a second.
"""

import contextlib
import importlib.util
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the sandbox needs Linux", allow_module_level=True)
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("programs of the sandbox use scikit-learn: pip install 'lang-envs[data]'", allow_module_level=True)

from lang_envs.sandbox import (
    LAYERS,
    Limits,
    Result,
    Sandbox,
    SandboxError,
    cgroups,
    doctor,
    seccomp,
    syscalls,
    tier_of,
    worker,
)
from lang_envs.sandbox.pool import SOURCE_BYTES, clean_error

SMALL: dict[str, Any] = {"packages": ("numpy",), "without": ("nested-landlock",)}
ONE = "output = [1.0]"
DATA = """
import numpy as np
x = np.random.RandomState(3).rand(60, 4)
y = (x[:, 0] + x[:, 1] > 1).astype(int)
"""
HEADER = "import os, struct, time\nheader = lambda *a: os.write(3, struct.pack('=4sBBIIQ', *a))\n"
ROOT = Path(__file__).parents[2]

Maker = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as full:
        yield full


@pytest.fixture(scope="module")
def shared_small() -> Iterator[Sandbox]:
    with Sandbox(**SMALL) as small:
        yield small


@pytest.fixture
def start() -> Iterator[Maker]:
    """Starts small sandboxes that end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Sandbox(**(SMALL | options)))


def works(sandbox: Sandbox) -> bool:
    result = sandbox.run("output = inputs['x'] * 2", {"x": np.arange(3.0)}, Limits(wall_seconds=3))
    return result.status == "ok" and result.output is not None and result.output.tolist() == [0.0, 2.0, 4.0]


# ---------------------------------------------------------------------------------------------------------- processes


def state(pid: int) -> tuple[str, int] | None:
    """State and parent of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1])


def below(pid: int) -> list[int]:
    """All processes that come from that one."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    parents = {process: found[1] for process in pids if (found := state(process))}
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [process for process, of in parents.items() if of == parent]
        found += children
        waiting += children
    return found


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie counts as ended unless it is a child of this process."""
    found = state(pid)
    return found is None or (found[0] in "ZX" and found[1] != os.getpid())


def eventually(holds: Callable[[], Any], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def all_gone(pids: list[int]) -> bool:
    assert pids
    return eventually(lambda: all(map(is_gone, pids)))


def outer(sandbox: Sandbox) -> int:
    (worker,) = sandbox.workers
    return worker.process.pid


def fork_server(sandbox: Sandbox) -> int:
    """The process that forks: with namespaces the only child of the one that was started."""
    return outer(sandbox) if "namespaces" in sandbox.absent else below(outer(sandbox))[0]


def in_background(sandbox: Sandbox, program: str, **limits: float) -> tuple[threading.Thread, list[Any]]:
    """Begin to run a program; the list gets its result, or what `run` raised."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(sandbox.run(program, {}, Limits(**limits)))  # type: ignore[arg-type]
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


# --------------------------------------------------------------------------------------------------- inputs and output


@pytest.mark.parametrize(
    "dtype", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "g", ">f8", ">i4"]
)
def test_inputs_arrive_as_they_are(shared_small: Sandbox, dtype: str) -> None:
    given = np.array([[0, 1, 2], [3, 100, 5]]).astype(dtype)
    program = f"x = inputs['x']\nassert x.dtype == {given.dtype.str!r} and x.flags.writeable, x.dtype\noutput = x"
    result = shared_small.run(program, {"x": given})
    assert result.error == ""
    assert result.output is not None and result.output.dtype == np.float64
    np.testing.assert_array_equal(result.output, given.astype(float))


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (0, 3), (3, 0), (1, 1), (5, 2)])
def test_outputs_keep_their_shape(shared_small: Sandbox, shape: tuple[int, ...]) -> None:
    given = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    result = shared_small.run("output = inputs['x']", {"x": given})
    assert result.output is not None and result.output.shape == shape and result.output.flags.writeable
    np.testing.assert_array_equal(result.output, given)


def test_inputs_of_any_layout(shared_small: Sandbox) -> None:
    whole = np.arange(24.0).reshape(2, 3, 4)
    views = {"turned": whole[0].T, "strided": whole[1, ::2, ::-1], "deep": whole, "read only": np.broadcast_to(1.0, 4)}
    program = "output = [a.sum() for a in inputs.values()] + [inputs['deep'].ndim, list(inputs) == NAMES]"
    result = shared_small.run(f"NAMES = {list(views)}\n{program}", views)
    assert result.output is not None
    assert result.output.tolist() == [*(float(view.sum()) for view in views.values()), 3.0, 1.0]


def test_a_program_changes_only_its_copy(shared_small: Sandbox) -> None:
    given = np.zeros((3, 3))
    for _ in range(2):
        result = shared_small.run("inputs['x'] += 1\noutput = inputs['x']", {"x": given})
        assert result.output is not None and (result.output == 1).all()
    assert (given == 0).all()


@pytest.mark.parametrize(
    "bad",
    [
        np.array(["a"]),
        np.array([1j]),
        np.array([None]),
        np.array([b"a"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros(2, dtype=[("a", "f8")]),
    ],
    ids=lambda array: array.dtype.str,
)
def test_inputs_that_are_not_numbers_are_named(shared_small: Sandbox, bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="'wrong'"):
        shared_small.run(ONE, {"fine": np.ones(2), "wrong": bad})


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1.0", "dimensions"),
        ("np.zeros((2, 2, 2))", "dimensions"),
        ("[1j]", "real numbers"),
        ("['a']", "real numbers"),
        ("[None]", "real numbers"),
        ("[[1], [2, 3]]", "inhomogeneous"),
        ("[10**400]", ""),
        ("None", "real numbers"),
    ],
)
def test_outputs_that_are_not_numbers(shared_small: Sandbox, expression: str, message: str) -> None:
    result = shared_small.run(f"import numpy as np\noutput = {expression}", {})
    assert result.status == "error" and result.output is None and message in result.error and result.error


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_outputs_that_are_not_finite(shared_small: Sandbox, number: str) -> None:
    result = shared_small.run(f"output = [1.0, float({number!r})]", {})
    assert (result.status, result.output) == ("rejected", None) and "finite" in result.error


def test_a_program_that_raises(shared_small: Sandbox) -> None:
    result = shared_small.run("def f():\n    raise KeyError('a key')\n\nf()", {})
    assert result == Result("error", None, "KeyError: 'a key' (line 2)", result.seconds)
    assert shared_small.run("x = (", {}).error.startswith("SyntaxError")
    assert "output" in shared_small.run("", {}).error
    for ending in ("raise SystemExit(0)", "raise KeyboardInterrupt", "exit()", "raise GeneratorExit"):
        result = shared_small.run(ending, {})
        assert result.status == "error" and result.output is None


def test_programs_of_any_characters(shared_small: Sandbox) -> None:
    for program in ("x = '\ud800'", "x = '\0'", "\ufeffx", "𝒙 = 1\noutput = [x]", "\x00\x01\x02", "é" * 100):
        assert shared_small.run(program, {}).status in ("ok", "error")
    with pytest.raises(ValueError, match="bytes"):
        shared_small.run(b"output = [1.0]", {})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- same, always

SAME = {
    "generators": "import random, numpy\noutput = [random.random(), numpy.random.rand(), *numpy.random.permutation(9)]",
    "sets": "output = [hash(w) % 997 for w in {'a', 'b', 'c', 'd', 'e'}] + [ord(w) for w in set('sandbox')]",
    "environment": "import os, time\noutput = [len(os.environ), hash(str(sorted(os.environ.items()))), time.timezone]",
    "forest": DATA
    + "from sklearn.ensemble import RandomForestClassifier as M\noutput = M(9).fit(x, y).predict_proba(x)",
    "network": DATA
    + "from sklearn.neural_network import MLPClassifier as M\noutput = M((9,), max_iter=9).fit(x, y).predict_proba(x)",
    "clusters": DATA + "from sklearn.cluster import KMeans\noutput = KMeans(3, n_init=2).fit(x).cluster_centers_",
}
ELSEWHERE = """
import sys
from lang_envs.sandbox import Sandbox
import test_sandbox
with Sandbox() as sandbox:
    for program in test_sandbox.SAME.values():
        print(sandbox.run(program, {}, seed=5).output.tobytes().hex())
"""


def test_the_same_program_gives_the_same_bytes_everywhere(sandbox: Sandbox) -> None:
    elsewhere = run_script(ELSEWHERE, PYTHONHASHSEED="4321", TZ="Asia/Tokyo", NOISE="1", OMP_NUM_THREADS="2")
    for (name, program), there in zip(SAME.items(), elsewhere.split(), strict=True):
        first, again, other = (sandbox.run(program, {}, seed=seed) for seed in (5, 5, 6))
        assert first.output is not None and again.output is not None and other.output is not None, (name, first.error)
        assert first.output.tobytes() == again.output.tobytes(), name
        assert first.output.tobytes().hex() == there, name
        if name not in ("sets", "environment"):
            assert first.output.tobytes() != other.output.tobytes(), name


def test_generators_without_a_seed_are_seeded(shared_small: Sandbox, start: Maker) -> None:
    program = "import numpy\noutput = numpy.random.default_rng().random(3)"
    here, there = (sandbox.run(program, {}, seed=4).output for sandbox in (shared_small, start()))
    assert here is not None and there is not None and here.tobytes() == there.tobytes()


def test_programs_leave_nothing_for_later_programs(sandbox: Sandbox) -> None:
    look = """
import builtins, numpy, os, random, sys, sklearn.svm, warnings
output = [
    hasattr(builtins, "left"), hasattr(numpy, "left"), "LEFT" in os.environ, "left" in sys.modules,
    sklearn.svm.SVC is None, len(sys.path), len(warnings.filters), numpy.random.rand(), random.random(),
    numpy.sum([1, 2]), sys.getrecursionlimit(), numpy.geterr()["divide"] == "raise", os.getcwd() == "/",
    len(sys.meta_path),
]
"""
    poison = """
import builtins, json, numpy, os, random, sys, sklearn.svm, warnings, mmap
builtins.left = numpy.left = sys.modules["left"] = json
os.environ["LEFT"] = "1"
sklearn.svm.SVC = None
sys.path.append("/left"); sys.meta_path.clear(); warnings.simplefilter("error"); sys.setrecursionlimit(99)
numpy.random.seed(99); random.seed(99); numpy.seterr(divide="raise")
numpy.sum = lambda x: 0
sys.modules["numpy.linalg"] = sys.modules["json"] = None
output = [1.0]
"""
    before = sandbox.run(look, {})
    assert before.output is not None, before.error
    for _ in range(3):
        assert sandbox.run(poison, {}).status == "ok"
        after = sandbox.run(look, {})
        assert after.output is not None and after.output.tolist() == before.output.tolist()


# ------------------------------------------------------------------------------------------------ scikit-learn in here

ESTIMATORS = [
    "LogisticRegression()",
    'SGDClassifier(loss="log_loss")',
    "SVC(probability=True)",
    "LinearDiscriminantAnalysis()",
    "QuadraticDiscriminantAnalysis(reg_param=0.1)",
    "GaussianNB()",
    "KNeighborsClassifier()",
    "KNeighborsClassifier(n_jobs=-1)",
    "DecisionTreeClassifier()",
    "RandomForestClassifier(9,n_jobs=-1)",
    "RandomForestClassifier(9,n_jobs=4)",
    "ExtraTreesClassifier(9,n_jobs=2)",
    "GradientBoostingClassifier(n_estimators=5)",
    "HistGradientBoostingClassifier(max_iter=5)",
    "AdaBoostClassifier(n_estimators=5)",
    "BaggingClassifier(n_jobs=-1)",
    "MLPClassifier((5,),max_iter=20)",
    "GaussianProcessClassifier()",
    'LabelSpreading(kernel="knn")',
    "CalibratedClassifierCV(GaussianNB(),cv=2,n_jobs=2)",
    'GridSearchCV(LogisticRegression(),{"C":[0.1,1]},cv=2,n_jobs=-1)',
    'StackingClassifier([("a",GaussianNB()),("b",DecisionTreeClassifier())],cv=2,n_jobs=-1)',
    'VotingClassifier([("a",GaussianNB()),("b",DecisionTreeClassifier())],voting="soft",n_jobs=-1)',
    "make_pipeline(SimpleImputer(),StandardScaler(),PCA(2),LogisticRegression())",
    'make_pipeline(ColumnTransformer([("a",StandardScaler(),[0,1])],remainder="passthrough",n_jobs=2),GaussianNB())',
    "make_pipeline(SelectKBest(k=2),PolynomialFeatures(),SVC(probability=True))",
    "make_pipeline(KMeans(3,n_init=2),GaussianNB())",
    "OneVsRestClassifier(LogisticRegression(),n_jobs=-1)",
]
EVERYTHING = """
import warnings
warnings.simplefilter("ignore")
from sklearn.utils import all_estimators
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.discriminant_analysis import *; from sklearn.ensemble import *; from sklearn.linear_model import *
from sklearn.svm import *; from sklearn.naive_bayes import *
from sklearn.neighbors import *; from sklearn.tree import *
from sklearn.neural_network import *; from sklearn.gaussian_process import *; from sklearn.semi_supervised import *
from sklearn.calibration import *; from sklearn.model_selection import GridSearchCV; from sklearn.pipeline import *
from sklearn.preprocessing import *; from sklearn.decomposition import *; from sklearn.compose import *
from sklearn.impute import *; from sklearn.feature_selection import *; from sklearn.cluster import *
from sklearn.multiclass import *
"""
OTHERS = {
    "joblib": "import joblib\noutput = joblib.Parallel(n_jobs=3)(joblib.delayed(abs)(-i) for i in range(5))",
    "joblib, threads": "import joblib\nwith joblib.parallel_backend('threading', n_jobs=2):\n"
    "    output = joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(5))",
    "joblib, loky": "import joblib\nwith joblib.parallel_backend('loky', n_jobs=2):\n"
    "    output = joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(5))",
    "threadpoolctl": "import numpy, threadpoolctl\nwith threadpoolctl.threadpool_limits(1):\n"
    "    output = (numpy.ones((200, 200)) @ numpy.ones((200, 200)))[0]",
    "threadpoolctl, then HGB": DATA + "import threadpoolctl\nthreadpoolctl.threadpool_limits(4)\n"
    "from sklearn.ensemble import HistGradientBoostingClassifier as M\n"
    "output = M(max_iter=2).fit(x, y).predict_proba(x)",
    "pickle": DATA
    + "import io, joblib, pickle\nfrom sklearn.svm import SVC\nm = pickle.loads(pickle.dumps(SVC().fit(x, y)))\n"
    "file = io.BytesIO()\njoblib.dump(m, file)\nfile.seek(0)\noutput = joblib.load(file).predict(x)",
    "lazy imports": "for name in ('sklearn.manifold', 'sklearn.mixture', 'wave', 'xml.dom.minidom', 'scipy.fft',\n"
    "    'encodings.utf_7', 'sklearn.utils._testing', 'scipy.stats.qmc', 'numpy.polynomial.chebyshev', 'decimal'):\n"
    "    __import__(name)\noutput = [1.0]",
    "output": "for _ in range(20000):\n    print('x' * 50)\nimport sys\nprint('y', file=sys.stderr)\noutput = [1.0]",
    "own estimator": DATA + "from sklearn.base import *\nclass M(ClassifierMixin, BaseEstimator):\n"
    "    def fit(self, x, y): self.classes_ = np.unique(y); return self\n"
    "    def predict_proba(self, x): return np.full((len(x), 2), 0.5)\noutput = M().fit(x, y).predict_proba(x)",
    "warnings": DATA + "import warnings\nfrom sklearn.linear_model import *\n"
    "output = LogisticRegression(max_iter=1).fit(x, y).predict(x)",
    "not installed": "try:\n    import pandas\nexcept ModuleNotFoundError:\n    output = [1.0]",
}


def test_every_family_of_estimators_runs(sandbox: Sandbox) -> None:
    for estimator in ESTIMATORS:
        result = sandbox.run(f"{EVERYTHING}{DATA}output = {estimator}.fit(x, y).predict_proba(x)", {})
        assert result.output is not None and result.output.shape == (60, 2), (estimator, result)


@pytest.mark.parametrize("name", OTHERS)
def test_programs_can_use_other_libraries_and_features(sandbox: Sandbox, name: str) -> None:
    result = sandbox.run(OTHERS[name], {}, Limits(wall_seconds=15))
    assert result.status == "ok", result


def test_a_program_that_requests_two_threads_gets_one(sandbox: Sandbox) -> None:
    program = """
import numpy, threadpoolctl
with threadpoolctl.threadpool_limits(2):
    x = numpy.ones((200, 200)) @ numpy.ones((200, 200))
output = [x[0, 0], max(library["num_threads"] for library in threadpoolctl.threadpool_info())]
"""
    result = sandbox.run(program, {}, Limits(wall_seconds=5))
    assert result.output is not None and result.output[0] == 200 and result.output[1] <= 1, result


@pytest.mark.parametrize("packages", [("numpy",), ()])
def test_other_packages(packages: tuple[str, ...]) -> None:
    with Sandbox(packages=packages) as sandbox:
        assert works(sandbox)
        assert "No module named 'sklearn'" in sandbox.run("import sklearn", {}).error


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("name", ["wall_seconds", "cpu_seconds", "memory_bytes", "output_bytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "1", None])
def test_limits_are_positive_numbers(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize(
    "program",
    ["import time\ntime.sleep(60)", "while True: pass", "import os, select\nos.close(3)\nselect.select([], [], [])"],
)
def test_too_long_on_the_clock(shared_small: Sandbox, program: str) -> None:
    began = time.monotonic()
    result = shared_small.run(program, {}, Limits(wall_seconds=0.3))
    assert result.status == "timeout" and "0.3 s" in result.error
    assert 0.3 <= time.monotonic() - began < 2.3


@pytest.mark.parametrize("seconds", [0.02, 0.001, 1e-6])
def test_a_very_short_limit_is_a_timeout_and_not_a_failure_of_the_sandbox(
    shared_small: Sandbox, seconds: float
) -> None:
    """What is left of the time of five repetitions may be that short: a program must not end a training with it."""
    result = shared_small.run(ONE, {"x": np.zeros(2_000_000)}, Limits(wall_seconds=seconds))
    assert result.status in ("ok", "timeout")


@pytest.mark.parametrize("handled", ["SIG_DFL", "SIG_IGN"])
def test_too_much_processor_time(shared_small: Sandbox, handled: str) -> None:
    program = f"import signal\nsignal.signal(signal.SIGXCPU, signal.{handled})\nwhile True: pass"
    result = shared_small.run(program, {}, Limits(cpu_seconds=0.5 if handled == "SIG_IGN" else 1, wall_seconds=20))
    assert (result.status, result.output) == ("cpu limit", None)


def test_too_much_memory(shared_small: Sandbox) -> None:
    limits = Limits(memory_bytes=100 << 20)
    for attempt in ("bytearray(150 << 20)", "np.ones(20 << 20)", "np.zeros(10 << 30)", "[0] * (20 << 20)"):
        result = shared_small.run(f"import numpy as np\nx = {attempt}\n{ONE}", {}, limits)
        assert result.status == "error" and "MemoryError" in result.error, (attempt, result)
    assert shared_small.run("x = bytearray(60 << 20)\n" + ONE, {}, limits).status == "ok"


def test_too_much_output(shared_small: Sandbox) -> None:
    big = np.arange(2 << 20, dtype=float)
    result = shared_small.run("output = inputs['x']", {"x": big})
    assert result.output is not None and (result.output == big).all()
    result = shared_small.run("import numpy\noutput = numpy.zeros((2 << 20) + 1)", {})
    assert result.status == "rejected" and str(16 << 20) in result.error
    few = Limits(output_bytes=16)
    assert shared_small.run("output = [1, 2]", {}, few).status == "ok"
    assert shared_small.run("output = [1, 2, 3]", {}, few).status == "rejected"
    assert "an explanation" in shared_small.run("raise ValueError('an explanation')", {}, few).error


def test_too_long_a_program(shared_small: Sandbox) -> None:
    longest = ONE.ljust(SOURCE_BYTES, "#")
    assert shared_small.run(longest, {}).status == "ok"
    for program in (longest + "#", "#" + "é" * (SOURCE_BYTES // 2)):
        result = shared_small.run(program, {})
        assert result.status == "error" and str(SOURCE_BYTES) in result.error


@pytest.mark.parametrize("limit", [{"wall_seconds": 1e9}, {"cpu_seconds": 1e12}, {"memory_bytes": 1 << 70}])
def test_very_large_limits(shared_small: Sandbox, limit: dict[str, float]) -> None:
    before = outer(shared_small)
    assert shared_small.run("import os\nos._exit(1)", {}, Limits(**limit)).status == "error"  # type: ignore[arg-type]
    assert shared_small.run(ONE, {}, Limits(**limit)).status == "ok"  # type: ignore[arg-type]
    assert outer(shared_small) == before


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, None, "1"])
def test_invalid_seeds(shared_small: Sandbox, seed: Any) -> None:
    with pytest.raises(ValueError, match="seed"):
        shared_small.run(ONE, {}, seed=seed)


def test_seeds_of_numpy(shared_small: Sandbox) -> None:
    program = "import numpy\noutput = [numpy.random.rand()]"
    drawn = [shared_small.run(program, {}, seed=seed).output for seed in (7, np.int64(7))]  # type: ignore[arg-type]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mode": "none"}, "none"), ({"max_workers": 0}, "0"), ({"max_workers": True}, "True"), ({"without": ["x"]}, "x")],
)
def test_unknown_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sandbox(**options)


# ------------------------------------------------------------------------------------------ what a program sends itself

FORGED = {
    "garbage": ("os.write(3, b'x' * 100)", "rejected"),
    "some garbage, and the end": ("os.write(3, b'x' * 5); os._exit(0)", "error"),
    "half a result": ("header(b'rslt', 0, 1, 10, 1, 80); os.write(3, bytes(8)); os._exit(0)", "error"),
    "half a result, and waiting": ("header(b'rslt', 0, 1, 10, 1, 80); time.sleep(9)", "timeout"),
    "a result, and more": ("header(b'rslt', 0, 1, 1, 1, 8); os.write(3, bytes(60000)); os._exit(3)", "ok"),
    "a result, and never ending": ("header(b'rslt', 0, 1, 1, 1, 8); os.write(3, bytes(8)); time.sleep(60)", "ok"),
    "two results": ("header(b'rslt', 0, 1, 1, 1, 8); os.write(3, bytes(8)); header(b'rslt', 1, 0, 0, 0, 0)", "ok"),
    "nothing but its name": ("os.write(3, b'rslt'); os.close(3)", "error"),
    "a closed end": ("os.close(3)\noutput = [1.0]", "error"),
    "no end to bytes": ("while True: os.write(3, bytes(65536))", "rejected"),
    "too large": ("header(b'rslt', 0, 1, 1 << 30, 1, 8 << 30); time.sleep(9)", "rejected"),
    "larger than can be": ("header(b'rslt', 0, 2, 2**32 - 1, 2**32 - 1, 2**64 - 1); time.sleep(9)", "rejected"),
    "another size than its shape": ("header(b'rslt', 0, 2, 2, 2, 8); os.write(3, bytes(8)); time.sleep(9)", "rejected"),
    "three dimensions": ("header(b'rslt', 0, 3, 1, 1, 8); time.sleep(9)", "rejected"),
    "no dimensions": ("header(b'rslt', 0, 0, 1, 1, 8); time.sleep(9)", "rejected"),
    "one dimension of two columns": ("header(b'rslt', 0, 1, 1, 2, 16); time.sleep(9)", "rejected"),
    "another kind": ("header(b'rslt', 2, 1, 1, 1, 8); time.sleep(9)", "rejected"),
    "too long an error": ("header(b'rslt', 1, 0, 0, 0, 1025); time.sleep(9)", "rejected"),
    "an error of broken text": ("header(b'rslt', 1, 0, 0, 0, 4); os.write(3, b'\\xff\\xfe\\x00\\xc3')", "error"),
    "not finite": ("header(b'rslt', 0, 1, 1, 1, 8); os.write(3, struct.pack('d', float('nan')))", "rejected"),
    "ends that do not end": ("os._exit = lambda code: None\noutput = [1.0]", "ok"),
    "drop by drop": ("header(b'rslt', 0, 1, 9, 1, 72)\nwhile True: os.write(3, b'x'); time.sleep(0.2)", "timeout"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_results(shared_small: Sandbox, name: str) -> None:
    program, status = FORGED[name]
    before, began = outer(shared_small), time.monotonic()
    result = shared_small.run(HEADER + program, {}, Limits(wall_seconds=1))
    assert result.status == status, result
    assert (result.output is not None) == (status == "ok") and bool(result.error) == (status != "ok")
    assert works(shared_small)
    assert time.monotonic() - began < 3
    assert outer(shared_small) == before, "the fork server was started again"


def test_every_way_to_exit(shared_small: Sandbox) -> None:
    before = outer(shared_small)
    for code in [*range(0, 256, 9), 98, 100, *range(126, 140), 254]:
        result = shared_small.run(f"import os\nos._exit({code})", {})
        assert result.status == "error" and "without a result" in result.error, (code, result)
    assert outer(shared_small) == before and works(shared_small)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("os.abort()", "crash"),
        ("ctypes.string_at(0)", "crash"),
        ("os.kill(os.getpid(), 9)", "error"),
        ("signal.raise_signal(signal.SIGKILL)", "error"),
        ("signal.raise_signal(35)", "error"),
        ("os.killpg(0, 9)", "error"),
        ("os.kill(-1, 9)", "error"),
        ("os.kill(1, 9)", "error"),
        ("os.execv('/bin/true', ['true'])", "violation"),
        ("os.close(3); ctypes.string_at(0)", "crash"),
    ],
)
def test_a_program_that_ends_itself(shared_small: Sandbox, program: str, status: str) -> None:
    before = outer(shared_small)
    result = shared_small.run(f"import ctypes, os, signal, sys\n{program}", {}, Limits(wall_seconds=10))
    assert result.output is None and result.error
    assert result.status == status, result
    assert works(shared_small) and outer(shared_small) == before


def test_endings_of_programs_are_not_confused(shared_small: Sandbox) -> None:
    """Answers of programs that are then killed, and the ends of others, in any order."""
    late = HEADER + "header(b'rslt', 0, 1, 1, 1, 8); os.write(3, struct.pack('d', 7)); time.sleep(60)"
    for _ in range(10):
        for program, status in (
            (late, "ok"),
            ("import os\nos._exit(4)", "error"),
            (late, "ok"),
            ("import ctypes\nctypes.string_at(0)", "crash"),
            (ONE, "ok"),
            (late, "ok"),
            ("import os\nos.execv('/bin/true', ['true'])", "violation"),
        ):
            assert shared_small.run(program, {}).status == status


# --------------------------------------------------------------------------------------- failures of the sandbox


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that do not begin are given up sooner."""
    monkeypatch.setattr(worker, "BEGIN_SECONDS", 2.0)


@pytest.mark.parametrize("which", [outer, fork_server])
def test_process_killed_while_idle(start: Maker, which: Callable[[Sandbox], int]) -> None:
    sandbox = start()
    for _ in range(2):
        processes = [outer(sandbox), *below(outer(sandbox))]
        os.kill(which(sandbox), signal.SIGKILL)
        time.sleep(0.05)
        assert works(sandbox)
    sandbox.close()
    assert all_gone(processes)


@pytest.mark.parametrize(
    ("which", "how", "status"),
    [
        ("fork_server", signal.SIGKILL, "ok"),
        ("program", signal.SIGKILL, "ok"),
        ("fork_server", signal.SIGSTOP, "ok"),  # the program that runs continues
        ("program", signal.SIGSTOP, "timeout"),  # as if it slept
    ],
)
def test_process_killed_during_a_program(
    start: Maker, which: str, how: signal.Signals, status: str, impatient: None
) -> None:
    sandbox = start()
    began = time.monotonic()
    thread, came = in_background(sandbox, "import time\ntime.sleep(0.6)\noutput = [5.0]", wall_seconds=1.5)
    time.sleep(0.3)
    first = fork_server(sandbox)
    os.kill(first if which == "fork_server" else min(below(first)), how)
    try:
        thread.join(20)
        (result,) = came
        assert result.status == status
        assert status != "ok" or result.output.tolist() == [5.0]
        assert works(sandbox)
        assert time.monotonic() - began < 15
    finally:
        if how == signal.SIGSTOP and not is_gone(first):
            os.kill(first, signal.SIGCONT)


def test_process_killed_twice(start: Maker) -> None:
    sandbox = start()
    thread, came = in_background(sandbox, "import time\ntime.sleep(20)", wall_seconds=20)
    killed = 0
    while thread.is_alive() and killed < 5:
        time.sleep(0.3)
        for started in list(sandbox.workers):
            if (
                victims := below(started.process.pid)[1:]
                if "namespaces" not in sandbox.absent
                else below(started.process.pid)
            ):
                killed += 1
                for victim in victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
    thread.join(30)
    (error,) = came
    assert isinstance(error, SandboxError) and "twice" in str(error)
    assert works(sandbox)


FAILING_FORK = """
import os, runpy
fork, calls = os.fork, []
def fail():
    calls.append(1)
    if len(calls) >= FIRST:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = fail
runpy.run_path(FORK_SERVER, run_name="__main__")
"""


def test_a_fork_that_fails(start: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    once = 2 + ("namespaces" not in start().absent)  # forks before the first child

    def fail_from(first: int) -> None:
        shim = (
            f"FIRST, FORK_SERVER = {first}, {str(ROOT / 'lang_envs' / 'sandbox' / 'fork_server.py')!r}\n{FAILING_FORK}"
        )
        (tmp_path / "fork_server.py").write_text(shim)

    monkeypatch.setattr(worker, "__file__", str(tmp_path / "worker.py"))
    fail_from(once + 1)
    sandbox = start()
    first = outer(sandbox)
    for _ in range(3):  # each worker has one child, which stands by for the first program
        assert works(sandbox)
    assert outer(sandbox) != first
    fail_from(once)
    with pytest.raises(SandboxError, match="twice"):
        for _ in range(2):
            sandbox.run(ONE, {})
    monkeypatch.undo()
    assert works(sandbox)


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "no more processes"), MemoryError(), OSError(24, "too many files")]
)
def test_a_process_that_cannot_be_started(start: Maker, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    sandbox = start()
    os.kill(fork_server(sandbox), signal.SIGKILL)
    sandbox.workers[0].process.wait()
    time.sleep(0.1)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        with pytest.raises(SandboxError):
            sandbox.run(ONE, {})
    assert works(sandbox)


@pytest.mark.parametrize("garbage", [b"x", b"x" * 16, b"\xff" * 96, struct.pack("=Q", 0) * 2000])
def test_garbage_for_the_fork_server(start: Maker, garbage: bytes, impatient: None) -> None:
    sandbox = start()
    sandbox.workers[0].control.send(garbage)
    began = time.monotonic()
    assert sandbox.run(ONE, {}, Limits(wall_seconds=1)).status == "ok"
    assert works(sandbox)
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("garbage", [b"x", b"\xff" * 210, struct.pack("=Qi4q", 1, 0x137F, 1, 2, 3, 4)])
def test_garbage_from_the_fork_server(start: Maker, garbage: bytes, impatient: None) -> None:
    sandbox = start()
    worker = sandbox.workers[0]
    worker.control.close()
    worker.control, other = socket.socketpair()
    worker.number = 0
    with other:
        thread, came = in_background(sandbox, ONE, wall_seconds=0.2)
        time.sleep(0.1)
        other.send(garbage)
        thread.join(20)
    (result,) = came
    assert isinstance(result, Result) and result.status == "ok", result
    assert works(sandbox)


def test_many_open_files(start: Maker) -> None:
    """More than ``select`` can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip("no more than a thousand files may be open here")
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        sandbox = start()
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        assert works(sandbox)
        os.kill(outer(sandbox), signal.SIGKILL)
        assert works(sandbox)


def test_sandbox_closed_during_a_program(start: Maker) -> None:
    sandbox = start()
    processes = [outer(sandbox), *below(outer(sandbox))]
    thread, came = in_background(sandbox, "import time\ntime.sleep(20)")
    time.sleep(0.3)
    processes += below(outer(sandbox))
    sandbox.close()
    thread.join(10)
    assert not thread.is_alive() and all_gone(processes)
    assert isinstance(came[0], SandboxError), came
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(ONE, {})
    sandbox.close()
    assert not sandbox.workers


# --------------------------------------------------------------------------------------------------------- no leftovers


def run_script(script: str, expected: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=script_environment(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == expected, done.stderr
    return done.stdout


def script_environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]), **more}


SCRIPT = """
import os, signal, sys, threading, time
from lang_envs.sandbox import Limits, Sandbox
from test_sandbox import SMALL, ONE, below, in_background, works
sandbox = Sandbox(**SMALL)
assert works(sandbox)
def tell():
    print(*below(os.getpid()), flush=True)
"""
ENDS = {
    "close": "tell(); sandbox.close(); assert not below(os.getpid()); print('ok')",
    "del": "tell(); del sandbox; assert not below(os.getpid()); print('ok')",
    "with": "tell()\nwith sandbox: pass\nassert not below(os.getpid()); print('ok')",
    "the end": "tell(); print('ok')",
    "an error": "import atexit\natexit.register(print, 'ok'); tell(); sys.stderr.close(); raise SystemExit(0)",
    "an error in a thread": "tell()\nthread = threading.Thread(target=lambda: sandbox.run(ONE, {'x': 'no array'}))\n"
    "thread.start(); thread.join(); assert works(sandbox); print('ok')",
    "in the background": "slow = ('import time; time.sleep(9)', {})\n"
    "threading.Thread(target=sandbox.run, args=slow, daemon=True).start(); time.sleep(.3); tell(); print('ok')",
    "a reference in a circle": "sandbox.itself = sandbox; tell(); del sandbox; print('ok')",
    # Shells start what runs in the background with interrupts ignored.
    "an interrupt": "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "threading.Timer(.4, lambda: (tell(), os.kill(os.getpid(), signal.SIGINT))).start()\n"
    "try: sandbox.run('import time; time.sleep(30)', {})\n"
    "except KeyboardInterrupt: assert not below(os.getpid()); assert works(sandbox); tell(); print('ok')",
    "os._exit": "tell(); print('ok', flush=True); os._exit(0)",
}


@pytest.mark.parametrize("how", ENDS)
def test_no_process_is_left_after(how: str) -> None:
    *lines, last = run_script(SCRIPT + ENDS[how]).split("\n")[:-1]
    pids = [int(pid) for line in lines for pid in line.split()]
    assert last == "ok" and len(pids) >= 2 and all_gone(pids)


@pytest.mark.parametrize("busy", [False, True])
def test_no_process_is_left_when_the_parent_is_killed(busy: bool) -> None:
    wait = "in_background(sandbox, 'while True: pass', wall_seconds=60); time.sleep(.3)" if busy else ""
    with started(f"{SCRIPT}{wait}\ntell(); time.sleep(60)") as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) >= 2 and not is_gone(min(pids))
        process.kill()
        process.wait()
        assert all_gone(pids)


def test_no_process_is_left_of_a_fork_server_that_hangs(start: Maker) -> None:
    sandbox = start()
    processes = [outer(sandbox), *below(outer(sandbox))]
    stopped = fork_server(sandbox)
    os.kill(stopped, signal.SIGSTOP)
    try:
        sandbox.close()
        assert all_gone(processes)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGKILL)


@contextlib.contextmanager
def started(script: str) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=script_environment({}), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def resident(pid: int) -> int:
    """ActionRecord of a process in KiB."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if line.startswith("VmRSS"))
    return int(line.split()[1])


def test_memory_and_descriptors_do_not_grow(start: Maker) -> None:
    sandbox = start()
    inputs = {"x": np.arange(1000.0)}
    programs = [
        ONE,
        "output = inputs['x']",
        "raise ValueError('x' * 5000)",
        "import os; os._exit(1)",
        "x = " + "9" * 4000,
    ]
    used = None
    for number in range(300):
        sandbox.run(programs[number % len(programs)], inputs)
        if number == 59:
            used = resident(fork_server(sandbox)), len(os.listdir("/proc/self/fd")), outer(sandbox)  # noqa: PTH208
    assert used is not None and outer(sandbox) == used[2], "it was started again"
    assert resident(fork_server(sandbox)) - used[0] < 1024
    assert len(os.listdir("/proc/self/fd")) == used[1]  # noqa: PTH208
    assert eventually(lambda: len(below(fork_server(sandbox))) == 1), "more than the child that stands by"
    assert [pid for pid in below(os.getpid()) if (state(pid) or "?")[0] == "Z"] == []
    with contextlib.suppress(PermissionError):
        assert len(list(Path(f"/proc/{fork_server(sandbox)}/fd").iterdir())) < 12


# ------------------------------------------------------------------------------------------------ users, memory, groups


def test_each_worker_has_a_user_of_its_own(start: Maker) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can choose another user")
    users = [Path(f"/proc/{fork_server(start())}").stat().st_uid for _ in range(4)]
    assert len(set(users)) == 4 and all(61184 <= user <= 65519 for user in users)


def test_the_kernel_kills_the_sandbox_first_when_memory_runs_out(start: Maker) -> None:
    sandbox = start()
    assert works(sandbox)
    for pid in [outer(sandbox), *below(outer(sandbox))]:
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    assert Path("/proc/self/oom_score_adj").read_text() != "1000\n"


def test_no_process_is_left_when_the_parent_dies_during_the_start(tmp_path: Path) -> None:
    script = "from lang_envs.sandbox import Sandbox\nprint(flush=True)\nSandbox()"
    for delay in (0.01, 0.3):
        parent = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}, cwd=ROOT
        )
        assert parent.stdout is not None
        with parent.stdout:
            parent.stdout.readline()
        time.sleep(delay)
        parent.kill()
        parent.wait()
        assert list(tmp_path.iterdir()) == []


def test_programs_begin_at_a_random_time(start: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: (slept.append(seconds), sleep(seconds)))
    sandbox = start()
    for _ in range(40):
        assert sandbox.run(ONE, {}).status == "ok"
    assert len(slept) == len(set(slept)) == 40
    assert max(slept) < 0.002 and max(slept) - min(slept) > 0.001


HEAP = """
import ctypes, gc, struct
pools = {id(o) >> 14 for o in gc.get_objects()} | {id(r) >> 14 for o in gc.get_objects() for r in gc.get_referents(o)}
memory = b"".join(ctypes.string_at(pool << 14, 1 << 14) for pool in pools)
"""


def test_no_time_of_a_program_is_in_the_memory_of_later_ones(start: Maker) -> None:
    """A fork server that handles the time left, or used, leaves it in memory that all later children inherit."""
    sandbox = start()
    wall = 17.0 + 0.123456789
    for seconds in (wall, wall + 12, wall + 1):
        sandbox.run(ONE, {}, Limits(wall_seconds=wall))
        wanted = struct.pack("=d", seconds).hex()[::-1]  # not in the program as it is looked for
        found = sandbox.run(f"{HEAP}output = [memory.count(bytes.fromhex({wanted!r}[::-1]))]", {})
        assert found.output is not None and found.output.tolist() == [0.0], found


def fake_cgroups(tmp_path: Path, controllers: str) -> tuple[Path, Path]:
    """A kernel's files about cgroups, for a process in the group "own" of the group "slice"."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mounts").write_text(f"none /x tmpfs rw 0 0\ncgroup2 {mount} cgroup2 rw 0 0\n")
    (proc / "self" / "cgroup").write_text("1:cpu:/\n0::/slice/own\n")
    for group, enabled in (("slice", controllers), ("slice/own", "")):
        (mount / group).mkdir(parents=True)
        (mount / group / "cgroup.subtree_control").write_text(enabled)
        (mount / group / "cgroup.procs").write_text("")
    return proc, mount / "slice"


def test_a_worker_gets_a_cgroup_where_one_can_be_made(tmp_path: Path) -> None:
    proc, parent = fake_cgroups(tmp_path, "cpu memory pids")
    (parent / "lang-envs-12345678-0").mkdir()  # of a trainer that was killed
    group = cgroups.Group(proc)
    assert [path.name for path in parent.glob("lang-envs-*")] == [group.path.name]
    group.bound(100 << 20, 1 << 30)
    written = {path.name: path.read_text() for path in group.path.iterdir()}
    assert written == {"pids.max": "16", "memory.swap.max": "0", "memory.max": str((1 << 30) + (264 << 20))}
    for file in group.path.iterdir():
        file.unlink()  # those of a real group go with it
    group.remove()
    assert list(parent.glob("lang-envs-*")) == []


@pytest.mark.parametrize(("controllers", "message"), [("memory", "pids"), ("", "memory, pids")])
def test_reason_is_given_where_no_cgroup_can_be_made(controllers: str, message: str, tmp_path: Path) -> None:
    proc, parent = fake_cgroups(tmp_path, controllers)
    with pytest.raises(OSError, match=f"does not hand on the controllers {message}"):
        cgroups.Group(proc)
    assert list(parent.glob("lang-envs-*")) == []
    (proc / "self" / "mounts").write_text("")
    with pytest.raises(OSError, match="no cgroup v2"):
        cgroups.Group(proc)


def test_a_group_that_cannot_be_joined_is_removed(
    start: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proc, parent = fake_cgroups(tmp_path, "memory pids")

    class Closed(cgroups.Group):
        def __init__(self) -> None:
            super().__init__(proc)
            (self.path / "cgroup.procs").mkdir()

        def remove(self) -> None:
            (self.path / "cgroup.procs").rmdir()
            (self.path / "pids.max").unlink()
            (self.path / "memory.swap.max").unlink()
            super().remove()

    monkeypatch.setattr(worker, "Group", Closed)
    sandbox = start()
    assert "Is a directory" in sandbox.no_cgroup and works(sandbox)
    assert list(parent.glob("lang-envs-*")) == []


# ----------------------------------------------------------------------------------------------------- fork and threads


def test_a_fork_has_its_own_workers_and_does_not_keep_its_parents() -> None:
    script = """
child = os.fork()
if not child:
    assert works(sandbox)
    print("child", os.getpid(), *below(os.getpid()), flush=True)
    time.sleep(60)
    os._exit(0)
for _ in range(50):
    assert works(sandbox)
mine = below(os.getpid())  # before those of the child, whose server may start a process at any time
theirs = {child, *below(child)}
print("parent", *(pid for pid in mine if pid not in theirs), flush=True)
time.sleep(60)
"""
    with started(SCRIPT + script) as process:
        assert process.stdout is not None
        printed = dict(process.stdout.readline().split(maxsplit=1) for _ in range(2))
        forked, *its = map(int, printed["child"].split())
        try:
            parents = set(map(int, printed["parent"].split())) - {forked, *its}
            assert len(its) >= 2 and len(parents) >= 2
            process.kill()
            process.wait()
            assert all_gone(list(parents))
            assert not any(map(is_gone, [forked, *its[:1]]))
        finally:
            os.kill(forked, signal.SIGKILL)
        assert all_gone([forked, *its])


def test_a_sandbox_closed_before_a_fork_stays_closed(start: Maker) -> None:
    sandbox = start()
    sandbox.close()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            sandbox.run(ONE, {})
        except SandboxError:
            os.write(write, b"closed")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"closed"


def test_processes_of_multiprocessing_and_vector_environments() -> None:
    script = """
import multiprocessing
import gymnasium as gym, numpy as np
class Environment(gym.Env):
    observation_space = gym.spaces.Box(0, 1e9, (1,))
    action_space = gym.spaces.Discrete(9)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        result = sandbox.run(f"output = [{action} ** 2]", {})
        return result.output.astype(np.float32), 1.0, False, False, {}
context = multiprocessing.get_context("fork")
def use(sandbox, queue):
    queue.put(works(sandbox))
queue = context.Queue()
processes = [context.Process(target=use, args=(sandbox, queue)) for _ in range(2)]
for process in processes: process.start()
assert [queue.get(timeout=30) for _ in processes] == [True, True]
for process in processes: process.join()
envs = gym.vector.AsyncVectorEnv([Environment] * 2, context="fork")
envs.reset()
assert envs.step(np.array([3, 5]))[0].ravel().tolist() == [9, 25]
tell()
envs.close()
assert works(sandbox)
print("ok")
"""
    first, last = run_script(SCRIPT + script).split("\n")[:-1]
    assert last == "ok" and all_gone([int(pid) for pid in first.split()])


def test_eight_threads_share_two_workers(start: Maker) -> None:
    sandbox = start(max_workers=2)
    wrong: list[Any] = []

    def work(thread: int) -> None:
        for turn in range(6):
            number = 100 * thread + turn
            sleeps = "import time; time.sleep(0.02)\n" if turn % 2 else ""
            result = sandbox.run(f"{sleeps}output = inputs['x'] + 1", {"x": np.array([float(number)])})
            if result.output is None or result.output.tolist() != [number + 1]:
                wrong.append((number, result))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and len(sandbox.workers) == 2
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda _: sandbox.run("import time; time.sleep(0.5)\n" + ONE, {}), range(2))
    assert [result.status for result in results] == ["ok", "ok"]
    assert time.monotonic() - began < 0.95, "two workers do not work at the same time"


# ----------------------------------------------------------------------------------------------------------- the layers


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_can_be_left_out(layer: str) -> None:
    with Sandbox(packages=("numpy",), without=(layer,)) as sandbox:
        assert sandbox.tier == f"without {layer}" and sandbox.absent[layer] == "switched off"
        assert works(sandbox)
        assert sandbox.run("import time; time.sleep(9)", {}, Limits(wall_seconds=0.2)).status == "timeout"


@pytest.mark.parametrize(
    ("absent", "tier"),
    [
        ("", "full"),
        ("nested-landlock", "full"),
        ("namespaces private-root", "no-namespaces"),
        ("private-root", "no-namespaces"),
        ("landlock nested-landlock", "no-landlock"),
        ("landlock private-root namespaces", None),
        ("landlock private-root", None),
        ("seccomp", None),
        ("rlimits", None),
        ("uid", None),
        ("namespaces private-root uid landlock nested-landlock seccomp", None),
    ],
)
def test_tiers(absent: str, tier: str | None) -> None:
    reasons = {layer: f"no {layer} because of the weather" for layer in absent.split()}
    if tier:
        assert tier_of(reasons) == tier
        return
    with pytest.raises(SandboxError, match="cannot be isolated") as caught:
        tier_of(reasons)
    assert "weather" in str(caught.value) and "sandbox='process'" in str(caught.value)
    assert "Linux 5.13" in str(caught.value) and "doctor" in str(caught.value) and caught.value.absent == reasons


def test_namespaces_that_can_be_entered_but_not_mapped(tmp_path: Path) -> None:
    """Ubuntu's AppArmor lets anyone leave the namespaces, and then forbids to write who one is in the new ones."""
    copy = tmp_path / "lang_envs" / "sandbox"
    copy.mkdir(parents=True)
    for file in (ROOT / "lang_envs" / "sandbox").glob("*.py"):
        (copy / file.name).write_text(file.read_text())
    code = (copy / "isolation.py").read_text()
    as_root = "    if os.geteuid() == 0 and _libc.unshare(_NEW_NAMESPACES) == 0:\n        return\n"
    if as_root not in code or code.count("_map).write_text") + code.count("uid_map") == 0:
        pytest.skip("this test does not know how namespaces are entered any more")
    denied = "    _check(-1, 'write')\n    Path(\"/proc/self/setgroups\")"
    code = code.replace(as_root, "").replace('    Path("/proc/self/setgroups")', denied)
    (copy / "isolation.py").write_text(code)
    (copy.parent / "__init__.py").write_text("")
    tmp_path.chmod(0o755)
    script = (
        "from lang_envs.sandbox import *\ns = Sandbox()\nprint(s.tier, s.run('output = [1.0]', {}).status, sep='\\n')"
    )
    assert run_script(script, PYTHONPATH=str(tmp_path)).split() == ["no-namespaces", "ok"]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_rejected(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SandboxError, match=platform) as caught:
        Sandbox()
    assert "sandbox='process'" in str(caught.value) and set(caught.value.absent or ()) == set(LAYERS)


def test_without_isolation() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Sandbox(mode="process", packages=("numpy",)) as sandbox:
            assert sandbox.tier == "process"
            assert works(sandbox)
            assert sandbox.run("import numpy; numpy.left = 1\n" + ONE, {}).status == "ok"
            assert "left" in sandbox.run("import numpy; numpy.left", {}).error
            assert sandbox.run("import os; os._exit(99)", {}).status == "error"
            assert sandbox.run("import ctypes; ctypes.string_at(0)", {}).status == "crash"
            began = time.monotonic()
            assert sandbox.run("import time; time.sleep(30)", {}, Limits(wall_seconds=0.4)).status == "timeout"
            assert time.monotonic() - began < 4
            assert "MemoryError" in sandbox.run("bytearray(1 << 30)", {}, Limits(memory_bytes=100 << 20)).error
    assert [str(warning.message) for warning in caught if "sandbox=" in str(warning.message)] == [
        "sandbox='process': programs run with all that this user may do, and rewards can be forged"
    ]
    assert not [pid for pid in below(os.getpid()) if "fork_server" in Path(f"/proc/{pid}/cmdline").read_text()
                and '"process": true' in Path(f"/proc/{pid}/cmdline").read_text()]  # fmt: skip


def test_without_isolation_processes_of_a_program_end_with_it() -> None:
    """Not a defence: but joblib and the like leave processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sandbox = Sandbox(mode="process", packages=("numpy",))
    with sandbox:
        result = sandbox.run(
            "import os, time\nchild = os.fork()\nif not child:\n    time.sleep(20)\noutput = [child]", {}
        )
    assert result.output is not None
    assert all_gone([int(result.output[0])])


def test_the_doctor_warns_of_what_weakens_the_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def machine(merges: str, *swaps: str) -> None:
        for name, text in (("sys/kernel/mm/ksm/run", merges), ("proc/swaps", "\n".join(("Filename", *swaps)))):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    machine("1\n", "/dev/sda2")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid)
    message = "\n".join(doctor.advice(tmp_path, tmp_path))
    assert "echo 2 > /sys/kernel/mm/ksm/run" in message and "swapoff -a" in message
    assert ("chown -R root" in message) == (tmp_path.stat().st_uid != 0)
    monkeypatch.setattr(os, "geteuid", lambda: 61184)
    assert any("61184" in line and "chown -R root" in line for line in doctor.advice(tmp_path, tmp_path))
    machine("0\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert doctor.advice(tmp_path, tmp_path) == []


def test_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    from lang_envs.__main__ import main

    assert main(["doctor"]) == 0
    message = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1] for line in message.split("\n") if line.startswith("  ")}
    assert set(rows) == set(LAYERS) and set(rows.values()) <= {"yes", "no"}
    assert "tier: " in message


# -------------------------------------------------------------------------------------------- the filter, word for word

KILL, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def interpret(code: bytes, number: int, architecture: int, arguments: tuple[int, ...]) -> int:
    """What the kernel's machine answers: classic BPF over ``struct seccomp_data``."""
    data = struct.pack("=IIQ6Q", number, architecture, 0x1234, *arguments)
    instructions = list(struct.iter_unpack("=HBBI", code))
    at = accumulator = 0
    while True:
        operation, yes, no, k = instructions[at]
        at += 1
        if operation == 0x20:
            assert k % 4 == 0 and k < len(data)
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif operation == 0x05:
            at += k
        elif operation == 0x15:
            at += yes if accumulator == k else no
        elif operation == 0x35:
            at += yes if accumulator >= k else no
        elif operation == 0x54:
            accumulator &= k
        else:
            assert operation == 0x06, hex(operation)
            return k


FILTERED: dict[str, Callable[[int, int, int, int], bool]] = {
    "clock_getres": lambda clock, *_: clock <= 11,
    "clock_gettime": lambda clock, *_: clock <= 11,
    "clock_nanosleep": lambda clock, *_: clock <= 11,
    "fcntl": lambda _file, command, *_: command in (0, 1, 2, 3, 1030),
    "futex": lambda _word, operation, *_: operation & ~0x100 in (0x80, 0x81, 0x89, 0x8A),
    "getrandom": lambda _buffer, _size, flags, _: flags < 2,
    "madvise": lambda _start, _size, advice, _: advice in (4, 8, 14, 15),
    "mmap": lambda _start, _size, use, flags: use < 8 and flags & 0x22 == 0x22 and flags & ~0x124032 == 0,
    "mprotect": lambda _start, _size, use, _: use < 8,
    "mremap": lambda _start, _old, _new, flags: flags in (0, 1, 3),
    "sched_getaffinity": lambda process, *_: process == 0,
}


def expected(name: str | None, arguments: tuple[int, ...]) -> int:
    if name in syscalls.KILLED:
        return KILL
    if name in syscalls.ALLOWED:
        return ALLOW
    if name in syscalls.ANSWERED:
        return ERRNO | syscalls.ANSWERED[name]
    if name in FILTERED:
        return ALLOW if FILTERED[name](*(argument & 0xFFFFFFFF for argument in arguments[:4])) else ERRNO | 1
    if name == "prlimit64":
        return ALLOW if arguments[0] == 0 and arguments[2] == 0 else ERRNO | 1
    return ERRNO | 1


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_implements_the_tables(machine: str) -> None:
    code = seccomp.program(machine)
    assert code is not None and len(code) % 8 == 0 and len(code) // 8 <= 4096
    names = {number: name for name, number in syscalls.numbers(machine).items()}
    assert len(names) == len(syscalls.numbers(machine)), "two names have one number"
    values = [
        0,
        1,
        2,
        3,
        4,
        8,
        0o100,
        0o1000,
        0o2000,
        0o20000000,
        0o200000,
        0o2000000,
        *range(5, 33),
        0x22,
        0x21,
        0x23,
        0x4022,
        0x20022,
        0x40022,
        0x48022,
        0x124032,
        0x80,
        0x81,
        0x82,
        0x89,
        0x8A,
        0x180,
        0x189,
        0x280,
        1030,
        1031,
        1 << 31,
        1 << 32,
        2**64 - 1,
    ]
    plain: list[tuple[int, ...]] = [(0,) * 6, (2**64 - 1,) * 6]
    varied = [(*(0,) * place, value, *(0,) * (5 - place)) for place in range(4) for value in values]
    for number in range(601):
        name = names.get(number)
        for arguments in [*plain, *varied] if name in syscalls.BY_ARGUMENT else plain:
            answer = interpret(code, number, ARCHITECTURES[machine], arguments)
            assert answer == expected(name, arguments), (number, name, arguments, hex(answer))
        for foreign in (0x40000003, 0x40000028, *ARCHITECTURES.values()):
            if foreign != ARCHITECTURES[machine]:
                assert interpret(code, number, foreign, (0,) * 6) == KILL
        assert interpret(code, number | 0x40000000, ARCHITECTURES[machine], (0,) * 6) == KILL
    for number in (1000, 0x3FFFFFFF):
        assert interpret(code, number, ARCHITECTURES[machine], (0,) * 6) == ERRNO | 1
    assert interpret(code, 0xFFFFFFFF, ARCHITECTURES[machine], (0,) * 6) == KILL


def test_the_filter_of_other_machines() -> None:
    assert seccomp.program("riscv64") is None
    groups = [syscalls.ALLOWED, syscalls.KILLED, frozenset(syscalls.ANSWERED), frozenset(syscalls.BY_ARGUMENT)]
    assert sum(map(len, groups)) == len(frozenset().union(*groups)), "a system call has two answers"
    assert set(syscalls.numbers("x86_64")) == frozenset().union(*groups)
    assert set(syscalls.numbers("aarch64")) <= set(syscalls.numbers("x86_64"))


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain: (a/b) 1/2 n/a and/or", "plain: (a/b) 1/2 n/a and/or"),
        ('File "/usr/lib/python3/x.py", line 3', 'File "x.py", line 3'),
        ("cannot open /etc/passwd", "cannot open passwd"),
        ("[Errno 2] No such file: '/home/someone/secret.csv'", "[Errno 2] No such file: 'secret.csv'"),
        ("at=/root/a/b.py", "at=b.py"),
        ("/root/a/b.py:12: in f", "b.py:12: in f"),
        ("https://scikit-learn.org/stable/modules", "https://scikit-learn.org/stable/modules"),
        ("a\x00b\x1b[31mc\rd\u202ee\u2028f", "a b [31mc d e f"),
        ("two\nlines\n", "two\nlines"),
        ("  ", ""),
        ("\ud800", ""),
    ],
)
def test_clean_errors(text: str, cleaned: str) -> None:
    assert clean_error(text) == cleaned


def test_clean_errors_are_short_and_quick() -> None:
    random = np.random.RandomState(0)
    texts = ["é" * 5000, "/a" * 2000, "/" * 5000, "'/a/b" * 1000, "😀" * 999, "-/" * 3000]
    texts += ["".join(random.choice(list("/a. '\n\x00é😀"), size=3000)) for _ in range(50)]
    began = time.monotonic()
    for text in texts:
        cleaned = clean_error(text)
        assert len(cleaned.encode()) <= 1024 and "\0" not in cleaned
    assert time.monotonic() - began < 5


def test_errors_of_programs_are_clean(shared_small: Sandbox) -> None:
    for program, message in {
        "raise ValueError('x' * 10**6 + 'the end')": "the end",
        r"raise ValueError('\ud800\x00\x1b[2J\u202e')": "ValueError",
        "raise type('E' * 10**6, (Exception,), {})('why')": "why",
        "import sys; raise ValueError(sys.path[-1], __import__('os').__file__)": "os.py",
        "class E(Exception):\n    def __str__(self): raise self\nraise E": "cannot be shown",
        "class E(Exception):\n    def __str__(self): return 5\nraise E": "E",
        "raise BaseExceptionGroup('g', [ValueError(1), SystemExit(2)])": "g (2 sub-exceptions)",
        "open('/etc/passwd')": "passwd",
    }.items():
        result = shared_small.run(program, {})
        assert result.status == "error" and message in result.error, (program, result)
        assert len(result.error.encode()) <= 1024
        assert all(character.isprintable() or character == "\n" for character in result.error)
        assert str(Path(sys.prefix).parent) not in result.error and "/etc" not in result.error


def test_a_private_root_is_empty_and_cannot_be_filled() -> None:
    script = """
from pathlib import Path
from lang_envs.sandbox import isolation
isolation.enter_namespaces(61184)
isolation.enter_private_root()
print(list(Path("/").iterdir()))
Path("/left").write_text("left")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    if "unshare" in done.stderr:
        pytest.skip("there are no namespaces here")
    assert done.stdout.strip() == "[]" and "Read-only file system: '/left'" in done.stderr, done.stderr
