"""Final returns of agents in one environment or several, with learning curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import trainers
from benchmarks import figures, statistics
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses import Drawing, Presentation, Table
from benchmarks.runs import Benchmark, Run, optimal_return
from benchmarks.statistics import Interval, Values, interquartile_mean, mean, probability_of_improvement
from benchmarks.stored import counted
from lang_envs.tokenizer import load_tokenizer
from trainers.agents.random import RandomAgent
from trainers.loop import RECENT_EPISODES

NEAR_OPTIMUM = 0.9
_MAX_EPISODES = 10_000
_MEASURE = "recent_return"
_BRIEF = ("agent", "return", "greedy", "success", "steps to 90 %")
_LENGTH_SETTINGS: Mapping[str, dict[str, Any]] = {
    "with entropy bonus": {},
    "with entropy bonus, λ_w = 0.95": {"gae_lambda_token": 0.95},
    "without entropy bonus": {"entropy_coefficient": 0.0},
}
"""Settings under which agents are compared over the length of actions."""
Shares = dict[AgentSpec, list[np.ndarray]]
"""For each agent and environment a float64 array (seeds,)."""
Lengths = dict[str, dict[str, dict[float, list[float]]]]
"""By key of ``_LENGTH_SETTINGS``, algorithm and tokens per action: returns of the seeds."""


def applies(benchmark: Benchmark) -> bool:
    """Every benchmark has returns."""
    return True


# ------------------------------------------------------------------------------------------------------------- collect


def collect(benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Collect values of every seed, and what is known of the environments."""
    return {
        "comparisons": [_collect(benchmark) for benchmark in benchmarks],
        "curves": [
            {spec.name: [_curve(run) for run in benchmark.of(spec)] for spec in benchmark.config.agents}
            for benchmark in benchmarks
        ],
    }


def _collect(benchmark: Benchmark) -> dict[str, Any]:
    config = benchmark.config
    environment = benchmark.environment(config.env, config.env_arguments)
    optimum = optimal_return(environment)
    model = config.model or "embedded"
    return {
        "title": benchmark.title,
        "env": config.env,
        "shared_settings": benchmark.shared_settings,
        "steps": config.run_defaults.steps,
        "eval_episodes": config.eval_episodes,
        "optimum": optimum,
        "discount": environment and environment.get_wrapper_attr("discount"),
        "tokens_per_action": environment and tokens_per_action(environment, model),
        "random_policy": environment and random_policy(benchmark, environment),
        "agents": [spec.as_json | of_runs(benchmark.of(spec), optimum) for spec in config.agents],
    }


def of_runs(runs: Sequence[Run], optimum: float | None) -> dict[str, Any]:
    """Collect an agent's values, one for each seed.

    ``steps_to_90_percent`` counts environment steps until the mean return of the last 20 training episodes first
    reaches 90 % of the optimum; a run that never does counts with all its steps. ``regressed`` counts the runs that
    were below half of the optimum at any time after that.
    """
    results = [run.result or {} for run in runs]
    curves = [run.metrics() for run in runs]
    reached = [steps_to_near_optimum(curve, optimum) for curve in curves]
    return {
        "returns": [result["sampled"]["return"] for result in results],
        "greedy": [result["greedy"]["return"] for result in results],
        "success": [result["sampled"]["success"] for result in results],
        "steps_to_90_percent": [at or curve[-1]["step"] for at, curve in zip(reached, curves, strict=True)],
        "never": reached.count(None),
        "regressed": sum(_regressed(curve, at, optimum) for curve, at in zip(curves, reached, strict=True)),
        "kl": [_mean_of(curve, "approximate_kl") for curve in curves],
        "skipped": [_mean_of(curve, "skipped_actor_steps") for curve in curves],
    }


def steps_to_near_optimum(lines: Sequence[dict[str, Any]], optimum: float | None) -> int | None:
    """Return the environment steps until the mean of the last 20 returns first reaches 90 % of the optimum.

    None if it never does, or if the optimum is unknown or not positive.
    """
    if optimum is None or optimum <= 0:
        return None
    near = (line["step"] for line in _whole(lines) if line[_MEASURE] >= NEAR_OPTIMUM * optimum)
    return next(near, None)


def _regressed(lines: Sequence[dict[str, Any]], reached: int | None, optimum: float | None) -> bool:
    if reached is None or optimum is None:
        return False
    return any(line[_MEASURE] < optimum / 2 for line in lines if line["step"] > reached)


def _whole(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines after the first 20 episodes: the first to end are short, and so mostly successful."""
    return [line for line in lines if _MEASURE in line and line.get("episodes", RECENT_EPISODES) >= RECENT_EPISODES]


def _mean_of(lines: Sequence[dict[str, Any]], measure: str) -> float | None:
    values = [line[measure] for line in lines if measure in line]
    return float(np.mean(values)) if values else None


def _curve(run: Run) -> dict[str, list[float]]:
    lines = _whole(run.metrics())
    return {name: [line[name] for line in lines] for name in ("step", _MEASURE)}


def random_policy(benchmark: Benchmark, environment: gym.Env) -> dict[str, Any] | None:
    """Evaluate a random policy: mean return with its 95 % interval over episodes; None where any text is an action."""
    config = benchmark.config
    agent, episodes = RandomAgent(environment), max(2, min(config.eval_episodes, _MAX_EPISODES))
    try:
        returns = trainers.evaluate(agent, config.env, episodes, env_options=config.env_arguments).returns
    except NotImplementedError:
        return None
    return {"episodes": episodes, **mean([returns])._asdict()}


def tokens_per_action(environment: gym.Env, model: str) -> float | None:
    """Return the mean number of tokens of an environment's actions, end token included; None for free text."""
    phrases = environment.get_wrapper_attr("action_names")
    tokenizer = load_tokenizer(model)
    return float(np.mean([len(tokenizer.encode_action(phrase)) for phrase in phrases])) if phrases else None


# ------------------------------------------------------------------------------------------------------------- present


def present(data: dict[str, Any]) -> Presentation:
    """Present final returns; over several environments also aggregates, and sweeps of γ_w or of action length."""
    comparisons = data["comparisons"]
    tables, claims, drawings = [], [], []
    if shares := _shares(comparisons):
        means = ", ".join(f"{spec.label} {mean(own).shown('{:.1%}')}" for spec, own in shares.items())
        over = f"Mean over {len(comparisons)} environments of the final return as a fraction of the optimum"
        claims.append(f"{over}: {means}.")
        tables.append(_overall_table(shares))
        drawings.append(Drawing("profiles", _PROFILES, _draw_profiles(shares)))
    if discounts := _discounts(comparisons):
        drawings.append(Drawing("discount", _DISCOUNT, _draw_discounts(discounts, comparisons[0])))
    if lengths := _lengths(comparisons):
        claims += _length_claims(lengths)
        drawings.append(Drawing("length", _LENGTH, _draw_lengths(lengths, comparisons[0]["optimum"])))
    several = len(comparisons) > 1
    claims += [(f"{own['title']}: " if several else "") + " ".join(claims_of(own)) for own in comparisons]
    drawings.append(Drawing("final-returns", _FINAL, _draw_final(comparisons)))
    notes = _notes(comparisons)
    if "curves" in data:
        if curves := _draw_curves(comparisons, data["curves"]):
            drawings.append(Drawing("learning-curves", _CURVES, curves))
        else:
            notes.append(f"No learning curves: they start once {RECENT_EPISODES} episodes of a run have ended.")
    return Presentation(claims, [*tables, *map(table_of, comparisons)], drawings, notes)


_PROFILES = (
    "For each fraction x of the optimum (horizontal axis): the fraction of runs whose final return is above x. Bands: "
    "95 % intervals."
)
_DISCOUNT = (
    "Final return over the discount inside an action, γ_w (POAD: 1). Dots: seeds. Bars: 95 % intervals of means."
)
_LENGTH = (
    "First panel: final return of POAD minus that of NTPO. Others: final return. Over the mean number of tokens of "
    "an action, one tokenizer each; agents are side by side. Dots: seeds. Bars: 95 % intervals of means."
)
_FINAL = "Final returns. Dots: seeds. Vertical marks and bars: means and 95 % intervals over seeds."
_CURVES = (
    "Learning curves: mean over seeds, with its 95 % interval as a band; with at most four agents a thin line for each "
    f"seed. Curves start once {RECENT_EPISODES} episodes have ended; a run with fewer episodes has none."
)


def agents_of(comparison: dict[str, Any]) -> dict[AgentSpec, dict[str, Any]]:
    """The agents of a stored comparison with their values."""
    return {AgentSpec.of(own): own for own in comparison["agents"]}


def _labels(comparison: dict[str, Any]) -> dict[AgentSpec, str]:
    return {spec: spec.label_without(comparison["shared_settings"]) for spec in agents_of(comparison)}


def table_of(comparison: dict[str, Any]) -> Table:
    """Make the table of one comparison: a row for each agent, and one for the random policy."""
    agents, labels, optimum = agents_of(comparison), _labels(comparison), comparison["optimum"]
    first, *others = agents
    share = optimum is not None and optimum > 0
    seeds = len(agents[first]["returns"])
    learnt = any(value is not None for own in agents.values() for value in own["kl"])
    rows: list[dict[str, str]] = []
    for spec, own in agents.items():
        returns = own["returns"]
        row = {
            "agent": labels[spec],
            "n": str(len(returns)),
            "return": _shown(returns),
            "interquartile mean": _shown(returns, statistic=interquartile_mean),
            "lowest … highest": f"{min(returns):.3f} … {max(returns):.3f}",
        }
        if share:
            row["of optimum"] = _shown(np.array(returns) / optimum, "{:.1%}")
        row |= {"greedy": _shown(own["greedy"]), "success": _shown(own["success"], "{:.0%}")}
        if share:
            reached = len(returns) - own["never"]
            never = f", {own['never']} of {len(returns)} never" if own["never"] else ""
            steps = _shown(own["steps_to_90_percent"], "{:,.0f}")
            row["steps to 90 %"] = steps + never if reached else "never"
            row["regressed"] = f"{own['regressed']} of {reached}" if reached else ""
        if learnt:
            row["approximate KL"] = _shown(own["kl"], "{:.4f}")
            row["skipped steps"] = _shown(own["skipped"], "{:.0%}")
        if others and seeds > 1:
            better = probability_of_improvement([agents[first]["returns"]], [returns])
            row[f"P({labels[first]} is better)"] = "" if spec == first else better.shown("{:.0%}")
        rows.append(row)
    cells = [tuple(row.values()) for row in rows]
    if (chance := comparison["random_policy"]) is not None:
        interval = Interval(*(chance[end] for end in Interval._fields))
        known = {"agent": "random policy", "n": f"{chance['episodes']} episodes", "return": interval.shown()}
        if share:
            known["of optimum"] = Interval(*(value / optimum for value in interval)).shown("{:.1%}")
        cells.append(tuple(known.get(name, "") for name in rows[0]))
    best = "" if optimum is None else f"; optimal return {optimum:.4f}"
    return Table(f"{comparison['title']}: {comparison['steps']:,} steps a run{best}", tuple(rows[0]), cells, _BRIEF)


def claims_of(comparison: dict[str, Any]) -> list[str]:
    """Say how the first agent's final return compares with the others', and how many steps each agent needed."""
    agents, labels, optimum = agents_of(comparison), _labels(comparison), comparison["optimum"]
    (first, own), *others = agents.items()
    share = "" if not optimum or optimum <= 0 else f", {np.mean(own['returns']) / optimum:.1%} of the optimum"
    seeds = len(own["returns"])
    size = counted(seeds, "seed") if others else str(seeds)
    has = f"{labels[first]} has a mean final return of {_shown(own['returns'])} (n = {size}{share})"
    if not others:
        return [f"{has}."]
    if not statistics.enough_runs(seeds, len(others)):
        listed = ", ".join(f"{labels[spec]} {_shown(theirs['returns'])}" for spec, theirs in others)
        return [f"{has}; {listed}.", f"{_too_few(seeds)} for a significance test."]
    p_values = statistics.rank_tests(own["returns"], {spec.name: theirs["returns"] for spec, theirs in others})
    ways = ("is significantly higher than", "is significantly lower than", "is not significantly different from")
    found: dict[str, list[str]] = {way: [] for way in ways}
    for spec, theirs in others:
        way = ways[2]
        if (p := p_values[spec.name]) < statistics.SIGNIFICANT:
            way = ways[probability_of_improvement([own["returns"]], [theirs["returns"]]).value <= 0.5]
        shown = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
        found[way].append(f"{labels[spec]}'s ({np.mean(theirs['returns']):.3f}, {shown})")
    parts = [f"It {way} {_listed(they)}." for way, they in found.items() if they]
    return [f"{has}.", *parts[:-1], f"{parts[-1][:-1]} (rank test, Holm's correction).", *_speed_claims(comparison)]


def _listed(parts: Sequence[str]) -> str:
    """Join with commas and *and*."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _speed_claims(comparison: dict[str, Any]) -> list[str]:
    """Give the mean steps to 90 % of the optimum, if it is known and a run reached it."""
    agents, labels = agents_of(comparison), _labels(comparison)
    if (comparison["optimum"] or 0) <= 0 or all(own["never"] == len(own["returns"]) for own in agents.values()):
        return []
    shown = []
    for spec, own in agents.items():
        seeds = len(own["returns"])
        never = f", {own['never']} of {seeds} runs never" * bool(own["never"])
        steps = "never" if own["never"] == seeds else f"{np.mean(own['steps_to_90_percent']):,.0f}{never}"
        shown.append(f"{labels[spec]} {steps}")
    return [f"Mean steps to 90 % of the optimum: {'; '.join(shown)}."]


def _too_few(seeds: int) -> str:
    return "1 seed of each agent is too few" if seeds == 1 else f"{seeds} seeds of each agent are too few"


def _notes(comparisons: Sequence[dict[str, Any]]) -> list[str]:
    episodes = sorted({comparison["eval_episodes"] for comparison in comparisons})
    notes = [
        f"*return*: mean discounted return of {' or '.join(map(str, episodes))} evaluation episodes after training, "
        "actions sampled; *greedy*: the same, most probable actions; *n*: number of runs, each with its own seed. "
        "Brackets: 95 % bootstrap intervals over runs (of the random policy over its episodes)."
    ]
    if any((comparison["optimum"] or 0) > 0 for comparison in comparisons):
        notes.append(
            f"*steps to 90 %*: environment steps until the mean return of the last {RECENT_EPISODES} training episodes "
            f"first reaches {NEAR_OPTIMUM:.0%} of the optimal return; a run that never does counts with all its steps. "
            "*regressed*: of the runs that reached 90 %, those that later fell below half of the optimum; empty if no "
            "run reached it."
        )
    if any(value is not None for own in comparisons for agent in own["agents"] for value in agent["kl"]):
        notes.append(
            "*skipped steps*: share of the adapter's optimiser steps that were skipped because of the KL threshold. "
            "The approximate KL is per token (for TWOSOME per action)."
        )
    if any(len(comparison["agents"]) > 1 for comparison in comparisons):
        notes.append(
            "*P(… is better)*: probability that its run has a higher return than a run of the row (50 %: equal)."
        )
    return notes


def _shown(
    values: Values | Sequence[float | None],
    form: str = "{:.3f}",
    statistic: Callable[[Sequence[Values]], Interval] = mean,
) -> str:
    """Format with the 95 % interval, if there are several runs; empty where there is no value."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ""
    return statistic([np.array(known)]).shown(form) if len(known) > 1 else form.format(known[0])


# --------------------------------------------------------------------------------------------- several environments


def _shares(comparisons: Sequence[dict[str, Any]]) -> Shares:
    """Returns as fractions of the optimum, if the same agents were trained in several environments.

    Empty also if an optimal return is not known or not positive, or an agent has one run only.
    """
    first, *others = [agents_of(comparison) for comparison in comparisons]
    envs = {comparison["env"] for comparison in comparisons}
    same = (
        len(first) > 1 and others and len(envs) == len(comparisons) and all(list(own) == list(first) for own in others)
    )
    if not same or not all((own["optimum"] or 0) > 0 and len(own["agents"][0]["returns"]) > 1 for own in comparisons):
        return {}
    return {spec: [np.array(agents_of(own)[spec]["returns"]) / own["optimum"] for own in comparisons] for spec in first}


def _overall_table(shares: Shares) -> Table:
    first, *_ = shares
    rows = [
        (
            spec.label,
            str(sum(map(len, own))),
            interquartile_mean(own).shown("{:.1%}"),
            mean(own).shown("{:.1%}"),
            "" if spec == first else probability_of_improvement(shares[first], own).shown("{:.0%}"),
        )
        for spec, own in shares.items()
    ]
    header = ("agent", "n", "interquartile mean", "mean", f"P({first.label} is better)")
    return Table(f"All {len(shares[first])} environments: final return as a fraction of the optimum", header, rows)


def _draw_profiles(shares: Shares) -> Figure:
    figure, (axes,) = figures.grid(1, 1, 6.5, 3.4)
    thresholds = np.linspace(0, 1, 101)
    styles = figures.line_styles(list(shares))
    for spec, own in shares.items():
        value, low, high = np.array(statistics.performance_profile(own, thresholds.tolist())).T
        axes.plot(thresholds, value, color=spec.colour, linestyle=styles[spec], label=spec.label, linewidth=2)
        axes.fill_between(thresholds, low, high, color=spec.colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="final return / optimal return", ylabel="fraction of runs above")
    figures.legend_below(figure, [axes])
    return figure


# ----------------------------------------------------------------------------------------------------------- figures


def _draw_final(comparisons: Sequence[dict[str, Any]]) -> Figure:
    counts = [len(comparison["agents"]) for comparison in comparisons]
    if max(counts) < 8:
        figure, panels = figures.grid(len(counts), 2, 5.6, 1.0 + 0.3 * max(counts))
    else:
        figure, panels = figures.grid(len(counts), 1, 8.0, 1.0 + 0.3 * float(np.mean(counts)), [3 + n for n in counts])
    for axes, comparison in zip(panels, comparisons, strict=True):
        labels = _labels(comparison)
        rows = [(labels[spec], spec.colour, own["returns"]) for spec, own in agents_of(comparison).items()]
        figures.draw_dots(axes, rows, "discounted return of the trained agent")
        _draw_references(axes, comparison, vertical=True)
        axes.set_title(comparison["title"])
    figures.legend_below(figure, panels)
    return figure


def _draw_references(axes: Axes, comparison: dict[str, Any], *, vertical: bool = False) -> None:
    figures.draw_optimum(axes, comparison["optimum"], vertical=vertical)
    if (chance := comparison["random_policy"]) is not None:
        draw = axes.axvline if vertical else axes.axhline
        draw(chance["value"], color="grey", linestyle=":", linewidth=1.4, label="random policy")


def _draw_curves(
    comparisons: Sequence[dict[str, Any]], curves: Sequence[dict[str, list[dict[str, list[float]]]]]
) -> Figure | None:
    if not any(seed["step"] for found in curves for seeds in found.values() for seed in seeds):
        return None  # no run had 20 episodes
    figure, panels = figures.grid(len(comparisons), 2, 5.6, 3.4)
    for axes, comparison, found in zip(panels, comparisons, curves, strict=True):
        labels = _labels(comparison)
        own = {spec: [(seed["step"], seed[_MEASURE]) for seed in found[spec.name]] for spec in labels}
        figures.draw_curves(axes, own, labels)
        _draw_references(axes, comparison)
        axes.set(title=comparison["title"], xlim=(0, 1.02 * comparison["steps"]))
        axes.set(xlabel="environment steps", ylabel="discounted return, last 20 episodes")
    figures.legend_below(figure, panels)
    return figure


def _discounts(comparisons: Sequence[dict[str, Any]]) -> dict[float, AgentSpec]:
    """By γ_w the agent that has it, if agents of one comparison differ in γ_w alone and have at least three values."""
    if len(comparisons) > 1:
        return {}
    default = {"poad": 1.0, "ntpo": comparisons[0]["discount"]}
    found = {}
    for spec in agents_of(comparisons[0]):
        if spec.algorithm not in default or spec.settings.keys() - {"gamma_token"}:
            return {}
        found[spec.settings.get("gamma_token", default[spec.algorithm])] = spec
    return found if len(found) > 2 else {}


def _draw_discounts(found: dict[float, AgentSpec], comparison: dict[str, Any]) -> Figure:
    figure, (axes,) = figures.grid(1, 1, 6.0, 3.4)
    agents = agents_of(comparison)
    for algorithm in (AgentSpec("ntpo"), AgentSpec("poad")):
        own = {at: agents[spec]["returns"] for at, spec in found.items() if spec.algorithm == algorithm.algorithm}
        figures.draw_against(axes, own, algorithm.colour, "-", algorithm.label)
    figures.draw_optimum(axes, comparison["optimum"])
    axes.set(xlabel="discount from one token to the next, γ_w", ylabel="discounted return of the trained agent")
    figures.legend_below(figure, [axes])
    return figure


def _lengths(comparisons: Sequence[dict[str, Any]]) -> Lengths:
    """Returns by tokens per action, if one environment was used with at least three tokenizers; else empty."""
    if len({own["env"] for own in comparisons}) > 1 or len({own["tokens_per_action"] for own in comparisons}) < 3:
        return {}
    found: Lengths = {}
    for (name, settings), comparison in product(_LENGTH_SETTINGS.items(), comparisons):
        for spec, own in agents_of(comparison).items():
            if spec.settings == settings:
                by_length = found.setdefault(name, {}).setdefault(spec.algorithm, {})
                by_length[comparison["tokens_per_action"]] = own["returns"]
    return found


def _gaps(found: dict[str, dict[float, list[float]]]) -> dict[float, Interval]:
    poad, ntpo = found.get("poad", {}), found.get("ntpo", {})
    return {
        length: statistics.mean_difference(poad[length], ntpo[length]) for length in sorted(poad.keys() & ntpo.keys())
    }


def _length_claims(lengths: Lengths) -> list[str]:
    claims = []
    for name, found in lengths.items():
        gaps = _gaps(found).items()
        shown = "; ".join(f"{gap.shown('{:+.3f}')} with {length:.1f} tokens per action" for length, gap in gaps)
        if shown:
            claims.append(f"Mean final return of POAD minus that of NTPO, {name}: {shown}.")
    return claims


def _draw_lengths(lengths: Lengths, optimum: float | None) -> Figure:
    figure, (differences, *panels) = figures.grid(1 + len(lengths), 2, 4.8, 3.2)
    side_by_side = (0.92, 1.0, 1.08)
    greys = ("black", "#777777", "#BBBBBB")
    for (name, found), axes, shift, grey in zip(lengths.items(), panels, side_by_side, greys, strict=False):
        if gaps := {length * shift: gap for length, gap in _gaps(found).items()}:
            figures.draw_intervals_against(differences, gaps, grey, "none", name)
        for (algorithm, own), factor in zip(found.items(), side_by_side, strict=False):
            at = {length * factor: values for length, values in own.items()}
            figures.draw_against(axes, at, AgentSpec(algorithm).colour, "none", AgentSpec(algorithm).label)
        figures.draw_optimum(axes, optimum)
        axes.set(title=name, ylabel="discounted return")
    differences.axhline(0, color="grey", linewidth=1)
    differences.set(title="POAD minus NTPO (grey levels)", ylabel="difference of discounted returns")
    ticks = sorted({length for found in lengths.values() for own in found.values() for length in own})
    for axes in (differences, *panels):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("tokens per action (mean)")
    figures.legend_below(figure, (differences, *panels))
    return figure
