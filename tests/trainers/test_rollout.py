"""Rollouts: what is collected, and that autoreset modes make no difference."""

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
    """Ends after three steps, by termination or truncation in turn; the reward is the step's number."""

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


class Scripted:
    """Says the next line of a script, chosen by the observation's text alone."""

    def __init__(self, script: dict[str, str]) -> None:
        self.script = script
        self.shown: list[str] = []

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        self.shown += [info["text"] for info in infos]
        return [Action(self.script.get(info["text"], info["available_actions"][0])) for info in infos]


def countdowns(mode: AutoresetMode, n: int = 2) -> gym.vector.SyncVectorEnv:
    return gym.vector.SyncVectorEnv([lambda: TokenEnv(Countdown())] * n, autoreset_mode=mode)


def gather(mode: AutoresetMode, steps: int) -> Any:
    envs = countdowns(mode)
    return collect(Scripted({}), envs, begin(envs, seed=0), steps, discount=0.5)


def test_a_rollout_holds_what_was_seen_done_and_earned() -> None:
    rollout = gather(AutoresetMode.SAME_STEP, 7)
    assert rollout.rewards[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False, False, False]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, False, False, True, False]
    assert [infos[0]["text"] for infos in rollout.infos] == [f"step {n}" for n in (0, 1, 2, 0, 1, 2, 0)]
    assert rollout.last_infos[0]["text"] == "step 1"
    assert rollout.valid.all()


def test_a_truncated_episode_keeps_the_observation_it_ended_in() -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        rollout = gather(mode, 8)
        ends = [tuple(end) for end in np.argwhere(rollout.truncated)]
        assert set(rollout.final) == set(ends) and ends
        for observation, info in rollout.final.values():
            assert info["text"] == "step 3"
            space = countdowns(mode, 1).single_observation_space
            assert space.decode(observation) == "step 3"


def test_returns_are_discounted_in_the_environments_units_of_time() -> None:
    rollout = gather(AutoresetMode.SAME_STEP, 3)
    (episode, _) = rollout.episodes
    assert episode.discounted_return == pytest.approx(1 + 2 * 0.5**2 + 3 * 0.5**4)
    assert (episode.total_reward, episode.length, episode.success) == (6, 3, False)


def test_autoreset_modes_give_equal_decisions_and_advantages() -> None:
    value_of = {f"step {n}": 0.1 * n**2 + 0.3 for n in range(4)}
    found = []
    for mode, steps in ((AutoresetMode.SAME_STEP, 9), (AutoresetMode.NEXT_STEP, 12)):
        rollout = gather(mode, steps)
        values = np.array([[value_of[info["text"]] for info in row] for row in rollout.infos])
        following = np.array([value_of[info["text"]] for info in rollout.last_infos])
        next_values = np.concatenate([values[1:], following[None]])
        next_values[rollout.episode_ends] = 0
        for (t, n), (_, info) in rollout.final.items():
            next_values[t, n] = value_of[info["text"]]
        ends, mask = rollout.episode_ends, rollout.valid[..., None]
        credit = gae(rollout.rewards, values[..., None], mask, next_values, ends, gamma=0.9, gae_lambda=0.8)
        found.append([array[rollout.valid[:, 0], 0, 0] for array in credit])
    (same, same_returns), (following, following_returns) = found
    assert len(same) == len(following) == 9
    np.testing.assert_allclose(following, same)
    np.testing.assert_allclose(following_returns, same_returns)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_next_observations_are_those_of_the_same_episode(mode: AutoresetMode) -> None:
    rollout = gather(mode, 8)
    followed = list(rollout.next_observations())
    assert [(after.t, after.n) for after in followed] == [tuple(place) for place in np.argwhere(rollout.valid)]
    space = countdowns(mode, 1).single_observation_space
    for after in followed:
        place = after.t, after.n
        count = int(rollout.rewards[place])  # the reward is the step's number
        assert after.truncated == rollout.truncated[place]
        if rollout.terminated[place]:
            assert after.observation is None and not after.info
        else:
            assert after.observation is not None
            assert after.info["text"] == space.decode(after.observation) == f"step {count}"
            assert after.info["available_actions"] == ("wait", "hurry")


def test_a_step_that_only_resets_counts_in_no_episode() -> None:
    rollout = gather(AutoresetMode.NEXT_STEP, 8)
    assert (~rollout.valid).sum() == 4
    assert {episode.total_reward for episode in rollout.episodes} == {6.0}
    assert {episode.length for episode in rollout.episodes} == {3}


def test_an_episode_goes_on_from_one_rollout_into_the_next() -> None:
    envs = countdowns(AutoresetMode.SAME_STEP, 1)
    situation = begin(envs, seed=0)
    agent = Scripted({})
    assert not collect(agent, envs, situation, 2, discount=0.5).episodes
    (episode,) = collect(agent, envs, situation, 1, discount=0.5).episodes
    assert (episode.total_reward, episode.length) == (6, 3)


def test_a_scripted_plan_earns_the_optimum(make_envs: Callable[..., gym.vector.VectorEnv]) -> None:
    envs = make_envs(1)
    optimum = envs.get_attr("optimal_return")[0]

    class Planner:
        def __init__(self) -> None:
            self.line = 0

        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[Action]:
            self.line += 1
            return [Action(PLAN[(self.line - 1) % len(PLAN)])]

    rollout = collect(Planner(), envs, begin(envs, seed=0), len(PLAN), discount=0.99)
    (episode,) = rollout.episodes
    assert episode.success
    assert episode.discounted_return == pytest.approx(optimum, abs=1e-6)


def test_other_autoreset_modes_are_refused() -> None:
    envs = countdowns(AutoresetMode.DISABLED, 1)
    with pytest.raises(ValueError, match="SAME_STEP or NEXT_STEP"):
        collect(Scripted({}), envs, begin(envs), 1, discount=1.0)


def test_environments_that_speak_text_are_refused() -> None:
    envs = gym.vector.SyncVectorEnv([Countdown], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="interface='tokens'"):
        collect(Scripted({}), envs, begin(envs), 1, discount=1.0)


def test_batched_infos_come_apart_as_they_were() -> None:
    batched = {
        "text": np.array(["a", None], dtype=object),
        "_text": np.array([True, False]),
        "count": np.array([1, 2]),
        "_count": np.array([True, True]),
        "inner": {"deep": np.array([0.5, 0.0]), "_deep": np.array([True, False])},
        "_inner": np.array([True, False]),
    }
    assert unbatch_infos(batched, 2) == [{"text": "a", "count": 1, "inner": {"deep": 0.5}}, {"count": 2}]
