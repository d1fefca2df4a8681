"""A training loop for MultiDiscrete spaces and vector environments runs unchanged on an id of the suite."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete

ID = "lang_envs:Overcooked-tomato-salad-v0"
STEPS, ENVS, GAMMA, LEARNING_RATE = 400, 4, 0.95, 0.5


class TokenTable:
    """Softmax policies over the next token, one for each observation and the tokens before."""

    def __init__(self, action_space: MultiDiscrete, vocabulary: np.ndarray, seed: int) -> None:
        self.length, self.vocabulary = action_space.shape[0], vocabulary
        self.logits: dict[bytes, np.ndarray] = {}
        self.random = np.random.default_rng(seed)

    def probabilities(self, key: bytes) -> np.ndarray:
        logits = self.logits.setdefault(key, np.zeros(len(self.vocabulary)))
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def act(self, observation: np.ndarray) -> tuple[np.ndarray, list[tuple[bytes, int]]]:
        tokens, choices = [], []
        for _ in range(self.length):
            key = observation.tobytes() + bytes(repr(tokens), "ascii")
            choice = int(self.random.choice(len(self.vocabulary), p=self.probabilities(key)))
            tokens.append(int(self.vocabulary[choice]))
            choices.append((key, choice))
        return np.array(tokens, dtype=np.int64), choices

    def reinforce(self, choices: list[tuple[bytes, int]], advantage: float) -> None:
        for key, choice in choices:
            gradient = -self.probabilities(key)
            gradient[choice] += 1
            self.logits[key] += LEARNING_RATE * advantage * gradient


@pytest.mark.parametrize("vectorization_mode", ["sync", "async"])
def test_reinforce_on_multidiscrete_spaces_runs_unchanged(vectorization_mode: str) -> None:
    envs = gym.make_vec(ID, num_envs=ENVS, vectorization_mode=vectorization_mode)
    try:
        assert isinstance(envs.single_observation_space, MultiDiscrete)
        assert isinstance(envs.single_action_space, MultiDiscrete)
        envs.action_space.seed(0)
        vocabulary = np.unique(envs.action_space.sample())[:8]  # a loop for discrete actions wants few of them
        policy = TokenTable(envs.single_action_space, vocabulary, seed=0)
        episodes: list[list[tuple[list[tuple[bytes, int]], float]]] = [[] for _ in range(ENVS)]
        returns: list[float] = []
        observations, _ = envs.reset(seed=0)
        resetting = np.zeros(ENVS, dtype=bool)
        for _ in range(STEPS):
            actions, choices = zip(*(policy.act(observation) for observation in observations), strict=True)
            observations, rewards, terminations, truncations, _ = envs.step(np.stack(actions))
            assert observations.shape == (ENVS, *envs.single_observation_space.shape)
            assert observations.dtype == np.int64
            for row in np.flatnonzero(~resetting):
                episodes[row].append((choices[row], float(rewards[row])))
            resetting = terminations | truncations
            for row in np.flatnonzero(resetting):
                value = 0.0
                for chosen, reward in reversed(episodes[row]):
                    value = reward + GAMMA * value
                    policy.reinforce(chosen, value)
                returns.append(sum(reward for _, reward in episodes[row]))
                episodes[row] = []
        assert len(returns) >= ENVS, "episodes end and the environments go on by themselves"
        assert all(np.isfinite(returns))
    finally:
        envs.close()
