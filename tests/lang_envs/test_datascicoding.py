"""Tests of DataSciCoding: conversion of answers to programs, and scores and splits against scikit-learn."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import random
import runpy
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tokenizers
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from test_tokenizer import byte_level, hugging_face, sentence_piece

from lang_envs import ENVIRONMENTS, LanguageVectorEnv, TokenEnv, load_tokenizer, make_vec
from lang_envs.datascicoding import Dataset, load_dataset, scoring
from lang_envs.datascicoding.env import DataSciCodingEnv
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import attempt, function_of, prompt, style_for
from lang_envs.datascicoding.scoring import Scorer, check_probabilities, roc_auc, split
from lang_envs.sandbox import Limits, SandboxError
from lang_envs.sandbox.pool import Sandbox, shared_sandbox
from lang_envs.tokenizer import HOLE

pytest.importorskip("sklearn")
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

BALANCE = "DataSciCoding-balance-scale-v0"
TASK = "# Balance Scale: x_train (62, 4), 3 classes.\n"
HEAD = "def build_model(x_train, y_train):"
TAIL = "    return model"

BAYES = "from sklearn.naive_bayes import GaussianNB\n    model = GaussianNB().fit(x_train, y_train)"
WORKING = (
    BAYES,
    "from sklearn.linear_model import LogisticRegression\n"
    "    from sklearn.pipeline import make_pipeline\n"
    "    from sklearn.preprocessing import PolynomialFeatures, StandardScaler\n"
    "    model = make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression(C=0.1))\n"
    "    model.fit(x_train, y_train)",
    "from sklearn.ensemble import RandomForestClassifier\n"
    "    model = RandomForestClassifier(20, random_state=0).fit(x_train, y_train)",
    "from sklearn.neighbors import KNeighborsClassifier\n    model = KNeighborsClassifier(3).fit(x_train, y_train)",
    # these draw from the generators that the sandbox seeds
    "from sklearn.tree import DecisionTreeClassifier\n"
    "    model = DecisionTreeClassifier(max_features=1).fit(x_train, y_train)",
    "import random\n"
    "    from sklearn.neighbors import KNeighborsClassifier\n"
    "    model = KNeighborsClassifier(random.randrange(1, 20)).fit(x_train, y_train)",
)


def returning(expression: str) -> str:
    """A program whose probabilities are an expression of ``x``."""
    return (
        "import numpy as np\n    class Model:\n        def predict_proba(self, x):\n"
        f"            return {expression}\n    model = Model()"
    )


BROKEN = {
    "model = (": ("error", "SyntaxError: '(' was never closed"),
    "from sklearn.naive_bayes import GaussianNB\n    model = GaussianNB()": ("error", "NotFittedError: "),
    "from sklearn.svm import LinearSVC\n    model = LinearSVC().fit(x_train, y_train)": (
        "error",
        "AttributeError: 'LinearSVC' object has no attribute 'predict_proba'",
    ),
    "from sklearn.svm import SVM": ("error", "ImportError: cannot import name 'SVM'"),
    returning("np.ones((len(x), 2)) / 2"): ("rejected", "predict_proba must give shape (63, 3), not (63, 2)"),
    returning("np.ones(len(x))"): ("rejected", "predict_proba must give shape (63, 3), not (63,)"),
    returning("np.ones((len(x), 3))"): ("rejected", "the probabilities of a row must sum to one"),
    returning("np.tile([-1, 1, 1], (len(x), 1))"): ("rejected", "probabilities must lie between 0 and 1, not -1 and 1"),
    returning("np.full((len(x), 3), np.nan)"): ("rejected", "not finite"),
    returning("np.full((len(x), 3), -np.inf)"): ("rejected", "not finite"),
    returning("[['a', 'b', 'c']] * len(x)"): ("error", "TypeError: the output must hold real numbers"),
    returning("None"): ("error", "TypeError: the output must hold real numbers"),
    "print('x' * 10_000_000)\n    import sys\n    sys.stderr.write('y' * 10_000_000)\n    1 / 0": (
        "error",
        "ZeroDivisionError: division by zero",
    ),
    "raise ValueError('\\n'.join(f'message {k}' for k in range(10_000)))": ("error", "message 9999"),
    "import os\n    os._exit(0)": ("error", "the program ended its process without a result"),
    "import ctypes\n    ctypes.string_at(0)": ("crash", "SIGSEGV"),
    "model = bytearray(3 << 30)": ("error", "MemoryError"),
    "": ("error", "NameError: name 'model' is not defined"),
}
"""Programs that fail, with their status and a part of the message."""


@pytest.fixture(autouse=True, scope="module")
def _isolation() -> Iterator[None]:
    """One sandbox for all tests here; where the machine can't isolate programs there is nothing to test."""
    try:
        kept = shared_sandbox()
    except SandboxError as error:
        if error.absent is None:
            raise
        pytest.skip(str(error))
    yield
    del kept


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """The inputs of every program that a sandbox runs from now on."""
    seen: list[dict[str, np.ndarray]] = []
    run = Sandbox.run

    def watched(self: Sandbox, program: str, inputs: dict[str, np.ndarray], *rest: Any, **more: Any) -> Any:
        seen.append(inputs)
        return run(self, program, inputs, *rest, **more)

    monkeypatch.setattr(Sandbox, "run", watched)
    return seen


def fresh(**options: Any) -> DataSciCodingEnv:
    env = DataSciCodingEnv(**({"dataset": "balance-scale"} | options))
    env.reset(seed=0)
    return env


def say(env: gym.Env, program: str) -> tuple:
    """Send a program, in whichever interface."""
    return env.step(env.action_space.encode(program) if isinstance(env, TokenEnv) else program)


def plain(*values: Any) -> tuple:
    return tuple(value.tolist() if isinstance(value, np.ndarray) else value for value in values)


def two_classes(rows: int = 80, seed: int = 0) -> Dataset:
    """A set of one's own, of which no other test has heard."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    return Dataset("own", "Own", x, (x[:, 0] + rng.normal(size=rows) > 0).astype(np.int64))


def as_csv(dataset: Dataset, folder: Path) -> Path:
    file = folder / "table.csv"
    rows = [[*map(repr, x), ("no", "yes")[y]] for x, y in zip(dataset.x.tolist(), dataset.y, strict=True)]
    file.write_text("\n".join(map(",".join, [["a", "b", "c", "label"], *rows])))
    return file


def run_python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------------------------- Gymnasium's contract


@pytest.mark.parametrize("interface", ["tokens", "text"])
def test_check_env_passes_without_a_warning(interface: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(gym.make(BALANCE, interface=interface, disable_env_checker=True))


@pytest.mark.parametrize("interface", ["tokens", "text"])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"]
)
def test_copies_in_the_middle_of_an_episode_continue_identically(interface: str, duplicate: Any) -> None:
    env = gym.make(BALANCE, interface=interface).unwrapped if interface == "text" else TokenEnv(fresh())
    env.reset(seed=5)
    say(env, "model = (")
    other = duplicate(env)
    for program in ("model = 3", BAYES):
        assert plain(*say(other, program)) == plain(*say(env, program))
    assert plain(*other.reset()) == plain(*env.reset())


def test_state_of_one_environment_can_be_continued_in_another() -> None:
    env, other = fresh(render_mode="ansi"), fresh(render_mode="ansi")
    env.step("model = (")
    state, shown = env.state, env.render()
    expected = [env.step(program) for program in ("model = 3", BAYES)]
    for _ in range(2):
        other.reset(seed=9)
        other.state = state
        assert other.render() == shown and "SyntaxError" in shown
        assert [other.step(program) for program in ("model = 3", BAYES)] == expected
    other.state = state
    assert other.symbolic_observation().tolist() == [1, 62, 4, 3]


def test_episodes_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    programs = [f"raise ValueError(hash('word'), set('word'), {k})" for k in range(2)] + [*WORKING]
    code = (
        "import gymnasium, json, sys, lang_envs\n"
        f"env = gymnasium.make({BALANCE!r}, interface='text')\n"
        "results = [env.reset(seed=3)]\n"
        "for program in json.loads(sys.argv[1]):\n"
        "    results.append(env.step(program))\n"
        "    if results[-1][2]:\n"
        "        results.append(env.reset())\n"
        "print(json.dumps(results))\n"
    )
    first, second = (run_python("-c", code, json.dumps(programs), PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second
    results = json.loads(first)
    assert [step[1] for step in results if len(step) == 5 and step[1] > 0] == pytest.approx(
        [reference(program)[0] for program in WORKING], abs=1e-12
    )


@pytest.mark.parametrize(
    "name", [n for n in ENVIRONMENTS if n.startswith("DataSci") and "balance" not in n and "tic-tac" not in n]
)
def test_error_for_missing_data_names_the_command_that_downloads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANG_ENVS_DATA_DIR", raising=False)
    monkeypatch.setenv("LANG_ENVS_CACHE_DIR", str(tmp_path))
    short = name.removeprefix("DataSciCoding-").removesuffix("-v0")
    with pytest.raises(FileNotFoundError, match=rf"data set {short} is not.*{tmp_path}.*-m lang_envs fetch {short}$"):
        gym.make(name)


def test_own_data_set_can_be_a_file_a_set_of_scikit_learn_or_an_object(tmp_path: Path) -> None:
    own = two_classes()
    file = as_csv(own, tmp_path)
    for dataset, shape in ((f"csv:{file}?target=label", (40, 3)), ("sklearn:wine", (89, 13)), (own, (40, 3))):
        env = gym.make("DataSciCoding-v0", dataset=dataset, interface="text")
        text, _ = env.reset(seed=0)
        assert f"x_train {shape}" in text
        assert env.unwrapped.symbolic_observation().tolist()[1:3] == [*shape]
        _, reward, terminated, _, info = env.step(BAYES)
        assert terminated and 0.6 < reward <= 1 and info["score"] == reward
        if dataset is own:
            assert reward == pytest.approx(reference(BAYES, own)[0], abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_programs": 0}, "max_programs=0 is not valid"),
        ({"max_programs": True}, "max_programs=True is not valid"),
        ({"max_programs": 2.0}, "max_programs=2.0 is not valid"),
        ({"prompt_style": "poem"}, r"prompt_style='poem' is not one of .*'completion', 'infill', 'chat'"),
        ({"seconds": 0}, "seconds=0 must be"),
        ({"memory_mb": 0}, "memory.*=0 must be"),
        ({"sandbox": "none"}, "'none' is not one of"),
        ({"max_workers": 0}, "max_workers=0 must be"),
        ({"render_mode": "human"}, "render_mode 'human' is not one of"),
        ({"dataset": "ballance-scale"}, "The nearest names are balance-scale"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fresh(**options)


@pytest.mark.parametrize(
    "labels",
    [
        lambda y: y + 1,
        lambda y: 0 * y,
        lambda y: np.where(np.arange(len(y)) % 3 == 0, 3, y + 1),
    ],
    ids=["from one", "one class", "a gap"],
)
def test_labels_that_are_not_classes_from_zero_are_rejected(labels: Callable[[np.ndarray], np.ndarray]) -> None:
    own = two_classes()
    with pytest.raises(ValueError, match="class"):
        DataSciCodingEnv(Dataset("own", "Own", own.x, labels(own.y)))


# --------------------------------------------------------------------------------------------------------- the score


def reference(body: str, dataset: Dataset | None = None) -> tuple[float, float]:
    """Mean and deviation of a program's ROC AUC, without a sandbox and by scikit-learn's own means."""
    dataset = dataset or load_dataset("balance-scale")
    areas = []
    for seed in range(5):
        x_train, x_test, y_train, y_test = train_test_split(dataset.x, dataset.y, test_size=0.5, random_state=seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 — as the sandbox does for programs
        names: dict[str, Any] = {}
        exec(f"{HEAD}\n    {body}\n{TAIL}", names)
        found = names["build_model"](x_train, y_train).predict_proba(x_test)
        areas.append(roc_auc_score(y_test, found[:, 1] if found.shape[1] == 2 else found, multi_class="ovo"))
    return float(np.mean(areas)), float(np.std(areas))


@pytest.mark.parametrize("dataset", [None, two_classes()], ids=["three classes", "two classes"])
@pytest.mark.parametrize("body", WORKING, ids=lambda body: body.rpartition("import ")[2].partition("\n")[0])
def test_score_equals_that_of_scikit_learn(body: str, dataset: Dataset | None) -> None:
    _, reward, terminated, truncated, info = fresh(dataset=dataset or "balance-scale").step(body)
    mean, deviation = reference(body, dataset)
    assert (info["score"], info["score_std"]) == pytest.approx((mean, deviation), abs=1e-12)
    assert (reward, terminated, truncated) == (info["score"], True, False)


def some_probabilities(rng: np.random.Generator, rows: int, classes: int, decimals: int | None) -> np.ndarray:
    """Random ones, of which many tie where they are counted in few steps."""
    if decimals is None:
        return rng.dirichlet(np.ones(classes), size=rows)
    return rng.multinomial(10**decimals, np.ones(classes) / classes, size=rows) / 10**decimals


@pytest.mark.parametrize("classes", range(2, 7))
@pytest.mark.parametrize("decimals", [None, 1, 2])
def test_roc_auc_equals_that_of_scikit_learn_with_and_without_ties(classes: int, decimals: int | None) -> None:
    rng = np.random.default_rng(classes)
    for rows in (classes, 2 * classes + 1, 63, 400):
        for _ in range(5):
            labels = rng.permutation(np.concatenate([np.arange(classes), rng.integers(classes, size=rows - classes)]))
            found = some_probabilities(rng, rows, classes, decimals)
            judged = found[:, 1] if classes == 2 else found
            expected = roc_auc_score(labels, judged, multi_class="ovo", labels=range(classes))
            assert roc_auc(labels, found) == pytest.approx(expected, abs=1e-12)


def test_roc_auc_of_perfect_constant_and_inverted_probabilities() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    perfect = np.eye(3)[labels]
    assert roc_auc(labels, perfect) == 1.0
    assert roc_auc(labels, np.full((6, 3), 1 / 3)) == 0.5
    assert roc_auc(labels, (1 - perfect) / 2) == 0.0
    assert roc_auc(labels[:4], perfect[:4, :2]) == 1.0
    assert roc_auc(labels[:4], perfect[:4, 1::-1]) == 0.0


@pytest.mark.parametrize("name", ["balance-scale", "tic-tac-toe"])
def test_splits_equal_those_of_scikit_learn_and_do_not_contain_test_labels(name: str) -> None:
    dataset = load_dataset(name)
    for seed in range(8):
        part = split(dataset, seed)
        assert set(part.inputs) == {"x_train", "y_train", "x_test"}
        x_train, x_test, y_train, y_test = train_test_split(dataset.x, dataset.y, test_size=0.5, random_state=seed)
        for here, there in ((part.inputs["x_train"], x_train), (part.inputs["y_train"], y_train)):
            assert here.dtype == there.dtype
            assert np.array_equal(here, there)
        tested = np.column_stack((part.inputs["x_test"], part.y_test))
        assert sorted(tested.tolist()) == sorted(np.column_stack((x_test, y_test)).tolist())
        assert part.inputs["x_test"].tolist() == sorted(part.inputs["x_test"].tolist())


def lines_of_test_rows(rows: int) -> str:
    """A program that reads no features: it computes where in the data set the rows stood that a split tests."""
    return f"""import numpy as np
    orders = [np.random.RandomState(seed).permutation({rows}) for seed in range(5)]
    agreement = [((order[-len(y_train):] < {rows // 2}) == (y_train == 0)).mean() for order in orders]
    second = orders[int(np.argmax(agreement))][:-len(y_train)] / {rows}
    class Model:
        def predict_proba(self, x):
            return np.column_stack((1 - second, second))
    model = Model()"""


@pytest.mark.parametrize("levels", [1, 10**6], ids=["equal rows", "different rows"])
def test_order_of_the_test_rows_is_independent_of_their_labels(levels: int) -> None:
    """In a file that is sorted by class, as many are. Features are noise: whoever does not cheat gets 0.5."""
    y = np.repeat([0, 1], 200)
    x = np.random.default_rng(3).integers(levels, size=(400, 2)).astype(np.float64)
    dataset = Dataset("sorted", "Sorted by class", x, y)
    env = fresh(dataset=dataset)
    reward = env.step(lines_of_test_rows(400))[1]
    assert abs(reward - 0.5) < 0.1, "chance is 0.5 with a standard deviation of 0.02"
    for seed in range(5):
        part = split(dataset, seed)
        places = np.random.RandomState(seed).permutation(400)[:200]
        cheat = np.column_stack((1 - places / 400, places / 400))
        assert roc_auc(y[places], cheat) == 1.0, "in the order of the split the same answer is right"
        assert abs(roc_auc(part.y_test, cheat) - 0.5) < 0.2


def test_limit_of_processor_time_does_not_depend_on_earlier_splits() -> None:
    program = (
        "import resource, time\n    seen = resource.getrlimit(resource.RLIMIT_CPU)[0]\n    time.sleep(0.5)\n    "
        + (returning("[[1 / 3] * 3] * len(x) if seen == 7 else None"))
    )
    assert fresh(seconds=7.0).step(program)[1] == pytest.approx(0.5)


@pytest.mark.parametrize("dataset", ["balance-scale", "tic-tac-toe", "sklearn:iris", two_classes()], ids=str)
def test_inputs_of_the_sandbox_do_not_contain_the_test_labels(dataset: Any, runs: list[dict[str, np.ndarray]]) -> None:
    env = fresh(dataset=dataset)
    env.scorer.scores.clear()
    env.step(f"{BAYES}\n    # unheard of")
    y, x = env.dataset.y, env.dataset.x
    assert len(runs) == 5
    assert not any(len(np.unique(np.stack([column, y]), axis=1).T) == len(np.unique(y)) for column in x.T), (
        "no column of x is the class"
    )
    for seed, inputs in enumerate(runs):
        hidden = train_test_split(y, test_size=0.5, random_state=seed)[1]
        assert {key: value.shape for key, value in inputs.items()} == {
            "x_train": (len(y) // 2, x.shape[1]),
            "y_train": (len(y) // 2,),
            "x_test": (len(hidden), x.shape[1]),
        }
        sent = b"".join(np.ascontiguousarray(array.T).tobytes() + array.tobytes() for array in inputs.values())
        for kind in (np.int64, np.int32, np.int8, np.float64):
            assert hidden.astype(kind).tobytes() not in sent


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.ones((4, 3)) / 3, ""),
        (np.eye(3)[[0, 1, 2, 0]], ""),
        (np.ones((4, 3)) / 3 + 1e-9, ""),
        (np.array([[1 + 1e-7, -1e-7, 0]] * 4), ""),
        (np.ones((3, 3)) / 3, "predict_proba must give shape (4, 3), not (3, 3)"),
        (np.ones((4, 2)) / 2, "predict_proba must give shape (4, 3), not (4, 2)"),
        (np.ones((3, 4)) / 4, "predict_proba must give shape (4, 3), not (3, 4)"),
        (np.ones(4), "predict_proba must give shape (4, 3), not (4,)"),
        (np.ones(12), "predict_proba must give shape (4, 3), not (12,)"),
        (np.zeros((0, 3)), "predict_proba must give shape (4, 3), not (0, 3)"),
        (np.array([[1.5, -0.5, 0]] * 4), "probabilities must lie between 0 and 1, not -0.5 and 1.5"),
        (np.array([[1, 0, 0]] * 3 + [[-1e-3, 1, 1e-3]]), "probabilities must lie between 0 and 1, not -0.001 and 1"),
        (np.array([[1, 0, 0]] * 3 + [[0.5, 0.5, 1e-3]]), "the probabilities of a row must sum to one"),
        (np.zeros((4, 3)), "the probabilities of a row must sum to one"),
    ],
)
def test_invalid_probabilities_are_explained(output: np.ndarray, message: str) -> None:
    assert check_probabilities(output, 4, 3) == message


def test_rows_need_not_sum_to_one_for_two_classes() -> None:
    """Scikit-learn's score looks at one column, and at nothing else."""
    assert check_probabilities(np.array([[0.0, 0.3], [0.0, 0.9]]), 2, 2) == ""
    own = two_classes()
    body = returning("np.stack([0 * x[:, 0], 1 / (1 + np.exp(-x[:, 0]))], axis=1)")
    assert fresh(dataset=own).step(body)[1] == pytest.approx(reference(body, own)[0], abs=1e-12)


def test_class_missing_from_a_half_is_named() -> None:
    own = two_classes()
    y = own.y.copy()
    y[17] = 2
    with pytest.raises(ValueError, match=r"own: class 2 has too few rows: it is missing from the (training|test) half"):
        split(Dataset("own", "Own", own.x, y), 0)
    with pytest.raises(ValueError, match="own: class 2 has too few rows"):
        gym.make("DataSciCoding-v0", dataset=Dataset("own", "Own", own.x, y))


# -------------------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize("program", BROKEN, ids=lambda program: BROKEN[program][1][:30])
def test_failing_program_has_reward_minus_one_and_is_shown_in_the_next_prompt(program: str) -> None:
    status, message = BROKEN[program]
    env = fresh()
    text, reward, terminated, truncated, info = env.step(program)
    assert (reward, terminated, truncated) == (-1.0, False, False)
    assert (info["works"], info["success"], info["status"]) == (False, False, status)
    assert message in info["error"]
    assert info["text"] == text
    assert text in env.observation_space
    assert not {"score", "score_std"} & set(info)
    assert text.startswith(f"{TASK}{info['program']}\n# ")
    assert text.endswith(f"\n{HEAD}\n   ")
    shown = text.removeprefix(f"{TASK}{info['program']}\n").removesuffix(f"\n{HEAD}\n   ")
    assert all(line.startswith("# ") for line in shown.split("\n"))
    assert message.split(": ")[-1] in shown
    assert len(shown) < 320 and shown.count("\n") < 3


def test_working_program_ends_the_episode_with_its_score() -> None:
    env = fresh()
    env.step("model = (")
    text, reward, terminated, truncated, info = env.step(BAYES)
    assert (reward, terminated, truncated) == (info["score"], True, False)
    assert 0.8 < reward < 1
    assert {key: type(value) for key, value in info.items()} == {
        "text": str,
        "action_valid": bool,
        "works": bool,
        "success": bool,
        "error": str,
        "status": str,
        "program": str,
        "sandbox": str,
        "score": float,
        "score_std": float,
        "script": str,
        "metrics": dict,
        "artifact": dict,
    }
    assert info["metrics"] == {"reward": reward, "works": 1.0, "score": reward, "sandbox": info["sandbox"]}
    assert info["artifact"] == {"score": reward, "file": "best_program.py", "text": info["script"]}
    assert (info["works"], info["success"], info["error"], info["status"]) == (True, True, "", "ok")
    assert info["program"] == f"{HEAD}\n    {BAYES}\n{TAIL}"
    assert info["sandbox"] == shared_sandbox().tier
    assert text in env.observation_space
    with pytest.raises(gym.error.ResetNeeded):
        env.step(BAYES)


@pytest.mark.parametrize("programs", [1, 3, 5])
def test_episode_of_failing_programs_is_truncated(programs: int) -> None:
    env = fresh(**({} if programs == 5 else {"max_programs": programs}))
    ends = [env.step("model = (")[1:4] for _ in range(programs)]
    assert ends == [(-1.0, False, False)] * (programs - 1) + [(-1.0, False, True)]
    assert env.symbolic_observation().tolist() == [programs, 62, 4, 3]
    text, _ = env.reset()
    assert text == f"{TASK}{HEAD}\n   ", "the new episode knows nothing of the last"


def test_working_last_program_terminates() -> None:
    env = fresh(max_programs=2)
    env.step("model = (")
    assert env.step(BAYES)[2:4] == (True, False)


def test_errors_contain_no_path_of_the_machine() -> None:
    env = fresh()
    for program in (
        "import sklearn\n    raise ValueError(sklearn.__file__)",
        "import os\n    raise ValueError(os.__file__, [os.__file__])",
        "import sys\n    raise ValueError(':'.join(sys.path))",
        f"open({str(Path(__file__))!r})",
        "import numpy as np\n    np.linalg.inv(np.zeros((2, 2)))",
    ):
        text, *_, info = env.step(program)
        for message in (info["error"], text.removeprefix(f"{TASK}{info['program']}")):
            assert "Error" in message
            assert "/" not in message


@pytest.mark.parametrize("body", [WORKING[1], WORKING[4], WORKING[5]], ids=["pipeline", "NumPy's seed", "random's"])
def test_script_of_a_program_prints_the_same_score(
    body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = as_csv(two_classes(), tmp_path)
    for dataset in ("balance-scale", f"csv:{file}?target=label"):
        info = fresh(dataset=dataset).step(body)[-1]
        script = tmp_path / "best_program.py"
        script.write_text(info["script"])
        runpy.run_path(str(script), run_name="__main__")
        message = f"ROC AUC {info['score']:.4f} ± {info['score_std']:.4f}"
        assert capsys.readouterr().out.strip() == message
        assert info["script"].startswith(f'"""{message} on ')


def test_script_for_a_data_set_object_has_a_placeholder(tmp_path: Path) -> None:
    script = tmp_path / "best_program.py"
    script.write_text(fresh(dataset=two_classes()).step(BAYES)[-1]["script"])
    assert "data = ...  # a Dataset that was made by hand: put it here" in script.read_text()
    assert callable(runpy.run_path(str(script))["build_model"])


def test_program_that_takes_too_long_is_a_failure() -> None:
    env = fresh(seconds=0.4)
    started = time.monotonic()
    text, reward, *_, info = env.step("while True:\n        pass")
    assert 0.3 < time.monotonic() - started < 5
    assert (reward, info["status"]) == (-1.0, "timeout")
    assert info["error"] == "TimeoutError: the program took longer than 0.4 s"
    assert f"# {info['error']}\n" in text


def test_time_limit_covers_all_splits_together() -> None:
    """None of them takes longer than allowed, and all of them do."""
    env = fresh(seconds=1.5)
    info = env.step(f"import time\n    time.sleep(0.6)\n    {BAYES}")[-1]
    assert info["status"] == "timeout"


def test_waiting_for_a_worker_does_not_count_as_time_of_the_program() -> None:
    slow, quick = fresh(), fresh(dataset=two_classes(), seconds=0.5)
    slow.prefetch("import time\n    time.sleep(1)\n    1 / 0")
    time.sleep(0.2)
    assert quick.step(f"{BAYES}\n    # waited for")[1] > 0


def test_rendering_contains_no_control_characters() -> None:
    env = fresh(render_mode="ansi")
    env.step("model = '\x1b[2J\x1b]0;title\x07\u202e\r' + 1")
    shown = env.render()
    assert shown is not None and "[2J" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_rendering_shows_the_program_and_its_score_or_error() -> None:
    env = fresh(render_mode="ansi")
    assert env.render() == "Balance Scale: 0 of 5 programs written"
    env.step("model = (")
    assert env.render().startswith(f"Balance Scale: 1 of 5 programs written\n\n{HEAD}\n    model = (\n{TAIL}\n\nSyntax")
    score = env.step(BAYES)[1]
    assert f"ROC AUC {score:.4f} ± " in env.render()


def test_failure_of_the_sandbox_raises_and_the_episode_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    env = fresh()
    env.step("model = (")
    before = env.symbolic_observation().tolist()

    def fails(*_: Any, **__: Any) -> None:
        raise SandboxError("the sandbox failed twice: as the test wants it")

    program = f"{BAYES}\n    # {sys._getframe().f_code.co_name}"
    for anticipated in (False, True):
        with monkeypatch.context() as broken:
            broken.setattr(Sandbox, "run", fails)
            if anticipated:
                env.prefetch(program)
            with pytest.raises(SandboxError, match="as the test wants it"):
                env.step(program)
        assert env.symbolic_observation().tolist() == before
        forgotten(env.scorer)
    _, reward, terminated, *_ = env.step(program)
    assert terminated and reward == pytest.approx(reference(BAYES)[0], abs=1e-12)


def forgotten(scorer: Scorer) -> None:
    """Wait until the scorer has let go of what is not certain, which it may do after it has answered."""
    deadline = time.monotonic() + 5
    while any(f.done() and (f.exception() or f.result().status == "timeout") for f in [*scorer.scores.values()]):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_program_is_run_again_right_after_a_failure_of_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    env = fresh()
    forget = Scorer.forget  # a thread may be held up anywhere
    monkeypatch.setattr(Scorer, "forget", lambda *a: (time.sleep(0.3), forget(*a)))
    program = f"{BAYES}\n    # again at once"
    with monkeypatch.context() as broken:
        broken.setattr(Sandbox, "run", lambda *_, **__: (_ for _ in ()).throw(SandboxError("once")))
        with pytest.raises(SandboxError):
            env.step(program)
    assert env.step(program)[1] > 0


def test_closed_environment_releases_the_sandbox_and_can_be_used_again() -> None:
    env = fresh()
    first = env.step(BAYES)[1]
    env.close()
    env.close()
    env.reset()
    assert env.step(BAYES)[1] == first


def test_sandbox_ends_with_the_last_environment_that_uses_it() -> None:
    code = (
        "import gc, os, lang_envs\n"
        "from lang_envs.datascicoding.env import DataSciCodingEnv\n"
        "gc.disable()\n"
        "env = DataSciCodingEnv('balance-scale')\n"
        "env.reset(), env.step('model = ('), env.close()\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read().split())\n"
    )
    assert run_python("-c", code).strip() == "[]"


def test_forked_process_can_use_an_inherited_environment() -> None:
    env = fresh()
    env.step("model = (")
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: sys.exit(0 if env.step(f"{BAYES}\n    # forked")[1] > 0 else 1))
    process.start()
    process.join(60)
    process.kill()
    process.join()
    assert process.exitcode == 0


# ----------------------------------------------------------------------------------------------------- cached scores


def scorer(cache_dir: Path | None = None, seconds: float = 30.0, dataset: Dataset | None = None) -> Scorer:
    limits = Limits(wall_seconds=seconds, cpu_seconds=seconds)
    return Scorer(dataset or load_dataset("balance-scale"), limits, "auto", 1, cache_dir and str(cache_dir))


@pytest.mark.parametrize("body", [WORKING[4], "model = 4"], ids=["works", "fails"])
def test_score_of_the_same_program_is_cached(body: str, runs: list[Any]) -> None:
    ours = scorer()
    first = ours.submit(function_of(body)).result()
    ran = len(runs)
    assert ran == (5 if first.works else 1)
    assert ours.submit(function_of(body)).result() == first
    assert ours.submit(function_of(body.replace("\n", "\n\n"))).result() == first or not first.works
    assert len(runs) == (2 * ran if "\n" in body else ran), "another text is another program"


def test_environments_of_one_process_share_cached_scores(runs: list[Any]) -> None:
    env, other = fresh(dataset=two_classes(seed=3)), fresh(dataset=two_classes(seed=3), max_programs=2)
    reward = env.step(BAYES)[1]
    assert len(runs) == 5
    assert other.step(BAYES)[1] == reward
    assert pickle.loads(pickle.dumps(env)).dataset.fingerprint == env.dataset.fingerprint
    env.reset()
    assert env.step(f"    {BAYES}")[1] == reward, "the same definition, written with its indentation"
    assert len(runs) == 5
    fresh(dataset=two_classes(seed=4)).step(BAYES)
    assert len(runs) == 10


def test_scores_on_disk_are_used_by_other_processes(tmp_path: Path) -> None:
    bodies = [BAYES, WORKING[2], "model = 4"]
    code = (
        "import gymnasium, json, sys, lang_envs\n"
        "from lang_envs.sandbox.pool import Sandbox\n"
        "def run(*_, **__): raise AssertionError('a program was run')\n"
        "Sandbox.run = run\n"
        f"env = gymnasium.make({BALANCE!r}, interface='text', cache_dir=sys.argv[1])\n"
        "results = []\n"
        "for body in json.loads(sys.argv[2]):\n"
        "    env.reset(seed=0)\n"
        "    results.append(env.step(body))\n"
        "print(json.dumps(results))\n"
    )
    expected = [fresh(cache_dir=str(tmp_path)).step(body) for body in bodies]
    results = json.loads(run_python("-c", code, str(tmp_path), json.dumps(bodies)))
    assert results == json.loads(json.dumps(expected))


@pytest.mark.parametrize("left", ["", '{"mean": 0.9', "[1, 2]", "null", '{"mean": 0.9}', "\x00" * 64, b"\xff\xfe"])
def test_incomplete_cache_file_is_replaced(left: str | bytes, tmp_path: Path, runs: list[Any]) -> None:
    first = scorer(tmp_path).submit(function_of(BAYES)).result()
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole = file.read_bytes()
    file.write_bytes(left.encode() if isinstance(left, str) else left)
    assert scorer(tmp_path).submit(function_of(BAYES)).result() == first
    assert file.read_bytes() == whole
    assert len(runs) == 10
    assert scorer(tmp_path).submit(function_of(BAYES)).result() == first
    assert len(runs) == 10
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file], "nothing half written stays"


def test_cached_scores_depend_on_limits_and_data(tmp_path: Path, runs: list[Any]) -> None:
    for seconds, dataset in ((30.0, None), (20.0, None), (30.0, two_classes())):
        scorer(tmp_path, seconds, dataset).submit(function_of(BAYES)).result()
    assert len(runs) == 15
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3


def test_timeouts_are_not_cached(tmp_path: Path, runs: list[Any]) -> None:
    ours = scorer(tmp_path, seconds=0.3)
    for k in (1, 2):
        assert ours.submit(function_of("while True:\n        pass")).result().status == "timeout"
        forgotten(ours)
        assert len(runs) == k
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# ------------------------------------------------------------------------------------------------- answers to programs


def definition(*lines: str) -> str:
    return "\n".join((HEAD, *lines, TAIL))


WHOLE = f"import numpy as np\n\n{HEAD}\n  model = 1\n  return model"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param("a = 1\nmodel = a", definition("    a = 1", "    model = a"), id="no indentation"),
        pytest.param("    a = 1\n    model = a", definition("    a = 1", "    model = a"), id="indented"),
        pytest.param("a = 1\n    model = a", definition("    a = 1", "    model = a"), id="first line continued"),
        pytest.param(" a = 1\n    model = a", definition("    a = 1", "    model = a"), id="prompt's fourth space"),
        pytest.param("model = 1", definition("    model = 1"), id="one line"),
        pytest.param(" model = 1\n", definition("    model = 1"), id="one line with a space"),
        pytest.param("\n\n    model = 1\n\n  \n", definition("    model = 1"), id="blank lines around"),
        pytest.param(
            "if 1:\n    a = 2\nelse:\n    a = 3\nmodel = a",
            definition("    if 1:", "        a = 2", "    else:", "        a = 3", "    model = a"),
            id="nested blocks without indentation",
        ),
        pytest.param("if 1:\n    model = 2", definition("    if 1:", "        model = 2"), id="nothing but a block"),
        pytest.param(
            "a = 1\n    if a:\n        model = a",
            definition("    a = 1", "    if a:", "        model = a"),
            id="nested block behind a continued line",
        ),
        pytest.param(
            "a = 1\n\n    # so\n\n    model = a",
            definition("    a = 1", "", "    # so", "", "    model = a"),
            id="blank lines between",
        ),
        pytest.param(
            "model = max(\n    1,\n    2,\n)\nb = 1",
            definition("    model = max(", "        1,", "        2,", "    )", "    b = 1"),
            id="brackets over lines",
        ),
        pytest.param(
            "a = 1\n    model = abs(\n        a,\n    )",
            definition("    a = 1", "    model = abs(", "        a,", "    )"),
            id="brackets over lines behind a continued line",
        ),
        pytest.param("model = (1 +\n    2)", definition("    model = (1 +", "    2)"), id="an open bracket"),
        pytest.param(
            "Here it is:\n```python\na = 1\nmodel = a\n```\nIt may do.",
            definition("    a = 1", "    model = a"),
            id="fenced",
        ),
        pytest.param("```\nmodel = 1", definition("    model = 1"), id="fence that never ends"),
        pytest.param("```py\nmodel = 1\n```\n```py\nno\n```", definition("    model = 1"), id="two fences"),
        pytest.param("Thus:\n```python\n" + WHOLE + "\n```", WHOLE, id="fenced definition"),
        pytest.param(WHOLE, WHOLE, id="whole definition"),
        pytest.param(f"\n{WHOLE}\n\n", WHOLE, id="whole definition between blank lines"),
        pytest.param("\ta = 1\n\tmodel = a", definition("    a = 1", "    model = a"), id="tabs"),
        pytest.param("if 1:\n\tmodel = 2", definition("    if 1:", "        model = 2"), id="a block by tabs"),
        pytest.param("", definition(""), id="empty"),
        pytest.param("   \n \t\n", definition(""), id="white"),
        pytest.param("model = 'é\u4f60\U0001f955'", definition("    model = 'é\u4f60\U0001f955'"), id="not ASCII"),
        pytest.param("model = '<FILL_ME>'", definition("    model = '<FILL_ME>'"), id="the mark of the hole"),
        pytest.param("model = '" + "x" * 10_000 + "'", definition("    model = '" + "x" * 10_000 + "'"), id="long"),
        pytest.param(
            "a = 1\r\nmodel = a\r\n",
            definition("    a = 1", "    model = a"),
            id="CRLF",
        ),
        pytest.param(
            "model = abs(\n        1,\n    )\n    b = 1",
            definition("    model = abs(", "        1,", "    )", "    b = 1"),
            id="brackets opened by the continued line",
        ),
        pytest.param(
            "if 1:\n        a = 2\n    else:\n        a = 3\n    model = a",
            definition("    if 1:", "        a = 2", "    else:", "        a = 3", "    model = a"),
            id="block opened by the continued line",
        ),
        pytest.param(
            "if 1:  # ever\n    model = 2",
            definition("    if 1:  # ever", "        model = 2"),
            id="block with a comment behind its colon",
        ),
        pytest.param(
            f" {HEAD}\n    model = 1\n{TAIL}",
            definition("    model = 1"),
            id="whole definition behind a space",
        ),
        pytest.param(
            "     a = 1\n    model = a",
            definition("    a = 1", "    model = a"),
            id="indented, behind a space",
        ),
        pytest.param(
            "  a = 1\n  model = a",
            definition("    a = 1", "    model = a"),
            id="two spaces",
        ),
    ],
)
def test_answer_is_converted_to_a_definition(answer: str, expected: str) -> None:
    found = function_of(answer)
    assert found == expected
    if "model" in answer:
        names: dict[str, Any] = {}
        exec(found, names)
        assert names["build_model"](None, None) is not None


ODD = (
    "",
    "   \n\t\n",
    "model = 'é\u4f60\U0001f955\u2028'",
    "model = '\x00\x07\x1b[31m\x7f\x0b\x0c'",
    "model = 1\r\nmodel = 2\rmodel = 3",
    "x = 1 + \n" * 3000,
    "x" * 10_000,
    "# <FILL_ME>\n<FILL_ME>",
    "\udcff lone \ud800",
    "```",
    HEAD,
)


@pytest.mark.parametrize("piece", ["```", "``` ", "```a", "`", "\n", " ", "def build_model(", "\r", "\t", "x:\n"])
def test_time_to_convert_an_answer_is_linear_in_its_length(piece: str) -> None:
    began = time.perf_counter()
    for length in (60_000, 250_000, 4_000_000):
        assert len(function_of(piece * (length // len(piece)))) > 0
    assert time.perf_counter() - began < 1.0


def test_too_long_answer_is_rejected_and_not_cut() -> None:
    answer = f"{BAYES}\n    # {'x' * 70_000}\n"
    info = fresh().step(answer)[-1]
    assert info["status"] == "error" and "65536 is the limit" in info["error"]


@pytest.mark.parametrize("style", ["completion", "infill", "chat"])
@pytest.mark.parametrize("program", ODD, ids=lambda program: ascii(program)[:24])
def test_prompts_are_in_the_observation_space_for_any_program(style: str, program: str) -> None:
    env = fresh(prompt_style=style)
    assert env.reset()[0] in env.observation_space
    text, reward, *_, info = env.step(program)
    assert text in env.observation_space
    assert reward == -1.0 and info["error"].strip()
    assert text.count(HOLE) == (style == "infill")
    if style != "infill" and "\ud800" not in program:
        tokens = TokenEnv(env)
        tokens.reset()
        assert tokens.step(tokens.action_space.encode(program[:40]))[0] in tokens.observation_space


def test_prompt_of_each_style() -> None:
    failed = attempt("def f\n  pass", "first\n\nsecond\nthird\nfourth")
    shown = "# Own: x_train (40, 3), 2 classes.\ndef f\n  pass\n# second\n# third\n# fourth\n" + HEAD + "\n"
    assert prompt("completion", "Own", (40, 3), 2, failed) == f"{shown}   "
    assert prompt("infill", "Own", (40, 3), 2, failed) == f"{shown}<FILL_ME>\n{TAIL}\n"
    chat = prompt("chat", "Own", (40, 3), 2, failed)
    assert chat.startswith("Own: x_train (40, 3), 2 classes.\nWrite the body of `def build_model(x_train, y_train)")
    assert chat.endswith("Your last program failed:\ndef f\n  pass\nsecond\nthird\nfourth")
    assert "failed" not in prompt("chat", "Own", (40, 3), 2, None)


def test_prompt_shows_the_beginning_of_a_long_program_and_the_end_of_a_long_error() -> None:
    long = attempt("a" * 5000, "\n".join(["b" * 500, "c" * 500]))
    assert long.function == "a" * 2000 + " ..."
    assert long.error == "c" * 300


@pytest.mark.parametrize("title", ["T" * 9000, "Two\nlines"], ids=["long", "two lines"])
def test_title_of_an_own_data_set_fits_into_a_comment(title: str) -> None:
    own = two_classes()
    with pytest.raises(ValueError, match="the title must be one line of at most 100 characters"):
        Dataset("own", title, own.x, own.y)


# ------------------------------------------------------------------------------------------------------- tokenizers

CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
FILLING = {
    "Code Llama": CODE_LLAMA,
    "Qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "StarCoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
}
TEMPLATE = (
    "{% for message in messages %}<user>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def filling(family: str, **more: Any) -> Any:
    """A Hugging Face tokenizer in the manner of that family, with its markers."""
    markers = list(FILLING[family])
    if family == "Code Llama":
        backend, special = sentence_piece("normalizer"), {"bos_token": "<s>", "unk_token": "<unk>"}
    else:
        backend, special = byte_level(special=("<s>", "</s>")), {}
    backend.add_special_tokens([tokenizers.AddedToken(marker, special=True) for marker in markers])
    made = hugging_face(backend, **special)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("family", FILLING)
def test_infill_markers_enclose_the_text_before_and_after_the_body(family: str) -> None:
    source = filling(family)
    env = gym.make(BALANCE, tokenizer=source)
    assert env.unwrapped.prompt_style == "infill"
    tokenizer, markers = load_tokenizer(source), source.convert_tokens_to_ids(list(FILLING[family]))
    array, info = env.reset(seed=0)
    for _ in range(2):
        ids = env.observation_space.unpad(array)
        places = [ids.index(marker) for marker in markers[:3]]
        assert places[0] == 0 and places[1] > 1 and places[2] == len(ids) - 1
        assert not set(markers) & set(ids[1 : places[1]] + ids[places[1] + 1 : -1])
        before, after = tokenizer.decode(ids[1 : places[1]]), tokenizer.decode(ids[places[1] + 1 : -1])
        assert before + HOLE + after == info["text"]
        assert before.endswith(f"{HEAD}\n") and after == f"\n{TAIL}\n"
        array, *_, info = env.step(env.action_space.encode("model = '<FILL_ME>'"))


@pytest.mark.parametrize("family", FILLING)
def test_too_long_observation_loses_its_beginning_and_no_marker(family: str) -> None:
    source = filling(family)
    env = gym.make(BALANCE, tokenizer=source, max_observation_tokens=60)
    env.reset(seed=0)
    array, *_, info = env.step(env.action_space.encode("model = [" + "1, " * 30))
    prefix, suffix, middle = source.convert_tokens_to_ids(list(FILLING[family][:3]))
    tokenizer, ids = load_tokenizer(source), env.observation_space.unpad(array)
    whole, _ = tokenizer.encode_observation(info["text"])
    assert len(ids) == 60
    assert info["trimmed_tokens"] == len(whole) - 60 > 0
    assert (ids[0], ids.count(suffix), ids[-1]) == (prefix, 1, middle)
    assert ids[1:] == whole[-59:]


def test_infilled_text_ends_with_its_own_end_marker() -> None:
    source = filling("Code Llama")
    end = source.convert_tokens_to_ids("▁<EOT>")
    env = gym.make(BALANCE, tokenizer=source)
    tokenizer, space = load_tokenizer(source), env.action_space
    assert tokenizer.stop_ids == (tokenizer.end_id, end)
    env.reset(seed=0)
    action = space.pad((*tokenizer.encode("    model = 7"), end, *tokenizer.encode(" and more")))
    assert space.decode(action) == "    model = 7"
    assert env.step(action)[-1]["program"] == definition("    model = 7")


def test_default_prompt_style_follows_from_the_tokenizer() -> None:
    assert gym.make(BALANCE).unwrapped.prompt_style == "completion"
    assert fresh().prompt_style == "completion"
    assert style_for(load_tokenizer()) == "completion"
    chat = hugging_face(byte_level())
    chat.chat_template = TEMPLATE
    assert gym.make(BALANCE, tokenizer=chat).unwrapped.prompt_style == "chat"
    both = filling("Qwen", chat_template=TEMPLATE)
    assert gym.make(BALANCE, tokenizer=both).unwrapped.prompt_style == "chat", "instruct models keep their markers"
    plain_one = hugging_face(byte_level())
    assert gym.make(BALANCE, tokenizer=plain_one).unwrapped.prompt_style == "completion"


def test_given_prompt_style_is_used_or_rejected() -> None:
    infill = filling("StarCoder")
    env = gym.make(BALANCE, tokenizer=infill, prompt_style="completion")
    array, info = env.reset()
    assert info["text"] == f"{TASK}{HEAD}\n   " == env.observation_space.decode(array)
    both = filling("Qwen", chat_template=TEMPLATE)
    assert HOLE in gym.make(BALANCE, tokenizer=both, prompt_style="infill").reset()[1]["text"]
    assert "Answer with code alone." in gym.make(BALANCE, prompt_style="chat").reset()[1]["text"]
    with pytest.raises(ValueError, match="prompt_style='infill' needs infill markers, which the tokenizer 'embedded'"):
        gym.make(BALANCE, prompt_style="infill")


def test_markers_in_text_are_encoded_as_text() -> None:
    source = filling("StarCoder")
    env = gym.make(BALANCE, tokenizer=source)
    env.reset(seed=0)
    array, *_ = env.step(env.action_space.encode("# <fim_suffix><fim_middle>"))
    ids = env.observation_space.unpad(array)
    assert [ids.count(source.convert_tokens_to_ids(marker)) for marker in FILLING["StarCoder"]] == [1, 1, 1]


# ----------------------------------------------------------------------------------------------- many environments

MADE: dict[str, Callable[..., gym.vector.VectorEnv]] = {
    "make_vec": lambda n, **options: make_vec(BALANCE, n, **options),
    "gym.make_vec": lambda n, **options: gym.make_vec(BALANCE, num_envs=n, **options),
    "vector_kwargs": lambda n, **options: gym.make_vec(
        BALANCE, num_envs=n, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}, **options
    ),
}


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Sandbox]:
    """Both started, so that no test waits for them."""
    sandbox = shared_sandbox(max_workers=2)
    waits = "import time; time.sleep(0.3); output = inputs['x']"
    with ThreadPoolExecutor(2) as threads:
        assert [r.status for r in threads.map(lambda _: sandbox.run(waits, {"x": np.zeros(1)}), range(2))] == ["ok"] * 2
    return sandbox


@pytest.mark.parametrize("interface", ["tokens", "text"])
@pytest.mark.parametrize("how", MADE)
def test_vector_gives_the_rewards_of_single_environments(how: str, interface: str, two_workers: Sandbox) -> None:
    vector = MADE[how](3, max_workers=2, interface=interface)
    assert isinstance(vector, LanguageVectorEnv) == (how == "make_vec")
    mode = vector.metadata["autoreset_mode"]
    assert mode is (AutoresetMode.NEXT_STEP if how == "gym.make_vec" else AutoresetMode.SAME_STEP)
    singles = [gym.make(BALANCE, interface=interface) for _ in range(3)]
    vector.reset(seed=0)
    for env in singles:
        env.reset(seed=0)
    chooser, over, ends = np.random.default_rng(1), [False] * 3, 0
    for _ in range(6):
        programs = [chooser.choice([*WORKING[:4], "model = (", "model = 1"]) for _ in singles]
        programs = list(map(str, programs))
        encoded = [vector.single_action_space.encode(p) if interface == "tokens" else p for p in programs]
        seen, rewards, terminations, truncations, infos = vector.step(
            np.stack(encoded) if interface == "tokens" else tuple(encoded)
        )
        for row, env in enumerate(singles):
            if over[row] and mode is AutoresetMode.NEXT_STEP:
                expected = (env.reset()[0], 0.0, False, False)
            else:
                expected = env.step(encoded[row])[:4]
                if (expected[2] or expected[3]) and mode is AutoresetMode.SAME_STEP:
                    assert infos["final_info"]["works"][row] == expected[2]
                    expected = (env.reset()[0], *expected[1:])
            found = (seen[row], rewards[row], terminations[row], truncations[row])
            assert plain(*found) == plain(*expected)
            over[row] = bool(expected[2] or expected[3])
            ends += over[row]
    assert ends >= 3
    vector.close()


def test_programs_of_a_vector_run_in_parallel(two_workers: Sandbox) -> None:
    vector = make_vec("DataSciCoding-v0", 2, dataset=two_classes(seed=9), max_workers=2, interface="text")
    vector.reset(seed=0)
    started = time.monotonic()
    rewards = vector.step(tuple(f"import time\n    time.sleep(0.3)\n    {BAYES}\n    # {k}" for k in "ab"))[1]
    assert (rewards > 0).all()
    assert time.monotonic() - started < 2.5, "each of them sleeps for 1.5 s"
    vector.close()


def test_failure_of_the_sandbox_raises_in_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = make_vec(BALANCE, 2, interface="text")
    vector.reset(seed=0)
    with monkeypatch.context() as broken:
        broken.setattr(Sandbox, "run", lambda *_, **__: (_ for _ in ()).throw(SandboxError("as the test wants it")))
        with pytest.raises(SandboxError, match="as the test wants it"):
            vector.step(("model = 11", "model = 12"))
    vector.reset(seed=0)
    assert (vector.step(("model = 13", BAYES))[1] > 0).tolist() == [False, True]
    vector.close()


def test_wrapper_that_changes_actions_works_in_a_vector() -> None:
    def make() -> gym.Env:
        env = gym.make(BALANCE, interface="text")
        return gym.wrappers.TransformAction(env, lambda k: (BAYES, "model = (")[int(k)], gym.spaces.Discrete(2))

    vector = make_vec(make, 2)
    vector.reset(seed=0)
    assert (vector.step(np.array([0, 1]))[1] > 0).tolist() == [True, False]


def descendants(pid: int) -> set[tuple[int, str]]:
    """Process ids of all that a process has started, with the moment of their start."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in map(int, (task / "children").read_text().split()):
            found |= {(child, started(child))} | descendants(child)
    return found


def started(pid: int) -> str:
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]


def test_async_vector_environments_leave_no_process() -> None:
    vector = gym.make_vec(BALANCE, num_envs=2, vectorization_mode="async")
    assert isinstance(vector, AsyncVectorEnv)
    try:
        vector.reset(seed=0)
        space = vector.single_action_space
        rewards = vector.step(np.stack([space.encode(BAYES), space.encode("model = (")]))[1]
        assert rewards.tolist() == pytest.approx([reference(BAYES)[0], -1.0], abs=1e-12)
        theirs = set().union(*(descendants(process.pid) for process in vector.processes))
        theirs |= {(process.pid, started(process.pid)) for process in vector.processes}
        assert len(theirs) >= 4, "each has a sandbox of its own"
    finally:
        vector.close()
    deadline = time.monotonic() + 10
    while any(began and started(pid) == began for pid, began in theirs):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def noisy(rng: np.random.Generator, program: str) -> str:
    """A program with a few bytes changed, put in or lost."""
    content = bytearray(program.encode())
    for _ in range(rng.integers(1, 8)):
        place = int(rng.integers(len(content)))
        content[place : place + int(rng.integers(3))] = rng.bytes(int(rng.integers(3)))
    return content.decode(errors=str(rng.choice(["replace", "surrogateescape"])))


def test_random_programs_and_random_tokens_never_stop_a_vector(
    monkeypatch: pytest.MonkeyPatch, two_workers: Sandbox
) -> None:
    monkeypatch.setattr(scoring, "REPETITIONS", 1)
    rng = np.random.default_rng(0)
    programs = [random_program(rng) for _ in range(300)]
    programs[::3] = [noisy(rng, program) for program in programs[::3]]
    vector = make_vec(
        "DataSciCoding-v0", 6, dataset=two_classes(60, seed=5), max_workers=2, seconds=10.0, interface="text"
    )
    vector.reset(seed=0)
    working = 0
    for first in range(0, 300, 6):
        texts, rewards, terminations, truncations, infos = vector.step(tuple(programs[first : first + 6]))
        for row in range(6):
            over = terminations[row] or truncations[row]
            results = infos["final_info"] if over else infos
            assert texts[row] in vector.single_observation_space
            assert bool(results["works"][row]) == bool(terminations[row]) == (rewards[row] >= 0)
            working += bool(terminations[row])
            if not terminations[row]:
                error = results["error"][row]
                assert rewards[row] == -1.0
                assert error.strip() and error.replace("\n", "").isprintable() and len(error) <= 1024
                assert any(letter.isalpha() for letter in error)
    assert 60 < working < 200
    vector.close()
