"""The case study of credit inside an action: its states, its exact values, its table."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import lang_envs  # noqa: F401 — registers the environments
import trainers
from benchmarks.__main__ import run
from benchmarks.analyses.credit import (
    CLOSE,
    OPEN,
    STATES,
    applies,
    collect,
    exact_credit,
    exact_values,
    explore,
    follow,
    present,
    query,
)
from benchmarks.config import BenchmarkConfig
from benchmarks.presets import FOOD
from benchmarks.report import write_report
from benchmarks.runs import Benchmark

Prefix = tuple[int, tuple[int, ...]]
"""A state, and the tokens so far."""


@pytest.fixture(scope="module")
def agent() -> Any:
    return trainers.make("poad", gym.make(FOOD), seed=0)


def test_the_table_of_states_is_the_environment() -> None:
    states = explore(FOOD)
    environment = gym.make(FOOD, interface="text")
    rng = np.random.default_rng(0)
    met = set()
    for episode in range(40):
        text, info = environment.reset(seed=episode)
        at, over = 0, False
        while not over:
            met.add(at)
            assert text == states[at].text
            assert info["available_actions"] == tuple(states[at].outcomes)
            action = str(rng.choice(info["available_actions"]))
            text, reward, terminated, truncated, info = environment.step(action)
            expected = states[at].outcomes[action]
            assert reward == expected.reward
            assert terminated == (expected.after is None)
            over = terminated or truncated
            at = 0 if expected.after is None else expected.after
    assert len(met) > len(states) / 2


@pytest.mark.parametrize("gamma_token", [1.0, 0.95, 0.5])
def test_exact_values_are_the_fixed_point_of_token_by_token_backups(agent: Any, gamma_token: float) -> None:
    states = explore(FOOD)
    queries = [query(agent, state) for state in states]
    log_probs = [found.token_log_probs for found in agent.policy_outputs(queries)]
    gamma = 0.8
    values = exact_values(states, [tree for _, tree in queries], log_probs, gamma=gamma, gamma_token=gamma_token)
    # Prefixes and their next tokens, without trees and linear algebra.
    tokens: dict[Prefix, dict[int, tuple[float, float, Prefix | None]]] = {}
    for i, (_, tree) in enumerate(queries):
        for k, (ids, outcome) in enumerate(zip(tree.candidates, states[i].outcomes.values(), strict=True)):
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
    for i, (_, tree) in enumerate(queries):
        for k, ids in enumerate(tree.candidates):
            for n in range(len(ids)):
                assert values[i][tree.path_nodes[k, n]] == pytest.approx(expected[i, ids[:n]], abs=1e-8)


def test_without_discount_the_first_token_has_the_credit_of_the_action(agent: Any) -> None:
    credit = exact_credit(agent, explore(FOOD))
    for state, better in zip(STATES, (OPEN, CLOSE), strict=True):
        for action in (OPEN, CLOSE):
            whole, *same = credit["action level"][state][action]
            assert same == [whole] * 3
            assert (whole > 0) == (action == better)
            assert credit["BAD"][state][action] == pytest.approx([whole, 0, 0, 0], abs=1e-9)
            first, *rest = credit["NTPO"][state][action]
            assert rest == pytest.approx([0, 0, 0], abs=1e-9)
            assert abs(first - whole) > 2e-4


def test_critics_of_a_run_are_shown(tmp_path: Path) -> None:
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
    write_report([folder], tmp_path / "out.html")
    written = tmp_path / "out" / f"{folder.name}-credit"
    columns = json.loads(written.with_name(f"{written.name}.json").read_text())["data"]["columns"]
    poad, ntpo = (column for column in columns if "exact" not in column)
    assert (poad["algorithm"], ntpo["settings"]) == ("poad", {"gamma_token": 1.0})
    assert poad["credit"] == ntpo["credit"]
    for column in (poad, ntpo):
        assert column["seeds"] == 2
        for value, low, high in column["credit"]["pancake inside"][CLOSE]:
            assert low <= value <= high
    lines = written.with_name(f"{written.name}.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}
    assert written.with_name(f"{written.name}-credit.svg").stat().st_size > 10_000


def test_runs_of_other_environments_or_models_or_of_one_seed_are_not_analysed(tmp_path: Path) -> None:
    assert applies(Benchmark(BenchmarkConfig(env=FOOD, seeds=2), tmp_path))
    for wrong in (
        BenchmarkConfig(env="Overcooked-tomato-salad-v0", seeds=2),
        BenchmarkConfig(env=FOOD, seeds=1),
        BenchmarkConfig(env=FOOD, seeds=2, algo="random"),
        BenchmarkConfig(env=FOOD, seeds=2, model="a/7b"),
    ):
        assert not applies(Benchmark(wrong, tmp_path))


def test_the_cell_of_a_missing_end_token_is_empty() -> None:
    columns = [
        {"exact": level, "credit": {name: dict.fromkeys((OPEN, CLOSE), values) for name in STATES}}
        for level, values in (("action level", [0.5, 0.0, 0.0, 0.0]), ("NTPO", [0.5, 0.0, 0.0]), ("BAD", [0.5, 0.0]))
    ]
    tokens = {action: ["a", "b", "c", "<|end|>"] for action in (OPEN, CLOSE)}
    (table,) = present({"steps": None, "tokens": tokens, "columns": columns}).tables
    assert [row[3:] for row in table.rows[:2]] == [
        ("+0.5000", "+0.0000", "+0.0000", "+0.0000"),
        ("+0.5000", "+0.0000", "+0.0000", ""),
    ]


def test_the_claim_is_computed_from_the_numbers() -> None:
    data = collect([])
    opening = {column["exact"]: column["credit"]["pancake in hand"][OPEN] for column in data["columns"]}
    missed = opening["action level"][0] - sum(opening["NTPO"])  # 0.0706 − 0.0203, the most of the four
    (claim,) = present(data).claims
    assert f"(largest error 0.0000); those of NTPO miss it by up to {missed:.4f}." in claim


def test_actions_lead_to_the_states_of_the_study() -> None:
    states = explore(FOOD)
    assert follow(states, ()) == 0
    for name, way in STATES.items():
        text = states[follow(states, way)].text
        assert ("The pancake is in the microwave" in text) == (name == "pancake inside")
