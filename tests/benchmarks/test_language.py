"""What training does to a model's language: perplexity against plain scoring, and the lm-evaluation-harness."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainers
from benchmarks.runs import CONFIG_FILE, RUN_FILE, RESULT_FILE, Benchmark, Run
from benchmarks.config import BenchmarkConfig
from benchmarks.experiments import FOOD
from benchmarks.language_ability import harness_table, perplexities, perplexity_table, texts_of_envs
from benchmarks.run import language_ability
from trainers.checkpoint import LAST
from trainers.loop import CHECKPOINTS_FOLDER

OUTCOME = {"return": 0.5, "success": 0.5, "episodes": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """A finished run made by hand: its adapters are fresh ones, shaken."""
    folder = tmp_path_factory.mktemp("run")
    config = BenchmarkConfig(algo="poad", env=FOOD, seeds=2, steps=64)
    config.save(folder / CONFIG_FILE)
    benchmark = Benchmark(config, folder)
    for run in benchmark.runs:
        agent = trainers.make("poad", gym.make(FOOD), seed=run.seed)
        with torch.no_grad():
            for parameter in agent.language_model.trainable_parameters():
                parameter += 0.02 * torch.randn_like(parameter)
        agent.save(run.path / CHECKPOINTS_FOLDER / LAST)
        (run.path / RESULT_FILE).write_text(json.dumps(dict.fromkeys(("sampled", "greedy"), OUTCOME)))
        (run.path / RUN_FILE).write_text(json.dumps(run.plan))
    return benchmark


def test_perplexity_is_that_of_plain_scoring(run: Benchmark) -> None:
    agent = run.runs[0].load_agent(gym.make(FOOD))
    texts = {kind: (questions[:5], counts[:5]) for kind, (questions, counts) in texts_of_envs(agent.tokenizer).items()}
    found = perplexities(agent, texts)
    assert set(found) == {(kind, part) for kind in texts for part in ("seen", "said")}
    model = agent.language_model.model
    for kind, (questions, counts) in texts.items():
        nats, tokens = np.zeros(2), np.zeros(2)
        for (prompt, tree), count in zip(questions, counts, strict=True):
            for candidate in tree.candidates:
                ids = torch.tensor([[*prompt, *candidate]])
                with torch.no_grad():
                    log_probs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                own = -log_probs.gather(-1, ids[0, 1:, None])[:, 0].double().numpy()
                share = count / len(tree.candidates)
                for part, scores in enumerate((own[: len(prompt) - 1], own[len(prompt) - 1 :])):
                    nats[part] += share * scores.sum()
                    tokens[part] += share * len(scores)
        expected = np.exp(nats / tokens)
        assert [found[kind, "seen"], found[kind, "said"]] == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_table_shows_the_model_before_and_after(
    run: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language_ability(run.folder, (), None, None, tmp_path / "new")
    found = json.loads((tmp_path / "new" / "language-ability.json").read_text())
    assert set(found["before"]) == set(found["after"]["poad"]) and len(found["before"]) == 6
    for text, before in found["before"].items():
        own = found["after"]["poad"][text]
        assert before > 1 and own["low"] < own["value"] < own["high"] and own["value"] != before
    lines = (tmp_path / "new" / "language-ability.md").read_text().splitlines()
    assert sum(line.startswith("| VirtualHome | ") for line in lines) == 2
    monkeypatch.setattr(Run, "load_agent", None)
    assert perplexity_table(run).numbers == {name: found[name] for name in ("before", "after")}, "measured once"


def test_runs_that_cannot_be_asked_are_named(run: Benchmark, tmp_path: Path) -> None:
    for config, message in (
        (BenchmarkConfig(algo="random", env=FOOD), "no agent of .* has a model and a critic: random"),
        (BenchmarkConfig(env=FOOD, seeds=1), "has one seed, and an interval needs two"),
        (BenchmarkConfig(env=FOOD, model="somebody/model"), "has the model somebody/model: name --tasks"),
    ):
        with pytest.raises(ValueError, match=message):
            perplexity_table(Benchmark(config, tmp_path))
    folder = tmp_path / "damaged"
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("perplexity.json"))
    adapter = folder / "poad" / "seed-1" / CHECKPOINTS_FOLDER / LAST / "critic.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"seed-1/checkpoints/last cannot be loaded"):
        perplexity_table(Benchmark(run.config, folder))


TASK = {
    "task": "kitchen",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{text}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{label}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def test_tasks_of_the_harness_are_run_on_base_and_adapters(
    run: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for offline in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(offline, "1")
    pytest.importorskip("lm_eval", reason="the lm-evaluation-harness is not installed")
    examples: list[dict[str, Any]] = [
        {
            "text": "Your hands are empty. On a counter is a raw tomato.",
            "choices": ["get the tomato", "zzz"],
            "label": n,
        }
        for n in (0, 0, 0, 1)
    ]
    (tmp_path / "kitchen.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    files = {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "kitchen.jsonl")}}}
    (tmp_path / "kitchen.yaml").write_text(json.dumps(TASK | files))  # which is YAML
    table = harness_table(run, ("kitchen",), tmp_path, None)
    assert table.header == ("task", "measure", "before", "poad")
    assert table.rows == [("kitchen", "acc", "0.750", "0.750 [0.750, 0.750]")]
    with pytest.raises(ValueError, match="no task 'kitchn'"):
        harness_table(run, ("kitchn",), tmp_path, None)
