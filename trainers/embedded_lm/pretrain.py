"""Pre-train the embedded language model: ``python -m trainers.embedded_lm.pretrain``.

The training data are the observations and actions of uniformly random policies, and nothing else. So the model learns
the language of the environments, but no solutions. A training example is a distinct observation with all its available
phrases, equally weighted, which gives the expected loss over the random policy's actions. Examples are drawn in
proportion to the square root of their frequency, so that rare observations, and environments with many states, are not
neglected.

For free text, the random policy is a grammar of programs (:mod:`lang_envs.datascicoding.programs`). It uses no scores,
and half of its programs are broken on purpose. New programs are drawn for each optimiser step. The prompts of a third
of them show another random program and the error with which it failed on random numbers.
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
_LONGEST_FAILURE = 480  # characters of program and error, so that few prompts are much longer than the others
_TOKENS_PER_FORWARD = 3072


def random_play(name: str, env_steps: int, seed: int) -> tuple[Counter[tuple[str, tuple[str, ...]]], float]:
    """Run a uniformly random policy; return the count of each (observation, phrases), and the success rate."""
    env = gym.make(name, interface="text")
    rng = np.random.default_rng(seed)
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    successes = []
    text, info = env.reset(seed=seed)
    for _ in range(env_steps):
        phrases = info["available_actions"]
        counts[text, phrases] += 1
        text, _, terminated, truncated, info = env.step(phrases[rng.integers(len(phrases))])
        if terminated or truncated:
            successes.append(bool(info["success"]))
            text, info = env.reset()
    return counts, float(np.mean(successes))


def query(tokenizer: Tokenizer, text: str, phrases: tuple[str, ...]) -> Query:
    """Return the query for an observation and phrases, both as text."""
    candidates = tuple(tokenizer.encode_action(phrase) for phrase in phrases)
    return Query(tokenizer.prompt(tokenizer.encode(text)), build_tree(candidates))


def random_failures(count: int, rng: np.random.Generator, progress: Progress) -> list[Attempt]:
    """Return random programs that fail on random numbers, with their errors."""
    failures: list[Attempt] = []
    task = progress.add_task("failing programs", total=count)
    with Sandbox() as sandbox:
        while len(failures) < count:
            (rows, features), classes = random_shape(rng)
            x = rng.normal(size=(2, rows, features))
            labels = np.concatenate([np.arange(classes), rng.integers(classes, size=rows - classes)])
            inputs = {"x_train": x[0], "y_train": labels, "x_test": x[1]}
            function = function_of(" " + random_program(rng))
            result = sandbox.run(function + "\n" + RUN, inputs, Limits(5.0, 5.0))
            failed = attempt(function, result.error)
            short = len(function) + len(result.error) < _LONGEST_FAILURE
            if result.status == "error" and short:
                failures.append(failed)
                progress.update(task, advance=1)
    return failures


def random_shape(rng: np.random.Generator) -> tuple[tuple[int, int], int]:
    """Return a random shape of ``x_train`` and number of classes: those of a known data set, or arbitrary ones."""
    entry = list(DATASETS.values())[rng.integers(len(DATASETS))]
    if rng.random() < 0.5 and entry.rows and entry.features and entry.classes:
        return (entry.rows // 2, entry.features), entry.classes
    rows = int(np.exp(rng.uniform(np.log(30), np.log(1000))))
    return (rows, int(rng.integers(2, 21))), int(rng.choice([2, 2, 2, 3, 4, 5, 6]))


def random_coding(tokenizer: Tokenizer, failures: list[Attempt], rng: np.random.Generator) -> Query:
    """Return a prompt of the DataSciCoding environment with a random program as its only candidate."""
    titles = [entry.title for entry in DATASETS.values()]
    shape, classes = random_shape(rng)
    last = failures[rng.integers(len(failures))] if rng.random() < 1 / 3 else None
    text = prompt("completion", titles[rng.integers(len(titles))], shape, classes, last)
    return query(tokenizer, text, (random_program(rng),))


def losses(model: Any, queries: list[Query], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the negative log-likelihood of each observation, and its mean over the candidates.

    Returns
    -------
    observation, action : float tensors (B,)
        In nats: sums over the tokens of an observation, and over the tokens of a candidate.
    """
    if model.config._attn_implementation != TREE_ATTENTION:
        model.set_attn_implementation(TREE_ATTENTION)
    batch = pack(queries, pad_id)
    logits = model(**packed_inputs(batch, model.device, model.dtype), use_cache=False).logits[0]
    log_probs = logits.log_softmax(-1).cpu()

    prompts = (batch.prompts, batch.width)
    ids = torch.from_numpy(batch.input_ids)[: batch.prompts * batch.width].view(prompts)
    prompt_log_probs = log_probs[: batch.prompts * batch.width].unflatten(0, prompts)[:, :-1]
    prompt_log_probs = prompt_log_probs.gather(-1, ids[:, 1:, None])[..., 0]
    lengths = torch.tensor([len(prompt) for prompt, _ in queries])
    rows = torch.from_numpy(batch.columns[batch.starts[:-1]]) // batch.width
    observation = -(prompt_log_probs[rows] * (torch.arange(1, batch.width) < lengths[:, None])).sum(-1)

    columns = torch.from_numpy(batch.columns[batch.edge_nodes])
    edges = log_probs[columns, torch.from_numpy(batch.edge_tokens)]
    mask = torch.from_numpy(batch.mask)
    tokens = edges[torch.from_numpy(batch.paths)] * mask
    return observation, -tokens.sum((1, 2)) / mask.any(-1).sum(-1)


def sizes(queries: list[Query]) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of predicted tokens of each observation, and its mean over the candidates: arrays (B,)."""
    observation = np.array([len(prompt) - 1 for prompt, _ in queries])
    return observation, np.array([tree.mask.sum() / len(tree.mask) for _, tree in queries])


@dataclass(frozen=True)
class PretrainingSettings:
    """Data, optimiser and size of the model."""

    env_steps: int = 20_000
    """Environment steps of the random policy in each environment."""
    steps: int = 1600
    """Optimiser steps."""
    batch: int = 64
    """Observations in each optimiser step."""
    programs: int = 32
    """Programs in each optimiser step."""
    failures: int = 3000
    """Failed programs that prompts may show."""
    lr: float = 3e-3
    """Highest learning rate of the schedule."""
    hidden: int = 128
    """Width of the model, a multiple of the width of a head, 32."""
    layers: int = 4
    """Number of layers."""
    seed: int = 0
    """Seed of all random numbers."""
    output: Path = FOLDER
    """Folder for the model, its tokenizer and the report pretraining.json."""


def wrap(tokenizer_file: Path) -> PreTrainedTokenizerFast:
    """Return a ``tokenizer.json`` with the embedded tokenizer's special tokens as a Hugging Face tokenizer."""
    special = {"pad_token": "<|pad|>", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), **special)


def pretrain(settings: PretrainingSettings, tokenizer_file: Path, environments: Sequence[str]) -> dict[str, Any]:
    """Pre-train a model on random policies in finite environments, write it, and return its report.

    Parameters
    ----------
    settings : PretrainingSettings
        Data, optimiser, size and output folder.
    tokenizer_file : Path
        A ``tokenizer.json`` with the special tokens ``<|pad|>``, ``<|begin|>`` and ``<|end|>``.
    environments : sequence of str
        Identifiers of environments with phrases.

    Returns
    -------
    dict
        Contents of ``pretraining.json``: number of parameters, losses in nats, success rates of the random policy, and
        the settings.
    """
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    wrapped = wrap(tokenizer_file)
    tokenizer = load_tokenizer(wrapped)
    queries, counts, floor, success = [], [], [], {}
    for index, name in enumerate(environments):
        examples, success[name] = random_play(name, settings.env_steps, seed=settings.seed + index)
        for (text, phrases), count in examples.items():
            queries.append(query(tokenizer, text, phrases))
            counts.append(count)
            floor.append(math.log(len(phrases)))
    share = np.sqrt(counts) / np.sqrt(counts).sum()
    print(f"{len(queries)} distinct observations; entropy of the random policy {share @ floor:.4f} nats per action")

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.hidden // 32,
            intermediate_size=settings.hidden * 11 // 4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_id,
            bos_token_id=tokenizer.begin_id,
            eos_token_id=tokenizer.end_id,
            attn_implementation="sdpa",
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=settings.steps, pct_start=0.05)
    recent: list[tuple[float, float, float]] = []
    with Progress() as progress:
        failed = random_failures(settings.failures, rng, progress) if settings.programs else []
        task = progress.add_task("pre-training", total=settings.steps)
        for step in range(1, settings.steps + 1):
            drawn, repeats = np.unique(rng.choice(len(queries), settings.batch, p=share), return_counts=True)
            coding = [random_coding(tokenizer, failed, rng) for _ in range(settings.programs)]
            batch = [*(queries[i] for i in drawn), *coding]
            weights = np.concatenate([repeats, np.ones(len(coding))])
            optimizer.zero_grad()
            total, tokens, nll = 0.0, float(weights @ sum(sizes(batch))), np.zeros(len(batch))
            for rows in split(batch, _TOKENS_PER_FORWARD):
                observation, action = losses(model, [batch[i] for i in rows], tokenizer.pad_id)
                loss = torch.from_numpy(weights[rows]).float() @ (observation + action)
                loss.backward()
                total, nll[rows] = total + loss.item(), action.detach().numpy()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= tokens
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            action_nll = float(repeats @ nll[: len(drawn)] / repeats.sum())
            recent = [*recent[-49:], (total / tokens, action_nll, nll[len(drawn) :].mean() if coding else 0.0)]
            mean_loss, mean_action, mean_program = np.mean(recent, axis=0)
            status = f"loss {mean_loss:.4f}, action {mean_action:.4f}, program {mean_program:.2f}"
            progress.update(task, advance=1, description=status)
            if step % 100 == 0 and not progress.console.is_terminal:
                print(f"step {step} of {settings.steps}: {status}", flush=True)

    report: dict[str, Any] = {
        "parameters": model.num_parameters(),
        "distinct_observations": len(queries),
        "loss_per_token": round(float(mean_loss), 4),
        "action_nll": round(float(mean_action), 4),
        "program_nll": round(float(mean_program), 2),
        "action_nll_floor": round(float(share @ floor), 4),
        "random_policy_success_rate": success,
        **{name: value for name, value in asdict(settings).items() if name != "output"},
    }
    model.save_pretrained(settings.output)
    (settings.output / "model.safetensors").chmod(0o644)
    wrapped.save_pretrained(settings.output)
    (settings.output / "pretraining.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def main() -> None:
    settings = tyro.cli(PretrainingSettings, description=__doc__)
    finite = [name for name, environment in ENVIRONMENTS.items() if environment.finite]
    print(json.dumps(pretrain(settings, TOKENIZER_FILE, finite), indent=2))


if __name__ == "__main__":
    main()
