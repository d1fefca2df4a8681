"""Settings of agents: dataclasses whose fields carry their ranges, checked in one place.

Each algorithm defines its settings beside its code, as a subclass of :class:`LanguageAgentSettings`. The command line,
``--help`` and the tables in the documentation are made from these dataclasses.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_origin, get_type_hints

from trainers.policy import NORMALISATIONS, SAMPLING_MODES


def setting(
    default: Any,
    *,
    embedded: Any = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Return a dataclass field with a default and a range.

    Parameters
    ----------
    default : Any
        For models from Hugging Face.
    embedded : Any, optional
        Default for the embedded model, if it differs.
    least, above, most : float, optional
        Inclusive minimum, exclusive minimum, inclusive maximum. Numbers are always finite.
    choices : tuple of str, optional
        Allowed values.
    """
    metadata = {"embedded": embedded, "least": least, "above": above, "most": most, "choices": choices}
    return field(default=default, metadata={name: value for name, value in metadata.items() if value is not None})


@dataclass(frozen=True)
class LanguageAgentSettings:
    """Settings of the model and of sampling, which all language agents share."""

    # --- discount
    gamma: float | None = setting(None, least=0, most=1)
    """Discount γ of one unit of environment time; by default the environment's own."""
    discount_by_time: bool = True
    """Discount an action of k units of time by γ to the k, as the environment's returns are; False discounts every
    action by γ (the paper's code)."""

    # --- sampling
    sampling: str = setting("trie", choices=SAMPLING_MODES)
    """How an action is sampled: trie (token by token among the prefixes of available phrases), candidates (a softmax
    over whole phrases), free (any text)."""
    normalisation: str = setting("token", choices=NORMALISATIONS)
    """With sampling=candidates, divide the log-likelihood of a phrase by its number of tokens (token), of words (word),
    or by nothing (none)."""
    end_token: bool = True
    """Whether an action ends with the end token (the paper's code: no)."""
    temperature: float = setting(1.0, least=0.001)  # below, logits become infinite
    """Divide logits by this, in sampling and in scoring."""
    max_action_tokens: int | None = setting(None, least=1)
    """Maximum number of tokens of an action with sampling=free; by default the maximum of the action space."""

    # --- model
    lora_rank: int = setting(8, least=1)
    """Rank of the LoRA adapter."""
    lora_alpha: int = setting(16, least=1)
    """Scale of the LoRA adapter times its rank."""
    lora_targets: tuple[str, ...] = setting(("q_proj", "v_proj"), embedded=("all-linear",))
    """Names of the linear layers with an adapter; all-linear for all of them."""
    quantize: str | None = None
    """Load the base model in 4bit or 8bit."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:N."""
    dtype: str = "auto"
    """auto (bfloat16 on a GPU, else float32), float32, bfloat16, float16."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, more time."""
    tokens_per_forward: int = setting(16384, least=1)
    """Maximum number of tokens, with padding, in one forward pass; gradients are accumulated."""
    feature_cache_mib: int = setting(256, least=0)
    """Keep features of the frozen base model for the whole run, up to this many MiB; 0 computes them for each rollout.
    Not used with sampling=free, where texts do not repeat."""
    packing: bool = True
    """Score all candidates of a prompt in one tree; False scores each one separately (slow, for comparison)."""
    seed: int = setting(0, least=0)
    """Seed of the initial weights, of sampling and of minibatches."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _of_type(name, getattr(self, name), hint))
        for own in fields(self):
            _check_range(own.name, getattr(self, own.name), own.metadata)


def _of_type(name: str, value: Any, hint: Any) -> Any:
    """Return a value of a setting, a tuple for a word or a list; refuse values of another type."""
    if get_origin(hint) is tuple:
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        allowed: tuple[type, ...] = (tuple,)
    else:
        allowed = get_args(hint) or (hint,)
    if float in allowed:
        allowed += (int,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise ValueError(f"{name}={value!r} must be of type {' or '.join(kind.__name__ for kind in allowed)}")
    return value


def _check_range(name: str, value: Any, limits: Any) -> None:
    least, above, most, choices = (limits.get(key) for key in ("least", "above", "most", "choices"))
    if choices is not None and value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if not math.isfinite(value):
        raise ValueError(f"{name}={value} must be finite")
    if least is not None and most is not None and not least <= value <= most:
        raise ValueError(f"{name}={value} must be between {least:g} and {most:g}")
    if least is not None and value < least:
        raise ValueError(f"{name}={value} must be at least {least:g}")
    if above is not None and value <= above:
        raise ValueError(f"{name}={value} must be greater than {above:g}")


def resolve(settings_type: type[Any], model: Any, given: dict[str, Any]) -> Any:
    """Return settings for a model: the defaults, those for the embedded model, then the given values.

    Raises
    ------
    ValueError
        If a name or a value is not known.
    """
    known = [own.name for own in fields(settings_type)]
    if unknown := [name for name in given if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=5)
        hint = f"; did you mean {' or '.join(near)}?" if near else f". Known settings: {', '.join(known)}"
        agent = settings_type.__name__.removesuffix("Settings")
        raise ValueError(f"{agent} has no setting {', '.join(unknown)}{hint}")
    embedded = {own.name: own.metadata["embedded"] for own in fields(settings_type) if "embedded" in own.metadata}
    return settings_type(**{**(embedded if model == "embedded" else {}), **given})
