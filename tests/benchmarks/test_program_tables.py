"""The table of programs, from runs made by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cell import CONFIG_FILE, RESULT_FILE, Benchmark
from benchmarks.config import BenchmarkConfig
from benchmarks.programs import write_programs
from benchmarks.run import tabulate_programs

ENV = "DataSciCoding-breast-w-v0"
OUTCOME = {"return": 0.5, "success": 0.5, "episodes": 4}


def write_run(folder: Path, env: str, best: dict[tuple[str, int], float | None]) -> BenchmarkConfig:
    """A finished run of 20 iterations, in which seed s earns s in its last two and −1 before."""
    algos = list(dict.fromkeys(algo for algo, _ in best))
    config = BenchmarkConfig(
        algo=",".join(algos), env=env, seeds=len(best) // len(algos), steps=200, num_envs=1, rollout_steps=10
    )
    folder.mkdir(parents=True)
    config.save(folder / CONFIG_FILE)
    for cell in Benchmark(config, folder).cells:
        cell.path.mkdir(parents=True)
        score = best[cell.algo, cell.seed]
        lines = [
            {"step": 10 * k, "iteration": k, "timing": {"rollout_seconds": 1.0, "learn_seconds": 2.0}}
            | {"reward": cell.seed if k > 18 else -1, "works": 0.5 if k > 18 else 0}
            | ({} if score is None else {"best_score": score, "score": score - (k < 10)})
            for k in range(1, 21)
        ]
        (cell.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (cell.path / RESULT_FILE).write_text(json.dumps(dict.fromkeys(("sampled", "greedy"), OUTCOME)))
        if score is not None:
            (cell.path / "best_program.py").write_text(f"score = {score}")
    return config


def test_best_programs_and_the_last_tenth_stand_beside_published_numbers(tmp_path: Path) -> None:
    best = {("poad", 0): 0.9, ("poad", 1): 0.95, ("ntpo", 0): None, ("ntpo", 1): 0.8}
    config = write_run(tmp_path / "run", ENV, best)
    write_programs([Benchmark(config, tmp_path / "run")], tmp_path, Console(quiet=True))
    found = json.loads((tmp_path / "programs.json").read_text())["sets"]["breast-w"]
    assert found["poad"]["best"] == 0.95 and found["poad"]["program"] == "score = 0.95"
    assert found["poad"]["reward"] == {"value": 0.5, "low": 0.0, "high": 1.0}
    assert found["ntpo"]["works"]["value"] == 0.5
    assert found["ntpo"]["best_of_seeds"] == {"0": None, "1": 0.8}
    text = (tmp_path / "programs.md").read_text()
    numbers = "0.9250 (0.9000 … 0.9500) | 0.500 [0.000, 1.000] | 50% [50%, 50%] | 0.925 [0.900, 0.950]"
    assert f"| breast-w | poad | 2 | 0.9500 | {numbers} |" in text
    assert "| breast-w | ntpo | 2 | 0.8000 | 0.8000 (0.8000 … 0.8000), 1 of 2 runs |" in text
    assert "score" not in found["ntpo"], "a seed of which no program works has no mean score"
    assert (tmp_path / "programs.png").stat().st_size > 10_000
    for row in ("paper, POAD |  | 0.9981", "CAAFE, GPT-3.5 |  | 0.9809", "CAAFE, GPT-4 |  | 0.9809"):
        assert f"| breast-w | {row} |" in text


def test_several_runs_make_one_table_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    for name, env in (("a", ENV), ("b", "DataSciCoding-airlines-v0")):
        write_run(tmp_path / name, env, {("poad", 0): 0.6})
    out = tmp_path / "new" / "tables"
    tabulate_programs([tmp_path / "a", tmp_path / "b"], out)
    rows = [line for line in (out / "programs.md").read_text().splitlines() if "| poad |" in line]
    assert [row.split(" | ")[0] for row in rows] == ["| breast-w", "| airlines"]
    (tmp_path / "b" / "poad" / "seed-0" / RESULT_FILE).unlink()
    with pytest.raises(ValueError, match="seed-0 is not finished: make bench RESUME="):
        tabulate_programs([tmp_path / "a", tmp_path / "b"], tmp_path)
    with pytest.raises(ValueError, match="it has no config"):
        tabulate_programs([tmp_path], tmp_path)
    with pytest.raises(ValueError, match="name the folders"):
        tabulate_programs([], tmp_path)


def test_the_same_agent_on_the_same_set_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, ENV, {("poad", 0): 0.6})
    with pytest.raises(ValueError, match=r"/b has poad on breast-w, which another of these folders has, too"):
        tabulate_programs([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("poad/seed-0/metrics.jsonl", lambda text: text[:-20], r"line 20 of .*metrics.jsonl is damaged"),
        ("poad/seed-0/metrics.jsonl", lambda text: text[: text.index("\n") + 1], "ends at step 10 of 200: delete"),
        ("poad/seed-0/metrics.jsonl", lambda text: "", "ends at step 0 of 200: delete"),
        ("poad/seed-0/metrics.jsonl", lambda text: text.replace("0.6", "NaN"), "line 1 of .* NaN is no number"),
        ("poad/seed-0/result.json", lambda text: "{", "result.json is damaged"),
        ("poad/seed-0/best_program.py", None, "best_program.py is gone"),
        ("config.json", lambda text: text[:50], "config.json is damaged"),
        ("config.json", lambda text: "{}", r"config\.json is not of this version: .algo. is missing"),
        (
            "config.json",
            lambda text: text.replace('"steps"', '"strides"'),
            r"config\.json is not of this version, which has no .strides.",
        ),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, name: str, damage: Callable[[str], str] | None, message: str) -> None:
    write_run(tmp_path / "run", ENV, {("poad", 0): 0.6})
    file = tmp_path / "run" / name
    if damage is None:
        file.unlink()
    else:
        file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=message):
        tabulate_programs([tmp_path / "run"], tmp_path / "out")


def test_a_run_in_which_nothing_works_is_one_of_programs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ENV, {("poad", 0): None})
    tabulate_programs([tmp_path / "run"], tmp_path)
    assert "| breast-w | poad | 1 | none works |" in (tmp_path / "programs.md").read_text()
