"""Time saved by keeping features of the frozen base model: ``python -m benchmarks.throughput.features``.

The same training runs twice: with features kept for the whole run, and with features computed for each rollout. Times
are CPU times.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import torch

import lang_envs
import trainers
from benchmarks.presets import run_defaults

ENVS = ("Overcooked-tomato-salad-v0", "Overcooked-tomato-lettuce-salad-v0", "VirtualHome-food-preparation-v0")


class Cost(NamedTuple):
    """Cost of one training: forward passes and tokens for features, and seconds in all."""

    forwards: int
    tokens: int
    seconds: float


def train(env: str, steps: int, kept: int) -> Cost:
    """Train POAD with the embedded model and at most ``kept`` MiB of features."""
    suited = run_defaults(env)
    envs = lang_envs.make_vec(env, suited.num_envs)
    agent = trainers.make("poad", envs, device="cpu", feature_cache_mib=kept, **suited.settings)
    model = agent.language_model
    forwards = tokens = 0
    features = model.features

    def counted(queries: Any) -> Any:
        nonlocal forwards, tokens
        batches = [batch for _, batch in model.groups(queries)]
        forwards += len(batches)
        tokens += sum(len(batch.input_ids) for batch in batches)
        return features(queries)

    model.features = counted
    started = time.process_time()
    trainers.train(agent, envs, steps, rollout_steps=suited.rollout_steps)
    envs.close()
    return Cost(forwards, tokens, time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="*", default=ENVS)
    parser.add_argument("--steps", type=int, default=4096)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| environment | features | forwards | tokens | training, s |\n|---|---|---|---|---|")
    for env in options.envs:
        for label, kept in (("each rollout", 0), ("kept", 256)):
            cost = train(env, options.steps, kept)
            print(f"| {env} | {label} | {cost.forwards} | {cost.tokens:,} | {cost.seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
