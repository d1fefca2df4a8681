"""The paper's experiments: their runs, of which none is done twice or with other settings."""

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
from benchmarks.agent_spec import AgentSpec
from benchmarks.config import AgentOptions, BenchmarkConfig
from benchmarks.experiments import DISCOUNTS, FAMILY, POAD
from benchmarks.paper import PaperConfig, distinct, run_paper
from benchmarks.presets import FOOD
from benchmarks.processes import run_all
from benchmarks.runs import RESULT_FILE, RUN_FILE, Benchmark, Run
from benchmarks.throughput.footprint import footprint
from trainers.agents.ppo import PPOSettings
from trainers.embedded_lm.pretrain import PretrainingSettings, wrap
from trainers.loop import alone_in


def test_runs_that_experiments_share_are_done_once(tmp_path: Path) -> None:
    config = PaperConfig(output=tmp_path)
    benchmarks = {name: config.benchmarks(name) for name in config.experiments}
    asked = [run for found in benchmarks.values() for benchmark in found for run in benchmark.runs]
    runs = distinct(benchmarks)
    assert len(runs) == len({run.path for run in runs}) == len({run.path for run in asked}) < len(asked)
    configurations: dict[Path, dict[str, object]] = {}
    for run in asked:
        assert configurations.setdefault(run.path, run.configuration) == run.configuration, "two runs in one folder"
    unseen = [run for run in runs if run.config.transfer]
    assert {(run.folder.name, run.agent) for run in unseen} == {(FOOD, agent) for agent in FAMILY}


def test_every_experiment_has_ten_seeds_at_the_embedded_scale() -> None:
    for name, found in PaperConfig().experiments.items():
        assert found.seeds == (3 if name in ("programs", "search") else 10)
        assert found.question.endswith("?") or "?" in found.question
    searched, *published = PaperConfig().experiments.values()
    seeds = [set(range(found.first_seed, found.first_seed + found.seeds)) for found in (searched, *published)]
    assert searched.title == "Learning rate" and not seeds[0] & set.union(*seeds[1:]), (
        "the learning rate was chosen on reported seeds"
    )


def test_agents_of_the_discount_experiment_differ_in_gamma_token_alone() -> None:
    environment = gym.make(FOOD)
    found = []
    for agent in DISCOUNTS:
        run = Run(BenchmarkConfig(algo=agent.name, env=FOOD), Path("runs"), agent, 0)
        found.append(run.make_agent(environment).token_discounts())
    assert found == [(at, 1.0) for at in (1.0, 0.95, 0.99, 0.9, 0.8, 0.5)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PaperConfig(only=("curvs",)), "there is no experiment 'curvs'; expected one of search, curves, entropy"),
        (PaperConfig(only=("length",), scale="7b"), "'length' needs --scale embedded"),
        (PaperConfig(only=("",)), "--only names no experiment; expected some of search"),
        (PaperConfig(seeds=1), "seeds=1: an interval needs at least 2"),
        (PaperConfig(model="gpt2"), "model='gpt2' needs --scale 7b"),
        (PaperConfig(quantize="4bit"), "quantize='4bit' needs --scale 7b"),
        (PaperConfig(scale="7b", quick=True), "--quick needs --scale embedded"),
    ],
)
def test_contradicting_options_are_refused(config: PaperConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.check()


def test_memory_of_the_papers_models_is_that_of_their_published_sizes() -> None:
    """6.74 billion parameters, and 4,194,304 of an adapter of rank 8 on queries and values (arXiv 2106.09685)."""
    found = footprint("meta-llama/Llama-2-7b-hf", PPOSettings())
    assert found.base == pytest.approx(6.738e9 * 2 / 1024**3, rel=1e-3)
    assert found.adapter == 4_194_304 * 16 / 1024**3
    quarter = footprint("meta-llama/Llama-2-7b-hf", PPOSettings(quantize="4bit", gradient_checkpointing=True))
    assert quarter.base < 0.3 * found.base and quarter.activations < 0.1 * found.activations
    with pytest.raises(ValueError, match="no folder and no model of the hub"):
        footprint("./nothing-here", PPOSettings())


@pytest.mark.parametrize(("granularity", "shortest", "longest"), [("phrases", 2, 2), ("subwords", 4, 7)])
def test_phrases_have_as_many_tokens_as_their_tokenizer_says(
    granularity: str, shortest: int, longest: int, tmp_path: Path
) -> None:
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


def test_a_base_model_is_made_once_and_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "phrases"
    reading = PretrainingSettings(steps=3, programs=0, env_steps=200, batch=8)
    with monkeypatch.context() as patched:
        patched.setattr(action_length, "pretrain", _broken)
        with pytest.raises(RuntimeError):
            base_model("phrases", FOOD, folder, reading)
    assert not folder.exists(), "an unfinished model must not be used"
    base_model("phrases", FOOD, folder, reading)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    base_model("phrases", FOOD, folder, reading)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    with pytest.raises(ValueError, match="phrases was started with steps=3; steps=600 is asked for"):
        base_model("phrases", FOOD, folder, replace(reading, steps=600))
    environment = gym.make(FOOD, tokenizer=str(folder))
    agent = trainers.make("poad", environment, model=str(folder), lora_targets=("all-linear",))
    observation, info = environment.reset(seed=0)
    (action,) = agent.act(np.array([observation]), [info])
    assert action.text in info["available_actions"] and len(action.token_ids) == 2


def _broken(*arguments: object) -> None:
    raise RuntimeError


def test_unknown_granularities_are_named() -> None:
    with pytest.raises(ValueError, match=f"'words' is not one of {', '.join(GRANULARITIES)}"):
        tokenizer_of("words", FOOD)


def test_a_runs_configuration_has_a_hash_of_the_model_and_no_path(tmp_path: Path) -> None:
    configurations = []
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
        configurations.append(Run(config, tmp_path, POAD, 0).configuration)
    assert (
        configurations[0] == configurations[1]
        and configurations[2]["model"] != configurations[0]["model"] != configurations[3]["model"]
    )
    assert str(tmp_path) not in json.dumps(configurations)
    assert configurations[0]["actor_lr"] == PPOSettings().actor_lr, "defaults are part of it"


def test_a_runs_configuration_has_a_hash_of_the_files_of_its_environment(tmp_path: Path) -> None:
    task = tmp_path / "socks.yaml"
    configurations = []
    for text in ("goal: one", "goal: one", "goal: two"):
        task.write_text(text)
        config = BenchmarkConfig(env="VirtualHome-v0", env_set=(f"task={task}", "max_steps=9"))
        configurations.append(Run(config, tmp_path, AgentSpec("random"), 0).configuration)
    assert configurations[0] == configurations[1] != configurations[2]
    assert (
        configurations[0]["env_options"]["task"].startswith(f"{task} ")
        and configurations[0]["env_options"]["max_steps"] == 9
    )
    table = BenchmarkConfig(env="DataSciCoding-v0", env_set=(f"dataset=csv:{task}?target=goal",))
    assert (
        Run(table, tmp_path, AgentSpec("random"), 0)
        .configuration["env_options"]["dataset"]
        .startswith(f"csv:{task}?target=goal ")
    )


def test_a_refused_process_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(BlockingIOError, match="another process"):
        run_paper(PaperConfig(output=tmp_path, quick=True, only=("curves",)))
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_a_run_started_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    asked = BenchmarkConfig(algo="poad", env=FOOD, seeds=1)
    run = Benchmark(asked, tmp_path).runs[0]
    run.path.mkdir(parents=True)
    (run.path / RUN_FILE).write_text(json.dumps(run.configuration))
    run.check()
    for other, name in (
        (BenchmarkConfig(algo="poad", env=FOOD, seeds=1, steps=1024), "steps=24576; steps=1024 is asked for"),
        (BenchmarkConfig(algo="poad", env=FOOD, seeds=1, agent=AgentOptions(clip=0.1)), "clip=0.2; clip=0.1 is"),
    ):
        with pytest.raises(ValueError, match=f"poad/seed-0 was started with {name}"):
            run_all(Benchmark(other, tmp_path).runs, "", tmp_path, 1, Console(quiet=True), "")
    assert not (run.path / RESULT_FILE).exists()
    with pytest.raises(ValueError, match="workers=-1 must be at least 1"):
        run_all([run], "", tmp_path, -1, Console(quiet=True), "")
    (run.path / RUN_FILE).unlink()
    (run.path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="has checkpoints but no"):
        run.check()
    shutil.rmtree(run.path)
    run.check()
