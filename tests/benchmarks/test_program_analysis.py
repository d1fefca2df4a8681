"""The analysis of programs, from runs written by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.config import BenchmarkConfig
from benchmarks.report import write_report
from benchmarks.runs import CONFIG_FILE, RESULT_FILE, Benchmark
from benchmarks.versions import VERSIONS_FILE

ENV = "DataSciCoding-breast-w-v0"
OUTCOME = {"return": 0.5, "success": 0.5, "episodes": 4}


def write_run(folder: Path, env: str, best: dict[tuple[str, int], float | None]) -> BenchmarkConfig:
    """Write a finished benchmark of 20 iterations; seed s has reward s in the last two and −1 before."""
    algos = list(dict.fromkeys(algo for algo, _ in best))
    config = BenchmarkConfig(
        algo=",".join(algos), env=env, seeds=len(best) // len(algos), steps=200, num_envs=1, rollout_steps=10
    )
    folder.mkdir(parents=True)
    config.save(folder / CONFIG_FILE)
    (folder / VERSIONS_FILE).write_text("python 3.11\n")
    for run in Benchmark(config, folder).runs:
        run.path.mkdir(parents=True)
        score = best[run.agent.name, run.seed]
        lines = [
            {"step": 10 * k, "iteration": k, "timing": {"rollout_seconds": 1.0, "learn_seconds": 2.0}}
            | {"reward": run.seed if k > 18 else -1, "works": 0.5 if k > 18 else 0}
            | ({} if score is None else {"best_score": score, "score": score - (k < 10)})
            for k in range(1, 21)
        ]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run.path / VERSIONS_FILE).write_text("python 3.11\n")
        (run.path / RESULT_FILE).write_text(json.dumps(dict.fromkeys(("sampled", "greedy"), OUTCOME)))
        if score is not None:
            (run.path / "best_program.py").write_text(f"score = {score}")
    return config


def test_programs_are_shown_with_published_numbers(tmp_path: Path) -> None:
    best = {("poad", 0): 0.9, ("poad", 1): 0.95, ("ntpo", 0): None, ("ntpo", 1): 0.8}
    write_run(tmp_path / "run", ENV, best)
    write_report([tmp_path / "run"], tmp_path / "out.html")
    records = tmp_path / "out"
    poad, ntpo = json.loads((records / "run-programs.json").read_text())["data"]["sets"]["breast-w"]
    assert poad["best"] == 0.95 and poad["program"] == "score = 0.95"
    assert poad["reward"] == {"value": 0.5, "low": 0.0, "high": 1.0}
    assert ntpo["works"]["value"] == 0.5
    assert ntpo["best_of_seeds"] == {"0": None, "1": 0.8}
    assert "score" not in ntpo, "a seed without working programs has no mean score"
    text = (records / "run-programs.md").read_text()
    numbers = "0.9250 (0.9000 … 0.9500) | 0.500 [0.000, 1.000] | 50% [50%, 50%] | 0.925 [0.900, 0.950]"
    assert f"| breast-w | POAD | 2 | 0.9500 (maximum) | {numbers} |" in text
    assert "| breast-w | NTPO | 2 | 0.8000 (maximum) | 0.8000 (0.8000 … 0.8000), 1 of 2 runs |" in text
    for figure in ("best-programs", "learning-curves"):
        assert (records / f"run-programs-{figure}.svg").stat().st_size > 10_000
    for row in ("paper, POAD |  | 0.9981", "CAAFE, GPT-3.5 |  | 0.9809", "CAAFE, GPT-4 |  | 0.9809"):
        assert f"| breast-w | {row} (published) |" in text


def test_several_benchmarks_share_a_table_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    for name, env in (("a", ENV), ("b", "DataSciCoding-airlines-v0")):
        write_run(tmp_path / name, env, {("poad", 0): 0.6})
    out = tmp_path / "new" / "tables"
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html", out)
    rows = [line for line in (out / "all-programs.md").read_text().splitlines() if "| POAD |" in line]
    assert [row.split(" | ")[0] for row in rows] == ["| breast-w", "| airlines"]
    (tmp_path / "b" / "poad" / "seed-0" / RESULT_FILE).unlink()
    with pytest.raises(ValueError, match="seed-0 is not finished: make bench RESUME="):
        write_report([tmp_path / "a", tmp_path / "b"])


def test_two_benchmarks_with_an_agent_on_one_data_set_are_shown_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, ENV, {("poad", 0): 0.6})
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
    text = (tmp_path / "page" / "all-programs.md").read_text()
    assert "| breast-w | POAD | 1 |" in text and "| breast-w (b) | POAD | 1 |" in text


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("poad/seed-0/metrics.jsonl", lambda text: text[:-20], r"line 20 of .*metrics.jsonl is damaged"),
        ("poad/seed-0/metrics.jsonl", lambda text: text[: text.index("\n") + 1], "ends at step 10 of 200: delete"),
        ("poad/seed-0/metrics.jsonl", lambda text: "", "ends at step 0 of 200: delete"),
        ("poad/seed-0/metrics.jsonl", lambda text: text.replace("0.6", "NaN"), "line 1 of .* NaN is no number"),
        ("poad/seed-0/result.json", lambda text: "{", "result.json is damaged"),
        ("poad/seed-0/best_program.py", None, "best_program.py, the best program of its agent, is missing"),
        ("config.json", lambda text: text[:50], "config.json is damaged"),
        ("config.json", lambda text: "{}", r"config\.json is of another version: .algo. is missing"),
        (
            "config.json",
            lambda text: text.replace('"steps"', '"strides"'),
            r"config\.json is of another version: this one has no .strides.",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, damage: Callable[[str], str] | None, message: str) -> None:
    write_run(tmp_path / "run", ENV, {("poad", 0): 0.6})
    file = tmp_path / "run" / name
    if damage is None:
        file.unlink()
    else:
        file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=message):
        write_report([tmp_path / "run"])


def test_runs_without_a_working_program_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ENV, {("poad", 0): None})
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "| breast-w | POAD | 1 | none works |" in (tmp_path / "page" / "run-programs.md").read_text()
