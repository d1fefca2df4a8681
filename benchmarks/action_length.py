"""Tokenizers with short and long actions in tokens, each with a base model of its own.

The effect of a discount inside an action grows with the number of its tokens (arXiv 2405.15821, section 4.2). Agents
are trained in the same environment with whole phrases as single tokens, with subwords of the embedded tokenizer, and
with single characters. The base models have one shape, smaller than the embedded model (characters make prompts long),
and are pre-trained on the same text in their own tokens.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium as gym
import tokenizers
from tokenizers import AddedToken, models

from benchmarks.runs import refuse_another
from lang_envs.assets import TOKENIZER_FILE
from lang_envs.assets.train_tokenizer import SPECIAL_TOKENS
from lang_envs.files import read_object
from trainers.embedded_lm.pretrain import PretrainingSettings, pretrain

GRANULARITIES = ("phrases", "subwords", "characters")
READING = PretrainingSettings(steps=600, programs=0, hidden=64, layers=2)
QUICK = replace(READING, steps=10, env_steps=500)


def tokenizer_of(granularity: str, env_id: str) -> tokenizers.Tokenizer:
    """Return a tokenizer whose tokens are whole phrases of an environment, subwords, or single bytes."""
    backend = tokenizers.Tokenizer.from_file(str(TOKENIZER_FILE))
    if granularity == "phrases":
        phrases = gym.make(env_id, interface="text").unwrapped.get_wrapper_attr("action_names")
        backend.add_tokens([AddedToken(" " + phrase, normalized=False) for phrase in phrases])
    elif granularity == "characters":
        alphabet = [*SPECIAL_TOKENS, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
        backend.model = models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[])
    elif granularity != "subwords":
        raise ValueError(f"granularity={granularity!r} is not one of {', '.join(GRANULARITIES)}")
    return backend


def base_model(granularity: str, env_id: str, folder: Path, reading: PretrainingSettings) -> None:
    """Pre-train a base model with such tokens into a folder, which takes minutes; do nothing if the folder exists.

    Raises
    ------
    ValueError
        If the existing model was pre-trained in another way; names what differs.
    """
    if folder.exists():
        made = read_object(folder / "pretraining.json")
        asked = {name: value for name, value in asdict(reading).items() if name != "output"}
        refuse_another(folder, {name: made.get(name) for name in asked}, asked)
        return
    print(f"pre-training a base model with {granularity} as tokens in {folder}", flush=True)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tokenizer_of(granularity, env_id).save(str(unfinished / "tokenizer.json"))
    pretrain(replace(reading, output=unfinished), unfinished / "tokenizer.json", [env_id])
    unfinished.rename(folder)
