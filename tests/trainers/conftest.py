"""Fixtures: vector environments, and folders of tiny Hugging Face models with random weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import lang_envs
from lang_envs import LanguageEnv, TokenEnv, Transition
from lang_envs.assets import TOKENIZER_FILE

ENVIRONMENT = "Overcooked-tomato-salad-v0"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|prefix|>{{ message['role'] }}: {{ message['content'] }}<|suffix|>{% endfor %}"
    "{% if add_generation_prompt %}<|prefix|>assistant:{% endif %}"
)


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)


def _shape(vocab_size: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,  # far from uniform, so that a wrong mask changes the results
    }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a kind of model to the folder of a tiny one.

    The kinds are ``llama`` (begin token), ``qwen2`` (chat template, no begin token) and ``mamba`` (no attention).
    """
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_file=str(TOKENIZER_FILE),
                pad_token="<|pad|>",
                eos_token="<|end|>",
                **({"bos_token": "<|begin|>"} if kind != "qwen2" else {"chat_template": CHAT_TEMPLATE}),
            )
            tokenizer.save_pretrained(folder)
            torch.manual_seed(3)
            size = len(tokenizer) + 9  # padded, like the vocabulary of real models
            if kind == "llama":
                model = LlamaForCausalLM(LlamaConfig(**_shape(size)))
            elif kind == "qwen2":
                model = Qwen2ForCausalLM(Qwen2Config(**_shape(size)))
            else:
                model = MambaForCausalLM(
                    MambaConfig(vocab_size=size, hidden_size=32, num_hidden_layers=2, state_size=4)
                )
            model.save_pretrained(folder)
            made[kind] = folder
        return made[kind]

    return make


@pytest.fixture
def make_envs() -> Callable[..., gym.vector.VectorEnv]:
    """Return a function that makes a synchronous vector environment."""

    def make(num_envs: int = 2, environment: str = ENVIRONMENT, **options: Any) -> gym.vector.VectorEnv:
        kwargs = {"autoreset_mode": options.pop("autoreset_mode", AutoresetMode.SAME_STEP)}
        return gym.make_vec(environment, num_envs=num_envs, vectorization_mode="sync", vector_kwargs=kwargs, **options)

    return make


class Chain(LanguageEnv):
    """Three steps; "right" at each of them is worth 1 in the end, and takes two units of time."""

    action_names = ("right", "go wrong")
    discount = 0.9
    text_parts = (tuple(f"step {n}" for n in range(4)), (", all right", ", one wrong"))
    state_fields = ("count", "right")

    def __init__(self, truncated: bool = False) -> None:
        super().__init__(max_text_length=24)
        self.count, self.right, self.truncated = 0, True, truncated

    def start(self, options: dict[str, Any]) -> None:
        self.count, self.right = 0, True

    def advance(self, action: int | str | None) -> Transition:
        self.count += 1
        self.right &= action == 0
        over = self.count == 3
        reward = float(over and self.right)
        return Transition(reward, over and not self.truncated, over and self.truncated, {"primitive_steps": 2})

    def narrate(self) -> str:
        return f"step {self.count}" + (", all right" if self.right else ", one wrong")


@pytest.fixture
def make_chains() -> Callable[..., gym.vector.VectorEnv]:
    def make(num_envs: int, **options: Any) -> gym.vector.VectorEnv:
        return lang_envs.make_vec(lambda: TokenEnv(Chain(**options)), num_envs)

    return make
