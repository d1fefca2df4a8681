"""Where credit goes inside an action: the paper's case study (arXiv 2405.15821, figures 6 to 12).

Two decisions of food preparation, each between opening and closing the microwave: with the pancake in hand opening is
right, with the pancake inside closing is. The phrases differ in their first token alone, so that is where credit
belongs. It is counted from exact values, found by solving the environment's tabular decision process under a policy, and from
the critics of trained agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib import pyplot as plt

import trainers
from benchmarks.cell import Benchmark, make_envs
from benchmarks.curves import save
from benchmarks.experiments import FOOD
from benchmarks.statistics import Interval, mean
from benchmarks.tables import Known, Table
from benchmarks.tabular import Situation, exact_values, explore, follow, token_advantages, worth_of
from trainers.agents.common import PPOAgent
from trainers.agents.token_level import TokenLevelAgent
from trainers.prefix_tree import PrefixTree, Query

_SIGNED = "{:+z.4f}"  # there is no −0
OPEN, CLOSE = "open the microwave", "close the microwave"
_TO_THE_MICROWAVE = ("walk to the pancake", "grab the pancake", "walk to the microwave")
DECISIONS = {
    "pancake in hand": _TO_THE_MICROWAVE,
    "pancake inside": (*_TO_THE_MICROWAVE, OPEN, "put the pancake in the microwave"),
}
"""What is done before each decision."""


Credit = dict[str, dict[str, list[float]]]
"""By decision and action: the advantage of each token."""


def ask(agent: PPOAgent, situation: Situation) -> Query:
    """A situation as the query that an agent is asked in it."""
    ids, _ = agent.tokenizer.encode_observation(situation.text)
    return agent.query(np.array(ids), tuple(situation.outcomes))


def exact_credit(agent: PPOAgent, situations: Sequence[Situation]) -> dict[str, Credit]:
    """By level: advantages under the policy of an agent that samples from a trie, from exact values."""
    queries = [ask(agent, situation) for situation in situations]
    trees = [tree for _, tree in queries]
    log_probs = [found.token_log_probs for found in agent.policy.assess(queries)]
    gamma = agent.gamma
    by_action = exact_values(situations, trees, log_probs, gamma=gamma, gamma_token=1.0)
    by_token = exact_values(situations, trees, log_probs, gamma=gamma, gamma_token=gamma)
    return {
        "action level": _credit(situations, trees, by_action, gamma, None),
        "NTPO": _credit(situations, trees, by_token, gamma, gamma),
        "BAD": _credit(situations, trees, by_action, gamma, 1.0),
    }


def learnt_credit(agent: PPOAgent, situations: Sequence[Situation]) -> Credit:
    """Advantages as an agent gives them, from its critic."""
    queries = [ask(agent, situation) for situation in situations]
    values = agent.policy.values(queries)
    gamma_token = agent.gamma_token if isinstance(agent, TokenLevelAgent) else None
    return _credit(situations, [tree for _, tree in queries], values, agent.gamma, gamma_token)


def _credit(
    situations: Sequence[Situation],
    trees: Sequence[PrefixTree],
    values: Sequence[np.ndarray],
    gamma: float,
    gamma_token: float | None,
) -> Credit:
    roots = np.array([nodes[0] for nodes in values])
    found: Credit = {}
    for name, way in DECISIONS.items():
        at = follow(situations, way)
        found[name] = {}
        for action in (OPEN, CLOSE):
            choice = list(situations[at].outcomes).index(action)
            worth = worth_of(situations[at].outcomes[action], roots, gamma)
            if gamma_token is None:
                advantages = np.full(int(trees[at].mask[choice].sum()), worth - roots[at])
            else:
                advantages = token_advantages(trees[at], choice, values[at], worth, gamma_token=gamma_token)
            found[name][action] = advantages.tolist()
    return found


@dataclass(frozen=True)
class Study:
    """What the case study found: by way to give credit its numbers, and the tokens of the two actions."""

    columns: dict[str, dict[str, Any]]
    tokens: dict[str, list[str]]
    note: str

    def tabulate(self) -> Table:
        longest = max(map(len, self.tokens.values()))
        header = ("decision", "action", "credit", *(f"token {n}" for n in range(1, 1 + longest)))
        rows = [
            (decision, f"`{' '.join(tokens)}`", name, *_cells(column["credit"][decision][action], longest))
            for decision in DECISIONS
            for action, tokens in self.tokens.items()
            for name, column in self.columns.items()
        ]
        return Table(self.note, header, rows, {"tokens": self.tokens, "credit": self.columns})


def verdict(found: Study) -> str:
    """A sentence that says how far the tokens of an action are from adding up to what the action is worth."""
    cases = [(decision, action) for decision in DECISIONS for action in (OPEN, CLOSE)]
    whole, ntpo, bad = (
        [found.columns[f"exact, {level}"]["credit"][decision][action] for decision, action in cases]
        for level in ("action level", "NTPO", "BAD")
    )
    missed = [max(abs(sum(own) - all_of[0]) for own, all_of in zip(way, whole, strict=True)) for way in (bad, ntpo)]
    later = max(abs(advantage) for own in (*bad, *ntpo) for advantage in own[1:])
    return (
        f"By exact values the tokens of BAD add up to the advantage of their action (to {missed[0]:.4f}), and those of "
        f"NTPO miss it by up to {missed[1]:.4f}. The first token alone decides; those after it get {later:.4f} at most."
    )


def study(run: Benchmark | None) -> Study:
    """Do the study: what is exact under the policy of the untrained embedded model, and with a run also what the
    critics of its agents say, the mean over their seeds with its 95 % interval.

    Raises
    ------
    ValueError
        If the run is of another environment, has fewer than two seeds, or none of its agents has a critic.
    """
    situations = explore(FOOD)
    untrained = trainers.make("poad", gym.make(FOOD), seed=0)
    columns: dict[str, dict[str, Any]] = {
        f"exact, {level}": {"credit": credit} for level, credit in exact_credit(untrained, situations).items()
    }
    if run is not None:
        columns |= _of_critics(run, situations)
    tokenizer = untrained.tokenizer
    tokens = {
        action: [tokenizer.decode([i]).strip() for i in tokenizer.encode_action(action)] for action in (OPEN, CLOSE)
    }
    return Study(columns, tokens, _note(run))


def _of_critics(run: Benchmark, situations: Sequence[Situation]) -> dict[str, dict[str, Any]]:
    config = run.config
    if config.env.rpartition(":")[2] != FOOD:
        raise ValueError(f"the study is of {FOOD}, and {run.folder} holds runs in {config.env}")
    if not config.embedded:
        raise ValueError(f"the study's tokens are the embedded model's, and {run.folder} has {config.model}")
    run.check_imports()
    run.check_learners()
    envs = make_envs(config)
    columns: dict[str, dict[str, Any]] = {}
    for algo in run.learners:
        found = [learnt_credit(cell.load_agent(envs), situations) for cell in run.of(algo)]
        columns[f"critic, {algo}"] = {
            "seeds": len(found),
            "credit": {
                decision: {
                    action: [mean([values]) for values in zip(*(own[decision][action] for own in found), strict=True)]
                    for action in (OPEN, CLOSE)
                }
                for decision in DECISIONS
            },
        }
    envs.close()
    return columns


def _cells(found: Sequence[float | Interval], count: int) -> list[str]:
    """One for each token; the last is empty where an agent's actions have no end token."""
    return [*map(_cell, found), *[""] * (count - len(found))]


def _value(found: float | Interval) -> float:
    return found.value if isinstance(found, Interval) else found


def _cell(found: float | Interval) -> str:
    return found.shown(_SIGNED) if isinstance(found, Interval) else Known(_SIGNED.format(found))


def _note(run: Benchmark | None) -> str:
    note = (
        "Advantage of each token of an action, one step ahead (λ = 0), in food preparation, between opening and "
        "closing the microwave. 'Exact' values solve the tabular decision process under the policy of the untrained "
        "embedded model, which no seed enters."
    )
    if run is not None:
        note += (
            f" 'Critic' is the credit that agents give after {run.config.usual.steps:,} decisions (TWOSOME at the "
            "action level, POAD by BAD), from their own critics and so under their own policies: mean over "
            f"{run.config.seeds} seeds with its 95 % interval (bootstrap)."
        )
    return note


def draw(found: Study, path: Path) -> Path:
    """For each decision and action a map: a row for each way to give credit, a column for each token."""
    columns, tokens = found.columns, found.tokens
    given = [own for column in columns.values() for actions in column["credit"].values() for own in actions.values()]
    largest = max(abs(_value(cell)) for own in given for cell in own) or 1.0
    figure, panels = plt.subplots(
        len(DECISIONS), 2, figsize=(11, 1.2 + len(DECISIONS) * (0.6 + 0.42 * len(columns))), layout="constrained"
    )
    for row, decision in zip(panels, DECISIONS, strict=True):
        for axes, action in zip(row, (OPEN, CLOSE), strict=True):
            cells = [column["credit"][decision][action] for column in columns.values()]
            numbers = np.full((len(cells), len(tokens[action])), np.nan)
            for y, own in enumerate(cells):
                numbers[y, : len(own)] = [_value(cell) for cell in own]
            shades = np.sign(numbers) * np.sqrt(np.abs(numbers) / largest)  # so that small amounts can be seen
            axes.imshow(shades, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
            for (y, x), number in np.ndenumerate(numbers):
                if np.isnan(number):
                    continue
                light = abs(shades[y, x]) > 0.6
                axes.text(
                    x,
                    y,
                    _SIGNED.format(number),
                    ha="center",
                    va="center",
                    color="white" if light else "black",
                    fontsize=8,
                )
            axes.set_xticks(range(len(tokens[action])), tokens[action])
            axes.set_yticks(range(len(columns)), list(columns) if action == OPEN else [])
            axes.set_title(f"{decision}: {action}", fontsize="medium")
    return save(figure, path)
