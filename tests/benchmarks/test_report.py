"""The page of a report: what is on it, what it refuses, and how a browser shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.action_length import base_model
from benchmarks.cell import CONFIG_FILE, PLAN_FILE, RESULT_FILE, Benchmark
from benchmarks.comparison import compare, compare_over, runs_of, write_comparison
from benchmarks.config import BenchmarkConfig
from benchmarks.experiments import EXPERIMENTS, FOOD
from benchmarks.paper import PaperConfig, remember, remembered
from benchmarks.report import Section, write_report
from benchmarks.tables import Known, Table
from benchmarks.versions import VERSIONS_FILE
from trainers.embedded_lm.pretrain import PretrainingSettings

SALAD = "Overcooked-tomato-salad-v0"
RETURNS = {"poad": (0.9, 0.8, 0.7), "ntpo": (0.3, 0.2, 0.75)}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def write_run(folder: Path, env: str = SALAD, seeds: int = 3, **more: str) -> Benchmark:
    """A finished run made by hand: what a seed ends at, it has had in training since half-way."""
    config = BenchmarkConfig(algo=",".join(RETURNS), env=env, steps=200, num_envs=1, rollout_steps=10, seeds=seeds)
    benchmark = Benchmark(config, folder)
    folder.mkdir(parents=True)
    config.save(folder / CONFIG_FILE)
    (folder / "versions.txt").write_text("python 3.11\ncommand: python -m benchmarks run\n")
    fill(benchmark, **more)
    return benchmark


def fill(benchmark: Benchmark, **more: str) -> None:
    steps = benchmark.config.usual.steps
    for cell in benchmark.cells:
        cell.path.mkdir(parents=True, exist_ok=True)
        end = RETURNS.get(cell.algo, (0.4, 0.6))[cell.seed]
        lines = [
            {
                "step": step,
                "iteration": iteration,
                "recent_return": 0.0 if step < steps / 2 else end,
                "timing": {"rollout_seconds": 1.0, "learn_seconds": 2.0},
            }
            | ({} if cell.algo == "random" else {"approximate_kl": 0.01, "skipped_actor_steps": 0.25})
            | ({"reward": end, "works": 1.0, "score": end, "best_score": end} if "program" in more else {})
            for iteration, step in enumerate((steps * k // 20 for k in range(1, 21)), 1)
        ]
        (cell.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (cell.path / VERSIONS_FILE).write_text("python 3.11\n")
        result = {"return": end, "success": 1.0, "episodes": 100}
        (cell.path / RESULT_FILE).write_text(json.dumps({"sampled": result, "greedy": result}))
        if "program" in more:
            (cell.path / "best_program.py").write_text(more["program"])


def test_agents_are_compared_by_what_their_runs_came_to(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run")
    optimum = 0.920518
    for algo, reached in (("poad", 1), ("ntpo", 0)):
        runs = runs_of(benchmark, algo)
        assert tuple(runs.returns) == RETURNS[algo]
        assert runs.never == 3 - reached
        assert runs.decisions_to_near_optimum == [100 if end >= 0.9 * optimum else 200 for end in RETURNS[algo]]
    table, (verdict,) = compare(benchmark)
    assert verdict == "n = 3 runs of each agent are too few to say who is better."
    poad, ntpo, random = (dict(zip(table.header, row, strict=True)) for row in table.rows)
    assert (random["agent"], random["n"]) == ("random policy", "100 episodes")
    assert random["return"].startswith("-0.140 ["), "what the README's table says of it"
    assert (poad["n"], ntpo["n"]) == ("3", "3") and "poad above it" not in ntpo
    assert poad["return"].startswith("0.800 [")
    assert poad["of optimum"].startswith(f"{0.8 / optimum:.1%} [")
    assert poad["decisions to 90 %"].endswith("], 2 of 3 never")
    assert (poad["fell back"], ntpo["fell back"], ntpo["decisions to 90 %"]) == ("0 of 1", "", "never")
    assert ntpo["skipped steps"] == "25% [25%, 25%]"


def test_agents_are_told_apart_where_runs_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"poad": (0.9, 0.8, 0.7, 0.8, 0.8), "ntpo": (0.3, 0.2, 0.75, 0.1, 0.1), "random": (0.7, 0.8, 0.9, 0.8, 0.8)}
    monkeypatch.setattr("test_report.RETURNS", ends)
    table, verdicts = compare(write_run(tmp_path / "run", seeds=5))
    poad, ntpo, _, _ = (dict(zip(table.header, row, strict=True)) for row in table.rows)
    # of the 25 pairs POAD is above in all but 0.7 against 0.75
    assert ntpo["poad above it"].startswith("96% [") and poad["poad above it"] == ""
    assert verdicts == [
        "poad ends above ntpo more often than chance would have it (rank test with Holm's correction, p < 0.05).",
        "These runs do not tell poad apart from random.",
    ]


def test_what_the_terminal_says_keeps_the_settings_of_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {"random": (0.9, 0.8, 0.7, 0.8, 0.8), "random[seed=1]": (0.1, 0.2, 0.3, 0.2, 0.2)}
    monkeypatch.setattr("test_report.RETURNS", ends)
    write_comparison(write_run(tmp_path / "run", seeds=5), tmp_path, Console(width=200))
    shown = capsys.readouterr().out
    assert "random ends above random[seed=1] more often" in shown
    assert re.search(r"random\[seed=1\] +0\.200 \[0\.140, 0\.260\]", shown)


def test_returns_are_no_shares_of_an_optimum_below_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.comparison.optimum_of", lambda benchmark: -2.0)
    benchmark = write_run(tmp_path / "run")
    table, _ = compare(benchmark)
    assert not {"of optimum", "decisions to 90 %", "fell back"} & set(table.header) and "90 %:" not in table.note
    with pytest.raises(ValueError, match="has no positive optimum"):
        compare_over([benchmark])


def test_a_run_that_forgets_what_it_knew_is_counted(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run")
    curve = benchmark.of("poad")[0].path / "metrics.jsonl"
    *before, last = map(json.loads, curve.read_text().splitlines())
    assert (runs_of(benchmark, "poad").never, runs_of(benchmark, "poad").fell) == (2, 0)
    last["recent_return"] = 0.46
    curve.write_text("".join(json.dumps(line) + "\n" for line in (*before, last)))
    assert (runs_of(benchmark, "poad").never, runs_of(benchmark, "poad").fell) == (2, 1)


def test_one_page_holds_every_run_its_best_programs_and_how_it_was_made(tmp_path: Path) -> None:
    program = 'print("<script>alert(1)</script>")  # ```'
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "DataSciCoding-balance-scale-v0", program=program)
    kept = tmp_path / "kept"
    page = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "new" / "page.html", kept).read_text()
    assert page.count("<figure>") == page.count("data:image/png;base64,") == 3
    assert "<script>" not in page and "&lt;script&gt;alert(1)" in page
    assert page.count("<pre>python -m benchmarks run</pre>") == 2
    assert f"\n````\n{program}\n````\n" in (kept / "b-programs.md").read_text()
    for algo in RETURNS:
        assert f"balance-scale, {algo}: the best program, ROC AUC {max(RETURNS[algo]):.4f}" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page), "the page must not need a network"
    assert sorted(file.name for file in kept.iterdir() if not file.name.startswith("b")) == [
        "a-1.png",
        "a-made.md",
        "a.json",
        "a.jsonl",
        "a.md",
    ]
    lines = [json.loads(line) for line in (kept / "a.jsonl").read_text().splitlines()]
    assert [(line["agent"], line["seed"], line["sampled"]["return"]) for line in lines] == [
        (algo, seed, value) for algo, values in RETURNS.items() for seed, value in enumerate(values)
    ]
    text = (kept / "a.md").read_text()
    assert "![Learning curves" in text and "](a-1.png)" in text and "| poad | 3 | 0.800 [" in text


def test_the_papers_experiments_are_shown_as_far_as_they_are_done(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    for config in (
        PaperConfig(output=folder, seeds=2, only=("discount", "length", "curves")),
        PaperConfig(output=folder, seeds=3, only=("entropy",)),
    ):
        folder.mkdir(exist_ok=True)
        remember(config)
    asked = remembered(folder).benchmarks
    assert {name: benchmarks[0].config.seeds for name, benchmarks in asked.items()} == {
        "curves": 2,
        "entropy": 3,
        "discount": 2,
        "length": 2,
    }
    for panel, benchmark in zip(EXPERIMENTS["length"].panels, asked["length"], strict=True):
        reading = PretrainingSettings(steps=1, programs=0, env_steps=100, batch=2)
        base_model(str(panel.tokens), panel.env, Path(str(benchmark.config.model)), reading)
    done = (*asked["discount"], *asked["length"], asked["curves"][0])
    for benchmark in done:
        fill(benchmark)
    for benchmark in done:
        for cell in benchmark.cells:
            (cell.path / VERSIONS_FILE).write_text(f"torch\ncommit {cell.seed}\npeft\n")
    moved = tmp_path / "moved"
    folder.rename(moved)
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("quick", "missing"):
        (kept / f"{name}.md").write_text("of an earlier page")
    page = unescape(write_report([moved], tmp_path / "page.html", kept).read_text())
    assert not (kept / "quick.md").exists() and "18 of 24 runs are not done" in (kept / "missing.md").read_text()
    text = (kept / "discount.md").read_text()
    assert "torch\npeft\n6 runs: commit 0\n6 runs: commit 1\n" in text
    assert "python -m benchmarks paper --only discount --seeds 2\n" in text
    assert not [file for file in kept.glob("*.[jm]*") if str(tmp_path) in file.read_text()]
    for name in ("discount", "length"):
        assert EXPERIMENTS[name].question in page and EXPERIMENTS[name].limits in page
        assert f"python -m benchmarks paper --only {name}" in page
    assert "The same without an entropy bonus, and with the paper's: 42 of 48 runs are not done (" in page
    assert "Learning curves (figure 3): 18 of 24 runs are not done (VirtualHome-entertainment-v0, Overcooked" in page
    shown = (kept / "curves.md").read_text()
    assert "VirtualHome-food-preparation-v0" in shown and "entertainment" not in shown, "what is done is shown"
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert sum(caption.startswith("Learning curves") for caption in captions) == 3
    assert {"Return by the discount inside an action; 1 is POAD."} <= set(captions)
    assert any(caption.startswith("What POAD is ahead of NTPO") for caption in captions)
    assert page.count("VirtualHome-food-preparation-v0 in characters") >= 2


def test_options_of_one_experiment_are_not_those_of_another(tmp_path: Path) -> None:
    for config in (
        PaperConfig(output=tmp_path, only=("curves",), scale="7b"),
        PaperConfig(output=tmp_path, only=("programs",), scale="7b", model="some/model", quantize="4bit"),
    ):
        remember(config)
    asked = remembered(tmp_path)
    assert asked.configs["curves"].command == "python -m benchmarks paper --only curves --scale 7b"
    assert asked.configs["programs"].model == "some/model"
    assert asked.benchmarks["curves"][0].config.model == "meta-llama/Llama-2-7b-hf"
    for text, message in (
        ('{"curves": {"colour": "red"}}', r"paper\.json: curves is not of this version, which has no 'colour'"),
        ('{"seeds_of": {}}', r"paper\.json is not of this version, which has no experiment 'seeds_of'"),
    ):
        (tmp_path / "paper.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            remembered(tmp_path)
        with pytest.raises(ValueError, match=message):
            remember(config)


def test_numbers_without_an_interval_are_refused(tmp_path: Path) -> None:
    for bare in ("0.5", "12", "-3.25", "97%", "1,024"):
        with pytest.raises(ValueError, match=rf"return of poad is {bare}, without an interval"):
            Section("a", "A", tables=[Table("", ("agent", "return"), [("poad", bare)], {})])
    for cell in ("0.5 [0.4, 0.6]", "", "none works", Known("0.9651")):
        Section("a", "A", tables=[Table("", ("agent", "return"), [("poad", cell)], {})])
    write_run(tmp_path / "run", seeds=1)
    with pytest.raises(ValueError, match="has one seed, and an interval needs two"):
        write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept")
    assert not (tmp_path / "page.html").exists()


def test_runs_in_the_case_studys_environment_need_no_critic(tmp_path: Path) -> None:
    benchmark = write_run(tmp_path / "run", FOOD)
    random = replace(benchmark.config, algo="random")
    random.save(tmp_path / "run" / CONFIG_FILE)
    (tmp_path / "run" / "poad").rename(tmp_path / "run" / "random")
    page = write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept").read_text()
    assert page.count("<figure>") == 1 and "Credit inside" not in page


def test_folders_that_cannot_be_shown_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no benchmark's folder"):
        write_report([tmp_path], tmp_path / "page.html", tmp_path / "kept")
    with pytest.raises(ValueError, match="name the folders"):
        write_report([], tmp_path / "page.html", tmp_path / "kept")
    benchmark = write_run(tmp_path / "run")
    metrics = benchmark.cells[0].path / "metrics.jsonl"
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
            write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept")
    metrics.write_text(whole)
    result = benchmark.cells[-1].path / RESULT_FILE
    for damaged, message in ((b"{}", "'sampled' is missing"), (b"[]", "holds no object"), (b"\xff", "is damaged")):
        result.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"result\.json.*{message}"):
            write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept")
    result.unlink()
    with pytest.raises(ValueError, match=r"ntpo/seed-2 is not finished: make bench RESUME="):
        write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept")
    (benchmark.cells[0].path / PLAN_FILE).write_text(json.dumps(benchmark.cells[0].plan | {"clip": 0.1}))
    with pytest.raises(ValueError, match=r"poad/seed-0 was begun with clip=0\.1, and 0\.2 is asked for"):
        write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept")


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
    page = write_report([tmp_path / "run"], tmp_path / "page.html", tmp_path / "kept")
    # A frame as wide as the screen would be, for a window may not be as narrow as a telephone.
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
    assert len(found["pictures"]) == 2 and min(found["pictures"]) > 300
    assert found["wide"] <= 0, "the page itself must not scroll sideways"
    assert found["faint"] == []
