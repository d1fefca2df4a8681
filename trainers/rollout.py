"""Collecting rollouts: an agent acts in a vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from lang_envs import TokenSequence
from trainers.agent import Action, Episode, Player, Rollout


@dataclass
class CollectorState:
    """The state of N environments between two rollouts, all of which is part of a checkpoint.

    Attributes
    ----------
    observations : int64 array (N, L)
    infos : list of N dicts
    ended : bool array (N,)
        Environments whose next step only resets them (NEXT_STEP mode).
    discounted_returns, total_rewards, lengths, elapsed : array (N,)
        Sums over the current episodes; ``elapsed`` is in units of environment time.
    """

    observations: np.ndarray
    infos: list[dict[str, Any]]
    ended: np.ndarray
    discounted_returns: np.ndarray
    total_rewards: np.ndarray
    lengths: np.ndarray
    elapsed: np.ndarray


def begin(envs: gym.vector.VectorEnv, seed: int | None = None) -> CollectorState:
    """Reset all environments, environment n with ``seed + n``, and return their state."""
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
    state: CollectorState,
    steps: int,
    *,
    discount: float,
    greedy: bool = False,
) -> Rollout:
    """Collect a rollout of ``steps`` steps in every environment.

    Autoreset modes SAME_STEP and NEXT_STEP give the same rollouts, except that NEXT_STEP uses one step for each reset;
    such steps are not ``valid``.

    Parameters
    ----------
    agent : Player
    envs : gymnasium.vector.VectorEnv
    state : CollectorState
        From :func:`begin` or the previous rollout; it is updated in place.
    steps : int
    discount : float
        Discount of one unit of environment time, for the discounted returns of episodes.
    greedy : bool
        Passed to the agent.

    Raises
    ------
    ValueError
        If the environments use another autoreset mode, or a reward is not finite.
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
        row = agent.act(state.observations, state.infos, greedy=greedy)
        valid = ~state.ended
        actions = np.stack([space.pad(d.token_ids) if d.token_ids else space.encode(d.text) for d in row])
        observations, rewards, terminated, truncated, batched = envs.step(actions)
        if not np.isfinite(rewards).all():
            raise ValueError(
                f"an environment returned the reward {rewards[~np.isfinite(rewards)][0]}, expected a finite number"
            )
        truncated = truncated & ~terminated
        ended = terminated | truncated
        next_infos = unbatch_infos(batched, envs.num_envs)
        outcome_infos = [info.get("final_info", info) for info in next_infos]
        durations = np.array([info.get("primitive_steps", 1) for info in outcome_infos], dtype=np.float64)

        for name, value in (
            ("observations", state.observations),
            ("rewards", rewards),
            ("durations", durations),
            ("terminated", terminated),
            ("truncated", truncated),
            ("valid", valid),
        ):
            columns[name].append(np.array(value))
        taken.append(row)
        infos.append(state.infos)
        outcomes.append(outcome_infos)
        for n in np.flatnonzero(truncated):
            last = next_infos[n]["final_obs"] if mode is AutoresetMode.SAME_STEP else observations[n]
            final[t, int(n)] = (np.array(last), outcome_infos[n])

        _count(state, rewards, durations, valid, discount)
        episodes += [_close(state, int(n), outcome_infos[n]) for n in np.flatnonzero(ended)]
        state.observations, state.infos = observations, next_infos
        state.ended = ended if mode is AutoresetMode.NEXT_STEP else np.zeros_like(ended)
    return Rollout(
        **{name: np.stack(rows) for name, rows in columns.items()},
        infos=infos,
        actions=taken,
        last_observations=state.observations,
        last_infos=state.infos,
        final=final,
        outcomes=outcomes,
        episodes=episodes,
    )


def _count(
    state: CollectorState, rewards: np.ndarray, durations: np.ndarray, valid: np.ndarray, discount: float
) -> None:
    state.discounted_returns += np.where(valid, discount**state.elapsed * rewards, 0.0)
    state.total_rewards += np.where(valid, rewards, 0.0)
    state.lengths += valid
    state.elapsed += np.where(valid, durations, 0.0)


def _close(state: CollectorState, n: int, info: dict[str, Any]) -> Episode:
    episode = Episode(
        discounted_return=float(state.discounted_returns[n]),
        total_reward=float(state.total_rewards[n]),
        length=int(state.lengths[n]),
        success=bool(info.get("success", False)),
    )
    for totals in (state.discounted_returns, state.total_rewards, state.lengths, state.elapsed):
        totals[n] = 0
    return episode


def autoreset_mode(envs: gym.vector.VectorEnv) -> AutoresetMode:
    """Return the autoreset mode of a vector environment; refuse modes that :func:`collect` does not support."""
    mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        raise ValueError(f"the vector environment's autoreset mode is {mode}; make it with SAME_STEP or NEXT_STEP")
    return mode


def padded(rows: Sequence[np.ndarray], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of different lengths as one array (*shape, U), and a mask that is False at its padding with 0."""
    mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    array = np.zeros(mask.shape, dtype=rows[0].dtype)
    array[mask] = np.concatenate(rows)
    return array.reshape(*shape, -1), mask.reshape(*shape, -1)


def env_attribute(envs: Any, name: str) -> Any:
    """Return an attribute of the environment, or of the first of a vector environment."""
    return envs.get_wrapper_attr(name) if isinstance(envs, gym.Env) else envs.get_attr(name)[0]


def token_space(space: gym.Space) -> TokenSequence:
    """Return ``space`` if it is a space of token sequences, else raise."""
    if not isinstance(space, TokenSequence):
        raise ValueError(
            f"the environments use the space {space}, expected token sequences; make them with interface='tokens'"
        )
    return space


def unbatch_infos(infos: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Return the info of each environment from a vector environment's dict of arrays with ``_key`` masks."""
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
