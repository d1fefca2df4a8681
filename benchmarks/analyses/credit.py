"""Credit inside an action: the paper's case study (arXiv 2405.15821, figures 6 to 12).

Two states of food preparation, and two actions in each: opening and closing the microwave. With the pancake in hand,
opening is right; with the pancake inside, closing is. The phrases differ in their first token alone, so credit should
be there. Advantages come from exact values, by solving the environment's Bellman equations under a policy, and from the
critics of trained agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

import trainers
from benchmarks import figures
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses import Drawing, Presentation
from benchmarks.presets import FOOD
from benchmarks.runs import Benchmark, make_envs
from benchmarks.statistics import Interval, mean
from benchmarks.tables import Table
from benchmarks.tabular import State, exact_values, explore, follow, token_advantages, worth_of
from trainers.agents.ppo import PPOAgent
from trainers.prefix_tree import PrefixTree, Query

_SIGNED = "{:+z.4f}"  # never −0
OPEN, CLOSE = "open the microwave", "close the microwave"
_TO_THE_MICROWAVE = ("walk to the pancake", "grab the pancake", "walk to the microwave")
STATES = {
    "pancake in hand": _TO_THE_MICROWAVE,
    "pancake inside": (*_TO_THE_MICROWAVE, OPEN, "put the pancake in the microwave"),
}
"""The two states, with the actions that lead to them."""

Credit = dict[str, dict[str, list[float]]]
"""By state and action: the advantage of each token."""


def applies(benchmark: Benchmark) -> bool:
    """Whether the benchmark trained the embedded model with critics in the study's environment, on several seeds."""
    config = benchmark.config
    return config.env == FOOD and config.embedded and config.seeds > 1 and bool(benchmark.learners)


def collect(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Collect advantages: exact under the untrained embedded model; of each agent's critics, their mean over seeds.

    Raises
    ------
    ValueError
        If a benchmark is of another environment or model, has fewer than two seeds, or no agent with a critic.
    """
    states = explore(FOOD)
    untrained = trainers.make("poad", gym.make(FOOD), seed=0)
    columns: list[dict[str, Any]] = [
        {"exact": level, "credit": credit} for level, credit in exact_credit(untrained, states).items()
    ]
    for benchmark in benchmarks:
        columns += _of_critics(benchmark, states)
    tokenizer = untrained.tokenizer
    tokens = {
        action: [tokenizer.decode([i]).strip() for i in tokenizer.encode_action(action)] for action in (OPEN, CLOSE)
    }
    steps = [benchmark.config.run_defaults.steps for benchmark in benchmarks]
    return {"steps": steps[0] if steps else None, "tokens": tokens, "columns": columns}


def query(agent: PPOAgent, state: State) -> Query:
    """Return an agent's query in a state, with all available actions as candidates."""
    ids, _ = agent.tokenizer.encode_observation(state.text)
    return agent.query(np.array(ids), tuple(state.outcomes))


def exact_credit(agent: PPOAgent, states: Sequence[State]) -> dict[str, Credit]:
    """Return exact advantages under the policy of an agent with trie sampling, by level of credit."""
    queries = [query(agent, state) for state in states]
    trees = [tree for _, tree in queries]
    log_probs = [found.token_log_probs for found in agent.policy_outputs(queries)]
    gamma = agent.gamma
    by_action = exact_values(states, trees, log_probs, gamma=gamma, gamma_token=1.0)
    by_token = exact_values(states, trees, log_probs, gamma=gamma, gamma_token=gamma)
    return {
        "action level": _credit(states, trees, by_action, gamma, None),
        "NTPO": _credit(states, trees, by_token, gamma, gamma),
        "BAD": _credit(states, trees, by_action, gamma, 1.0),
    }


def critic_credit(agent: PPOAgent, states: Sequence[State]) -> Credit:
    """Return one-step advantages from the values of an agent's critic."""
    queries = [query(agent, state) for state in states]
    values = agent.values(queries)
    gamma_token = agent.token_discounts()[0] if agent.level == "token" else None
    return _credit(states, [tree for _, tree in queries], values, agent.gamma, gamma_token)


def _credit(
    states: Sequence[State],
    trees: Sequence[PrefixTree],
    values: Sequence[np.ndarray],
    gamma: float,
    gamma_token: float | None,
) -> Credit:
    roots = np.array([nodes[0] for nodes in values])
    found: Credit = {}
    for name, way in STATES.items():
        at = follow(states, way)
        found[name] = {}
        for action in (OPEN, CLOSE):
            choice = list(states[at].outcomes).index(action)
            worth = worth_of(states[at].outcomes[action], roots, gamma)
            if gamma_token is None:
                advantages = np.full(int(trees[at].mask[choice].sum()), worth - roots[at])
            else:
                advantages = token_advantages(trees[at], choice, values[at], worth, gamma_token=gamma_token)
            found[name][action] = advantages.tolist()
    return found


def _of_critics(benchmark: Benchmark, states: Sequence[State]) -> list[dict[str, Any]]:
    config = benchmark.config
    if config.env.rpartition(":")[2] != FOOD:
        raise ValueError(f"the study needs runs in {FOOD}; {benchmark.folder} has runs in {config.env}")
    if not config.embedded:
        raise ValueError(f"the study needs the embedded model; {benchmark.folder} has {config.model}")
    benchmark.check_imports()
    benchmark.check_learners()
    envs = make_envs(config)
    columns = []
    for spec in benchmark.learners:
        found = [critic_credit(run.load_agent(envs), states) for run in benchmark.of(spec)]
        credit = {
            name: {
                action: [mean([values]) for values in zip(*(own[name][action] for own in found), strict=True)]
                for action in (OPEN, CLOSE)
            }
            for name in STATES
        }
        agent = {"algorithm": spec.algorithm, "settings": dict(spec.settings)}
        columns.append({**agent, "seeds": len(found), "credit": credit})
    envs.close()
    return columns


def present(data: dict[str, Any]) -> Presentation:
    """Present the advantage of each token as a table and as maps."""
    columns = {_label(column): column["credit"] for column in data["columns"]}
    tokens = data["tokens"]
    longest = max(map(len, tokens.values()))
    header = ("state", "action", "credit", *(f"token {n}" for n in range(1, 1 + longest)))
    rows = [
        (name, f"`{' '.join(tokens[action])}`", label, *_cells(credit[name][action], longest))
        for name in STATES
        for action in (OPEN, CLOSE)
        for label, credit in columns.items()
    ]
    drawing = Drawing("credit", _CAPTION, _draw(columns, tokens))
    table = Table("Advantage of each token", header, rows)
    return Presentation([_claim(columns)], [table], [drawing], _notes(data))


_CAPTION = (
    "Advantage of each token of two actions in two states: a row for each method, a column for each token. Colours "
    "scale with the square root of the advantage; columns differ between the two actions in the first token alone."
)


def _label(column: dict[str, Any]) -> str:
    if "exact" in column:
        return f"exact, {column['exact']}"
    return f"critic, {AgentSpec(column['algorithm'], column['settings']).label}"


def _claim(columns: dict[str, Credit]) -> str:
    """Say how far the tokens of an action are from adding up to its advantage."""
    cases = [(name, action) for name in STATES for action in (OPEN, CLOSE)]
    whole, ntpo, bad = (
        [columns[f"exact, {level}"][name][action] for name, action in cases]
        for level in ("action level", "NTPO", "BAD")
    )
    missed = [max(abs(sum(own) - all_of[0]) for own, all_of in zip(way, whole, strict=True)) for way in (bad, ntpo)]
    later = max(abs(advantage) for own in (*bad, *ntpo) for advantage in own[1:])
    return (
        "With exact values, the token advantages of BAD (the credit of POAD) sum to the advantage of their action "
        f"(largest error {missed[0]:.4f}); those of NTPO miss it by up to {missed[1]:.4f}. In both, the first token, "
        f"which distinguishes the actions, has the whole credit: later tokens have at most {later:.4f}."
    )


def _notes(data: dict[str, Any]) -> list[str]:
    notes = [
        "One-step advantages (λ = 0) in food preparation. *exact*: values that solve the environment's Bellman "
        "equations under the untrained embedded model, without any sampling. *action level*: every token has the "
        "action's advantage. *BAD*: Bellman backup with action decomposition, no discount inside an action."
    ]
    if seeds := [column["seeds"] for column in data["columns"] if "seeds" in column]:
        notes.append(
            f"*critic*: credit from the critics of trained agents, after {data['steps']:,} steps and under their own "
            f"policies (TWOSOME at the action level); mean over {seeds[0]} seeds with its 95 % bootstrap interval."
        )
    return notes


def _cells(found: Sequence[float | Sequence[float]], count: int) -> list[str]:
    """One cell for each token; the last is empty for agents whose actions have no end token."""
    cells = [_SIGNED.format(own) if isinstance(own, float) else Interval(*own).shown(_SIGNED) for own in found]
    return cells + [""] * (count - len(cells))


def _value(found: float | Sequence[float]) -> float:
    return found if isinstance(found, float) else found[0]


def _draw(columns: dict[str, Credit], tokens: dict[str, list[str]]) -> Figure:
    largest = max(
        abs(_value(cell))
        for credit in columns.values()
        for own in credit.values()
        for cells in own.values()
        for cell in cells
    )
    figure, panels = figures.grid(2 * len(STATES), 2, 5.2, 1.1 + 0.3 * len(columns))
    cases = [(name, action) for name in STATES for action in (OPEN, CLOSE)]
    for axes, (name, action) in zip(panels, cases, strict=True):
        numbers = np.full((len(columns), len(tokens[action])), np.nan)
        for y, credit in enumerate(columns.values()):
            own = [_value(cell) for cell in credit[name][action]]
            numbers[y, : len(own)] = own
        shades = np.sign(numbers) * np.sqrt(np.abs(numbers) / (largest or 1.0))  # small values stay visible
        axes.imshow(shades, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        for (y, x), number in np.ndenumerate(numbers):
            if not np.isnan(number):
                colour = "white" if abs(shades[y, x]) > 0.6 else "black"
                axes.text(x, y, _SIGNED.format(number), ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(tokens[action])), tokens[action])
        axes.set_yticks(range(len(columns)), list(columns) if action == OPEN else [])
        axes.set_title(f"{name}: {action}")
        axes.grid(visible=False)
    return figure
