"""Evaluate the untrained embedded model and a random policy: ``python -m trainers.embedded_lm.evaluate``."""

from __future__ import annotations

import argparse
from contextlib import closing

import gymnasium as gym
import numpy as np
import torch

import trainers
from lang_envs import ENVIRONMENTS, make_vec
from trainers.rollout import begin, collect

AGENTS = ("poad", "random")
CODING = "DataSciCoding-balance-scale-v0"


def share_of_working_programs(agent: str, programs: int) -> tuple[float, float]:
    """Return the share of an untrained agent's programs that work, and their mean score (NaN if none works)."""
    with closing(make_vec(CODING, 20)) as envs:
        rollout = collect(trainers.make(agent, envs), envs, begin(envs, seed=0), -(-programs // 20), discount=1.0)
    outcomes = [outcome for row in rollout.outcomes for outcome in row]
    scores = [outcome["score"] for outcome in outcomes if outcome["works"]]
    return len(scores) / len(outcomes), float(np.mean(scores)) if scores else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=400, help="episodes of each agent in each environment")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| environment | untrained: success | return | random: success | return |")
    print("|---|---|---|---|---|")
    for name, environment in ENVIRONMENTS.items():
        if not environment.finite:
            continue
        env = gym.make(name)
        results = [
            trainers.evaluate(trainers.make(agent, env), name, options.episodes, num_envs=20) for agent in AGENTS
        ]
        cells = [f"{result.success_rate:.1%} | {result.mean_return:.3f}" for result in results]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\n| environment | untrained: programs that work | their score | random: programs that work | their score |")
    print("|---|---|---|---|---|")
    shares = [share_of_working_programs(agent, options.episodes) for agent in AGENTS]
    print(f"| {CODING} | {' | '.join(f'{share:.1%} | {score:.3f}' for share, score in shares)} |")


if __name__ == "__main__":
    main()
