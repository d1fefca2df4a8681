"""Time of packed and naive scoring and updates: ``python -m benchmarks.throughput.scoring``.

Model, actions and likelihoods are the same (they are compared first). The naive way is that of the paper's code: every
candidate is a row with the whole prompt, logits are computed at every token, the critic's forward pass is repeated in
every epoch, and equal observations are computed again. Measured are acting ("rollout"), one epoch of updates, and for
small models the same epoch with PEFT's own adapter layers ("adapter"). The naive way computes values while acting. The
packed way does not: it computes the critic's features once, after the rollout, and no row contains that time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from peft.tuners import lora

import trainers
from trainers import Action, Rollout, losses
from trainers.adapters import AdaptedLinear
from trainers.agents.ppo import PPOAgent, PPOBatch
from trainers.language_agent import ActionRecord
from trainers.language_model import LanguageModel
from trainers.metrics import Metrics
from trainers.prefix_tree import Query, Tokens
from trainers.rollout import begin, collect

ENVIRONMENT = "Overcooked-tomato-lettuce-salad-v0"


def queries_of_random_play(agent: PPOAgent, envs: Any, steps: int, prompt: int, distinct: bool) -> list[list[Query]]:
    """Return T rows of N queries of a random policy, with prompts of one length; with ``distinct``, all different."""
    rollout = collect(trainers.make("random", envs), envs, begin(envs, seed=0), steps, discount=1.0)
    rows = []
    for t, infos in enumerate(rollout.infos):
        asked = agent.queries(rollout.observations[t], infos)
        rows.append([Query((ids * prompt)[-prompt:], tree) for ids, tree in asked])
    if distinct:
        rng = np.random.default_rng(0)
        rows = [[Query(tuple(rng.permutation(ids).tolist()), tree) for ids, tree in row] for row in rows]
    return rows


Row = tuple[Tokens, Tokens]
"""A prompt and an action."""


def naive_log_probs(language_model: LanguageModel, rows: Sequence[Row]) -> torch.Tensor:
    """Return token log-probabilities of rows, padded at the right: (rows, longest action)."""
    ids, mask, taken = _pad(language_model.device, rows)
    log_probs = language_model.model(input_ids=ids, attention_mask=mask).logits.float().log_softmax(-1)
    columns, tokens, real = taken
    chosen = log_probs[torch.arange(len(rows))[:, None], columns, tokens]
    return torch.where(real, chosen, 0.0)


@torch.no_grad()
def naive_features(language_model: LanguageModel, rows: Sequence[Row]) -> torch.Tensor:
    """Return features of the frozen base model at every token of each row's action: (rows, longest action, hidden)."""
    ids, mask, (columns, _, _) = _pad(language_model.device, rows)
    with language_model.model.disable_adapter():
        decoder = language_model.model.get_base_model().get_decoder()
        hidden = decoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return hidden[torch.arange(len(rows))[:, None], columns].float()


def _pad(device: torch.device, rows: Sequence[Row]) -> tuple[Any, Any, Any]:
    width = max(len(prompt) + len(action) for prompt, action in rows)
    longest = max(len(action) for _, action in rows)
    ids = torch.tensor([[*p, *a, *[0] * (width - len(p) - len(a))] for p, a in rows], device=device)
    mask = torch.tensor([[1] * (len(p) + len(a)) + [0] * (width - len(p) - len(a)) for p, a in rows], device=device)
    columns = torch.tensor([[min(len(p) - 1 + j, width - 1) for j in range(longest)] for p, _ in rows], device=device)
    tokens = torch.tensor([[*a, *[0] * (longest - len(a))] for _, a in rows], device=device)
    real = torch.tensor([[j < len(a) for j in range(longest)] for _, a in rows], device=device)
    return ids, mask, (columns, tokens, real)


def naive_rollout(agent: PPOAgent, asked: list[list[Query]]) -> list[torch.Tensor]:
    """Score all candidates, and the values of the first one, naively."""
    found = []
    with torch.no_grad():
        for row in asked:
            every = [(prompt, candidate) for prompt, tree in row for candidate in tree.candidates]
            found.append(naive_log_probs(agent.language_model, every))
            taken = [(prompt, tree.candidates[0]) for prompt, tree in row]
            agent.critic(naive_features(agent.language_model, taken))
    return found


def packed_rollout(agent: PPOAgent, asked: list[list[Query]]) -> list[Any]:
    """Score all candidates as the agent does when it acts."""
    agent.forget_outputs()
    return [agent.policy_outputs(row) for row in asked]


def naive_epoch(agent: PPOAgent, batch: PPOBatch) -> torch.Tensor:
    """Do one epoch over the batch naively; return the last minibatch's loss."""
    settings = agent.settings
    whole_actions = agent.level == "action"
    for rows in np.array_split(np.arange(len(batch.records)), settings.minibatches):
        records = [batch.records[row] for row in rows]
        taken = [(record.query.prompt, record.tokens) for record in records]
        if whole_actions:
            every = [(record.query.prompt, c) for record in records for c in record.query.tree.candidates]
            lengths = torch.tensor([float(len(c) - 1) for _, c in every], device=agent.language_model.device)
            scores = (
                (naive_log_probs(agent.language_model, every).sum(-1) / lengths).view(len(rows), -1).log_softmax(-1)
            )
            log_probs = scores[torch.arange(len(rows)), [record.choice for record in records]][:, None]
        else:
            log_probs = naive_log_probs(agent.language_model, taken)
        mask, width = batch.mask[rows], batch.mask.shape[1]
        log_probs = torch.nn.functional.pad(log_probs, (0, width - log_probs.shape[1]))
        loss = (
            losses.clipped_policy_loss(
                log_probs, batch.old_log_probs[rows], batch.advantages[rows], mask, settings.clip
            )
            / mask.sum()
        )
        agent.actor_optimizer.zero_grad()
        loss.backward()
        agent.actor_optimizer.step()
        features = naive_features(agent.language_model, taken)
        values = torch.nn.functional.pad(agent.critic(features)[..., 0], (0, width))[:, :width]
        value_loss = losses.clipped_value_loss(values, batch.old_values[rows], batch.returns[rows], mask, settings.clip)
        agent.critic_optimizer.zero_grad()
        (value_loss / mask.sum()).backward()
        agent.critic_optimizer.step()
    return loss.detach()


def packed_epoch(agent: PPOAgent, batch: PPOBatch) -> float:
    """Do one epoch over the batch as the agent does."""
    metrics = Metrics()
    for rows in np.array_split(np.arange(len(batch.records)), agent.settings.minibatches):
        agent.critic_step(batch, rows, metrics)
        agent.actor_step(batch, rows, metrics, first=False)
    return metrics.means()["policy_loss"]


def epoch_with_pefts_layers(agent: PPOAgent, batch: PPOBatch) -> float:
    """Do one epoch as the agent does, with PEFT's adapter layers."""
    with mock.patch.object(AdaptedLinear, "forward", lora.Linear.forward):
        return packed_epoch(agent, batch)


def batch_of(agent: PPOAgent, asked: list[list[Query]]) -> PPOBatch:
    """Return a batch of actions with random choices and rewards, and no ends of episodes."""
    rng = np.random.default_rng(1)
    actions = [
        [
            Action("", (), ActionRecord(q, int(rng.integers(len(q.tree.candidates))), a))
            for q, a in zip(row, seen, strict=True)
        ]
        for row, seen in zip(asked, packed_rollout(agent, asked), strict=True)
    ]
    shape = (len(asked), len(asked[0]))
    never = np.zeros(shape, dtype=bool)
    ends = never.copy()
    ends[-1] = True
    rollout = Rollout(
        np.zeros((*shape, 1)), [[{}] * shape[1]] * shape[0], actions, rng.normal(size=shape), np.ones(shape),
        ends, never, ~never, np.ones((shape[1], 1), dtype=np.int64), [{}] * shape[1],
    )  # fmt: skip
    return agent.assign_credit(rollout)


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the median time of several repetitions after one for warming up."""
    work()
    taken = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, or a Hugging Face name or folder")
    parser.add_argument("--prompt", type=int, default=50, help="tokens of every prompt")
    parser.add_argument("--steps", type=int, default=64, help="steps of the rollout in each of 4 environments")
    parser.add_argument("--minibatches", type=int, default=1, help="optimiser steps of an epoch")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = {} if options.model == "embedded" else {"tokenizer": options.model}
    envs = gym.make_vec(ENVIRONMENT, num_envs=4, vectorization_mode="sync", **tokenizer)
    print(f"{options.model}, {options.steps} steps in 4 environments, 8 candidates, prompts of {options.prompt} tokens")
    print("rollout: naive with the critic's values, packed without its features (computed once, after the rollout)")
    print(f"{'agent':8} {'observations':22} {'what':8} {'naive s':>9} {'packed s':>9} {'ratio':>7}")
    for name in ("poad", "twosome"):
        # A tiny learning rate: the weights are the same in all repetitions.
        agent = trainers.make(
            name,
            envs,
            model=options.model,
            sampling="candidates",
            actor_lr=1e-12,
            entropy_coefficient=0.0,
            entropy_level="token",
            kl_threshold=1e9,
            epochs=1,
            minibatches=options.minibatches,
        )
        for distinct in (False, True):
            asked = queries_of_random_play(agent, envs, options.steps, options.prompt, distinct)
            batch = batch_of(agent, asked)
            different = len({query for row in asked for query in row})
            _compare_numbers(agent, asked)
            label = f"{different} of {options.steps * 4} distinct"
            for what, naive, packed in (
                ("rollout", partial(naive_rollout, agent, asked), partial(packed_rollout, agent, asked)),
                ("update", partial(naive_epoch, agent, batch), partial(packed_epoch, agent, batch)),
                ("adapter", partial(epoch_with_pefts_layers, agent, batch), partial(packed_epoch, agent, batch)),
            ):
                slow, fast = seconds(naive, options.repeats), seconds(packed, options.repeats)
                print(f"{name:8} {label:22} {what:8} {slow:9.3f} {fast:9.3f} {slow / fast:6.1f}x")


def _compare_numbers(agent: PPOAgent, asked: list[list[Query]]) -> None:
    """Check that both ways compute the same likelihoods."""
    tolerance = 1e-4 if agent.language_model.model.dtype == torch.float32 else 0.2
    for naive, packed in zip(naive_rollout(agent, asked[:2]), packed_rollout(agent, asked[:2]), strict=True):
        ours = np.concatenate([output.token_log_probs for output in packed])
        gap = np.abs(naive.double().cpu().numpy() - ours).max()
        if not gap < tolerance:
            raise AssertionError(f"packed and naive log-probabilities differ by {gap}")


if __name__ == "__main__":
    main()
