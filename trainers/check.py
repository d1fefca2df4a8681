"""What ``check_env`` is for environments, for agents."""

from __future__ import annotations

import copy
import inspect
import math
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from trainers.agent import Action, Agent, Player
from trainers.rollout import begin, collect, token_space


def check_agent(agent: Any, env: gym.Env, *, steps: int = 8) -> None:
    """Play, learn, save and load with an agent, and complain about the first thing that a contract forbids.

    Parameters
    ----------
    agent : Player or Agent
        What learns is also asked to learn.
    env : gymnasium.Env
        A token environment it should be able to act in.
    steps : int
        Length of the rollout that it plays.

    Raises
    ------
    AssertionError
        Naming what is wrong.
    """
    assert isinstance(agent, Player), "an agent has a method act(observations, infos, *, greedy=False)"
    space = token_space(env.action_space)
    observation, info = env.reset(seed=0)
    batch = np.stack([observation, observation])
    before, info_before = batch.copy(), dict(info)
    try:
        inspect.signature(agent.act).bind(batch, [info, info], greedy=False)
    except TypeError as error:
        raise AssertionError(f"act takes (observations, infos, *, greedy=False): {error}") from None
    decisions = agent.act(batch, [info, info])
    assert isinstance(decisions, list), f"act returns a list of decisions, not {type(decisions).__name__}"
    assert len(decisions) == 2, f"act was shown 2 observations and made {len(decisions)} decisions"
    assert np.array_equal(batch, before), "act changed the observations it was shown"
    assert info == info_before, "act changed the infos it was shown"
    for decision in decisions:
        _check_action(decision, info, space.tokenizer, space.max_length)

    def said() -> list[str]:
        return [decision.text for decision in agent.act(batch, [info, info])]

    envs = SyncVectorEnv([lambda: env, lambda: _twin(env)], autoreset_mode=AutoresetMode.SAME_STEP)
    rollout = collect(agent, envs, begin(envs, seed=1), steps, discount=1.0)
    if not isinstance(agent, Agent):
        return
    metrics = agent.learn(rollout)
    assert isinstance(metrics, dict), f"learn returns a dict of metrics, not {type(metrics).__name__}"
    for name, value in metrics.items():
        assert isinstance(name, str), f"names of metrics are strings, not {name!r}"
        assert isinstance(value, int | float), f"the metric {name} is a {type(value).__name__}, not a number"
        assert math.isfinite(value), f"the metric {name} is {value}"
    with tempfile.TemporaryDirectory() as folder:
        agent.save(Path(folder) / "agent")
        before_loading = said(), said()
        agent.load(Path(folder) / "agent")
        assert (said(), said()) == before_loading, "after loading what it saved the agent decides otherwise"


def _twin(env: gym.Env) -> gym.Env:
    return gym.make(env.spec) if env.spec is not None else copy.deepcopy(env)


def _check_action(decision: Any, info: dict[str, Any], tokenizer: Any, max_length: int) -> None:
    assert isinstance(decision, Action), f"act returns trainers.Action, not {type(decision).__name__}"
    available = info.get("available_actions")
    assert available is None or decision.text in available, f"{decision.text!r} is not one of {available}"
    ids = decision.token_ids
    if not ids:
        return
    assert all(isinstance(i, int) for i in ids), f"token_ids are ints: {ids}"
    assert len(ids) <= max_length, f"{len(ids)} token_ids do not fit into the action space of {max_length}"
    phrase = ids[:-1] if ids[-1] == tokenizer.end_id else ids
    said = tokenizer.decode(phrase).strip()
    assert said == decision.text, f"token_ids say {said!r}, the text says {decision.text!r}"
