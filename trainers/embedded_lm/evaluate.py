"""How the untrained embedded model plays, beside a random policy: ``python -m trainers.embedded_lm.evaluate``."""

from __future__ import annotations

import argparse

import gymnasium as gym
import torch

import trainers
from lang_envs import WORLDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| world | untrained: success | return | random: success | return |")
    print("|---|---|---|---|---|")
    for name in WORLDS:
        env = gym.make(name)
        played = [
            trainers.evaluate(trainers.make(agent, env), name, options.episodes, num_envs=20)
            for agent in ("poad", "random")
        ]
        cells = [f"{found.success_rate:.1%} | {found.mean_return:.3f}" for found in played]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
