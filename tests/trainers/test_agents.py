"""Agents: acting, learning, errors, and the differences between POAD, NTPO and TWOSOME."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import lang_envs
import trainers
from lang_envs import LanguageEnv, TokenEnv, Transition
from trainers import Action, Rollout, check_agent
from trainers.agents import agent_class
from trainers.agents.ppo import PPOAgent
from trainers.credit import gae
from trainers.evaluation import evaluate
from trainers.loop import train
from trainers.rollout import begin, collect, unbatch_infos

Envs = Callable[..., gym.vector.VectorEnv]
ENVIRONMENT = "Overcooked-tomato-salad-v0"
LEARNERS = ("poad", "ntpo", "twosome")


def collect_steps(agent: Any, envs: gym.vector.VectorEnv, steps: int = 8) -> Any:
    return collect(agent, envs, begin(envs, seed=0), steps, discount=0.99)


@pytest.mark.parametrize("name", trainers.AGENTS)
def test_agents_pass_check_agent(name: str) -> None:
    env = gym.make(ENVIRONMENT, max_episode_steps=4)  # critic-free agents learn from finished episodes
    check_agent(trainers.make(name, env, seed=1), env)


@pytest.mark.parametrize("sampling", ["trie", "candidates", "free"])
@pytest.mark.parametrize("name", LEARNERS)
def test_agents_act_and_learn_with_every_sampling_mode(name: str, sampling: str, make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make(name, envs, sampling=sampling, seed=1, minibatches=2, epochs=2)
    metrics = agent.learn(collect_steps(agent, envs))
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["entropy"] > 0


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("name", LEARNERS)
def test_hugging_face_models_learn_in_environments_with_their_tokenizer(
    name: str, kind: str, tiny_model: Callable[[str], Path], make_envs: Envs
) -> None:
    folder = str(tiny_model(kind))
    envs = make_envs(2, tokenizer=folder)
    agent = trainers.make(name, envs, model=folder, seed=1, gradient_checkpointing=True)
    before = [parameter.clone() for parameter in agent.language_model.trainable_parameters()]
    agent.learn(collect_steps(agent, envs))
    after = agent.language_model.trainable_parameters()
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_4bit_model_acts_and_learns_with_phrases_and_free_text(
    tiny_model: Callable[[str], Path], make_envs: Envs
) -> None:
    pytest.importorskip("bitsandbytes")
    folder = str(tiny_model("llama"))
    for sampling in ("trie", "free"):
        envs = make_envs(2, tokenizer=folder)
        agent = trainers.make("poad", envs, model=folder, quantize="4bit", sampling=sampling, seed=1)
        assert np.isfinite(list(agent.learn(collect_steps(agent, envs, 4)).values())).all()


def test_agent_accepts_a_model_object(tiny_model: Callable[[str], Path], make_envs: Envs) -> None:
    from transformers import AutoModelForCausalLM

    folder = str(tiny_model("llama"))
    envs = make_envs(2, tokenizer=folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    agent = trainers.make("poad", envs, model=model, device="cpu")
    assert agent.tokenizer == envs.single_action_space.tokenizer
    agent.learn(collect_steps(agent, envs, 4))


def test_environments_with_another_tokenizer_raise_with_the_right_option(
    tiny_model: Callable[[str], Path], make_envs: Envs
) -> None:
    folder = str(tiny_model("qwen2"))
    with pytest.raises(ValueError, match=r"make the environments with tokenizer='.*qwen2"):
        trainers.make("poad", make_envs(1), model=folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"behavior": "trie"}, "behavior"),
        ({"sampling": "beam"}, "beam"),
        ({"normalisation": "letter"}, "letter"),
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"epochs": 0}, "epochs=0"),
        ({"actor_lr": -1.0}, "actor_lr"),
        ({"gae_lambda_token": 2.0}, "gae_lambda_token"),
        ({"epochs": 1.5}, "epochs=1.5 must be of type int"),
        ({"epochs": "abc"}, "epochs='abc'"),
        ({"entropy_coefficient": -1.0}, "entropy_coefficient=-1.0"),
        ({"max_action_tokens": 0}, "max_action_tokens=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"actor_lr": float("inf")}, "actor_lr=inf"),
    ],
)
def test_invalid_settings_raise_with_their_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainers.make("poad", gym.make(ENVIRONMENT), **settings)


def test_twosome_has_no_setting_gae_lambda_token() -> None:
    with pytest.raises(ValueError, match="TWOSOMESettings has no setting gae_lambda_token"):
        trainers.make("twosome", gym.make(ENVIRONMENT), gae_lambda_token=0.95)


def test_unknown_agent_raises_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'poad'\? Use poad, ntpo"):
        agent_class("paod")
    with pytest.raises(ValueError, match="no module 'nowhere_at_all'"):
        agent_class("nowhere_at_all:Agent")
    with pytest.raises(ValueError, match="has no 'Nobody'"):
        agent_class("trainers.agents.poad:Nobody")


def test_every_ratio_is_one_before_the_first_step(make_envs: Envs) -> None:
    for name in LEARNERS:
        envs = make_envs(2)
        agent = trainers.make(name, envs, seed=2, epochs=1, minibatches=1)
        metrics = agent.learn(collect_steps(agent, envs))
        assert abs(metrics["approximate_kl"]) < 1e-9
        assert metrics["clip_fraction"] == 0


def test_learn_raises_if_the_policy_is_not_the_one_that_acted(make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make("poad", envs, seed=2)
    rollout = collect_steps(agent, envs)
    with torch.no_grad():
        for parameter in agent.language_model.trainable_parameters():
            parameter.add_(0.5)
    with pytest.raises(RuntimeError, match="differ by"):
        agent.learn(rollout)


class OneTokenPhrases(LanguageEnv):
    """Two phrases of one token each; only the first gives a reward."""

    action_names = ("chop", "get")
    discount = 0.9
    text_parts = (("Make a tomato salad.", "Your hands are empty."),)

    def __init__(self) -> None:
        super().__init__(max_text_length=32)
        self.time = 0

    def start(self, options: dict[str, Any]) -> None:
        self.time = 0

    def advance(self, action: int | str | None) -> Transition:
        self.time += 1
        return Transition(float(action == 0), self.time == 5, False, {"success": action == 0})

    def narrate(self) -> str:
        return self.text_parts[0][self.time % 2]


def test_environment_without_phrases_allows_only_free_text() -> None:
    class Anything(OneTokenPhrases):
        action_names = ()
        text_parts = None

    env = TokenEnv(Anything())
    for name in LEARNERS:
        assert trainers.make(name, env).settings.sampling == "free"
    with pytest.raises(ValueError, match="sampling='trie' needs environments with phrases; use sampling='free' here"):
        trainers.make("poad", env, sampling="trie")


def test_reward_that_is_not_finite_raises() -> None:
    class Broken(OneTokenPhrases):
        def advance(self, action: int | str | None) -> Transition:
            return super().advance(action)._replace(reward=float("nan"))

    envs = gym.vector.SyncVectorEnv([lambda: TokenEnv(Broken())], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="an environment returned the reward nan"):
        collect_steps(trainers.make("random", envs), envs, 1)


def one_token_envs() -> gym.vector.VectorEnv:
    return gym.vector.SyncVectorEnv([lambda: TokenEnv(OneTokenPhrases())] * 2, autoreset_mode=AutoresetMode.SAME_STEP)


def test_poad_and_ntpo_are_equal_with_one_token_actions() -> None:
    metrics = []
    for name in ("poad", "ntpo"):
        envs = one_token_envs()
        agent = trainers.make(name, envs, seed=3, end_token=False)
        lines = train(agent, envs, 128, rollout_steps=16)
        metrics.append([{key: value for key, value in line.items() if key != "timing"} for line in lines])
    assert metrics[0] == metrics[1]


def test_poad_and_ntpo_differ_only_by_gamma_token(make_envs: Envs) -> None:
    def losses(name: str, **settings: Any) -> list[float]:
        envs = make_envs(2)
        agent = trainers.make(name, envs, seed=3, **settings)
        return [line["policy_loss"] for line in train(agent, envs, 256, rollout_steps=64)]

    assert losses("ntpo", gamma_token=1.0) == losses("poad")
    assert losses("ntpo", gamma_token=0.99) == losses("ntpo") != losses("poad")
    with pytest.raises(ValueError, match=r"gamma_token=1\.5 must be between 0 and 1"):
        losses("ntpo", gamma_token=1.5)


@pytest.mark.parametrize("name", LEARNERS)
def test_agent_learns_the_better_of_two_phrases(name: str) -> None:
    envs = one_token_envs()
    agent = trainers.make(name, envs, seed=4)
    train(agent, envs, 2048, rollout_steps=32)
    rollout = collect(agent, envs, begin(envs, seed=9), 20, discount=0.9)
    assert np.mean([action.text == "chop" for row in rollout.actions for action in row]) > 0.9


def phrases(infos: Sequence[dict[str, Any]]) -> list[Any]:
    return [info["available_actions"] for info in infos]


def credited(agent: PPOAgent, rollout: Rollout) -> tuple[Any, ...]:
    """Return the arguments that an agent passes to ``gae``: rewards, values, mask and next values."""
    with mock.patch("trainers.agents.ppo.gae", wraps=gae) as credit:
        agent.assign_credit(rollout)
    rewards, values, mask, next_values, *_ = credit.call_args.args
    return rewards, values, mask, next_values


def test_poad_advantage_of_the_first_token_equals_the_actions(make_envs: Envs) -> None:
    envs = make_envs(2)
    agent: PPOAgent = trainers.make("poad", envs, seed=5)
    torch.nn.init.normal_(agent.critic[-1].weight)
    rollout = collect_steps(agent, envs, 12)
    batch = agent.assign_credit(rollout)
    queries = [action.record.query for row in rollout.actions for action in row]
    values = np.array([nodes[0] for nodes in agent.values(queries)]).reshape(rollout.rewards.shape)
    last = [agent.query(*pair) for pair in zip(rollout.last_observations, phrases(rollout.last_infos), strict=True)]
    following = np.concatenate([values[1:], [[nodes[0] for nodes in agent.values(last)]]])
    expected, _ = gae(
        rollout.rewards,
        values[..., None],
        rollout.valid[..., None],
        np.where(rollout.episode_ends, 0.0, following),
        rollout.episode_ends,
        gamma=0.99**rollout.durations,
        gae_lambda=0.95,
    )
    before_normalising = (batch.returns - batch.old_values)[:, 0]
    np.testing.assert_allclose(before_normalising.numpy(), expected.flatten(), atol=1e-5)


def test_truncated_episodes_bootstrap_from_the_final_observation(make_envs: Envs) -> None:
    envs = make_envs(2)
    agent: PPOAgent = trainers.make("random", envs)
    learner: PPOAgent = trainers.make("poad", envs, seed=5)
    torch.nn.init.normal_(learner.critic[-1].weight)

    class Idle:
        """Returns the learner's action records, but always the action "chop", so that episodes are truncated."""

        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[Action]:
            return [Action("chop", (), action.record) for action in learner.act(observations, infos)]

    rollout = collect(Idle(), envs, begin(envs, seed=0), 205, discount=0.99)
    assert len(rollout.final) == 2, agent
    *_, next_values = credited(learner, rollout)
    for (t, n), (observation, info) in rollout.final.items():
        (values,) = learner.values([learner.query(observation, info["available_actions"])])
        assert next_values[t, n] == pytest.approx(values[0], abs=1e-5) != 0
    learner.settings = type(learner.settings)(**{**vars(learner.settings), "truncation_is_termination": True})
    *_, next_values = credited(learner, rollout)
    assert all(next_values[key] == 0 for key in rollout.final)


def test_action_frequencies_equal_policy_probabilities(make_envs: Envs) -> None:
    envs = make_envs(1)
    agent: PPOAgent = trainers.make("poad", envs, seed=6)
    observations, infos = envs.reset(seed=0)
    infos = [{"available_actions": infos["available_actions"][0]}]
    (action,) = agent.act(observations, infos)
    probabilities = np.exp(action.record.output.action_log_probs)
    choices = [agent.act(observations, infos)[0].record.choice for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(choices, minlength=len(probabilities)) / 4000, probabilities, atol=0.03)
    (greedy,) = agent.act(observations, infos, greedy=True)
    assert greedy.record.choice == probabilities.argmax()


def test_agents_do_not_share_random_numbers() -> None:
    """Free text is sampled by transformers from torch's global generators; each agent has its own state of these."""

    def texts(*, disturb: bool) -> list[str]:
        envs = lang_envs.make_vec(ENVIRONMENT, 2)
        agent = trainers.make("poad", envs, seed=3, sampling="free", max_action_tokens=8)
        observations, infos = envs.reset(seed=0)
        infos = unbatch_infos(infos, 2)
        sampled = []
        for _ in range(2):
            if disturb:
                trainers.make("ntpo", envs, seed=4, sampling="free").act(observations, infos)
                torch.rand(5)
            sampled += [action.text for action in agent.act(observations, infos)]
        return sampled

    before = torch.get_rng_state()
    alone = texts(disturb=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(alone)) > 1
    assert texts(disturb=True) == alone


def test_no_step_is_skipped_without_a_kl_threshold(make_envs: Envs) -> None:
    envs = make_envs(2)
    skipped = []
    for threshold in (None, 1e-9):
        agent = trainers.make("poad", envs, seed=1, actor_lr=0.05, kl_threshold=threshold)
        skipped.append(agent.learn(collect_steps(agent, envs))["skipped_actor_steps"])
    assert skipped[0] == 0 < skipped[1]


def test_actor_steps_stop_above_the_kl_threshold(make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make("poad", envs, seed=7, kl_threshold=1e-12, epochs=3, minibatches=2)
    metrics = agent.learn(collect_steps(agent, envs))
    assert metrics["skipped_actor_steps"] == pytest.approx(5 / 6)


def test_anneal_steps_reduces_learning_rates_to_zero(make_envs: Envs) -> None:
    envs = make_envs(2)
    agent = trainers.make("poad", envs, seed=7, anneal_steps=32, actor_lr=1e-3)
    assert [agent.learn(collect_steps(agent, envs))["actor_lr"] for _ in range(3)] == pytest.approx([1e-3, 5e-4, 0])


@pytest.mark.parametrize(("name", "sampling"), [("poad", "trie"), ("poad", "candidates"), ("twosome", "trie")])
def test_gradients_do_not_depend_on_branches_that_were_not_chosen(name: str, sampling: str, make_envs: Envs) -> None:
    gradients = []
    for level in ("action", "token"):  # scores all candidates, or only the chosen ones
        envs = make_envs(2)
        agent = trainers.make(
            name,
            envs,
            seed=8,
            sampling=sampling,
            entropy_level=level,
            entropy_coefficient=0.0,
            epochs=1,
            minibatches=1,
        )
        agent.learn(collect_steps(agent, envs, 12))
        gradients.append(torch.cat([p.grad.flatten() for p in agent.language_model.trainable_parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-3)


def test_gradients_do_not_depend_on_tokens_per_forward(make_envs: Envs) -> None:
    gradients = []
    for tokens in (1, 100_000):
        envs = make_envs(2)
        agent = trainers.make("poad", envs, seed=8, tokens_per_forward=100_000, epochs=1, minibatches=1)
        rollout = collect_steps(agent, envs)
        agent.policy.tokens_per_forward = tokens
        agent.learn(rollout)
        gradients.append(torch.cat([p.grad.flatten() for p in agent.language_model.trainable_parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-3)


def test_save_does_not_change_the_agent_and_peft_loads_the_adapter(tmp_path: Path, make_envs: Envs) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trainers.language_model import EMBEDDED_FOLDER

    envs = make_envs(2)
    agent = trainers.make("poad", envs, seed=8)
    agent.learn(collect_steps(agent, envs))
    count = len(agent.language_model.trainable_parameters())
    agent.save(tmp_path)
    assert len(agent.language_model.trainable_parameters()) == count
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER), tmp_path / "adapter")
    ids = torch.tensor([[1, 50, 60, 70]])
    torch.testing.assert_close(loaded(ids).logits, agent.language_model.model(ids).logits, atol=1e-5, rtol=1e-5)


def test_load_from_a_folder_without_an_agent_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no saved agent"):
        trainers.make("poad", gym.make(ENVIRONMENT)).load(tmp_path)


class ReadmeAgent:
    """An agent of a third party, similar to the one in the README."""

    def __init__(self, envs: Any, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        return [Action(str(self.random.choice(info["available_actions"]))) for info in infos]


def test_agent_that_only_acts_passes_the_check_and_can_be_evaluated() -> None:
    class FirstPhrase(ReadmeAgent):
        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[Action]:
            return [Action(info["available_actions"][0]) for info in infos]

    env = gym.make(ENVIRONMENT)
    check_agent(FirstPhrase(env), env)
    evaluation = evaluate(FirstPhrase(env), ENVIRONMENT, 3)
    assert evaluation.returns.shape == (3,)
    assert evaluation.success_rate == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda actions: actions[:1], "returned 1 actions"),
        (lambda actions: [Action("fly away")] * 2, "'fly away' is not one of"),
        (lambda actions: [Action("chop", (99999,) * 3)] * 2, "token_ids"),
        (lambda actions: tuple(actions), "list of actions"),
        (lambda actions: ["chop", "chop"], "trainers.Action"),
    ],
)
def test_check_agent_refuses_invalid_actions(change: Callable[[Any], Any], message: str) -> None:
    class Invalid(ReadmeAgent):
        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> Any:
            return change([Action("chop") for _ in infos])

    env = gym.make(ENVIRONMENT)
    with pytest.raises(AssertionError, match=message):
        check_agent(Invalid(env), env)


def test_check_agent_refuses_another_signature() -> None:
    class Narrow(ReadmeAgent):
        def act(self, observation: Any) -> Any:  # type: ignore[override]
            return []

    env = gym.make(ENVIRONMENT)
    with pytest.raises(AssertionError, match=r"act must accept .* too many positional arguments"):
        check_agent(Narrow(env), env)


def test_check_agent_refuses_an_agent_that_loads_another_state_than_it_saved(make_envs: Envs) -> None:
    class Forgetful(ReadmeAgent):
        favourite = 0

        def act(self, observations: Any, infos: Any, *, greedy: bool = False) -> list[Action]:
            return [Action(info["available_actions"][self.favourite]) for info in infos]

        def learn(self, rollout: Any) -> dict[str, float]:
            self.favourite = 2
            return {}

        def save(self, folder: Path) -> None: ...

        def load(self, folder: Path) -> None:
            self.favourite = 0

    env = gym.make(ENVIRONMENT)
    with pytest.raises(AssertionError, match="after load the agent acts differently"):
        check_agent(Forgetful(env), env)
