"""The code in the documentation runs; links, numbers, generated tables and terms are correct."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode

import trainers
from lang_envs import ENVIRONMENTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILT = {"generated", "_build"}
README = ROOT / "README.md"
PAGES = [README, *sorted(path for path in DOCS.rglob("*.md") if not BUILT & {*path.relative_to(DOCS).parts})]
RESULTS = [DOCS / "results.md", *(DOCS / "algorithms" / f"{name}.md" for name in ("poad", "ntpo", "twosome"))]
PUBLISHED = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
MODEL, EMBEDDED = "Qwen/Qwen2.5-0.5B-Instruct", str(ROOT / "trainers" / "embedded_lm")

NOT_OUR_TERMS = {
    r"\bworlds?\b": "environment",
    r"(?<!\")\bdecisions?\b(?! process)": "environment step, action",
    r"\btold apart\b|\btell\w* apart\b": "significantly different",
    r"\bfell back\b|\bforg[eo]ts?\b": "regressed",
    r"\bends? (above|below)\b": "has a higher (lower) final return",
    r"\bcannot show\b": "limitations",
    r"\b(put to|puts to) (tasks|others)\b": "evaluated on",
    r"\bassessments?\b": "policy output",
    r"\bsituations?\b": "state",
    r"\bbehaviours?\b": "sampling",
    r"\b(anticipates?|suits?)\b": "prefetch, configure_tokenizer",
    r"\b(may|can) be said\b|\b(it|what|which|here) (stands|lies)\b|\b(comes|came) to\b": "the concrete noun or verb",
}
"""The left column of the table of terms, and what to write instead."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def check_terms(text: str) -> None:
    for wrong, better in NOT_OUR_TERMS.items():
        found = re.search(rf".{{0,40}}({wrong}).{{0,40}}", text, flags=re.IGNORECASE)
        assert found is None, f"{found[0]!r}: instead of {found[1]!r} write: {better}"


def write_files(page: Path, folder: Path) -> None:
    """Write the blocks of a page that begin with the name of a file, such as `# my_module.py`."""
    for language in ("python", "yaml"):
        for code in blocks(page, language):
            if name := re.match(r"# (\S+\.(py|yaml))\n", code):
                (folder / name[1]).write_text(code)


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    import generate

    return generate


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if blocks(page, "python")], ids=name_of)
def test_code_runs_and_prints_what_is_shown(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "DataSciCoding" in page.read_text():
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_files(page, tmp_path)
    (tmp_path / "patients.csv").write_text("age,outcome\n" + "".join(f"{age},{age % 2}\n" for age in range(40)))
    names: dict[str, Any] = {"__name__": "shown"}
    for code in blocks(page, "python"):
        code = code.replace(MODEL, EMBEDDED).replace("10_000", "256").replace("episodes=100", "episodes=2")
        exec(code, names)
        printed = capsys.readouterr().out
        for shown in re.findall(r"^print\(.*?\)  # (.*)", code, flags=re.MULTILINE):
            assert shown.split(" …")[0].rstrip("…") in printed
    for module in ("my_module", "my_doors"):
        sys.modules.pop(module, None)


def test_agent_of_the_guide_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(DOCS / "guides" / "agent.md", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = gym.make("Overcooked-tomato-salad-v0")
    agent = trainers.make("my_module:Favourites", env)
    trainers.check_agent(agent, env)
    assert agent.scores
    sys.modules.pop("my_module")


def test_household_task_of_the_guide_is_solved_and_trained_in_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lang_envs.__main__ import main

    write_files(DOCS / "guides" / "environment.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["solve", "VirtualHome-v0", "--set", "task=socks.yaml"]) == 0
    assert "Shortest solution, 6 " in capsys.readouterr().out
    options = ["--env", "VirtualHome-v0", "--env-set", "task=socks.yaml", "--seeds", "1", "--eval-episodes", "4"]
    options += ["--steps", "128", "--num-envs", "4", "--rollout-steps", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "run", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_table_of_a_checkpoint_lists_its_files(tmp_path: Path) -> None:
    envs = gym.make_vec(
        "Overcooked-tomato-salad-v0", num_envs=1, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    trainers.train(trainers.make("poad", envs), envs, 8, rollout_steps=8, run_dir=tmp_path)
    _, section = (DOCS / "guides" / "files.md").read_text().split("## Checkpoints\n")
    table = re.findall(r"^\| `([\w.]+)/?`", section.split("\n\n")[1], flags=re.MULTILINE)
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    assert {*table} == {path.name for path in checkpoint.iterdir()}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http") and "generated/" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", RESULTS, ids=name_of)
def test_intervals_are_those_of_the_published_results(page: Path) -> None:
    published = "".join(path.read_text() for path in PUBLISHED)
    shown = re.findall(r"[-\d.,]+%? \[[-\d.]+[^\]]*\]", page.read_text())
    assert len(shown) > 3
    for interval in shown:
        assert interval in published, f"{interval} is in no page of results"


def test_results_in_the_readme_are_those_of_its_source() -> None:
    published = (ROOT / "benchmarks" / "results" / "curves.md").read_text()
    shown = re.findall(r"[-\d.,]+%? \[[-\d.]+[^\]]*\]", README.read_text())
    assert len(shown) == 15
    assert not [interval for interval in shown if interval not in published]


def test_table_of_unseen_tasks_has_all_of_them() -> None:
    from lang_envs.virtualhome import UNSEEN_TASKS

    rows = re.findall(r"^\| ([a-z-]+) \| \d+% \[", (DOCS / "results.md").read_text(), flags=re.MULTILINE)
    assert tuple(rows) == UNSEEN_TASKS


def test_every_make_target_in_the_text_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:`|^)(?:\S+ )?make ([a-z-]+)", page.read_text(), flags=re.MULTILINE)
        assert {*named} <= targets, page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_and_files_in_the_text_exist(page: Path) -> None:
    text = re.sub(r"^%.*$", "", page.read_text(), flags=re.MULTILINE)  # comments
    for module in set(re.findall(r"python -m ([\w.]+\w)", text)) - {"pytest"}:
        assert importlib.util.find_spec(module), module
    for path in re.findall(r"\b(?:benchmarks|docs|lang_envs|tests|trainers)/[\w/]+\.\w+", text):
        assert (ROOT / path).exists() or path.startswith("docs/_build"), path


@pytest.mark.parametrize("algorithm", [name for name in trainers.AGENTS if name != "random"])
def test_table_of_settings_has_every_setting_once(algorithm: str, generate: ModuleType) -> None:
    env = gym.make("Overcooked-tomato-salad-v0")
    settings = trainers.make(algorithm, env, model="embedded").settings
    rows = [line.split(" | ") for line in generate.settings_table(algorithm).splitlines()[2:]]
    assert sorted(row[0] for row in rows) == sorted(f"| `{field.name}`" for field in dataclasses.fields(settings))
    for name, default, embedded, meaning in rows:
        value = getattr(settings, name.strip("| `"))
        if value is not None and not name.endswith("gamma`"):  # gamma is the environment's
            assert generate.value_text(value) == (embedded or default).strip("`")
        assert len(meaning) > 10


def test_manuals_of_environments_have_gymnasiums_sections(generate: ModuleType) -> None:
    sections = "Description, Action Space, Observation Space, Starting State, Rewards, Episode End, Arguments"
    for family in generate.families():
        manual = generate.manual(family)
        assert {*sections.split(", ")} <= {*re.findall(r"^## (.+)", manual, flags=re.MULTILINE)}
        check_terms(manual)


def test_table_of_environments_has_all_of_them(generate: ModuleType) -> None:
    listed = re.findall(r"^\| `([^`]+)`", generate.environments_table(), flags=re.MULTILINE)
    assert listed == [*ENVIRONMENTS]


@pytest.mark.parametrize("page", [*PAGES, *PUBLISHED, ROOT / "trainers/embedded_lm/README.md"], ids=name_of)
def test_only_terms_of_the_project_are_used(page: Path) -> None:
    check_terms(re.sub(r"```(python|text)?\n.*?```", "", page.read_text(), flags=re.DOTALL))


@pytest.mark.parametrize("command", ["lang_envs", "lang_envs play", "lang_envs solve", "benchmarks", "benchmarks run"])
def test_only_terms_of_the_project_are_used_in_help(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, *subcommand = command.split()
    monkeypatch.setattr(sys, "argv", [module, *subcommand, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"{module}.__main__").main()
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "usage" in text
    check_terms(text)
