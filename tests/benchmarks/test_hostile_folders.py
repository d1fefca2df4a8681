"""Folders of strangers are only data: each kind of damage gives one line of error, and none runs code or hangs."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import trainers
from benchmarks.__main__ import main
from benchmarks.analyses.language import FAMILIES, PARTS, PERPLEXITY_FILE
from benchmarks.config import BenchmarkConfig
from benchmarks.presets import FOOD
from benchmarks.runs import CONFIG_FILE, RESULT_FILE, RUN_FILE, Benchmark
from benchmarks.stored import one_line
from benchmarks.worker import execute
from lang_envs.storage import decode, encode
from trainers.checkpoint import save_checkpoint
from trainers.loop import CHECKPOINTS_FOLDER

CELL = "poad/seed-0"
LAST = f"{CELL}/checkpoints/last"
READERS = ("report", "programs", "credit", "language-ability", "resume")
EVIL = """
from pathlib import Path

Path(__file__).with_name("ran").touch()
import gymnasium as gym
from lang_envs import make_vec
from trainers.agents.poad import POAD as Agent
from trainers.agents.random import RandomAgent

gym.register("Environment-v0", entry_point=lambda **options: gym.make("Overcooked-tomato-salad-v0", **options))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that every command can read."""
    folder = tmp_path_factory.mktemp("strangers") / "run"
    folder.mkdir()
    config = BenchmarkConfig(algo="poad", env=FOOD, seeds=2, steps=64, num_envs=2, rollout_steps=32, eval_episodes=4)
    config.save(folder / CONFIG_FILE)
    (folder / "versions.txt").write_text("python 3.11\n")
    agent = trainers.make("poad", gym.make(FOOD), seed=0)
    for run in Benchmark(config, folder).runs:
        run.path.mkdir(parents=True)
        line = {"step": 64, "iteration": 1, "episodes": 2, "recent_return": 0.5, "recent_success": 0.5}
        line |= {"reward": 0.5, "works": 1.0, "score": 0.5, "best_score": 0.5, "best_score_step": 32}
        line |= {"timing": {"rollout_seconds": 1.0, "learn_seconds": 2.0, "steps_per_second": 21.0}}
        (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (run.path / "versions.txt").write_text("python 3.11\n")
        (run.path / "best_program.py").write_text("x = 1\n")
        (run.path / RUN_FILE).write_text(json.dumps(run.configuration))
        outcome = {"return": 0.5, "success": 0.5, "episodes": 4}
        (run.path / RESULT_FILE).write_text(json.dumps({"sampled": outcome, "greedy": outcome}))
        rows = [[kind, part, 2.0, 3.0] for kind in FAMILIES for part in PARTS]
        (run.path / PERPLEXITY_FILE).write_text(json.dumps(rows))
        save_checkpoint(run.path / CHECKPOINTS_FOLDER, 64, agent.save, {}, best=True)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it beside a module that leaves a trace when it is imported."""
    shutil.copytree(whole, tmp_path / "run", symlinks=True)
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def ring(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(120)
    yield Path("run")
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    sys.modules.pop("evil", None)


def command(*arguments: str) -> str:
    """What ``python -m benchmarks`` ends with; nothing where it succeeds.

    ``critic`` is the part of ``credit`` that loads agents, without the seconds of reckoning before it.
    """
    if arguments[0] == "critic":
        try:
            Benchmark.load(Path(arguments[1])).runs[0].load_agent(gym.make(FOOD))
        except ValueError as error:
            return f"error: {one_line(str(error))}"
        return ""
    before, sys.argv = sys.argv, ["benchmarks", *arguments]
    try:
        main()
    except SystemExit as ended:
        return str(ended.code)
    finally:
        sys.argv = before
    return ""


def arguments_of(reader: str) -> list[str]:
    return [reader, "run", *(["--output", "out/page.html"] if reader == "report" else [])] + (
        ["--output", "out"] if reader in ("programs", "credit", "language-ability") else []
    )


def test_the_undamaged_folder_can_be_read_by_all(run: Path) -> None:
    for reader in READERS:
        assert command(*arguments_of(reader)) == ""
    assert not Path("ran").exists()


Damage = Callable[[Path], Any]


def text(content: str | bytes) -> Damage:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def edit(**changes: Any) -> Damage:
    """Change entries of an object in a file; three dots take one away."""

    def damage(path: Path) -> None:
        found = json.loads(path.read_text())
        for name, value in changes.items():
            place = found
            *way, last = name.split("__")
            for step in way:
                place = place[step]
            if value is ...:
                del place[last]
            else:
                place[last] = value
        path.write_text(json.dumps(found).replace("Infinity", "1e999"))

    return damage


def replaced_by(make: Callable[[Path], Any]) -> Damage:
    def damage(path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        make(path)

    return damage


def link(to: str) -> Damage:
    return replaced_by(lambda path: path.symlink_to(to))


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def rows(*values: Any) -> Damage:
    return text(json.dumps(values))


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


fifo, folder, gone = replaced_by(os.mkfifo), replaced_by(Path.mkdir), lambda path: path.unlink()
ANY, WITH_AGENT = READERS, ("critic",)

CASES: list[tuple[str, Damage, tuple[str, ...], str]] = [
    # not JSON, or no such JSON
    ("config.json", text(""), ANY, "damaged"),
    ("config.json", text("[]"), ANY, "no object"),
    ("config.json", text('"\\ud800"'), ANY, "no object"),
    ("config.json", text(b"\xff\xfe"), ANY, "damaged"),
    ("config.json", text("[" * 200_000), ANY, "nested too deeply"),
    ("config.json", text('{"a":' * 200_000), ANY, "nested too deeply"),
    ("config.json", text("9" * 10_000), ANY, "damaged"),
    ("config.json", edit(seeds=float("nan")), ANY, "NaN is no number"),
    ("config.json", edit(agent__actor_lr=float("inf")), ANY, "1e999 is no finite number"),
    ("config.json", edit(seeds=...), ANY, "'seeds' is missing"),
    ("config.json", edit(agent=...), ANY, "'agent' is missing"),
    ("config.json", edit(colour="red"), ANY, "no 'colour'"),
    # types, sizes
    ("config.json", edit(seeds="3"), ANY, "seeds is '3'"),
    ("config.json", edit(seeds=True), ANY, "seeds is True"),
    ("config.json", edit(seeds=2.0), ANY, "seeds is 2.0"),
    ("config.json", edit(seeds=10**9), ANY, "seeds=1000000000 must be"),
    ("config.json", edit(seeds=10**400), ANY, "seeds is 1000"),
    ("config.json", edit(seeds=0), ANY, "seeds=0"),
    ("config.json", edit(steps=-1), ANY, "steps=-1"),
    ("config.json", edit(steps=10**15), ANY, "steps=10"),
    ("config.json", edit(first_seed=-1), ANY, "first_seed=-1"),
    ("config.json", edit(algo=5), ANY, "algo is 5"),
    ("config.json", edit(algo=["poad"]), ANY, r"algo is ['poad']"),
    ("config.json", edit(algo=""), ANY, "names no agent"),
    ("config.json", edit(algo="poad["), ANY, "bracket is missing"),
    ("config.json", edit(algo="poad[epochs=" + "(" * 900 + "]"), ANY, "epochs="),
    ("config.json", edit(algo="poad[clip=1e999]"), ANY, "clip=inf"),
    ("config.json", edit(algo="x" * 100_000), ANY, "algo is 'xxx"),
    ("config.json", edit(env=None), ANY, "env is None"),
    ("config.json", edit(transfer="abc"), ANY, "transfer is 'abc'"),
    ("config.json", edit(transfer=[1]), ANY, "transfer[0] is 1"),
    ("config.json", edit(env_set=["task"]), ANY, "name=value"),
    ("config.json", edit(preset="best"), ANY, "preset is 'best'"),
    ("config.json", edit(device=1), ANY, "device is 1"),
    ("config.json", edit(runs_dir=1), ANY, "runs_dir is 1"),
    ("config.json", edit(agent=[]), ANY, "agent"),
    ("config.json", edit(agent__lora_targets="q"), ANY, "lora_targets is 'q'"),
    ("config.json", edit(agent__critic_hidden=["x"]), ANY, "critic_hidden[0] is 'x'"),
    ("config.json", edit(agent__temper=1), ANY, "no 'temper'"),
    ("config.json", huge, ANY, "too large"),
    # files that are none
    ("config.json", link("/etc/passwd"), ANY, "symbolic link"),
    ("config.json", link("nowhere"), ANY, "config.json"),
    ("config.json", fifo, ANY, "config.json"),
    ("config.json", folder, ANY, "config.json"),
    ("versions.txt", fifo, ANY, "no regular file"),
    (f"{CELL}/metrics.jsonl", fifo, ANY, "no regular file"),
    (f"{CELL}/metrics.jsonl", link("/etc/passwd"), ANY, "symbolic link"),
    (f"{CELL}/best_program.py", link("/etc/passwd"), ANY, "symbolic link"),
    (f"{CELL}/run.json", fifo, ANY, "no regular file"),
    (f"{CELL}/checkpoints", link("/etc"), ANY, "symbolic link"),
    (CELL, link("/"), ANY, "symbolic link"),
    (LAST, link("/etc"), ANY, "symbolic link"),
    (LAST, link("../../seed-1/checkpoints/step-0000000064"), ANY, "symbolic link"),
    (f"{LAST}/agent.safetensors", fifo, ANY, "no regular file"),
    (f"{LAST}/random", os.mkfifo, ANY, "no regular file"),
    # plans and results
    (f"{CELL}/run.json", text("[]"), ANY, "no object"),
    (f"{CELL}/run.json", edit(clip=0.7), ANY, "clip=0.7"),
    (f"{CELL}/run.json", edit(clip=...), ANY, "clip=None"),
    (f"{CELL}/result.json", text("{}"), ANY, "'sampled' is missing"),
    (f"{CELL}/result.json", edit(sampled=3), ANY, "3 is no object"),
    (f"{CELL}/result.json", edit(greedy__success=...), ANY, "'success' is missing"),
    (f"{CELL}/result.json", edit(sampled__return="much"), ANY, "return is 'much'"),
    (f"{CELL}/result.json", edit(sampled__return=None), ANY, "return is None"),
    (f"{CELL}/result.json", edit(sampled__return=float("inf")), ANY, "1e999"),
    (f"{CELL}/result.json", edit(sampled__return=10**350), ANY, "return is 1000"),
    (f"{CELL}/result.json", gone, ("report", "programs", "credit", "language-ability"), "is not finished"),
    # metrics
    (f"{CELL}/metrics.jsonl", text("[]\n"), ("report", "programs"), "metrics.jsonl"),
    (f"{CELL}/metrics.jsonl", text("\x00\n"), ("report", "programs"), "metrics.jsonl"),
    (f"{CELL}/metrics.jsonl", edit(step="many"), ("report", "programs"), "step is 'many'"),
    (f"{CELL}/metrics.jsonl", edit(step=10**400), ("report", "programs"), "step is 1000"),
    (f"{CELL}/metrics.jsonl", edit(recent_return=[1]), ("report", "programs"), "recent_return is [1]"),
    (f"{CELL}/metrics.jsonl", edit(best_score=None), ("report", "programs"), "best_score is None"),
    (f"{CELL}/metrics.jsonl", edit(timing=3), ("report", "programs"), "metrics.jsonl"),
    (f"{CELL}/metrics.jsonl", edit(timing__learn_seconds="x"), ("report", "programs"), "learn_seconds is 'x'"),
    (f"{CELL}/metrics.jsonl", gone, ("report", "programs"), "metrics.jsonl"),
    (f"{CELL}/best_program.py", gone, ("programs",), "is missing"),
    (f"{CELL}/best_program.py", text(b"\xff"), ("programs",), "best_program.py is damaged"),
    (f"{CELL}/best_program.py", huge, ("programs",), "best_program.py is too large"),
    (f"{CELL}/versions.txt", text(b"\xff"), ("report",), "versions.txt is damaged"),
    (f"{CELL}/versions.txt", gone, ("report",), "versions.txt"),
    # what was measured
    (f"{CELL}/{PERPLEXITY_FILE}", text("{}"), ("language-ability",), PERPLEXITY_FILE),
    (f"{CELL}/{PERPLEXITY_FILE}", rows(1), ("language-ability",), PERPLEXITY_FILE),
    (f"{CELL}/{PERPLEXITY_FILE}", rows(["a", "b", "c", "d"]), ("language-ability",), PERPLEXITY_FILE),
    (f"{CELL}/{PERPLEXITY_FILE}", rows(["a", "b", 1.0, 2.0]), ("language-ability",), PERPLEXITY_FILE),
    (f"{CELL}/{PERPLEXITY_FILE}", rows([["a"], "b", 1.0, 2.0]), ("language-ability",), PERPLEXITY_FILE),
    # checkpoints
    (f"{LAST}/agent.json", text("{}"), (*WITH_AGENT, "credit"), "agent.json"),
    (f"{LAST}/agent.json", text("[" * 200_000), WITH_AGENT, "nested too deeply"),
    (f"{LAST}/agent.json", text('{"class": ["os:system", "touch ran"]}'), WITH_AGENT, "os:system"),
    (f"{LAST}/agent.json", text('{"dict": []}'), WITH_AGENT, "no object with class"),
    (f"{LAST}/agent.json", gone, WITH_AGENT, "no agent.json"),
    (f"{LAST}/agent.pt", lambda path: path.write_bytes(pickle.dumps(Trap())), WITH_AGENT, "agent.pt is a pickle"),
    (f"{LAST}/agent.safetensors", text(b"\xff" * 100), WITH_AGENT, "agent.safetensors is damaged"),
    (f"{LAST}/agent.safetensors", text(b""), WITH_AGENT, "agent.safetensors is damaged"),
    (f"{LAST}/agent.safetensors", text(b"\x02" + bytes(7) + b"{}"), WITH_AGENT, "cannot be loaded"),
    (f"{LAST}/adapter/adapter_model.safetensors", gone, WITH_AGENT, "adapter_model.safetensors"),
    (f"{LAST}/adapter/adapter_model.safetensors", text(b"\x02" + bytes(7) + b"{}"), WITH_AGENT, "other layers"),
    # modules
    ("config.json", edit(env="evil:Environment-v0"), ("credit", "language-ability", "resume"), "evil"),
    ("config.json", edit(env=f"evil:{FOOD}"), ("credit", "language-ability", "resume"), "evil"),
    ("config.json", edit(transfer=["evil:Environment-v0"]), ("resume",), "evil"),
    ("config.json", edit(algo="evil:Agent"), ("credit", "language-ability", "resume"), "evil"),
    ("config.json", edit(algo="evil:RandomAgent"), ("report", "programs", "credit", "resume"), ""),
    ("config.json", edit(env_set=["sandbox=process"]), ("resume",), "sets sandbox=process"),
    ("config.json", edit(env_set=["cache_dir=/etc"]), ("resume",), "sets cache_dir=/etc"),
    ("config.json", edit(env_set=["entry_point=evil:Agent"]), ANY, "entry_point='evil:Agent'"),
    # environments that are none
    ("config.json", edit(env="Overcooked-cake-v0"), ("resume",), "Overcooked-cake-v0"),
    ("config.json", edit(env="\x1b[2Jx\n\n"), ("resume",), "[2Jx"),
    ("config.json", edit(env="x\x00"), ("resume",), "no environment"),
    ("config.json", edit(model="/nowhere/at/all"), ("resume",), "/nowhere/at/all"),
]


@pytest.mark.parametrize(("name", "damage", "readers", "says"), CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)])
def test_a_damaged_folder_gives_one_line(
    name: str, damage: Damage, readers: tuple[str, ...], says: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(run / name)
    for reader in readers:
        said = command(*arguments_of(reader))
        assert said.startswith("error: "), f"{reader} took it"
        assert says in said and said.isprintable() and len(said) < 2_100, said
        assert "run" in said, "it names no file"
        assert "Traceback" not in capfd.readouterr().err
    assert not Path("ran").exists(), "code was run"


@pytest.mark.parametrize("changes", [{"algo": "evil:RandomAgent"}, {"env": "evil:Environment-v0"}])
def test_a_report_needs_no_module_and_imports_one_if_it_is_named(changes: dict[str, str], run: Path) -> None:
    edit(**changes)(run / CONFIG_FILE)
    for own in run.glob("poad/seed-*"):
        edit(**{"works": ..., "best_score": ..., "score": ...})(own / "metrics.jsonl")
        (own / RUN_FILE).unlink()
        shutil.rmtree(own / CHECKPOINTS_FOLDER)
    (run / "poad").rename(run / Benchmark.load(run).runs[0].path.parent.name)
    assert command(*arguments_of("report")) == ""
    assert not Path("ran").exists()
    assert command(*arguments_of("report"), "--allow-import", "evil") == ""
    assert Path("ran").exists(), "the test's module is not imported"


def test_resuming_imports_what_the_user_names(run: Path) -> None:
    edit(algo="evil:RandomAgent")(run / CONFIG_FILE)
    said = command("resume", "run")
    assert "run/config.json names 'evil:RandomAgent'" in said and "--allow-import evil" in said
    assert command("resume", "run", "--allow-import", "devil") == said
    assert not Path("ran").exists()


def stored(**changes: Any) -> Damage:
    """Change what :func:`lang_envs.storage.encode` wrote."""

    def damage(path: Path) -> None:
        found = decode(json.loads(path.read_text()))
        for name, value in changes.items():
            place = found
            *way, last = name.split("__")
            for step in way:
                place = place[step]
            place[last] = value
        path.write_text(json.dumps(encode(found)))

    return damage


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("progress.json", text("{}"), "no stored value"),
        ("progress.json", text("[" * 200_000), "nested too deeply"),
        ("progress.json", text('{"dict": [["progress", 1]]}'), "random"),
        ("progress.json", stored(progress={}), "KeyError"),
        ("progress.json", stored(random=3), "cannot be loaded"),
        ("progress.json", huge, "too large"),
        ("progress.json", gone, "progress.json"),
        ("progress.json", fifo, "no regular file"),
        ("progress.pkl", lambda path: path.write_bytes(pickle.dumps(Trap())), "progress.pkl is a pickle"),
        ("agent.pt", lambda path: path.write_bytes(pickle.dumps(Trap())), "agent.pt is a pickle"),
        ("agent.json", stored(**{"class": "NTPO"}), "contains a NTPO"),
        ("agent.json", stored(state__random={"bit_generator": "os"}), "cannot be loaded"),
        ("agent.json", stored(state__steps_learnt="many"), "steps_learnt"),
        ("agent.json", stored(settings=3), "have the wrong type"),
        ("agent.json", stored(state__actor_optimizer__param_groups=[]), "other options"),
        ("agent.json", stored(state__actor_optimizer__state={0: 1}), "cannot be loaded"),
        ("agent.json", stored(state__actor_optimizer__state={10**6: {}}), "a parameter 1000000"),
        ("adapter/adapter_model.safetensors", text(b"\xff" * 9), "adapter_model.safetensors is damaged"),
    ],
)
def test_a_run_that_cannot_be_resumed_says_why_in_one_line(name: str, damage: Damage, says: str, run: Path) -> None:
    damage(run / LAST / name)
    (run / CELL / RESULT_FILE).unlink()
    with pytest.raises(SystemExit) as ended:
        execute(Benchmark(BenchmarkConfig.load(run / CONFIG_FILE), run).runs[0], 1)
    said = str(ended.value.code)
    assert said.startswith("error: ") and says in said and "checkpoints/" in said and said.isprintable()
    assert not Path("ran").exists(), "code was run"


def test_a_full_disk_is_said_in_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr("trainers.train", full)
    (run / CELL / RESULT_FILE).unlink()
    with pytest.raises(SystemExit, match=r"error: POAD .seed 0.: .*No space left on device.*free some space"):
        execute(Benchmark.load(run).runs[0], 1)


def test_what_a_run_in_its_own_process_says_is_the_command_lines(run: Path) -> None:
    signal.alarm(0)
    (run / LAST / "progress.pkl").write_bytes(b"")
    (run / CELL / RESULT_FILE).unlink()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "resume", "run"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    first, last = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "progress.pkl is a pickle" in first and "Traceback" not in done.stderr
    assert last == "error: POAD (seed 0) ended with code 1: see the errors above"
