"""The paper's hyper-parameters (arXiv 2405.15821, tables 9 to 17) as settings of our agents."""

from __future__ import annotations

from typing import Any

PRESETS = ("default", "paper")

_PAPER: dict[str, Any] = {
    "behaviour": "candidates",
    "end_token": False,
    "gae_lambda": 0.95,
    "discount_by_time": False,
    "truncation_is_termination": True,
    "advantage_std_floor": 0.0,
    "entropy_level": "token",
    "clip": 0.2,
    "value_coefficient": 0.5,
    "max_grad_norm": 0.5,
    "kl_threshold": 0.02,
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_targets": ("q_proj", "v_proj"),
    "critic_hidden": (1024, 512),
}
"""What all tasks and methods share."""

_ACTION_LEVEL: dict[str, Any] = {"entropy_level": "action"}
_TOKEN_LEVEL: dict[str, Any] = {"gae_lambda_token": 0.95}


def _rates(critic: float, actor: float, epochs: int, minibatches: int, gamma: float, entropy: float) -> dict[str, Any]:
    return {
        "critic_lr": critic,
        "actor_lr": actor,
        "epochs": epochs,
        "minibatches": minibatches,
        "gamma": gamma,
        "entropy_coefficient": entropy,
    }


_PAPER_RATES: dict[tuple[str, str], dict[str, Any]] = {
    ("Overcooked", "poad"): _rates(1e-5, 5e-7, 5, 2, 0.99, 0.01),
    ("Overcooked", "ntpo"): _rates(1e-5, 5e-7, 5, 4, 0.99, 0.01),
    ("Overcooked", "twosome"): _rates(1e-5, 5e-7, 1, 4, 0.99, 0.01),
    ("VirtualHome", "poad"): _rates(5e-5, 1e-6, 5, 2, 0.95, 0.0001),
    ("VirtualHome", "ntpo"): _rates(5e-5, 1e-6, 5, 2, 0.95, 0.01),
    ("VirtualHome", "twosome"): _rates(5e-5, 1e-6, 1, 4, 0.95, 0.01),
    ("DataSciCoding", "poad"): _rates(5e-5, 1e-6, 1, 4, 0.95, 0.01) | {"behaviour": "free", "end_token": True},
    ("DataSciCoding", "ntpo"): _rates(5e-5, 1e-6, 1, 4, 0.95, 0.01) | {"behaviour": "free", "end_token": True},
}


def preset_settings(preset: str, env_id: str, algo: str) -> dict[str, Any]:
    """Settings that a preset gives an agent in a world; ``default`` leaves all to the agent.

    Raises
    ------
    ValueError
        If the preset is not known, or the paper has none for that pair.
    """
    if preset == "default":
        return {}
    if preset != "paper":
        raise ValueError(f"preset {preset!r} is not one of {', '.join(PRESETS)}")
    family = env_id.partition("-")[0]
    if (family, algo) not in _PAPER_RATES:
        pairs = ", ".join(f"{algo} on {family}" for family, algo in _PAPER_RATES)
        raise ValueError(f"the paper has no hyper-parameters for {algo} on {family}; it has those of {pairs}")
    level = _ACTION_LEVEL if algo == "twosome" else _TOKEN_LEVEL
    return _PAPER | level | _PAPER_RATES[family, algo]
