"""Rollouts: their contents, and that they do not depend on the autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from lang_envs import LanguageEnv, TokenEnv, Transition
from trainers import Action
from trainers.credit import gae
from trainers.rollout import begin, collect, unbatch_infos

PLAN = (
    "get the tomato",
    "go to the cutting board",
    "chop",
    "get the tomato",
    "get the bowl",
    "deliver the dish",
)


class Countdown(LanguageEnv):
    """Episodes of three steps, which terminate and are truncated in turn; the reward is the number of the step."""

    action_names = ("wait", "hurry")
    discount = 0.5
    text_parts = (tuple(f"step {n}" for n in range(4)),)
    state_fields = ("count", "episode")

    def __init__(self) -> None:
        self.count, self.episode = 0, 0
        super().__init__(max_text_length=16)

    def start(self, options: dict[str, Any]) -> None:
        self.count, self.episode = 0, self.episode + 1

    def advance(self, action: int | str | None) -> Transition:
        self.count += 1
        over = self.count == 3
        terminates = self.episode % 2 == 1
        return Transition(float(self.count), over and terminates, over and not terminates, {"primitive_steps": 2})

    def narrate(self) -> str:
        return f"step {self.count}"


class FirstAction:
    """Always takes the first available action."""

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        return [Action(info["available_actions"][0]) for info in infos]


def countdowns(mode: AutoresetMode, n: int = 2) -> gym.vector.SyncVectorEnv:
    return gym.vector.SyncVectorEnv([lambda: TokenEnv(Countdown())] * n, autoreset_mode=mode)


def countdown_rollout(mode: AutoresetMode, steps: int) -> Any:
    envs = countdowns(mode)
    return collect(FirstAction(), envs, begin(envs, seed=0), steps, discount=0.5)


def test_rollout_contains_rewards_ends_and_observations() -> None:
    rollout = countdown_rollout(AutoresetMode.SAME_STEP, 7)
    assert rollout.rewards[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False, False, False]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, False, False, True, False]
    assert [infos[0]["text"] for infos in rollout.infos] == [f"step {n}" for n in (0, 1, 2, 0, 1, 2, 0)]
    assert rollout.last_infos[0]["text"] == "step 1"
    assert rollout.valid.all()


def test_rollout_contains_final_observations_of_truncated_episodes() -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        rollout = countdown_rollout(mode, 8)
        ends = [tuple(end) for end in np.argwhere(rollout.truncated)]
        assert set(rollout.final) == set(ends) and ends
        for observation, info in rollout.final.values():
            assert info["text"] == "step 3"
            space = countdowns(mode, 1).single_observation_space
            assert space.decode(observation) == "step 3"


def test_returns_are_discounted_by_time_units_of_the_environment() -> None:
    rollout = countdown_rollout(AutoresetMode.SAME_STEP, 3)
    (episode, _) = rollout.episodes
    assert episode.discounted_return == pytest.approx(1 + 2 * 0.5**2 + 3 * 0.5**4)
    assert (episode.total_reward, episode.length, episode.success) == (6, 3, False)


def test_autoreset_modes_give_equal_advantages() -> None:
    value_of = {f"step {n}": 0.1 * n**2 + 0.3 for n in range(4)}
    results = []
    for mode, steps in ((AutoresetMode.SAME_STEP, 9), (AutoresetMode.NEXT_STEP, 12)):
        rollout = countdown_rollout(mode, steps)
        values = np.array([[value_of[info["text"]] for info in row] for row in rollout.infos])
        last_values = np.array([value_of[info["text"]] for info in rollout.last_infos])
        next_values = np.concatenate([values[1:], last_values[None]])
        next_values[rollout.episode_ends] = 0
        for (t, n), (_, info) in rollout.final.items():
            next_values[t, n] = value_of[info["text"]]
        ends, mask = rollout.episode_ends, rollout.valid[..., None]
        credit = gae(rollout.rewards, values[..., None], mask, next_values, ends, gamma=0.9, gae_lambda=0.8)
        results.append([array[rollout.valid[:, 0], 0, 0] for array in credit])
    (same_step, same_step_returns), (next_step, next_step_returns) = results
    assert len(same_step) == len(next_step) == 9
    np.testing.assert_allclose(next_step, same_step)
    np.testing.assert_allclose(next_step_returns, same_step_returns)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_next_observations_belong_to_the_same_episode(mode: AutoresetMode) -> None:
    rollout = countdown_rollout(mode, 8)
    following = list(rollout.next_observations())
    assert [(after.t, after.n) for after in following] == [tuple(index) for index in np.argwhere(rollout.valid)]
    space = countdowns(mode, 1).single_observation_space
    for after in following:
        index = after.t, after.n
        count = int(rollout.rewards[index])  # the reward is the number of the step
        assert after.truncated == rollout.truncated[index]
        if rollout.terminated[index]:
            assert after.observation is None and not after.info
        else:
            assert after.observation is not None
            assert after.info["text"] == space.decode(after.observation) == f"step {count}"
            assert after.info["available_actions"] == ("wait", "hurry")


def test_reset_steps_belong_to_no_episode() -> None:
    rollout = countdown_rollout(AutoresetMode.NEXT_STEP, 8)
    assert (~rollout.valid).sum() == 4
    assert {episode.total_reward for episode in rollout.episodes} == {6.0}
    assert {episode.length for episode in rollout.episodes} == {3}


def test_episode_continues_across_rollouts() -> None:
    envs = countdowns(AutoresetMode.SAME_STEP, 1)
    state = begin(envs, seed=0)
    agent = FirstAction()
    assert not collect(agent, envs, state, 2, discount=0.5).episodes
    (episode,) = collect(agent, envs, state, 1, discount=0.5).episodes
    assert (episode.total_reward, episode.length) == (6, 3)


def test_optimal_plan_has_the_optimal_return(make_envs: Callable[..., gym.vector.VectorEnv]) -> None:
    envs = make_envs(1)
    optimum = envs.get_attr("optimal_return")[0]

    class Planner:
        def __init__(self) -> None:
            self.steps = 0

        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[Action]:
            self.steps += 1
            return [Action(PLAN[(self.steps - 1) % len(PLAN)])]

    rollout = collect(Planner(), envs, begin(envs, seed=0), len(PLAN), discount=0.99)
    (episode,) = rollout.episodes
    assert episode.success
    assert episode.discounted_return == pytest.approx(optimum, abs=1e-6)


def test_other_autoreset_modes_raise() -> None:
    envs = countdowns(AutoresetMode.DISABLED, 1)
    with pytest.raises(ValueError, match="SAME_STEP or NEXT_STEP"):
        collect(FirstAction(), envs, begin(envs), 1, discount=1.0)


def test_environments_with_text_observations_raise() -> None:
    envs = gym.vector.SyncVectorEnv([Countdown], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="interface='tokens'"):
        collect(FirstAction(), envs, begin(envs), 1, discount=1.0)


def test_unbatch_infos_inverts_batching() -> None:
    batched = {
        "text": np.array(["a", None], dtype=object),
        "_text": np.array([True, False]),
        "count": np.array([1, 2]),
        "_count": np.array([True, True]),
        "inner": {"deep": np.array([0.5, 0.0]), "_deep": np.array([True, False])},
        "_inner": np.array([True, False]),
    }
    assert unbatch_infos(batched, 2) == [{"text": "a", "count": 1, "inner": {"deep": 0.5}}, {"count": 2}]
