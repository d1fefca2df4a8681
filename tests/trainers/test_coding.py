"""Training in environments for programs: reported metrics, the best program, and agents that sample free text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lang_envs
import trainers
from lang_envs import LanguageEnv, TokenEnv, Transition
from trainers.rollout import begin, collect

CODING = "DataSciCoding-balance-scale-v0"


class Workshop(LanguageEnv):
    """Every third program works; the n-th working program has the score ``scores[n]``."""

    scores = (0.3, 0.7, 0.5, 0.9, 0.6, 0.8)
    state_fields = ("written",)

    def __init__(self) -> None:
        super().__init__(max_text_length=40)
        self.written = 0

    def start(self, options: dict[str, Any]) -> None:
        pass

    def advance(self, action: int | str | None) -> Transition:
        self.written += 1
        if self.written % 3:
            return Transition(-1.0, False, False, {"metrics": {"works": 0.0}})
        score = self.scores[self.written // 3 - 1]
        artifact = {"score": score, "file": "best_program.py", "text": f"score = {score}\n"}
        info = {"success": True, "metrics": {"works": 1.0, "score": score}, "artifact": artifact}
        return Transition(score, True, False, info)

    def narrate(self) -> str:
        return "Write something."

    def random_text(self, rng: np.random.Generator) -> str:
        return str(rng.integers(100))


def train(folder: Path, steps: int, **options: Any) -> list[dict[str, Any]]:
    envs = lang_envs.make_vec(lambda: TokenEnv(Workshop()), 1)
    return trainers.train(
        trainers.make("random", envs), envs, steps, run_dir=folder, rollout_steps=3, checkpoint_every=2, **options
    )


def test_train_reports_programs_and_keeps_the_best(tmp_path: Path) -> None:
    lines = train(tmp_path, 18)
    assert [line["best_score"] for line in lines] == [0.3, 0.7, 0.7, 0.9, 0.9, 0.9]
    assert [line["best_score_step"] for line in lines] == [3, 6, 6, 12, 12, 12]
    assert [line["score"] for line in lines] == list(Workshop.scores)
    assert all(line["works"] == pytest.approx(1 / 3) for line in lines)
    assert (tmp_path / "best_program.py").read_text() == "score = 0.9\n"


def test_resumed_run_keeps_its_best_program(tmp_path: Path) -> None:
    train(tmp_path, 12)
    lines = train(tmp_path, 18, resume=True)
    assert [line["best_score"] for line in lines] == [0.9, 0.9]
    assert (tmp_path / "best_program.py").read_text() == "score = 0.9\n"


def test_no_best_program_if_no_program_works(tmp_path: Path) -> None:
    envs = lang_envs.make_vec(lambda: TokenEnv(Workshop()), 1)
    lines = trainers.train(trainers.make("random", envs), envs, 2, run_dir=tmp_path, rollout_steps=2)
    assert lines[0]["works"] == 0 and "best_score" not in lines[0]
    assert not (tmp_path / "best_program.py").exists()


@pytest.mark.parametrize("name", ["poad", "ntpo", "twosome"])
def test_free_text_agents_learn_from_the_sampled_ids(name: str) -> None:
    pytest.importorskip("sklearn")
    envs = lang_envs.make_vec(CODING, 4)
    agent: Any = trainers.make(name, envs, seed=1, max_action_tokens=24, epochs=1, minibatches=2)
    rollout = collect(agent, envs, begin(envs, seed=0), 2, discount=0.95)
    for row in rollout.actions:
        for action in row:
            (candidate,) = action.record.query.tree.candidates
            assert candidate == action.token_ids
    first = rollout.actions[0][0]
    text = envs.envs[0].get_wrapper_attr("tokenizer").decode(first.token_ids)
    program = rollout.outcomes[0][0]["program"]
    sampled_lines = [line.strip() for line in text.split("<|end|>")[0].splitlines() if line.strip()]
    assert all(line in program for line in sampled_lines)
    metrics = agent.learn(rollout)
    assert np.isfinite(list(metrics.values())).all() and metrics["entropy"] > 0
    envs.close()


def sandbox_tier() -> str:
    from lang_envs.sandbox import shared_sandbox

    return shared_sandbox().tier


def test_best_program_of_a_run_reproduces_its_score(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    envs = lang_envs.make_vec(CODING, 4)
    lines = trainers.train(trainers.make("random", envs, seed=3), envs, 16, run_dir=tmp_path, rollout_steps=4)
    envs.close()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: list[str] = []
    namespace["print"] = printed.append
    exec((tmp_path / "best_program.py").read_text(), namespace)
    assert printed == [printed[0]] and printed[0].startswith(f"ROC AUC {lines[-1]['best_score']:.4f} ")
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written[-1]["best_score"] == lines[-1]["best_score"]
    assert written[-1]["sandbox"] == sandbox_tier()


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"artifact": {"score": 1.0, "file": "metrics.jsonl", "text": ""}}, "file name 'metrics.jsonl'"),
        ({"artifact": {"score": 1.0, "file": "best_../../x", "text": ""}}, "file name"),
        ({"artifact": {"score": float("nan"), "file": "best_x", "text": ""}}, "score nan"),
        ({"artifact": {"score": True, "file": "best_x", "text": ""}}, "score True"),
        ({"artifact": "best_x"}, "expected score, file, text"),
        ({"metrics": {"step": 7}}, "metric 'step', which training itself reports"),
        ({"metrics": {"speed": float("inf")}}, "metric 'speed' = inf"),
        ({"metrics": {"word": "x" * 1000}}, "at most 200 characters"),
        ({"metrics": None}, "expected a dict"),
    ],
)
def test_metrics_and_artifacts_that_could_harm_a_run_are_refused(
    info: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Workshop.advance
    monkeypatch.setattr(Workshop, "advance", lambda self, action: advance(self, action)._replace(info=info))
    with pytest.raises(ValueError, match=message):
        train(tmp_path, 3)
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert not list(tmp_path.glob("best_*"))
