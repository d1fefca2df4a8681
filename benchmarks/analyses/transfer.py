"""Agents on environments that they were not trained in, with the paper's numbers for comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import figures
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses import Drawing, Presentation
from benchmarks.presets import FOOD, PAPER_TRANSFER
from benchmarks.runs import MODES, Benchmark, Run
from benchmarks.statistics import Interval, bootstrap_mean, compare_intervals
from benchmarks.tables import Table

_UNTRAINED = "untrained"
_UNTRAINED_COLOUR = "#BBBBBB"


def applies(benchmark: Benchmark) -> bool:
    """Whether agents were evaluated on other environments than the training environment."""
    return bool(benchmark.config.transfer)


def collect(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Collect returns and success rates by environment: of the first agent before training, then of all after it."""
    (benchmark,) = benchmarks
    config = benchmark.config
    columns = [(_UNTRAINED, config.agents[0]), *(("trained", spec) for spec in config.agents)]
    return {
        "trained_in": config.env,
        "steps": config.run_defaults.steps,
        "seeds": config.seeds,
        "eval_episodes": config.eval_episodes,
        "embedded": config.embedded,
        "environments": [
            {
                "env": env,
                "optimum": benchmark.optimal_return(env, {}),
                "agents": [
                    {"stage": stage, "algorithm": spec.algorithm, "settings": dict(spec.settings)}
                    | _summary(benchmark.of(spec), stage, env)
                    for stage, spec in columns
                ],
            }
            for env in config.transfer
        ],
    }


def _summary(runs: Sequence[Run], stage: str, env: str) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for mode in MODES:
        results = [run.transfer_results(stage)[env][mode] for run in runs]
        for measure in ("return", "success"):
            summary[f"{mode}_{measure}"] = bootstrap_mean([episodes[measure] for episodes in results])._asdict()
    return summary


def present(data: dict[str, Any]) -> Presentation:
    """Present returns and success rates on each environment, sampled and greedy."""
    papers = PAPER_TRANSFER if data["trained_in"] == FOOD else {}
    environments = data["environments"]
    tables = [_table(data, mode, papers if mode == "sampled" else {}) for mode in MODES]
    caption = "Discounted return on each environment, actions sampled: means and 95 % intervals."
    return Presentation(
        _claims(environments), tables, [Drawing("transfer", caption, _draw(environments))], _notes(data, papers)
    )


def _short(env: str) -> str:
    """``"VirtualHome-apple-pie-v0"`` as ``"apple-pie"``."""
    return re.sub(r"-v\d+$", "", env).partition("-")[2] or env


def _label(own: dict[str, Any]) -> str:
    return _UNTRAINED if own["stage"] == _UNTRAINED else AgentSpec(own["algorithm"], own["settings"]).label


def _table(data: dict[str, Any], mode: str, papers: dict[str, dict[str, tuple[float, float]]]) -> Table:
    rows = []
    for environment in data["environments"]:
        env, best, agents = environment["env"], environment["optimum"], environment["agents"]
        rows.append([_short(env), "" if best is None else f"{best:.4f}", *(_cell(own, mode) for own in agents)])
        if env in papers:
            keys = [own["stage"] if own["stage"] == _UNTRAINED else own["algorithm"] for own in agents]
            rows.append(["… published, 7B", "", *(_published(papers[env].get(key)) for key in keys)])
    header = ("environment", "optimum", *map(_label, data["environments"][0]["agents"]))
    actions = {"sampled": "actions sampled", "greedy": "most probable actions"}[mode]
    return Table(f"Return, then success rate; {actions}", header, rows)


def _cell(own: dict[str, Any], mode: str) -> str:
    returns, success = (Interval(**own[f"{mode}_{measure}"]) for measure in ("return", "success"))
    return f"{returns.shown()} {success.shown('{:.0%}')}"


def _published(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"{found[0]:.4f} {found[1]:.0%}"


def _notes(data: dict[str, Any], papers: dict[str, Any]) -> list[str]:
    notes = [
        f"The agents were trained in {data['trained_in']} for {data['steps']:,} steps ({data['seeds']} "
        f"seed{'s' * (data['seeds'] > 1)}) and evaluated for {data['eval_episodes']} episodes on each environment. "
        f"*untrained*: {AgentSpec(**_agent(data)).label} before training. Brackets: 95 % bootstrap intervals over "
        "seeds and over the episodes of each seed."
    ]
    if data["embedded"]:
        notes.append(
            "The embedded model was pre-trained on text of a random policy in all environments of this project, these "
            "included. It was never rewarded in them."
        )
    return [*notes, *["Published: table 1 of arXiv 2405.15821, LLaMA2-7B."] * bool(papers)]


def _agent(data: dict[str, Any]) -> dict[str, Any]:
    return {name: data["environments"][0]["agents"][0][name] for name in ("algorithm", "settings")}


def _claims(environments: Sequence[dict[str, Any]]) -> list[str]:
    """Give mean success rates, and compare the first trained agent's with the others' by their intervals."""
    labels = list(map(_label, environments[0]["agents"]))

    def success(environment: dict[str, Any], column: int, mode: str) -> Interval:
        return Interval(**environment["agents"][column][f"{mode}_success"])

    rates = {
        mode: ", ".join(
            f"{label} {np.mean([success(environment, at, mode).value for environment in environments]):.0%}"
            for at, label in enumerate(labels)
        )
        for mode in MODES
    }
    claims = [
        f"Mean success rate over {len(environments)} environments, actions sampled: {rates['sampled']}; most probable "
        f"actions: {rates['greedy']}."
    ]
    for column in (0, *range(2, len(labels))):
        pairs = {
            _short(environment["env"]): (success(environment, 1, "sampled"), success(environment, column, "sampled"))
            for environment in environments
        }
        compared = compare_intervals(pairs)
        claims.append(f"Success rate of {labels[1]} compared with {labels[column]}, by 95 % intervals: {compared}.")
    return claims


def _draw(environments: Sequence[dict[str, Any]]) -> Figure:
    agents = environments[0]["agents"]
    figure, panels = figures.grid(len(environments), 4, 2.9, 1.2 + 0.2 * len(agents))
    for index, (axes, environment) in enumerate(zip(panels, environments, strict=True)):
        for row, own in enumerate(environment["agents"]):
            colour = AgentSpec(own["algorithm"]).colour if own["stage"] != _UNTRAINED else _UNTRAINED_COLOUR
            figures.draw_interval(axes, Interval(**own["sampled_return"]), row, colour)
        names = list(map(_label, agents)) if index % 4 == 0 else [""] * len(agents)
        axes.set_yticks(range(len(agents)), names)
        axes.set_ylim(len(agents) - 0.5, -0.5)
        axes.set_xlim(-0.05, 1.05 * max([environment["optimum"] or 0.0, 0.8]))
        figures.draw_optimum(axes, environment["optimum"], vertical=True)
        axes.set_title(_short(environment["env"]))
        axes.set_xlabel("discounted return")
    figures.legend_below(figure, panels)
    return figure
