"""The paper's experiments: which runs they are, and that none is done twice or with other settings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import lang_envs
import trainers
from benchmarks import action_length
from benchmarks.action_length import GRANULARITIES, base_model, tokenizer_of
from benchmarks.cell import PLAN_FILE, RESULT_FILE, Benchmark, Cell
from benchmarks.config import AgentOverrides, BenchmarkConfig
from benchmarks.experiments import DISCOUNTS, FOOD
from benchmarks.footprint import footprint
from benchmarks.paper import PaperConfig, distinct, run_paper
from benchmarks.run import run_cells
from trainers.agents.settings import Settings
from trainers.embedded_lm.pretrain import PretrainingSettings, wrap
from trainers.loop import alone_in


def test_runs_that_experiments_share_are_one(tmp_path: Path) -> None:
    config = PaperConfig(output=tmp_path)
    benchmarks = {name: config.benchmarks(name) for name in config.experiments}
    asked = [cell for found in benchmarks.values() for benchmark in found for cell in benchmark.cells]
    cells = distinct(benchmarks)
    assert len(cells) == len({cell.path for cell in cells}) == len({cell.path for cell in asked}) < len(asked)
    plans: dict[Path, dict[str, object]] = {}
    for cell in asked:
        assert plans.setdefault(cell.path, cell.plan) == cell.plan, "two runs in one folder"
    elsewhere = [cell for cell in cells if cell.config.transfer]
    assert {(cell.folder.name, cell.algo) for cell in elsewhere} == {
        (FOOD, algo) for algo in ("poad", "ntpo", "twosome")
    }


def test_every_claim_has_ten_seeds_at_the_embedded_scale() -> None:
    for name, found in PaperConfig().experiments.items():
        assert found.seeds == (3 if name in ("programs", "search") else 10)
        assert found.limits.startswith("What it cannot show")
    searched, *published = PaperConfig().experiments.values()
    seeds = [set(range(found.first_seed, found.first_seed + found.seeds)) for found in (searched, *published)]
    assert searched.title == "The learning rate" and not seeds[0] & set.union(*seeds[1:]), "chosen where it is shown"


def test_ntpos_family_has_the_discounts_it_is_named_by() -> None:
    environment = gym.make(FOOD)
    found = {}
    for algo in DISCOUNTS.values():
        cell = Cell(BenchmarkConfig(algo=algo, env=FOOD), Path("runs"), algo, 0)
        found[cell.make_agent(environment).gamma_token] = algo
    assert found == DISCOUNTS


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PaperConfig(only=("curvs",)), "no experiment 'curvs'; there are search, curves, entropy"),
        (PaperConfig(only=("length",), scale="7b"), "'length' is for --scale embedded alone"),
        (PaperConfig(only=("",)), "--only names no experiment; there are search"),
        (PaperConfig(seeds=1), "seeds=1: an interval needs at least 2"),
        (PaperConfig(model="gpt2"), "model='gpt2' is for --scale 7b"),
        (PaperConfig(quantize="4bit"), "quantize='4bit' is for --scale 7b"),
        (PaperConfig(scale="7b", quick=True), "--quick is for the embedded scale"),
    ],
)
def test_what_makes_no_sense_is_refused(config: PaperConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.check()


def test_the_papers_models_take_what_is_known_of_them() -> None:
    """6.74 billion parameters, and 4,194,304 of an adapter of rank 8 on queries and values (arXiv 2106.09685)."""
    found = footprint("meta-llama/Llama-2-7b-hf", Settings())
    assert found.base == pytest.approx(6.738e9 * 2 / 1024**3, rel=1e-3)
    assert found.adapter == 4_194_304 * 16 / 1024**3
    quarter = footprint("meta-llama/Llama-2-7b-hf", Settings(quantize="4bit", gradient_checkpointing=True))
    assert quarter.base < 0.3 * found.base and quarter.activations < 0.1 * found.activations
    with pytest.raises(ValueError, match="no folder and no model of the hub"):
        footprint("./nothing-here", Settings())


@pytest.mark.parametrize(("granularity", "shortest", "longest"), [("phrases", 2, 2), ("subwords", 4, 7)])
def test_phrases_are_as_long_as_their_tokens_say(granularity: str, shortest: int, longest: int, tmp_path: Path) -> None:
    lengths = _lengths(granularity, tmp_path)
    assert (min(lengths.values()), max(lengths.values())) == (shortest, longest)


def test_letters_are_tokens(tmp_path: Path) -> None:
    assert _lengths("characters", tmp_path) == {phrase: len(" " + phrase) + 1 for phrase in _phrases()}


def _phrases() -> tuple[str, ...]:
    return gym.make(FOOD, interface="text").unwrapped.get_wrapper_attr("action_names")  # type: ignore[no-any-return]


def _lengths(granularity: str, folder: Path) -> dict[str, int]:
    file = folder / "tokenizer.json"
    tokenizer_of(granularity, FOOD).save(str(file))
    tokenizer = lang_envs.load_tokenizer(wrap(file))
    encoded = {phrase: tokenizer.encode_action(phrase) for phrase in _phrases()}
    assert all(tokenizer.decode(ids[:-1]) == " " + phrase for phrase, ids in encoded.items())
    return {phrase: len(ids) for phrase, ids in encoded.items()}


def test_a_base_model_is_made_once_and_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "phrases"
    reading = PretrainingSettings(steps=3, programs=0, env_steps=200, batch=8)
    with monkeypatch.context() as patched:
        patched.setattr(action_length, "pretrain", _broken)
        with pytest.raises(RuntimeError):
            base_model("phrases", FOOD, folder, reading)
    assert not folder.exists(), "half a model must not be taken for one"
    base_model("phrases", FOOD, folder, reading)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    base_model("phrases", FOOD, folder, reading)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    with pytest.raises(ValueError, match="phrases was begun with steps=3, and 600 is asked for: take another folder"):
        base_model("phrases", FOOD, folder, replace(reading, steps=600))
    environment = gym.make(FOOD, tokenizer=str(folder))
    agent = trainers.make("poad", environment, model=str(folder), lora_targets=("all-linear",))
    observation, info = environment.reset(seed=0)
    (decision,) = agent.act(np.array([observation]), [info])
    assert decision.text in info["available_actions"] and len(decision.token_ids) == 2


def _broken(*arguments: object) -> None:
    raise RuntimeError


def test_granularities_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match=f"'words' is not one of {', '.join(GRANULARITIES)}"):
        tokenizer_of("words", FOOD)


def test_a_plan_names_its_model_by_what_it_is_wherever_it_lies(tmp_path: Path) -> None:
    plans = []
    large = bytes(3 << 20)
    for folder, weights, words in (
        ("a/model", large, "a b"),
        ("b/model", large, "a b"),
        ("c/model", large[:-1] + b"1", "a b"),
        ("d/model", large, "b a"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(weights)
        (tmp_path / folder / "tokenizer.json").write_text(words)
        config = BenchmarkConfig(env=FOOD, model=str(tmp_path / folder))
        plans.append(Cell(config, tmp_path, "poad", 0).plan)
    assert plans[0] == plans[1] and plans[2]["model"] != plans[0]["model"] != plans[3]["model"]
    assert str(tmp_path) not in json.dumps(plans)
    assert plans[0]["actor_lr"] == Settings().actor_lr, "what nobody says decides too"


def test_a_plan_says_what_the_files_of_its_environment_hold(tmp_path: Path) -> None:
    task = tmp_path / "socks.yaml"
    plans = []
    for text in ("goal: one", "goal: one", "goal: two"):
        task.write_text(text)
        config = BenchmarkConfig(env="VirtualHome-v0", env_set=(f"task={task}", "max_steps=9"))
        plans.append(Cell(config, tmp_path, "random", 0).plan)
    assert plans[0] == plans[1] != plans[2]
    assert plans[0]["env_options"]["task"].startswith(f"{task} ") and plans[0]["env_options"]["max_steps"] == 9
    table = BenchmarkConfig(env="DataSciCoding-v0", env_set=(f"dataset=csv:{task}?target=goal",))
    assert Cell(table, tmp_path, "random", 0).plan["env_options"]["dataset"].startswith(f"csv:{task}?target=goal ")


def test_who_is_refused_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(BlockingIOError, match="another process is at work"):
        run_paper(PaperConfig(output=tmp_path, quick=True, only=("curves",)))
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_a_run_that_was_begun_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    asked = BenchmarkConfig(algo="poad", env=FOOD, seeds=1)
    cell = Benchmark(asked, tmp_path).cells[0]
    cell.path.mkdir(parents=True)
    (cell.path / PLAN_FILE).write_text(json.dumps(cell.plan))
    cell.check()
    for other, name in (
        (BenchmarkConfig(algo="poad", env=FOOD, seeds=1, steps=1024), "steps=24576, and 1024 is asked for"),
        (BenchmarkConfig(algo="poad", env=FOOD, seeds=1, agent=AgentOverrides(clip=0.1)), "clip=0.2, and 0.1 is"),
    ):
        with pytest.raises(ValueError, match=f"poad/seed-0 was begun with {name}"):
            run_cells(Benchmark(other, tmp_path).cells, "", tmp_path, 1, Console(quiet=True), "")
    assert not (cell.path / RESULT_FILE).exists()
    with pytest.raises(ValueError, match="workers=-1 must be at least 1"):
        run_cells([cell], "", tmp_path, -1, Console(quiet=True), "")
    (cell.path / PLAN_FILE).unlink()
    (cell.path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="does not say how it was begun"):
        cell.check()
    shutil.rmtree(cell.path)
    cell.check()
