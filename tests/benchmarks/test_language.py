"""Language ability: perplexity compared with plain scoring, and tasks of the lm-evaluation-harness."""

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
from benchmarks.analyses.language import (
    FAMILIES,
    PARTS,
    collect,
    collect_tasks,
    perplexities,
    present,
    texts_of_environments,
)
from benchmarks.config import BenchmarkConfig
from benchmarks.presets import FOOD
from benchmarks.run import language_ability
from benchmarks.runs import CONFIG_FILE, RESULT_FILE, RUN_FILE, Benchmark, Run
from trainers.checkpoint import LAST
from trainers.loop import CHECKPOINTS_FOLDER

OUTCOME = {"return": 0.5, "success": 0.5, "episodes": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """A finished benchmark written by hand; its adapters are fresh ones with noise."""
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
        (run.path / RUN_FILE).write_text(json.dumps(run.configuration))
    return benchmark


def test_perplexity_is_that_of_plain_scoring(run: Benchmark) -> None:
    agent = run.runs[0].load_agent(gym.make(FOOD))
    texts = {
        kind: (queries[:5], counts[:5]) for kind, (queries, counts) in texts_of_environments(agent.tokenizer).items()
    }
    found = perplexities(agent, texts)
    assert set(found) == {(kind, part) for kind in texts for part in PARTS}
    model = agent.language_model.model
    for kind, (queries, counts) in texts.items():
        nats, tokens = np.zeros(2), np.zeros(2)
        for (prompt, tree), count in zip(queries, counts, strict=True):
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
        assert [found[kind, PARTS[0]], found[kind, PARTS[1]]] == pytest.approx(expected.tolist(), rel=1e-4)


def test_perplexity_is_shown_before_and_after_training_and_measured_once(
    run: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language_ability(run.folder, (), None, None, tmp_path / "new")
    data = json.loads((tmp_path / "new" / "language.json").read_text())["data"]
    (poad,) = data["agents"]
    assert [row[:2] for row in data["before"]] == [[family, part] for family in FAMILIES for part in PARTS]
    for before, after in zip(data["before"], poad["after"], strict=True):
        own = after[2]
        assert before[:2] == after[:2] and before[2] > 1
        assert own["low"] < own["value"] < own["high"] and own["value"] != before[2]
    lines = (tmp_path / "new" / "language.md").read_text().splitlines()
    assert sum(line.startswith("| VirtualHome | ") for line in lines) == 2
    monkeypatch.setattr(Run, "load_agent", None)
    assert collect([run]) == data


def test_runs_that_cannot_be_measured_are_named(run: Benchmark, tmp_path: Path) -> None:
    for config, message in (
        (BenchmarkConfig(algo="random", env=FOOD), "no agent of .* has a language model and a critic: random"),
        (BenchmarkConfig(env=FOOD, seeds=1), "has one seed, and an interval needs two"),
        (BenchmarkConfig(env=FOOD, model="somebody/model"), "has the model somebody/model: choose --tasks"),
    ):
        with pytest.raises(ValueError, match=message):
            collect([Benchmark(config, tmp_path)])
    folder = tmp_path / "damaged"
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("perplexity.json"))
    adapter = folder / "poad" / "seed-1" / CHECKPOINTS_FOLDER / LAST / "agent.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"seed-1/checkpoints/last cannot be loaded"):
        collect([Benchmark(run.config, folder)])


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


def test_tasks_of_the_harness_are_evaluated_with_and_without_adapters(
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
    (table,) = present(collect_tasks(run, ("kitchen",), tmp_path, None)).tables
    assert table.header == ("task", "measure", "before", "POAD")
    assert table.rows == [("kitchen", "acc", "0.750 (exact)", "0.750 [0.750, 0.750]")]
    with pytest.raises(ValueError, match="no task 'kitchn'"):
        collect_tasks(run, ("kitchn",), tmp_path, None)
