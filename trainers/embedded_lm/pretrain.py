"""Make the embedded language model: ``python -m trainers.embedded_lm.pretrain``.

The model reads what uniformly random policies see and say in the environments, and nothing else: it learns the language and
none of the solutions. A random policy's distribution over what to say next is known, so every distinct observation is
read once with all its available phrases behind it, each weighted alike: the expected loss over the policy's choices
instead of a sample of them. Observations are drawn in proportion to the square root of how often they were met: what is
rare in random play, or in an environment of many situations, is not rare in learning.

Where text is free, the random policy is a grammar of programs (:mod:`lang_envs.datascicoding.programs`), half of them
broken, chosen without a look at any score. They are drawn anew for every step, a third of them behind a prompt that
shows another random program with the error it ended in, when it was run on random numbers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.progress import Progress
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lang_envs import ENVIRONMENTS, Tokenizer, load_tokenizer
from lang_envs.assets import TOKENIZER_FILE
from lang_envs.datascicoding import DATASETS
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import Attempt, attempt, function_of, prompt
from lang_envs.datascicoding.scoring import RUN
from lang_envs.sandbox import Limits, Sandbox
from trainers.prefix_tree import Query, build_tree, pack, split
from trainers.tree_attention import NAME as TREE_ATTENTION
from trainers.tree_attention import packed_inputs

FOLDER = Path(__file__).parent
_LONGEST_FAILURE = 480  # characters, so that few prompts are much longer than all others
_TOKENS_PER_FORWARD = 3072


def random_play(name: str, decisions: int, seed: int) -> tuple[Counter[tuple[str, tuple[str, ...]]], float]:
    """How often a uniformly random policy meets each observation (with its phrases), and its success rate."""
    env = gym.make(name, interface="text")
    rng = np.random.default_rng(seed)
    seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
    ends = []
    text, info = env.reset(seed=seed)
    for _ in range(decisions):
        phrases = info["available_actions"]
        seen[text, phrases] += 1
        text, _, terminated, truncated, info = env.step(phrases[rng.integers(len(phrases))])
        if terminated or truncated:
            ends.append(bool(info["success"]))
            text, info = env.reset()
    return seen, float(np.mean(ends))


def query(tokenizer: Tokenizer, text: str, phrases: tuple[str, ...]) -> Query:
    candidates = tuple(tokenizer.encode_action(phrase) for phrase in phrases)
    return Query(tokenizer.prompt(tokenizer.encode(text)), build_tree(candidates))


def random_failures(count: int, rng: np.random.Generator, progress: Progress) -> list[Attempt]:
    """Random programs that fail on random numbers, with their errors."""
    found: list[Attempt] = []
    task = progress.add_task("programs that fail", total=count)
    with Sandbox() as sandbox:
        while len(found) < count:
            (rows, features), classes = random_shape(rng)
            x = rng.normal(size=(2, rows, features))
            labels = np.concatenate([np.arange(classes), rng.integers(classes, size=rows - classes)])
            inputs = {"x_train": x[0], "y_train": labels, "x_test": x[1]}
            function = function_of(" " + random_program(rng))
            result = sandbox.run(function + "\n" + RUN, inputs, Limits(5.0, 5.0))
            failed = attempt(function, result.error)
            short = len(function) + len(result.error) < _LONGEST_FAILURE
            if result.status == "error" and short:
                found.append(failed)
                progress.update(task, advance=1)
    return found


def random_shape(rng: np.random.Generator) -> tuple[tuple[int, int], int]:
    """Rows and features of ``x_train`` and the number of classes, from the table of sets or out of the air."""
    entry = list(DATASETS.values())[rng.integers(len(DATASETS))]
    if rng.random() < 0.5 and entry.rows and entry.features and entry.classes:
        return (entry.rows // 2, entry.features), entry.classes
    rows = int(np.exp(rng.uniform(np.log(30), np.log(1000))))
    return (rows, int(rng.integers(2, 21))), int(rng.choice([2, 2, 2, 3, 4, 5, 6]))


def random_coding(tokenizer: Tokenizer, failures: list[Attempt], rng: np.random.Generator) -> Query:
    """A prompt of the DataSciCoding environment, and a random program behind it."""
    titles = [entry.title for entry in DATASETS.values()]
    shape, classes = random_shape(rng)
    last = failures[rng.integers(len(failures))] if rng.random() < 1 / 3 else None
    text = prompt("completion", titles[rng.integers(len(titles))], shape, classes, last)
    return query(tokenizer, text, (random_program(rng),))


def losses(model: Any, queries: list[Query], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nats of each observation and, the mean over its actions, of what is said behind it: float tensors (B,)."""
    if model.config._attn_implementation != TREE_ATTENTION:
        model.set_attn_implementation(TREE_ATTENTION)
    batch = pack(queries, pad_id)
    logits = model(**packed_inputs(batch, model.device, model.dtype), use_cache=False).logits[0]
    log_probs = logits.log_softmax(-1).cpu()

    prompts = (batch.prompts, batch.width)
    ids = torch.from_numpy(batch.input_ids)[: batch.prompts * batch.width].view(prompts)
    read = log_probs[: batch.prompts * batch.width].unflatten(0, prompts)[:, :-1]
    read = read.gather(-1, ids[:, 1:, None])[..., 0]
    lengths = torch.tensor([len(prompt) for prompt, _ in queries])
    rows = torch.from_numpy(batch.columns[batch.starts[:-1]]) // batch.width
    observation = -(read[rows] * (torch.arange(1, batch.width) < lengths[:, None])).sum(-1)

    columns = torch.from_numpy(batch.columns[batch.edge_nodes])
    edges = log_probs[columns, torch.from_numpy(batch.edge_tokens)]
    mask = torch.from_numpy(batch.mask)
    tokens = edges[torch.from_numpy(batch.paths)] * mask
    return observation, -tokens.sum((1, 2)) / mask.any(-1).sum(-1)


def sizes(queries: list[Query]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each observation, and the mean over its actions of theirs: arrays (B,)."""
    observation = np.array([len(prompt) - 1 for prompt, _ in queries])
    return observation, np.array([tree.mask.sum() / len(tree.mask) for _, tree in queries])


@dataclass(frozen=True)
class Reading:
    """How much is read, and how fast it is learnt."""

    decisions: int = 20_000
    """Random decisions in each environment."""
    steps: int = 1600
    """Optimiser steps."""
    batch: int = 64
    """Observations in a step."""
    programs: int = 32
    """Programs in a step."""
    failures: int = 3000
    """Failed programs to draw prompts from."""
    lr: float = 3e-3
    """The highest learning rate."""
    hidden: int = 128
    """Width of the model; heads are 32 wide."""
    layers: int = 4
    """Depth of the model."""
    seed: int = 0
    output: Path = FOLDER
    """Folder of the model, its tokenizer and a report, pretraining.json."""


def wrap(tokenizer_file: Path) -> PreTrainedTokenizerFast:
    """A ``tokenizer.json`` with the embedded tokenizer's special tokens as Hugging Face has it."""
    special = {"pad_token": "<|pad|>", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), **special)


def pretrain(reading: Reading, tokenizer_file: Path, environments: Sequence[str]) -> dict[str, Any]:
    """Make a model that has read random play of finite environments; returns its report.

    ``tokenizer_file`` is as :func:`wrap` takes it.
    """
    torch.manual_seed(reading.seed)
    rng = np.random.default_rng(reading.seed)
    wrapped = wrap(tokenizer_file)
    tokenizer = load_tokenizer(wrapped)
    queries, counts, floor, success = [], [], [], {}
    for index, name in enumerate(environments):
        seen, success[name] = random_play(name, reading.decisions, seed=reading.seed + index)
        for (text, phrases), times in seen.items():
            queries.append(query(tokenizer, text, phrases))
            counts.append(times)
            floor.append(math.log(len(phrases)))
    share = np.sqrt(counts) / np.sqrt(counts).sum()
    print(f"{len(queries)} distinct observations; entropy floor {share @ floor:.4f} nats per action")

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=reading.hidden,
            num_hidden_layers=reading.layers,
            num_attention_heads=reading.hidden // 32,
            intermediate_size=reading.hidden * 11 // 4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_id,
            bos_token_id=tokenizer.begin_id,
            eos_token_id=tokenizer.end_id,
            attn_implementation="sdpa",
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=reading.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, reading.lr, total_steps=reading.steps, pct_start=0.05)
    recent: list[tuple[float, float, float]] = []
    with Progress() as progress:
        failed = random_failures(reading.failures, rng, progress) if reading.programs else []
        task = progress.add_task("pre-training", total=reading.steps)
        for step in range(1, reading.steps + 1):
            drawn, repeats = np.unique(rng.choice(len(queries), reading.batch, p=share), return_counts=True)
            coding = [random_coding(tokenizer, failed, rng) for _ in range(reading.programs)]
            read = [*(queries[i] for i in drawn), *coding]
            weights = np.concatenate([repeats, np.ones(len(coding))])
            optimizer.zero_grad()
            total, tokens, nll = 0.0, float(weights @ sum(sizes(read))), np.zeros(len(read))
            for rows in split(read, _TOKENS_PER_FORWARD):
                observation, action = losses(model, [read[i] for i in rows], tokenizer.pad_id)
                loss = torch.from_numpy(weights[rows]).float() @ (observation + action)
                loss.backward()
                total, nll[rows] = total + loss.item(), action.detach().numpy()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= tokens
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            known = slice(len(drawn))
            action_nll = float(weights[known] @ nll[known] / repeats.sum())
            recent = [*recent[-49:], (total / tokens, action_nll, nll[len(drawn) :].mean() if coding else 0.0)]
            mean_loss, mean_action, mean_program = np.mean(recent, axis=0)
            standing = f"loss {mean_loss:.4f}, action {mean_action:.4f}, program {mean_program:.2f}"
            progress.update(task, advance=1, description=standing)
            if step % 100 == 0 and not progress.console.is_terminal:
                print(f"step {step} of {reading.steps}: {standing}", flush=True)

    report: dict[str, Any] = {
        "parameters": model.num_parameters(),
        "distinct_observations": len(queries),
        "loss_per_token": round(float(mean_loss), 4),
        "action_nll": round(float(mean_action), 4),
        "program_nll": round(float(mean_program), 2),
        "action_nll_floor": round(float(share @ floor), 4),
        "random_policy_success_rate": success,
        **{name: value for name, value in asdict(reading).items() if name != "output"},
    }
    model.save_pretrained(reading.output)
    (reading.output / "model.safetensors").chmod(0o644)
    wrapped.save_pretrained(reading.output)
    (reading.output / "pretraining.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def main() -> None:
    reading = tyro.cli(Reading, description=__doc__)
    finite = [name for name, environment in ENVIRONMENTS.items() if environment.finite]
    print(json.dumps(pretrain(reading, TOKENIZER_FILE, finite), indent=2))


if __name__ == "__main__":
    main()
