"""How many macro-actions a second Overcooked plays, layer by layer: ``python -m benchmarks.throughput.overcooked``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import lang_envs  # noqa: F401  (registers the ids)
from lang_envs.overcooked.env import MAX_PRIMITIVE_STEPS
from lang_envs.overcooked.macro_actions import Cook, macro_actions

SOURCE_RATE = 12_000  # of the environment that this one replays, on one core; a reference, not measured in this run
ENVS = 8


def play_rules(perform: Callable[..., Any], start: Any, actions: list[Any]) -> int:
    state, elapsed = start, 0
    for macro in actions:
        state, _, delivered, primitive_steps = perform(state, macro)
        elapsed += primitive_steps
        if delivered or elapsed >= MAX_PRIMITIVE_STEPS:
            state, elapsed = start, 0
    return len(actions)


def play_env(env: gym.Env, actions: list[Any]) -> int:
    env.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return len(actions)


def play_vector(envs: gym.vector.VectorEnv, actions: list[Any]) -> int:
    envs.reset(seed=0)
    resets = 0
    for rows in np.stack(actions).reshape(-1, ENVS, actions[0].size):
        _, _, terminated, truncated, _ = envs.step(rows)
        resets += int((terminated | truncated).sum())  # the next step of such a row is a reset and no macro-action
    return len(actions) - resets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--id", default="Overcooked-tomato-lettuce-salad-v0", help="the world")
    parser.add_argument("--steps", type=int, default=20_000, help="macro-actions of one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, of which the best counts")
    options = parser.parse_args()
    text, tokens = gym.make(options.id, interface="text"), gym.make(options.id)
    vector = gym.make_vec(options.id, num_envs=ENVS, vectorization_mode="sync")
    world, space = text.get_wrapper_attr("unwrapped"), tokens.get_wrapper_attr("action_space")
    cook, start, macros = Cook(world.kitchen), world.kitchen.initial_state(), macro_actions(world.kitchen)
    drawn = np.random.default_rng(0).integers(len(macros), size=options.steps // ENVS * ENVS)
    phrases = [world.action_names[k] for k in drawn]
    arrays, drawn_macros = [space.encode(phrase) for phrase in phrases], [macros[k] for k in drawn]
    layers: dict[str, Callable[[], int]] = {
        "rules, every outcome computed": lambda: play_rules(cook._run, start, drawn_macros),
        "rules, outcomes remembered": lambda: play_rules(cook.perform, start, drawn_macros),
        "text (interface='text')": lambda: play_env(text, phrases),
        "tokens (gym.make)": lambda: play_env(tokens, arrays),
        f"tokens, {ENVS} in gym.make_vec (sync)": lambda: play_vector(vector, arrays),
    }
    print(f"{options.id}: {len(drawn):,} random macro-actions in one process, best of {options.repeats}\n")
    print(f"{'layer':34}{'macro-actions/s':>16}{f'times the source ({SOURCE_RATE:,}/s)':>32}")
    for name, play in layers.items():
        rates = []
        for _ in range(options.repeats):
            began = time.perf_counter()
            rates.append(play() / (time.perf_counter() - began))
        print(f"{name:34}{max(rates):>16,.0f}{max(rates) / SOURCE_RATE:>31.1f}x")


if __name__ == "__main__":
    main()
