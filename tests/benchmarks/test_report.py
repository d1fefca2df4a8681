"""Records and pages of finished runs: contents, what is refused, and how a browser shows them."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from benchmarks.action_length import base_model
from benchmarks.agent_spec import COLOURS, AgentSpec
from benchmarks.analyses import returns
from benchmarks.config import BenchmarkConfig
from benchmarks.experiments import EXPERIMENTS
from benchmarks.paper import PaperConfig, asked_in, remember
from benchmarks.presets import FOOD
from benchmarks.records import Record, stored_names
from benchmarks.report import render, render_page, write_report
from benchmarks.runs import CONFIG_FILE, RESULT_FILE, RUN_FILE, Benchmark
from benchmarks.versions import VERSIONS_FILE
from lang_envs.files import MIB
from trainers.agents import AGENTS
from trainers.embedded_lm.pretrain import PretrainingSettings

SALAD = "Overcooked-tomato-salad-v0"
RETURNS = {"poad": (0.9, 0.8, 0.7), "ntpo": (0.3, 0.2, 0.75)}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def write_run(folder: Path, env: str = SALAD, seeds: int = 3, **more: str) -> Benchmark:
    """Write a finished benchmark; each seed has its final return from the middle of training on."""
    config = BenchmarkConfig(algo=",".join(RETURNS), env=env, steps=200, num_envs=1, rollout_steps=10, seeds=seeds)
    benchmark = Benchmark(config, folder)
    folder.mkdir(parents=True)
    config.save(folder / CONFIG_FILE)
    (folder / "versions.txt").write_text("python 3.11\ncommand: python -m benchmarks run\n")
    fill(benchmark, **more)
    return benchmark


def fill(benchmark: Benchmark, **more: str) -> None:
    steps = benchmark.config.run_defaults.steps
    for run in benchmark.runs:
        run.path.mkdir(parents=True, exist_ok=True)
        end = RETURNS.get(run.agent.name, (0.4, 0.6))[run.seed]
        lines = [
            {
                "step": step,
                "iteration": iteration,
                "recent_return": 0.0 if step < steps / 2 else end,
                "timing": {"rollout_seconds": 1.0, "learn_seconds": 2.0},
            }
            | ({} if run.agent.algorithm == "random" else {"approximate_kl": 0.01, "skipped_actor_steps": 0.25})
            | ({"reward": end, "works": 1.0, "score": end, "best_score": end} if "program" in more else {})
            for iteration, step in enumerate((steps * k // 20 for k in range(1, 21)), 1)
        ]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run.path / VERSIONS_FILE).write_text("python 3.11\n")
        result = {"return": end, "success": 1.0, "episodes": 100}
        (run.path / RESULT_FILE).write_text(json.dumps({"sampled": result, "greedy": result}))
        if "program" in more:
            (run.path / "best_program.py").write_text(more["program"])


def collected(benchmark: Benchmark) -> dict[str, Any]:
    (comparison,) = returns.collect([benchmark])["comparisons"]
    return comparison  # type: ignore[no-any-return]


def rows_of(comparison: dict[str, Any]) -> list[dict[str, str]]:
    table = returns.table_of(comparison)
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_returns_of_runs_are_collected_and_shown(tmp_path: Path) -> None:
    comparison = collected(write_run(tmp_path / "run"))
    optimum = 0.920518
    for own, reached in zip(comparison["agents"], (1, 0), strict=True):
        ends = RETURNS[own["algorithm"]]
        assert tuple(own["returns"]) == ends
        assert own["never"] == 3 - reached
        assert own["steps_to_90_percent"] == [100 if end >= 0.9 * optimum else 200 for end in ends]
    assert returns.claims_of(comparison)[1] == "3 seeds of each agent are too few for a significance test."
    poad, ntpo, random = rows_of(comparison)
    assert (random["agent"], random["n"]) == ("random policy", "100 episodes")
    assert random["return"].startswith("-0.140 ["), "the number of the README"
    assert (poad["n"], ntpo["n"]) == ("3", "3")
    assert poad["return"].startswith("0.800 [")
    assert poad["of optimum"].startswith(f"{0.8 / optimum:.1%} [")
    assert poad["steps to 90 %"].endswith("], 2 of 3 never")
    assert (poad["regressed"], ntpo["regressed"], ntpo["steps to 90 %"]) == ("0 of 1", "", "never")
    assert ntpo["skipped steps"] == "25% [25%, 25%]"


def test_agents_are_tested_for_significance_with_enough_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"poad": (0.9, 0.8, 0.7, 0.8, 0.8), "ntpo": (0.3, 0.2, 0.75, 0.1, 0.1), "random": (0.7, 0.8, 0.9, 0.8, 0.8)}
    monkeypatch.setattr("test_report.RETURNS", ends)
    comparison = collected(write_run(tmp_path / "run", seeds=5))
    poad, ntpo, *_ = rows_of(comparison)
    # of the 25 pairs POAD is above in all but 0.7 against 0.75
    assert ntpo["P(POAD is better)"].startswith("96% [") and poad["P(POAD is better)"] == ""
    mean, higher, equal, speed = returns.claims_of(comparison)
    assert mean.startswith("POAD has a mean final return of 0.800 [")
    assert higher.startswith("It is significantly higher than NTPO's (0.290, p = 0.0")
    assert equal == (
        "It is not significantly different from random agent's (0.800, p = 1) (rank test, Holm's correction)."
    )
    assert speed == (
        "Mean steps to 90 % of the optimum: POAD 180, 4 of 5 runs never; NTPO never; random agent 180, 4 of 5 runs "
        "never."
    )


def test_shared_settings_are_in_the_title_and_others_in_the_labels(tmp_path: Path) -> None:
    algo = "poad[epochs=2,entropy_coefficient=0.0],ntpo[entropy_coefficient=0.0]"
    benchmark = Benchmark(BenchmarkConfig(algo=algo), tmp_path)
    assert benchmark.title == f"{SALAD}, no entropy bonus"
    first, second = benchmark.config.agents
    labels = [agent.label_without(benchmark.shared_settings) for agent in (first, second)]
    assert labels == ["POAD, epochs = 2", "NTPO"]


def test_returns_are_no_fractions_of_an_optimum_below_zero(tmp_path: Path) -> None:
    comparison = collected(write_run(tmp_path / "run")) | {"optimum": -2.0}
    table = returns.table_of(comparison)
    assert not {"of optimum", "steps to 90 %", "regressed"} & set(table.header)
    shown = returns.present({"comparisons": [comparison, comparison | {"env": "other"}]})
    assert "steps to 90 %" not in "".join(shown.notes)
    assert [drawing.name for drawing in shown.drawings] == ["final-returns"], "no aggregate over environments"


def test_steps_to_near_optimum_are_the_first_at_nine_tenths() -> None:
    lines = [{"step": 10}, {"step": 20, "recent_return": 0.5}, {"step": 30, "recent_return": 0.91}]
    assert returns.steps_to_near_optimum(lines, 1.0) == 30
    assert returns.steps_to_near_optimum(lines, 2.0) is None
    assert returns.steps_to_near_optimum(lines, None) is None


def test_runs_that_regress_are_counted(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run")
    file = benchmark.runs[0].path / "metrics.jsonl"
    *before, last = map(json.loads, file.read_text().splitlines())
    for end, regressed in ((0.9, 0), (0.46, 1)):
        last["recent_return"] = end
        file.write_text("".join(json.dumps(line) + "\n" for line in (*before, last)))
        own = collected(benchmark)["agents"][0]
        assert (own["never"], own["regressed"]) == (2, regressed)


def test_runs_with_few_episodes_have_no_learning_curve(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run")
    for run in benchmark.runs:
        file = run.path / "metrics.jsonl"
        lines = [json.loads(line) | {"episodes": 7} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = returns.present(returns.collect([benchmark]))
    assert [drawing.name for drawing in shown.drawings] == ["final-returns"]
    assert shown.notes[-1] == "No learning curves: they start once 20 episodes of a run have ended."
    for run in benchmark.runs[:3]:  # those of POAD
        file = run.path / "metrics.jsonl"
        file.write_text(file.read_text().replace('"episodes": 7', '"episodes": 20'))
    *_, curves = returns.present(returns.collect([benchmark])).drawings
    assert curves.caption.endswith("Curves start once 20 episodes have ended; a run with fewer episodes has none.")
    assert {"POAD", "NTPO"} <= {text.get_text() for text in curves.figure.legends[0].get_texts()}


def test_a_report_shows_every_benchmark_and_can_be_rendered_without_runs(tmp_path: Path) -> None:
    program = 'print("<script>alert(1)</script>")  # ```'
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "DataSciCoding-balance-scale-v0", program=program)
    records = tmp_path / "records"
    page = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "new" / "page.html", records).read_text()
    assert page.count("<figure>") == page.count("data:image/svg+xml;base64,") == 6
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page
    assert page.count("<pre>python -m benchmarks run</pre>") == 3
    assert f"\n````\n{program}\n````\n" in (records / "b-programs.md").read_text()
    for algo, ends in RETURNS.items():
        assert f"balance-scale, {algo.upper()}: best program, ROC AUC {max(ends):.4f}" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page), "the page must not need a network"
    assert sorted(file.name for file in records.iterdir() if not file.name.startswith("b")) == [
        "a-curves.json.gz",
        "a-final-returns.svg",
        "a-learning-curves.svg",
        "a.json",
        "a.jsonl",
        "a.md",
    ]
    lines = [json.loads(line) for line in (records / "a.jsonl").read_text().splitlines()]
    assert [(line["agent"], line["seed"], line["sampled"]["return"]) for line in lines] == [
        (algo, seed, value) for algo, values in RETURNS.items() for seed, value in enumerate(values)
    ]
    written = {file: file.read_bytes() for file in records.iterdir()}
    text = (records / "a.md").read_text()
    assert "](a-learning-curves.svg)" in text and "| POAD | 3 | 0.800 [" in text
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)
    for file in (*records.glob("*.md"), *records.glob("*.svg")):
        file.unlink()
    render(records)
    assert {file: file.read_bytes() for file in records.iterdir()} == written


def test_metrics_of_an_environment_may_be_words(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run")
    for run in benchmark.runs:
        file = run.path / "metrics.jsonl"
        lines = [json.loads(line) | {"colour": "red", "sizes": [1, 2]} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows_of(collected(benchmark))[0]["return"].startswith("0.800 [")


def test_nothing_is_written_through_links(tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path / "run")
    records, victim = tmp_path / "records", tmp_path / "victim"
    victim.write_text("mine")
    records.mkdir()
    for name in ("run-final-returns.svg", "run-curves.json.gz", "run.md", "run.json", "run.jsonl"):
        (records / name).symlink_to(victim)
    write_report([tmp_path / "run"], tmp_path / "page.html", records)
    assert victim.read_text() == "mine"
    render(records)
    assert capsys.readouterr().out.endswith(f"pages: {records / 'run.md'}\n")
    (records / "run-final-returns.svg").unlink()
    (records / "run-final-returns.svg").symlink_to(victim)
    with pytest.raises(ValueError, match=r"run-final-returns\.svg is a symbolic link"):
        render(records)
    assert victim.read_text() == "mine"


def changed(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the JSON of a compressed file."""

    def damage(file: Path) -> None:
        file.write_bytes(gzip.compress(json.dumps(change(json.loads(gzip.decompress(file.read_bytes())))).encode()))

    return damage


def with_entry(**changes: Any) -> Callable[[Path], Any]:
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def with_curve(**curve: Any) -> Callable[[Path], None]:
    return changed(lambda curves: [{name: [own | curve for own in seeds] for name, seeds in curves[0].items()}])


def replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def replace_file(file: Path) -> None:
        file.unlink()
        make(file)

    return replace_file


GZ = "run-curves.json.gz"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (GZ, lambda file: file.write_bytes(file.read_bytes()[:-20]), "is damaged: Compressed file ended"),
        (GZ, lambda file: file.write_bytes(file.read_bytes()[:20] + b"xyz" * 50), "is damaged: "),
        (GZ, lambda file: file.write_bytes(b"no gzip"), "is damaged: Not a gzipped file"),
        (GZ, lambda file: file.write_bytes(gzip.compress(bytes(2_000_000))), "is too large: expected at most 1 MiB"),
        (GZ, changed(lambda curves: 3), "expected learning curves"),
        (GZ, with_curve(step=["1"]), "expected learning curves"),
        (GZ, with_curve(step=[1]), "expected learning curves"),
        (GZ, changed(lambda curves: [{"x": curves[0]["poad"]}]), "damaged, or of another version"),
        (GZ, replaced(os.mkfifo), "is no regular file"),
        (GZ, replaced(lambda file: file.symlink_to("/etc/passwd")), "is a symbolic link"),
        ("run.json", with_entry(experiment="x"), "there is no experiment 'x'"),
        ("run.json", with_entry(kept_figures=[{"file": "a.txt", "caption": ""}]), "'a.txt' is none of .svg, .png"),
    ],
)
def test_damaged_records_are_named(
    name: str, damage: Callable[[Path], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.records.MAX_CURVES", MIB)
    write_run(tmp_path / "run")
    records = tmp_path / "records"
    write_report([tmp_path / "run"], tmp_path / "page.html", records)
    damage(records / name)
    for read in (lambda: render_page(records, "run"), lambda: render(records)):
        with pytest.raises(ValueError, match=f"{name.partition('.')[0].removesuffix('-curves')}.*{message}"):
            read()


def test_texts_of_records_are_no_markup_in_markdown(tmp_path: Path) -> None:
    comparison = collected(write_run(tmp_path / "run"))
    comparison["agents"][0]["algorithm"] = "m:<img src=x>\n# big|[a](http://b)\n[c]: http://d"
    Record("returns", "<b>x</b>\n# y", {"comparisons": [comparison]}, warning="[z](http://z)").save(tmp_path, "x")
    page = render_page(tmp_path, "x").markdown
    assert page.startswith("# &lt;b>x&lt;/b> # y\n\n**Note:** [z]\\(http://z)\n")
    assert not re.search(r"<[a-z/]|^# big|^\[c\]|(?<!\!)\[[az]\]\(|\]:", page, re.MULTILINE)


def test_records_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run")
    record = Record("returns", "A title", json.loads(json.dumps(returns.collect([benchmark]))))
    record.save(tmp_path, "x")
    assert Record.load(tmp_path, "x") == record


@pytest.mark.parametrize("name", stored_names(RESULTS))
def test_published_pages_are_what_is_rendered_from_the_published_numbers(name: str, tmp_path: Path) -> None:
    for file in RESULTS.glob(f"{name}*"):
        shutil.copy(file, tmp_path)
    page = render_page(tmp_path, name)
    assert (tmp_path / f"{name}.md").read_text() == (RESULTS / f"{name}.md").read_text(), "run: make render"
    linked = re.findall(r"\]\((.*?)\)", page.markdown)
    assert linked and all((RESULTS / file).is_file() for file in linked)
    assert not [word for word in ("decisions", "told apart", "fell back", "cannot show") if word in page.markdown]
    for heading in ("## Question", "## Answer", "## Figures", "## Tables", "## Limitations", "## Reproduce"):
        assert heading in page.markdown


def test_every_algorithm_has_one_colour() -> None:
    assert COLOURS.keys() == AGENTS.keys()
    assert len(set(COLOURS.values())) == len(COLOURS)
    for name in COLOURS:
        assert AgentSpec(name, {"gamma": 1.0}).colour == COLOURS[name]


def test_finished_comparisons_of_the_papers_experiments_are_shown(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "paper"
    for config in (
        PaperConfig(output=folder, seeds=2, only=("discount", "length", "curves")),
        PaperConfig(output=folder, seeds=3, only=("entropy",)),
    ):
        folder.mkdir(exist_ok=True)
        remember(config)
    asked = {name: config.benchmarks(name) for name, config in asked_in(folder).items()}
    assert {name: benchmarks[0].config.seeds for name, benchmarks in asked.items()} == {
        "curves": 2,
        "entropy": 3,
        "discount": 2,
        "length": 2,
    }
    for comparison, benchmark in zip(EXPERIMENTS["length"].comparisons, asked["length"], strict=True):
        reading = PretrainingSettings(steps=1, programs=0, env_steps=100, batch=2)
        base_model(str(comparison.tokens), comparison.env, Path(str(benchmark.config.model)), reading)
    done = (*asked["discount"], *asked["length"], asked["curves"][0])
    for benchmark in done:
        fill(benchmark)
    for benchmark in done:
        for run in benchmark.runs:
            (run.path / VERSIONS_FILE).write_text(f"torch\ncommit {run.seed}\npeft\n")
    moved = tmp_path / "moved"
    folder.rename(moved)
    records = tmp_path / "records"
    page = unescape(write_report([moved], tmp_path / "page.html", records).read_text())
    text = (records / "discount.md").read_text()
    assert "torch\npeft\n6 runs: commit 0\n6 runs: commit 1\n" in text
    assert "python -m benchmarks paper --only discount --seeds 2\n" in text
    assert not [file for file in records.glob("*.[jm]*") if file.suffix != ".gz" and str(tmp_path) in file.read_text()]
    for name in ("discount", "length"):
        assert EXPERIMENTS[name].question in page and EXPERIMENTS[name].limitations in page
        assert f"python -m benchmarks paper --only {name}" in page
    assert "entropy: 42 of 48 runs are not finished (" in capsys.readouterr().err.replace("\n", "")
    shown = (records / "curves.md").read_text()
    assert "18 of 24 runs are not finished (VirtualHome-entertainment-v0, Overcooked" in shown
    assert "**VirtualHome-food-preparation-v0" in shown and "**VirtualHome-entertainment" not in shown
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert sum(caption.startswith("Learning curves") for caption in captions) == 3
    assert sum(caption.startswith("Final return over the discount inside an action") for caption in captions) == 1
    assert sum(caption.startswith("First panel: final return of POAD minus") for caption in captions) == 1
    assert "VirtualHome-food-preparation-v0, model characters" in page


def test_each_experiment_keeps_its_own_options(tmp_path: Path) -> None:
    for config in (
        PaperConfig(output=tmp_path, only=("curves",), scale="7b"),
        PaperConfig(output=tmp_path, only=("programs",), scale="7b", model="some/model", quantize="4bit"),
    ):
        remember(config)
    asked = asked_in(tmp_path)
    assert asked["curves"].command == "python -m benchmarks paper --only curves --scale 7b"
    assert asked["programs"].model == "some/model"
    assert asked["curves"].benchmarks("curves")[0].config.model == "meta-llama/Llama-2-7b-hf"
    for text, message in (
        ('{"curves": {"colour": "red"}}', r"paper\.json: curves is of another version: this one has no 'colour'"),
        ('{"seeds_of": {}}', r"paper\.json is of another version: this one has no experiment 'seeds_of'"),
    ):
        (tmp_path / "paper.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            asked_in(tmp_path)
        with pytest.raises(ValueError, match=message):
            remember(config)


def test_one_seed_is_shown_without_intervals(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run", seeds=1)
    poad, *_ = rows_of(collected(benchmark))
    assert (poad["return"], poad["n"]) == ("0.900", "1")
    assert "P(POAD is better)" not in poad


def test_several_seeds_have_intervals(tmp_path: Path) -> None:
    numbers = ("return", "interquartile mean", "of optimum", "greedy", "success", "approximate KL", "skipped steps")
    for row in rows_of(collected(write_run(tmp_path / "run"))):
        assert all("[" in row[name] for name in numbers if row[name])


def test_the_case_study_needs_critics(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run", FOOD)
    random = replace(benchmark.config, algo="random")
    random.save(tmp_path / "run" / CONFIG_FILE)
    (tmp_path / "run" / "poad").rename(tmp_path / "run" / "random")
    page = write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "records").read_text()
    assert page.count("<figure>") == 2 and "credit inside" not in page


def test_folders_that_cannot_be_analysed_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the folder of a benchmark"):
        write_report([tmp_path], tmp_path / "page.html", tmp_path / "records")
    with pytest.raises(ValueError, match="name the folders"):
        write_report([], tmp_path / "page.html", tmp_path / "records")
    benchmark = write_run(tmp_path / "run")
    metrics = benchmark.runs[0].path / "metrics.jsonl"
    whole = metrics.read_text()
    for text, message in (
        (
            "".join(whole.splitlines(keepends=True)[1:]),
            r"line 1 of .*metrics\.jsonl is not that of iteration 1:",
        ),
        (whole[:-30], r"line 20 of .*metrics\.jsonl is damaged"),
    ):
        metrics.write_text(text)
        with pytest.raises(ValueError, match=message):
            write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "records")
    metrics.write_text(whole)
    result = benchmark.runs[-1].path / RESULT_FILE
    for damaged, message in ((b"{}", "'sampled' is missing"), (b"[]", "holds no object"), (b"\xff", "is damaged")):
        result.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"result\.json.*{message}"):
            write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "records")
    result.unlink()
    with pytest.raises(ValueError, match=r"ntpo/seed-2 is not finished: make bench RESUME="):
        write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "records")
    (benchmark.runs[0].path / RUN_FILE).write_text(json.dumps(benchmark.runs[0].configuration | {"clip": 0.1}))
    with pytest.raises(ValueError, match=r"poad/seed-0 was started with clip=0\.1; clip=0\.2 is asked for"):
        write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "records")


PROBE = """
<script>
const found = {wide: document.documentElement.scrollWidth - window.innerWidth, pictures: [], faint: []};
for (const picture of document.images) found.pictures.push(picture.naturalWidth);
const light = text => {
  const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = node => {
  const colour = getComputedStyle(node).backgroundColor;
  return colour === "rgba(0, 0, 0, 0)" && node.parentElement ? behind(node.parentElement) : colour;
};
for (const node of document.querySelectorAll("p, a, h1, h2, td, th, summary, figcaption")) {
  const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.faint.push(node.textContent);
}
found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.setAttribute("data-found", JSON.stringify(found));
</script>
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_page(tmp_path: Path, width: int, dark: bool) -> None:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "CI needs Chromium"
        pytest.skip("there is no Chromium on this machine")
    write_run(tmp_path / "run", "DataSciCoding-balance-scale-v0", program="x = 1")
    page = write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "records")
    # A frame of the screen's width: a window cannot be as narrow as a telephone.
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    (tmp_path / "frame.html").write_text(
        f'<iframe src="probed.html" style="width: {width}px; height: 900px; border: 0"></iframe>'
        "<script>onload = () => document.title = document.querySelector('iframe').contentDocument.documentElement"
        ".getAttribute('data-found')</script>"
    )
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--allow-file-access-from-files", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=10000",
            "--dump-dom", (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    (title,) = re.findall("<title>(.*?)</title>", done.stdout)
    found = json.loads(title.replace("&quot;", '"'))
    assert "CONSOLE" not in done.stderr
    assert found["dark"] == dark
    assert len(found["pictures"]) == 4 and min(found["pictures"]) > 200
    assert found["wide"] <= 0, "the page itself must not scroll sideways"
    assert found["faint"] == []
