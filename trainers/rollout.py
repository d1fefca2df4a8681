"""An agent and a vector environment in, a rollout out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from lang_envs import TokenSequence
from trainers.agent import Action, Episode, Player, Rollout


@dataclass
class CollectorState:
    """Where N environments stand between two rollouts; all of it goes into a checkpoint.

    ``ended`` marks those whose next step only resets them (NEXT_STEP mode). The other arrays, of shape (N,), add up
    the running episodes.
    """

    observations: np.ndarray
    infos: list[dict[str, Any]]
    ended: np.ndarray
    discounted_returns: np.ndarray
    total_rewards: np.ndarray
    lengths: np.ndarray
    elapsed: np.ndarray


def begin(envs: gym.vector.VectorEnv, seed: int | None = None) -> CollectorState:
    """Reset all environments, the n-th with ``seed + n``."""
    observations, infos = envs.reset(seed=seed)
    n = envs.num_envs
    return CollectorState(
        observations,
        unbatch_infos(infos, n),
        ended=np.zeros(n, dtype=bool),
        discounted_returns=np.zeros(n),
        total_rewards=np.zeros(n),
        lengths=np.zeros(n, dtype=np.int64),
        elapsed=np.zeros(n),
    )


def collect(
    agent: Player,
    envs: gym.vector.VectorEnv,
    situation: CollectorState,
    steps: int,
    *,
    discount: float,
    greedy: bool = False,
) -> Rollout:
    """Let an agent play ``steps`` steps in every environment, going on from ``situation``, which is brought up to date.

    Autoreset modes SAME_STEP and NEXT_STEP give the same rollouts, but that NEXT_STEP spends a step on each reset,
    which is marked as not valid. ``discount`` counts the episodes' discounted returns, in the environment's units of time.

    Raises
    ------
    ValueError
        If the environments are in another autoreset mode.
    """
    mode = autoreset_mode(envs)
    space = token_space(envs.single_action_space)
    taken: list[list[Action]] = []
    infos: list[list[dict[str, Any]]] = []
    outcomes: list[list[dict[str, Any]]] = []
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("observations", "rewards", "durations", "terminated", "truncated", "valid")
    }
    final: dict[tuple[int, int], tuple[np.ndarray, dict[str, Any]]] = {}
    episodes: list[Episode] = []
    for t in range(steps):
        row = agent.act(situation.observations, situation.infos, greedy=greedy)
        valid = ~situation.ended
        actions = np.stack([space.pad(d.token_ids) if d.token_ids else space.encode(d.text) for d in row])
        observations, rewards, terminated, truncated, batched = envs.step(actions)
        if not np.isfinite(rewards).all():
            raise ValueError(
                f"an environment gave the reward {rewards[~np.isfinite(rewards)][0]}, which is no finite number"
            )
        truncated = truncated & ~terminated
        ended = terminated | truncated
        next_infos = unbatch_infos(batched, envs.num_envs)
        outcome_infos = [info.get("final_info", info) for info in next_infos]
        durations = np.array([info.get("primitive_steps", 1) for info in outcome_infos], dtype=np.float64)

        for name, value in (
            ("observations", situation.observations),
            ("rewards", rewards),
            ("durations", durations),
            ("terminated", terminated),
            ("truncated", truncated),
            ("valid", valid),
        ):
            columns[name].append(np.array(value))
        taken.append(row)
        infos.append(situation.infos)
        outcomes.append(outcome_infos)
        for n in np.flatnonzero(truncated):
            last = next_infos[n]["final_obs"] if mode is AutoresetMode.SAME_STEP else observations[n]
            final[t, int(n)] = (np.array(last), outcome_infos[n])

        _count(situation, rewards, durations, valid, discount)
        episodes += [_close(situation, int(n), outcome_infos[n]) for n in np.flatnonzero(ended)]
        situation.observations, situation.infos = observations, next_infos
        situation.ended = ended if mode is AutoresetMode.NEXT_STEP else np.zeros_like(ended)
    return Rollout(
        **{name: np.stack(rows) for name, rows in columns.items()},
        infos=infos,
        actions=taken,
        last_observations=situation.observations,
        last_infos=situation.infos,
        final=final,
        outcomes=outcomes,
        episodes=episodes,
    )


def _count(
    situation: CollectorState, rewards: np.ndarray, durations: np.ndarray, valid: np.ndarray, discount: float
) -> None:
    situation.discounted_returns += np.where(valid, discount**situation.elapsed * rewards, 0.0)
    situation.total_rewards += np.where(valid, rewards, 0.0)
    situation.lengths += valid
    situation.elapsed += np.where(valid, durations, 0.0)


def _close(situation: CollectorState, n: int, info: dict[str, Any]) -> Episode:
    episode = Episode(
        discounted_return=float(situation.discounted_returns[n]),
        total_reward=float(situation.total_rewards[n]),
        length=int(situation.lengths[n]),
        success=bool(info.get("success", False)),
    )
    for totals in (situation.discounted_returns, situation.total_rewards, situation.lengths, situation.elapsed):
        totals[n] = 0
    return episode


def autoreset_mode(envs: gym.vector.VectorEnv) -> AutoresetMode:
    """The autoreset mode of a vector environment, which must be one that :func:`collect` can use."""
    mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        raise ValueError(f"the vector environment's autoreset mode is {mode}; make it with SAME_STEP or NEXT_STEP")
    return mode


def env_attribute(envs: Any, name: str) -> Any:
    """Return an attribute of the environment, or of the first of a vector environment."""
    return envs.get_wrapper_attr(name) if isinstance(envs, gym.Env) else envs.get_attr(name)[0]


def token_space(space: gym.Space) -> TokenSequence:
    """``space`` itself, if it is one of token sequences."""
    if not isinstance(space, TokenSequence):
        raise ValueError(f"the environments speak {space}, not token sequences; make them with interface='tokens'")
    return space


def unbatch_infos(infos: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """The info of each sub-environment from a vector environment's dict of arrays with ``_key`` masks."""
    separate: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}", np.ones(num_envs, dtype=bool))
        rows = unbatch_infos(values, num_envs) if isinstance(values, dict) else values
        for n in np.flatnonzero(present):
            value = rows[n]
            separate[n][key] = value.item() if isinstance(value, np.generic) else value
    return separate
