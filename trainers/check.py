"""A test of the interface of agents, like Gymnasium's ``check_env`` for environments."""

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
    """Act, learn, save and load with an agent, and raise at the first violation of the interface.

    Parameters
    ----------
    agent : Player or Agent
        An agent is also tested for learning, saving and loading.
    env : gymnasium.Env
        An environment with token observations.
    steps : int
        Environment steps of the rollout.

    Raises
    ------
    AssertionError
        The message names the violation.
    """
    assert isinstance(agent, Player), "an agent needs a method act(observations, infos, *, greedy=False)"
    space = token_space(env.action_space)
    observation, info = env.reset(seed=0)
    batch = np.stack([observation, observation])
    before, info_before = batch.copy(), dict(info)
    try:
        inspect.signature(agent.act).bind(batch, [info, info], greedy=False)
    except TypeError as error:
        raise AssertionError(f"act must accept (observations, infos, *, greedy=False): {error}") from None
    actions = agent.act(batch, [info, info])
    assert isinstance(actions, list), f"act must return a list of actions, not a {type(actions).__name__}"
    assert len(actions) == 2, f"act got 2 observations and returned {len(actions)} actions"
    assert np.array_equal(batch, before), "act changed the observations"
    assert info == info_before, "act changed the infos"
    for action in actions:
        _check_action(action, info, space.tokenizer, space.max_length)

    def texts() -> list[str]:
        return [action.text for action in agent.act(batch, [info, info])]

    envs = SyncVectorEnv([lambda: env, lambda: _twin(env)], autoreset_mode=AutoresetMode.SAME_STEP)
    rollout = collect(agent, envs, begin(envs, seed=1), steps, discount=1.0)
    if not isinstance(agent, Agent):
        return
    metrics = agent.learn(rollout)
    assert isinstance(metrics, dict), f"learn must return a dict of metrics, not a {type(metrics).__name__}"
    for name, value in metrics.items():
        assert isinstance(name, str), f"names of metrics must be strings, not {name!r}"
        assert isinstance(value, int | float), f"the metric {name} must be a number, not a {type(value).__name__}"
        assert math.isfinite(value), f"the metric {name} must be finite, not {value}"
    with tempfile.TemporaryDirectory() as folder:
        agent.save(Path(folder) / "agent")
        before_loading = texts(), texts()
        agent.load(Path(folder) / "agent")
        assert (texts(), texts()) == before_loading, "after load the agent acts differently than after save"


def _twin(env: gym.Env) -> gym.Env:
    return gym.make(env.spec) if env.spec is not None else copy.deepcopy(env)


def _check_action(action: Any, info: dict[str, Any], tokenizer: Any, max_length: int) -> None:
    assert isinstance(action, Action), f"act must return trainers.Action, not {type(action).__name__}"
    available = info.get("available_actions")
    assert available is None or action.text in available, f"{action.text!r} is not one of {available}"
    ids = action.token_ids
    if not ids:
        return
    assert all(isinstance(i, int) for i in ids), f"token_ids must be ints: {ids}"
    assert len(ids) <= max_length, f"{len(ids)} token_ids do not fit into the action space of {max_length} tokens"
    phrase = ids[:-1] if ids[-1] == tokenizer.end_id else ids
    decoded = tokenizer.decode(phrase).strip()
    assert decoded == action.text, f"token_ids decode to {decoded!r}, the text is {action.text!r}"
