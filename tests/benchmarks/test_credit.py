"""The case study of credit inside an action: its decision process, its exact values, its table."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import lang_envs  # noqa: F401 — registers the environments
import trainers
from benchmarks.runs import Benchmark
from benchmarks.config import BenchmarkConfig
from benchmarks.credit_study import CLOSE, DECISIONS, OPEN, Study, ask, draw, exact_credit, study, verdict
from benchmarks.experiments import FOOD
from benchmarks.run import run, study_credit
from benchmarks.tabular import exact_values, explore, follow

Prefix = tuple[int, tuple[int, ...]]
"""A situation, and the tokens written in it."""


@pytest.fixture(scope="module")
def agent() -> Any:
    return trainers.make("poad", gym.make(FOOD), seed=0)


def test_the_decision_process_is_the_environment() -> None:
    situations = explore(FOOD)
    environment = gym.make(FOOD, interface="text")
    rng = np.random.default_rng(0)
    met = set()
    for episode in range(40):
        text, info = environment.reset(seed=episode)
        at, over = 0, False
        while not over:
            met.add(at)
            assert text == situations[at].text
            assert info["available_actions"] == tuple(situations[at].outcomes)
            action = str(rng.choice(info["available_actions"]))
            text, reward, terminated, truncated, info = environment.step(action)
            expected = situations[at].outcomes[action]
            assert reward == expected.reward
            assert terminated == (expected.after is None)
            over = terminated or truncated
            at = 0 if expected.after is None else expected.after
    assert len(met) > len(situations) / 2


@pytest.mark.parametrize("gamma_token", [1.0, 0.95, 0.5])
def test_exact_values_are_where_token_by_token_backups_end(agent: Any, gamma_token: float) -> None:
    situations = explore(FOOD)
    questions = [ask(agent, situation) for situation in situations]
    log_probs = [found.token_log_probs for found in agent.policy.assess(questions)]
    gamma = 0.8
    values = exact_values(situations, [tree for _, tree in questions], log_probs, gamma=gamma, gamma_token=gamma_token)
    # Every prefix by the tokens that go on from it; nothing of trees, no linear algebra.
    tokens: dict[Prefix, dict[int, tuple[float, float, Prefix | None]]] = {}
    for i, (_, tree) in enumerate(questions):
        for k, (ids, outcome) in enumerate(zip(tree.candidates, situations[i].outcomes.values(), strict=True)):
            for n, token in enumerate(ids):
                chance = float(np.exp(log_probs[i][k, n]))
                last = n == len(ids) - 1
                after = (i, ids[: n + 1]) if not last else None if outcome.after is None else (outcome.after, ())
                step = (chance, outcome.reward if last else 0.0, after)
                assert tokens.setdefault((i, ids[:n]), {}).setdefault(token, step) == step
    expected = dict.fromkeys(tokens, 0.0)
    for _ in range(100):  # 0.8 to the power of which is 2e-10
        for prefix in sorted(tokens, key=lambda prefix: -len(prefix[1])):
            expected[prefix] = sum(
                chance * (reward + (0.0 if after is None else (gamma_token if after[1] else gamma) * expected[after]))
                for chance, reward, after in tokens[prefix].values()
            )
    for i, (_, tree) in enumerate(questions):
        for k, ids in enumerate(tree.candidates):
            for n in range(len(ids)):
                assert values[i][tree.path_nodes[k, n]] == pytest.approx(expected[i, ids[:n]], abs=1e-8)


def test_without_discount_the_deciding_token_gets_the_credit_of_the_action(agent: Any) -> None:
    credit = exact_credit(agent, explore(FOOD))
    for decision, better in zip(DECISIONS, (OPEN, CLOSE), strict=True):
        for action in (OPEN, CLOSE):
            whole, *same = credit["action level"][decision][action]
            assert same == [whole] * 3
            assert (whole > 0) == (action == better)
            assert credit["BAD"][decision][action] == pytest.approx([whole, 0, 0, 0], abs=1e-9)
            first, *rest = credit["NTPO"][decision][action]
            assert rest == pytest.approx([0, 0, 0], abs=1e-9)
            assert abs(first - whole) > 2e-4


def test_critics_of_a_run_are_asked_and_the_table_can_be_read(tmp_path: Path) -> None:
    config = BenchmarkConfig(
        algo="poad,ntpo[gamma_token=1.0]",
        env=FOOD,
        seeds=2,
        steps=32,
        num_envs=2,
        rollout_steps=8,
        eval_episodes=2,
        runs_dir=tmp_path,
    )
    folder = run(config)
    study_credit(folder, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "credit.json").read_text())
    critics = {name: column for name, column in found["credit"].items() if "critic" in name}
    assert list(critics) == ["critic, poad", "critic, ntpo[gamma_token=1.0]"]
    assert critics["critic, poad"] == critics["critic, ntpo[gamma_token=1.0]"]
    for column in critics.values():
        assert column["seeds"] == 2
        for value, low, high in column["credit"]["pancake inside"][CLOSE]:
            assert low <= value <= high
    lines = (tmp_path / "out" / "credit.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}
    assert (tmp_path / "out" / "credit.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="is no benchmark's folder"):
        study_credit(tmp_path, tmp_path)


def test_a_run_elsewhere_or_of_one_seed_is_refused(tmp_path: Path) -> None:
    for wrong, message in (
        (BenchmarkConfig(env="Overcooked-tomato-salad-v0", seeds=2), "holds runs in Overcooked-tomato-salad-v0"),
        (BenchmarkConfig(env=FOOD, seeds=1), "has one seed, and an interval needs two"),
        (BenchmarkConfig(env=FOOD, seeds=2, algo="random"), "no agent of .* has a model and a critic: random"),
    ):
        with pytest.raises(ValueError, match=message):
            study(Benchmark(wrong, tmp_path))


def test_actions_without_an_end_token_leave_its_place_empty(agent: Any, tmp_path: Path) -> None:
    whole = {decision: {action: [0.5, 0.0, 0.0, 0.0] for action in (OPEN, CLOSE)} for decision in DECISIONS}
    short = {decision: {action: [0.5, 0.0, 0.0] for action in (OPEN, CLOSE)} for decision in DECISIONS}
    tokens = {action: ["a", "b", "c", "<|end|>"] for action in (OPEN, CLOSE)}
    found = Study({"whole": {"credit": whole}, "short": {"credit": short}}, tokens, "")
    assert [row[3:] for row in found.tabulate().rows[:2]] == [
        ("+0.5000", "+0.0000", "+0.0000", "+0.0000"),
        ("+0.5000", "+0.0000", "+0.0000", ""),
    ]
    assert draw(found, tmp_path / "credit.png").stat().st_size > 10_000


def test_what_the_study_says_is_what_its_numbers_say() -> None:
    found = study(None)
    opening = {name: column["credit"]["pancake in hand"][OPEN] for name, column in found.columns.items()}
    missed = opening["exact, action level"][0] - sum(opening["exact, NTPO"])  # 0.0706 − 0.0203, the most of the four
    assert f"to 0.0000), and those of NTPO miss it by up to {missed:.4f}. The first token" in verdict(found)


def test_a_way_leads_to_the_situation_at_its_end() -> None:
    situations = explore(FOOD)
    assert follow(situations, ()) == 0
    for name, way in DECISIONS.items():
        text = situations[follow(situations, way)].text
        assert ("The pancake is in the microwave" in text) == (name == "pancake inside")
