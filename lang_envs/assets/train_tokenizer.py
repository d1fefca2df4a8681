"""Train the embedded tokenizer on text that the environments produce: ``python -m lang_envs.assets.train_tokenizer``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lang_envs import ENVIRONMENTS, LanguageEnv
from lang_envs.datascicoding import DATASETS
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import prompt

SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|prefix|>", "<|suffix|>", "<|middle|>"]
"""Padding, begin, end, and the three markers of infilling, in id order."""


WEIGHT = 10
"""How often an environment's text counts: programs are many, and none of the environments' phrases should fall apart for them."""


def env_text() -> Iterator[str]:
    """Every sentence, every phrase and the manual of every environment of phrases; prompts and random programs."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        yield " " + random_program(rng)
    for entry in DATASETS.values():
        yield prompt("completion", entry.title, (1000, 10), 2, None)
    for name, row in ENVIRONMENTS.items():
        if not row.finite:
            continue
        environment = gym.make(name, interface="text").unwrapped
        assert isinstance(environment, LanguageEnv)
        for _ in range(WEIGHT):
            for part in environment.text_parts or ():
                yield from part
            for phrase in environment.action_names:
                yield " " + phrase
            yield inspect.getdoc(type(environment)) or ""


def train(vocabulary_size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer: every byte is a token, so that any string can be encoded and comes back unchanged."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(env_text(), trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary-size", type=int, default=1536, help="at most this many entries")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("tokenizer.json"))
    arguments = parser.parse_args()
    tokenizer = train(arguments.vocabulary_size)
    tokenizer.save(str(arguments.output))
    print(f"{tokenizer.get_vocab_size()} entries written to {arguments.output}")


if __name__ == "__main__":
    main()
