"""Benchmarks from the command line: what they write, what they refuse, and going on after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium as gym
import pytest

import trainers
from benchmarks import figures
from benchmarks.__main__ import main
from benchmarks.agent_spec import AgentSpec
from benchmarks.analyses.returns import random_policy
from benchmarks.config import AgentOptions, BenchmarkConfig
from benchmarks.display import evaluation, last_metrics
from benchmarks.presets import RUN_DEFAULTS, RunDefaults, preset_settings
from benchmarks.runs import Benchmark
from benchmarks.worker import EVALUATION_FILE, execute
from trainers.agents import AGENTS, agent_class
from trainers.loop import alone_in
from trainers.settings import resolve

ROOT = Path(__file__).parents[2]
SMALL = ("--steps", "256", "--seeds", "1", "--eval-episodes", "4", "--checkpoint-every", "1", "--rollout-steps", "16")


def benchmark(*arguments: str, folder: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
    )


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def test_a_benchmark_writes_pages_figures_metrics_and_adapters(tmp_path: Path) -> None:
    done = benchmark("run", "--algo", "poad,random", *SMALL, "--actor-lr", "0.0007", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert "<svg" in (run / "returns-final-returns.svg").read_text()
    (comparison,) = json.loads((run / "returns.json").read_text())["data"]["comparisons"]
    assert [agent["algorithm"] for agent in comparison["agents"]] == ["poad", "random"]
    assert comparison["optimum"] == pytest.approx(0.920518)
    assert "optimal return 0.9205" in (run / "returns.md").read_text()
    assert "steps to 90 %" in done.stdout
    config = json.loads((run / "config.json").read_text())
    run = run / "poad" / "seed-0"
    settings = json.loads((run / "agent.json").read_text())["settings"]
    assert settings["actor_lr"] == 0.0007, "an option given changes the resolved configuration"
    assert settings["gamma"] == 0.99, "what was left open is resolved"
    assert len(json.loads((run / "agent.json").read_text())["initial_adapter_sha256"]) == 64
    assert (run / "metrics.jsonl").exists()
    assert list(run.glob("events.out.tfevents.*"))
    assert (run / "checkpoints" / "best" / "adapter" / "adapter_model.safetensors").exists()
    assert config["steps"] == 256
    assert "torch" in (run / "versions.txt").read_text()


def test_a_stopped_benchmark_is_resumed_and_repeats_nothing(tmp_path: Path) -> None:
    arguments = ["run", "--algo", "random,poad", *SMALL, "--steps", "1024", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/poad/seed-0/checkpoints/last")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    run = only_run(tmp_path)
    deadline = time.monotonic() + 10
    while True:  # its processes end with it
        try:
            with alone_in(run / "poad" / "seed-0"):
                break
        except BlockingIOError:
            assert time.monotonic() < deadline, "a run outlived its benchmark"
            time.sleep(0.1)
    finished = (run / "random" / "seed-0" / "result.json").stat().st_mtime_ns
    begun = (run / "poad" / "seed-0" / "agent.json").stat().st_mtime_ns
    assert not (run / "returns.json").exists()
    done = benchmark("resume", str(run), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (run / "random" / "seed-0" / "result.json").stat().st_mtime_ns == finished
    steps = [json.loads(line)["step"] for line in (run / "poad" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(64, 1025, 64))
    assert (run / "poad" / "seed-0" / "agent.json").stat().st_mtime_ns == begun, "it started again"
    assert (run / "returns-final-returns.svg").exists()


def test_the_last_line_of_metrics_may_be_long_or_missing(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert last_metrics(file) is None
    timing = {"timing": {"steps_per_second": 9.0}}
    whole = json.dumps({"step": 7} | timing | {f"metric {n}": 0.123456789 for n in range(1000)}) + "\n"
    word = json.dumps({"step": 7, "colour": "red"} | timing) + "\n"
    for text, step in (
        ("", None), ('{"st', None), (whole, 7), ('{"step": 1}\n' + whole, 7), (whole + '{"st', 7), (word, 7),
    ):  # fmt: skip
        file.write_text(text)
        found = last_metrics(file)
        assert (found and found["step"]) == step


PLUGIN = """
import numpy as np

from trainers import Action


class Wise:
    def __init__(self, envs, seed=0, patience=1):
        self.plan = ["get the tomato", "go to the cutting board", "chop", "get the tomato", "get the bowl"]
        self.line = None

    def act(self, observations, infos, *, greedy=False):
        if self.line is None or len(self.line) != len(infos):
            self.line = [0] * len(infos)
        chosen = []
        for n, info in enumerate(infos):
            if info["text"].endswith("On a counter is a raw tomato.") and "hands are empty" in info["text"]:
                self.line[n] = 0
            chosen.append(Action((self.plan + ["deliver the dish"])[self.line[n] % 6]))
            self.line[n] += 1
        return chosen

    def learn(self, rollout):
        return {"seen": float(rollout.valid.sum())}

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, folder):
        pass
"""


def test_an_agent_of_a_third_party_runs_in_a_benchmark(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(PLUGIN)
    done = benchmark("run", "--algo", "my_module:Wise", *SMALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads((only_run(tmp_path) / "returns.json").read_text())["data"]["comparisons"]
    (wise,) = comparison["agents"]
    assert wise["algorithm"] == "my_module:Wise"
    assert wise["returns"] == [pytest.approx(0.920518)]
    assert wise["success"] == [1.0]


def test_settings_that_an_agent_of_a_third_party_lacks_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(PLUGIN)
    done = benchmark("run", "--algo", "poad,my_module:Wise", "--actor-lr", "1e-4", *SMALL, folder=tmp_path)
    assert done.returncode == 1
    assert (
        "error: agent 'my_module:Wise' takes no actor_lr; put settings of one agent in brackets after it" in done.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_an_agent_that_cannot_be_trained_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acts_only.py").write_text("class Actor:\n    def act(self, observations, infos):\n        pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"agent 'acts_only:Actor' has no method learn, save, load; expected"):
        BenchmarkConfig(algo="poad,acts_only:Actor").check()


def test_a_failing_run_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = (
        PLUGIN
        + """

class Broken(Wise):
    def learn(self, rollout):
        raise RuntimeError("out of luck")
"""
    )
    (tmp_path / "my_module.py").write_text(broken)
    done = benchmark("run", "--algo", "my_module:Broken,my_module:Wise", *SMALL, "--workers", "1", folder=tmp_path)
    assert done.returncode != 0 and "out of luck" in done.stderr
    assert "error: Broken (seed 0) ended with code 1: see the errors above" in done.stderr
    assert len(list(only_run(tmp_path).glob("my_module.Wise/seed-*/result.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--algo", "paod"), "did you mean 'poad'"),
        (("--env", "Overcooked-tomatoe-salad-v0"), "Did you mean 'Overcooked-tomato-salad-v0'"),
        (("--steps", "0"), "steps=0 must be at least 1"),
        (("--first-seed", "-1"), "first_seed=-1"),
        (("--sampling", "beam"), "sampling='beam'"),
        (("--algo", "twosome", "--gae-lambda-token", "0.9"), "TWOSOME has no setting gae_lambda_token"),
        (("--algo", "poad,poad"), "more than once"),
        (("--algo", "poad[epochs=abc]"), "epochs='abc'"),
        (("--algo", "poad[seed=5]"), "set it outside the brackets"),
        (("--algo", "ntpo[gamma_token=0.9,gamma_token=0.8]"), "gamma_token is set twice"),
        (("--algo", "ntpo", "--temperature", "1e-300"), "temperature=1e-300 must be at least 0.001"),
        (("--env", "DataSciCoding-airlines-v0"), "run: python -m lang_envs fetch airlines"),
        (("--algo", ""), "names no agent"),
        (("--model", "./nowhere"), "./nowhere"),
        (("--algo", "grpo", "--preset", "paper"), "the paper has no hyper-parameters for grpo on Overcooked"),
        (("--algo", "poad,softq", "--sampling", "candidates"), "SoftQ learns Q of the tokens of phrases"),
        (("--algo", "poad,dqn", "--env", "DataSciCoding-balance-scale-v0"), "it needs an environment with phrases"),
    ],
)
def test_options_that_cannot_be_run_are_named_without_a_traceback(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LANG_ENVS_DATA_DIR", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "run", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value).startswith("error: ")
    assert message in str(ended.value)
    assert not (tmp_path / "runs").exists(), "a run was started"


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    done = benchmark("resume", str(tmp_path), folder=tmp_path)
    assert done.returncode != 0
    assert "is not the folder of a benchmark" in done.stderr


def test_a_configuration_is_read_back_from_its_file(tmp_path: Path) -> None:
    config = BenchmarkConfig(
        algo="poad,ntpo", seeds=5, agent=AgentOptions(actor_lr=0.1, lora_targets=("q_proj",)), runs_dir=tmp_path
    )
    config.save(tmp_path / "config.json")
    assert BenchmarkConfig.load(tmp_path / "config.json") == config


@pytest.mark.parametrize("algo", ["poad", "ntpo", "twosome"])
@pytest.mark.parametrize("environment", ["Overcooked-tomato-salad-v0", "VirtualHome-entertainment-v0"])
def test_the_papers_presets_are_settings_of_our_agents(algo: str, environment: str) -> None:
    settings = resolve(agent_class(algo).settings_type, "some/7b-model", preset_settings("paper", environment, algo))
    assert settings.sampling == "candidates"
    assert settings.epochs == (1 if algo == "twosome" else 5)
    assert settings.gamma == (0.99 if environment.startswith("Overcooked") else 0.95)


def test_the_wide_preset_is_the_papers_with_rollouts_of_one_step_in_many_environments() -> None:
    config = BenchmarkConfig(env="DataSciCoding-balance-scale-v0", preset="paper-wide", model="a/7b")
    narrow = replace(config, preset="paper")
    assert (config.run_defaults.num_envs, config.run_defaults.rollout_steps) == (128, 1)
    assert config.run_defaults.steps == narrow.run_defaults.steps
    assert config.agent_options(AgentSpec("poad"), 0) == narrow.agent_options(AgentSpec("poad"), 0)
    with pytest.raises(ValueError, match="'paper-wide' is for DataSciCoding"):
        preset_settings("paper-wide", "Overcooked-tomato-salad-v0", "poad")


def test_an_agent_has_its_own_settings() -> None:
    config = BenchmarkConfig(algo="poad, poad[sampling=candidates,critic_hidden=[64,32]],ntpo[lora_targets=all-linear]")
    config.check()
    names = [agent.name for agent in config.agents]
    assert names == ["poad", "poad[sampling=candidates,critic_hidden=[64,32]]", "ntpo[lora_targets=all-linear]"]
    assert [AgentSpec.parse(name) for name in names] == list(config.agents)
    options = config.agent_options(config.agents[1], seed=4)
    assert options == {"sampling": "candidates", "critic_hidden": [64, 32], "seed": 4}
    settings = resolve(agent_class("poad").settings_type, "embedded", options)
    assert settings.critic_hidden == (64, 32)


def test_agents_have_labels_for_readers_and_folders() -> None:
    for name, label, folder in (
        ("poad", "POAD", "poad"),
        ("random", "random agent", "random"),
        ("gigpo[step_weight=0.5]", "GiGPO, ω = 0.5", "gigpo.step_weight=0.5"),
        ("softq", "Soft Q", "softq"),
        ("adrl-archer", "ADRL-ARCHER", "adrl-archer"),
        ("frozen", "frozen model", "frozen"),
        ("ntpo[gamma_token=0.9]", "NTPO, γ_w = 0.9", "ntpo.gamma_token=0.9"),
        ("twosome[entropy_coefficient=0.0,epochs=2]", "TWOSOME, no entropy bonus, epochs = 2", None),
        ("my_module:Wise", "Wise", "my_module.Wise"),
    ):
        agent = AgentSpec.parse(name)
        assert (agent.name, agent.label) == (name, label)
        assert folder in (None, agent.folder)
    assert AgentSpec.parse("ntpo[gamma_token=0.9]").colour == AgentSpec("ntpo").colour != AgentSpec("poad").colour


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("..:X", "expected a name like poad or package.module:Class"),
        ("[epochs=2]", "expected a name like poad"),
        ("ntpo[gamma=1]x[epochs=2]", "a bracket is missing or in the wrong place"),
        ("ntpo[gamma=1]]", "a bracket is missing or in the wrong place"),
        ("poad[critic_hidden=(1,2]", "a bracket is missing or in the wrong place"),
        ("poad[critic_hidden=(1]", "a bracket is missing or in the wrong place"),
    ],
)
def test_agents_with_wrong_names_or_brackets_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentSpec.parse_list(text)


def test_folders_of_agents_with_many_settings_have_short_names_that_differ() -> None:
    first, second = (AgentSpec("m:Wise", {f"setting_{n}": n for n in range(count)}) for count in (60, 61))
    assert first.folder != second.folder
    assert all(name.startswith("m.Wise.setting_0=0,") and len(name) < 100 for name in (first.folder, second.folder))


def test_labels_may_contain_dollar_signs(tmp_path: Path) -> None:
    figure, (axes,) = figures.grid(1, 1, 3.0, 2.0)
    figures.draw_curves(axes, {AgentSpec("m:Wise", {"words": r"$\bad{$"}): [([1.0], [2.0])]})
    figures.legend_below(figure, [axes])
    assert "<svg" in figures.save(figure, tmp_path / "figure.svg").read_text()


def test_all_agents_agree_on_the_type_of_a_setting() -> None:
    types: dict[str, Any] = {}
    for name in set(AGENTS) - {"random"}:
        for setting, hint in get_type_hints(agent_class(name).settings_type).items():
            assert types.setdefault(setting, hint) == hint, f"{setting} of {name}"


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"random"}))
def test_defaults_of_environments_are_settings_of_every_agent(name: str) -> None:
    kind = agent_class(name)
    for env in ("VirtualHome-entertainment-v0", "DataSciCoding-balance-scale-v0"):
        config = BenchmarkConfig(algo=name, env=env)
        settings = resolve(kind.settings_type, "embedded", config.agent_options(AgentSpec(name), 0))
        for setting, value in RUN_DEFAULTS.get(env, RUN_DEFAULTS["DataSciCoding"]).settings.items():
            assert getattr(settings, setting, value) == value


def test_help_shows_every_setting_with_its_default(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "run", "--help"])
    with pytest.raises(SystemExit):
        main()
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in AGENTS:
        for setting in getattr(getattr(agent_class(name), "settings_type", None), "__dataclass_fields__", {}):
            assert setting == "seed" or f"--{setting.replace('_', '-')} " in text
    assert "(default: trie (twosome: candidates))" in text
    assert "Only for softq, dqn. (default: 0.01)" in text
    assert "(default: 0.0003; other models: 5e-07)" in text
    assert "None" not in text.partition("agent options")[2].replace("None never skips", "")


def test_arguments_of_an_environment_may_have_any_names(tmp_path: Path) -> None:
    arguments = ("mode=1", "seed=2", "env=3", "episodes=4", "agent=5", "greedy=6", "num_envs=7", "run=8", "options=9")
    given: list[dict[str, int]] = []

    def make(**options: int) -> gym.Env:
        given.append(options)
        return gym.make("Overcooked-tomato-salad-v0", max_episode_steps=5)

    gym.register("Named-v0", entry_point=make)
    config = BenchmarkConfig(algo="random", env="Named-v0", env_set=arguments, steps=8, num_envs=2, rollout_steps=4)
    config = replace(config, seeds=1, eval_episodes=2)
    config.check()
    (run,) = Benchmark(config, tmp_path).runs
    execute(run, 1)
    assert run.finished
    assert random_policy(Benchmark(config, tmp_path), gym.make("Overcooked-tomato-salad-v0")) is not None
    expected = {name: int(value) for name, value in (pair.split("=") for pair in arguments)}
    assert all(own == expected for own in given)
    with pytest.raises(ValueError, match="env_options are for environments that are named by an id"):
        trainers.evaluate(trainers.make("random", make()), make, 1, env_options=expected)


def test_the_progress_of_an_evaluation_is_shown(tmp_path: Path) -> None:
    run = Benchmark(BenchmarkConfig(), tmp_path).runs[0]
    run.path.mkdir(parents=True)
    assert evaluation(run) == "evaluating"
    (run.path / EVALUATION_FILE).write_text("evaluating on x, greedy: 3/100 episodes")
    assert evaluation(run) == "evaluating on x, greedy: 3/100 episodes"


def test_the_paper_has_no_preset_for_what_it_did_not_run() -> None:
    with pytest.raises(ValueError, match="no hyper-parameters for twosome on DataSciCoding"):
        preset_settings("paper", "DataSciCoding-airlines-v0", "twosome")


def test_agents_are_evaluated_on_environments_without_training(tmp_path: Path) -> None:
    unseen = ["VirtualHome-cheese-v0", "VirtualHome-towel-v0"]
    options = [*SMALL, "--env", "VirtualHome-food-preparation-v0", "--transfer", *unseen]
    done = benchmark("run", "--algo", "poad,random", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    for stage in ("untrained", "trained"):
        found = json.loads((run / "poad" / "seed-0" / f"transfer-{stage}.json").read_text())
        assert list(found) == unseen
        for ways in found.values():
            for way in ("sampled", "greedy"):
                assert len(ways[way]["return"]) == len(ways[way]["success"]) == 4
    environments = json.loads((run / "transfer.json").read_text())["data"]["environments"]
    assert [agent["stage"] for agent in environments[0]["agents"]] == ["untrained", "trained", "trained"]
    assert [agent["algorithm"] for agent in environments[0]["agents"]] == ["poad", "poad", "random"]
    page = (run / "transfer.md").read_text()
    assert "never rewarded in them" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert rows[2].startswith("| cheese | 0.7738 | ")
    assert rows[3] == "| … published, 7B |  | 0.1351 55% | 0.7553 100% |  |"
    assert rows[4].startswith("| towel | 0.6983 | ")
    assert "<svg" in (run / "transfer-transfer.svg").read_text()
    (run / "poad" / "seed-0" / "result.json").unlink()
    untrained = (run / "poad" / "seed-0" / "transfer-untrained.json").read_text()
    again = benchmark("resume", str(run), folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (run / "poad" / "seed-0" / "transfer-untrained.json").read_text() == untrained


def test_evaluation_on_other_environments_does_not_change_training(tmp_path: Path) -> None:
    results = []
    for more in ([], ["--transfer", "VirtualHome-pizza-v0"]):
        folder = tmp_path / str(len(more))
        folder.mkdir()
        done = benchmark("run", *SMALL, "--env", "VirtualHome-food-preparation-v0", *more, folder=folder)
        assert done.returncode == 0, done.stderr
        run = only_run(folder) / "poad" / "seed-0"
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        results.append(([line | {"timing": None} for line in lines], (run / "result.json").read_text()))
    assert results[0] == results[1]


def test_unknown_environments_are_refused_before_anything_runs(tmp_path: Path) -> None:
    done = benchmark("run", *SMALL, "--transfer", "VirtualHome-chese-v0", folder=tmp_path)
    assert done.returncode != 0
    assert "Did you mean 'VirtualHome-cheese-v0'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_defaults_depend_on_the_environment_with_the_embedded_model() -> None:
    entertainment = "VirtualHome-entertainment-v0"
    assert BenchmarkConfig().run_defaults == RunDefaults(16_384, 4)
    assert BenchmarkConfig(env="VirtualHome-towel-v0").run_defaults == RUN_DEFAULTS["VirtualHome"]
    assert BenchmarkConfig(env=entertainment, steps=7).run_defaults == RUN_DEFAULTS[entertainment]._replace(
        steps=256 * 64
    )
    assert BenchmarkConfig(env=entertainment).agent_options(AgentSpec("poad"), 1) == {"minibatches": 2, "seed": 1}
    assert (
        BenchmarkConfig(env=entertainment).agent_options(AgentSpec("poad", {"minibatches": 8}), 1)["minibatches"] == 8
    )
    assert BenchmarkConfig(env=entertainment, agent=AgentOptions(minibatches=3)).agent_options(
        AgentSpec("ntpo"), 0
    ) == {
        "minibatches": 3,
        "seed": 0,
    }
    for unseen in ({"model": "a/7b"}, {"preset": "paper"}):
        assert BenchmarkConfig(env=entertainment, **unseen).run_defaults == RunDefaults()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "VirtualHome-v0"}, "task is missing"),
        ({"env": "VirtualHome-v0", "env_set": ("task=chese",)}, "Did you mean 'cheese'"),
        ({"env": "VirtualHome-v0", "env_set": ("task",)}, "'task' is not of the form name=value"),
        ({"env": "VirtualHome-cheese-v0", "env_set": ("tsk=1",)}, "tsk"),
        ({"env": "no_such_module:Environment-v0"}, "the module 'no_such_module' cannot be imported: No module named"),
        ({"env": "json:NoSuchEnvironment-v0"}, "NoSuchEnvironment"),
        ({"env": "CartPole-v1"}, "expected token sequences"),
        ({"transfer": ("VirtualHome-v0",)}, "task is missing"),
        ({"workers": -1}, "workers=-1 must be at least 1"),
    ],
)
def test_environments_that_cannot_be_made_are_refused_before_anything_runs(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BenchmarkConfig(**options).check()


def test_arguments_of_the_environment_reach_that_environment_alone(tmp_path: Path) -> None:
    config = BenchmarkConfig(
        env="VirtualHome-v0", env_set=("task=cheese", "max_steps=9"), transfer=("VirtualHome-towel-v0",)
    )
    config.check()
    assert config.env_options == {"task": "cheese", "max_steps": 9}
    assert config.tokenizer_options == {}
    config.save(tmp_path / "config.json")
    assert BenchmarkConfig.load(tmp_path / "config.json") == config
