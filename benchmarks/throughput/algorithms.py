"""Cost of each algorithm: ``python -m benchmarks.throughput.algorithms``.

Every agent is trained with the embedded model, and costs are given for 1,000 environment steps. Seconds are CPU time of
one thread. Tokens are those that pass through the language model, with padding; tokens with a gradient also need a
backward pass.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import torch

import lang_envs
import trainers
from benchmarks.agent_spec import AgentSpec
from benchmarks.presets import FOOD, run_defaults
from trainers.language_agent import LanguageAgent


class Cost(NamedTuple):
    """CPU seconds, tokens through the model, and those of them with a gradient."""

    seconds: float
    tokens: int
    tokens_with_gradient: int


def train(algorithm: str, env: str, steps: int) -> Cost:
    """Train an agent for ``steps`` environment steps."""
    size = run_defaults(env)
    envs = lang_envs.make_vec(env, size.num_envs)
    agent = trainers.make(algorithm, envs)
    tokens = {False: 0, True: 0}

    def count(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tokens[torch.is_grad_enabled()] += kwargs["input_ids"].numel()

    if isinstance(agent, LanguageAgent):
        decoder = agent.language_model.model.get_base_model().get_decoder()
        decoder.register_forward_pre_hook(count, with_kwargs=True)
    started = time.process_time()
    trainers.train(agent, envs, steps, rollout_steps=size.rollout_steps)
    seconds = time.process_time() - started
    envs.close()
    return Cost(seconds, sum(tokens.values()), tokens[True])


def main() -> None:
    """Print a row for each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=FOOD, help="environment with phrases (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1024, help="environment steps of each training (default: 1024)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| algorithm | s for 1,000 steps | tokens for 1,000 steps | of these with a gradient |\n|---|---|---|---|")
    for algorithm in trainers.AGENTS:
        cost = train(algorithm, options.env, options.steps)
        seconds, *tokens = (value * 1000 / options.steps for value in cost)
        print(
            f"| {AgentSpec(algorithm).label} | {seconds:.2f} | {' | '.join(f'{own:,.0f}' for own in tokens)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
