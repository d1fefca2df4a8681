"""Measure actions per second of the environments, layer by layer: ``python -m benchmarks.throughput.environments``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import lang_envs  # noqa: F401  (registers the ids)
from lang_envs.overcooked.env import MAX_PRIMITIVE_STEPS, OvercookedEnv
from lang_envs.overcooked.macro_actions import Cook, macro_actions
from lang_envs.virtualhome.env import MAX_STEPS, CachedTask, VirtualHomeEnv

SOURCE_RATES = {"Overcooked-tomato-lettuce-salad-v0": 12_000, "VirtualHome-entertainment-v0": 340}
"""Actions per second of the original environments on one core; a reference, not measured here."""
ENVS = 8


def rules_of(environment: Any) -> dict[str, Callable[[np.ndarray], None]]:
    """Return the rules alone, with and without a cache of results."""
    if isinstance(environment, OvercookedEnv):
        cook = Cook(environment.kitchen)
        return {
            "rules without cache": lambda drawn: cook_on(
                environment, lambda state, macro: Cook(environment.kitchen).perform(state, macro), drawn
            ),
            "rules with cache": lambda drawn: cook_on(environment, cook.perform, drawn),
        }
    assert isinstance(environment, VirtualHomeEnv)
    cached = CachedTask(environment.task)
    return {
        "rules without cache": lambda drawn: keep_house(environment, None, drawn),
        "rules with cache": lambda drawn: keep_house(environment, cached, drawn),
    }


def cook_on(environment: OvercookedEnv, perform: Callable[..., Any], drawn: np.ndarray) -> None:
    start, macros = environment.kitchen.initial_state(), macro_actions(environment.kitchen)
    state, elapsed = start, 0
    for number in drawn.tolist():
        state, _, delivered, primitive_steps = perform(state, macros[number % len(macros)])
        elapsed += primitive_steps
        if delivered or elapsed >= MAX_PRIMITIVE_STEPS:
            state, elapsed = start, 0


def keep_house(environment: VirtualHomeEnv, shared: CachedTask | None, drawn: np.ndarray) -> None:
    """Compute results and available actions."""
    start = state = environment.task.household.initial_state()
    elapsed = 0
    for number in drawn.tolist():
        cached = shared or CachedTask(environment.task)
        available = cached.view(state).available
        state, done = cached.perform(state, available[number % len(available)])
        elapsed += 1
        if done or elapsed == MAX_STEPS:
            state, elapsed = start, 0


def play(env: gym.Env, say: dict[str, Any], drawn: np.ndarray) -> None:
    _, info = env.reset(seed=0)
    for number in drawn.tolist():
        phrases = info["available_actions"]
        _, _, terminated, truncated, info = env.step(say[phrases[number % len(phrases)]])
        if terminated or truncated:
            _, info = env.reset()


def play_vector(envs: gym.vector.VectorEnv, say: dict[str, Any], drawn: np.ndarray) -> None:
    _, info = envs.reset(seed=0)
    for row in drawn.reshape(-1, ENVS).tolist():
        available = info["available_actions"]
        actions = [say[phrases[number % len(phrases)]] for phrases, number in zip(available, row, strict=True)]
        info = envs.step(np.stack(actions))[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--ids", nargs="+", default=list(SOURCE_RATES), choices=list(SOURCE_RATES), help="the environments"
    )
    parser.add_argument("--steps", type=int, default=20_000, help="actions of one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, of which the best counts")
    options = parser.parse_args()
    drawn = np.random.default_rng(0).integers(2**31, size=options.steps // ENVS * ENVS)
    same_step = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    for name in options.ids:
        text, tokens = gym.make(name, interface="text"), gym.make(name)
        vector = gym.make_vec(name, num_envs=ENVS, vectorization_mode="sync", vector_kwargs=same_step)
        environment, space = text.get_wrapper_attr("unwrapped"), tokens.get_wrapper_attr("action_space")
        spoken = {phrase: phrase for phrase in environment.action_names}
        encoded = {phrase: space.encode(phrase) for phrase in environment.action_names}
        layers: dict[str, Callable[[np.ndarray], None]] = {
            **rules_of(environment),
            "text (interface='text')": partial(play, text, spoken),
            "tokens (gym.make)": partial(play, tokens, encoded),
            f"tokens, {ENVS} in gym.make_vec (sync)": partial(play_vector, vector, encoded),
        }
        source = SOURCE_RATES[name]
        print(f"{name}: {len(drawn):,} random actions in one process, best of {options.repeats}\n")
        print(f"{'layer':34}{'actions/s':>12}{f'times the source ({source:,}/s)':>32}")
        for layer, measured in layers.items():
            rates = []
            for _ in range(options.repeats):
                began = time.perf_counter()
                measured(drawn)
                rates.append(len(drawn) / (time.perf_counter() - began))
            print(f"{layer:34}{max(rates):>12,.0f}{max(rates) / source:>31.1f}x")
        print()


if __name__ == "__main__":
    main()
