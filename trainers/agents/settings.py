"""Every hyper-parameter of the agents, with one line of meaning.

The defaults are the paper's for Overcooked (arXiv 2405.15821, appendix) but for λ_w, which is 1; what suits the
embedded model is :data:`EMBEDDED_SETTINGS`.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

from trainers.policy import NORMALISATIONS, SAMPLING_MODES

LEVELS = ("action", "token")


@dataclass(frozen=True)
class Settings:
    """What all agents that learn by PPO share."""

    # --- credit
    gamma: float | None = None
    """Discount of one unit of time; by default the environment's own."""
    discount_by_time: bool = True
    """A macro-action of k primitive steps is discounted by gamma to the k, so that what is learnt is what is published;
    False discounts every decision alike (the paper's code)."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation between actions."""
    truncation_is_termination: bool = False
    """Do not bootstrap from the observation a truncated episode ended in (the paper's code)."""

    # --- policy
    sampling: str = "trie"
    """How actions are chosen: trie (token by token among the beginnings of available phrases), candidates (a softmax
    over whole phrases), free (any text)."""
    normalisation: str = "token"
    """What log-likelihoods are divided by with sampling=candidates: token, word, none."""
    end_token: bool = True
    """Whether an action ends with the end token (the paper's code: no)."""
    temperature: float = 1.0
    """What logits are divided by, in sampling and in scoring alike; below 1, unlikely tokens become rarer."""
    max_action_tokens: int | None = None
    """At most this many tokens with sampling=free; by default what fits into the action space."""

    # --- PPO
    actor_lr: float = 5e-7
    """Learning rate of the adapter."""
    critic_lr: float = 1e-5
    """Learning rate of the critic."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 2
    """Optimiser steps in one pass."""
    clip: float = 0.2
    """Clip range of ratios and of value changes."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    entropy_level: str = "action"
    """Entropy of the distribution over actions, or the mean over that of its tokens: action, token."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm, adapter and critic each."""
    kl_threshold: float = 0.02
    """The adapter's remaining steps on a rollout are skipped once the approximate KL per unit passes this."""
    advantage_std_floor: float = 0.05
    """Advantages are never divided by less than this (the paper's code: 0)."""
    anneal_steps: int = 0
    """Learning rates fall linearly to 0 over this many decisions; 0 keeps them."""

    # --- model
    lora_rank: int = 8
    """Rank of the adapter."""
    lora_alpha: int = 16
    """Scale of the adapter times its rank."""
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Linear layers with an adapter, by name; all-linear for all of them."""
    critic_hidden: tuple[int, ...] = (1024, 512)
    """Widths of the critic's hidden layers."""
    quantize: str | None = None
    """Load the base model in 4bit or 8bit."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:N."""
    dtype: str = "auto"
    """auto (bfloat16 on a GPU, else float32), float32, bfloat16, float16."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    tokens_per_forward: int = 16384
    """At most this many padded tokens go through the model at once; gradients add up over the parts."""
    feature_cache_mib: int = 256
    """Features of the frozen base model are kept for the whole run up to this many MiB; 0 computes them for each
    rollout. Not used with sampling=free, where texts do not return."""
    packing: bool = True
    """Score candidates as a tree behind one prompt; False scores each by itself (slow; for comparison)."""
    seed: int = 0
    """Of the adapter, the critic, sampling and minibatches."""

    def __post_init__(self) -> None:
        self._check_types()
        for name, known in (
            ("sampling", SAMPLING_MODES),
            ("normalisation", NORMALISATIONS),
            ("entropy_level", LEVELS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {known}")
        for name in ("gamma", "gae_lambda"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}={value} is not between 0 and 1")
        for name in ("epochs", "minibatches", "lora_rank", "lora_alpha", "tokens_per_forward", "max_action_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.temperature < 0.001:  # of which logits become infinite
            raise ValueError(f"temperature={self.temperature} must be at least 0.001")
        for name in ("actor_lr", "critic_lr", "clip", "max_grad_norm", "kl_threshold", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be positive and finite")
        for name in (
            "value_coefficient",
            "entropy_coefficient",
            "advantage_std_floor",
            "anneal_steps",
            "seed",
            "feature_cache_mib",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")

    def _check_types(self) -> None:
        """Refuse values of another type than a setting's; a word or a list will do for a tuple."""
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(hint) is tuple:
                value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
                object.__setattr__(self, name, value)
                allowed: tuple[type, ...] = (tuple,)
            else:
                allowed = get_args(hint) or (hint,)
            if float in allowed:
                allowed += (int,)
            if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
                expected = " or ".join(kind.__name__ for kind in allowed)
                raise ValueError(f"{name}={value!r} must be of type {expected}")


@dataclass(frozen=True)
class TokenLevelSettings(Settings):
    """What agents with credit at the level of tokens add."""

    gae_lambda_token: float = 1.0
    """λ inside an action (the paper's code: 0.95). With 1, no credit fades on its way through an action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gae_lambda_token <= 1:
            raise ValueError(f"gae_lambda_token={self.gae_lambda_token} is not between 0 and 1")


@dataclass(frozen=True)
class NtpoSettings(TokenLevelSettings):
    """NTPO's own."""

    gamma_token: float | None = None
    """γ_w, the discount from one token to the next inside an action; by default gamma. With 1 it is POAD."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma_token is not None and not 0 <= self.gamma_token <= 1:
            raise ValueError(f"gamma_token={self.gamma_token} is not between 0 and 1")


@dataclass(frozen=True)
class TwosomeSettings(Settings):
    """TWOSOME's own: actions are chosen among whole candidates, and each rollout is used once."""

    sampling: str = "candidates"
    epochs: int = 1
    minibatches: int = 4


EMBEDDED_SETTINGS: dict[str, Any] = {
    "actor_lr": 3e-4,
    "critic_lr": 1e-3,
    "epochs": 4,
    "minibatches": 4,
    "entropy_coefficient": 0.01,
    "lora_targets": ("all-linear",),
    "critic_hidden": (256, 256),
}
"""What suits the embedded model, of under a million parameters, instead of the defaults."""


def resolve(settings: type[Settings], model: Any, given: dict[str, Any]) -> Settings:
    """Settings for a model: defaults, then what suits the embedded model, then what was given.

    Raises
    ------
    ValueError
        If a name or a value is not known.
    """
    known = [field.name for field in fields(settings)]
    if unknown := [name for name in given if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"{settings.__name__} has no {', '.join(unknown)}.{hint} It has {', '.join(known)}")
    suited = EMBEDDED_SETTINGS if model == "embedded" else {}
    return settings(**{**suited, **given})
