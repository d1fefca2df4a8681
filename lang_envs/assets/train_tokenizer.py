"""Train the embedded tokenizer on text of the environments: ``python -m lang_envs.assets.train_tokenizer``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lang_envs import ENVIRONMENTS, LanguageEnv
from lang_envs.assets import TOKENIZER_FILE
from lang_envs.datascicoding import DATASETS
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import prompt

SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|prefix|>", "<|suffix|>", "<|middle|>"]
"""Padding, begin, end, and the three infill markers, in the order of their ids."""
MANUALS_FILE = Path(__file__).with_name("tokenizer_manuals.json")
"""Manuals of the environments as of the day the tokenizer was trained: it must not change when they are reworded."""
PROGRAMS = 300
"""Number of random programs."""
WEIGHT = 10
"""How often the text of an environment with phrases counts, so that the many programs do not dominate the merges."""
VOCABULARY_SIZE = 1536


def training_text() -> Iterator[str]:
    """Yield random programs, prompts, and the sentences, phrases and manuals of environments with phrases."""
    rng = np.random.default_rng(0)
    for _ in range(PROGRAMS):
        yield " " + random_program(rng)
    for entry in DATASETS.values():
        yield prompt("completion", entry.title, (1000, 10), 2, None)
    manuals = json.loads(MANUALS_FILE.read_text(encoding="utf-8"))
    for name, registered in ENVIRONMENTS.items():
        if not registered.finite:
            continue
        env = gym.make(name, interface="text").unwrapped
        assert isinstance(env, LanguageEnv)
        for _ in range(WEIGHT):
            for part in env.text_parts or ():
                yield from part
            for phrase in env.action_names:
                yield " " + phrase
            yield manuals[type(env).__name__]


def train(vocabulary_size: int = VOCABULARY_SIZE) -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer: every byte is a token, so any text can be encoded and decoded unchanged."""
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
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def main() -> None:
    """Train the tokenizer and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--vocabulary-size", type=int, default=VOCABULARY_SIZE, help="greatest number of tokens")
    parser.add_argument("--output", type=Path, default=TOKENIZER_FILE, help="the file to write")
    arguments = parser.parse_args()
    tokenizer = train(arguments.vocabulary_size)
    tokenizer.save(str(arguments.output))
    print(f"wrote {tokenizer.get_vocab_size()} tokens to {arguments.output}")


if __name__ == "__main__":
    main()
