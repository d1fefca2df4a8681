"""Speed and memory of training a Llama of 7B parameters, or a small one: ``python -m benchmarks.throughput.large``.

POAD with the paper's settings is trained for a few iterations, in an environment of phrases and in one of programs. The
weights are random: speed and memory do not depend on them. For comparison the same agent is trained naively: every
candidate is a row with the whole prompt, logits are computed at every token, the critic's forward pass is repeated in
every epoch, and equal observations are computed again. Each training has a process of its own, for its peak memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils.logging import disable_progress_bar

import lang_envs
import trainers
from benchmarks.presets import preset_settings
from benchmarks.throughput.scoring import naive_epoch, naive_features, naive_log_probs
from trainers import Action, Rollout
from trainers.agents.poad import POAD
from trainers.language_agent import ActionRecord
from trainers.language_model import EMBEDDED_FOLDER
from trainers.policy import PolicyOutput
from trainers.prefix_tree import Query

ENVIRONMENTS = ("Overcooked-tomato-lettuce-salad-v0", "DataSciCoding-balance-scale-v0")
SHAPES = {
    "7b": LlamaConfig(),  # Llama 2's
    "small": LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4),
    "tiny": LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4),
}
NUM_ENVS = 4
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
"""Floating-point operations per second, dense bfloat16, as the manufacturers state."""


class Task(NamedTuple):
    """One way to train in one environment."""

    environment: str
    naive: bool
    quantize: str | None
    model: Path
    iterations: int
    rollout_steps: int
    max_action_tokens: int


class Speed(NamedTuple):
    """Cost of all iterations: seconds, tokens through the model (padding included), floating-point operations of its
    layers, GiB."""

    steps: int
    rollout: float
    update: float
    tokens: int
    flops: float
    memory: float


class NaivePOAD(POAD):
    """POAD without optimisations; of an update only the forward and backward passes."""

    def act(self, observations: np.ndarray, infos: Sequence[dict[str, Any]], *, greedy: bool = False) -> list[Action]:
        queries = self.queries(observations, infos, greedy=greedy)
        found = self._likelihoods(queries)
        choices = [self.select(output, greedy=greedy) for output in found]
        taken = [(prompt, tree.candidates[choice]) for (prompt, tree), choice in zip(queries, choices, strict=True)]
        self.critic(naive_features(self.language_model, taken))  # the values of this step
        return [
            Action("", action, ActionRecord(query, choice, output))
            for query, (_, action), choice, output in zip(queries, taken, choices, found, strict=True)
        ]

    @torch.no_grad()
    def _likelihoods(self, queries: Sequence[Query]) -> list[PolicyOutput]:
        rows = [(prompt, candidate) for prompt, tree in queries for candidate in tree.candidates]
        log_probs = naive_log_probs(self.language_model, rows).double().cpu().numpy()
        found, start = [], 0
        for _, tree in queries:
            count, width = tree.mask.shape
            own = log_probs[start : start + count, :width] * tree.mask
            scores = own.sum(-1) / tree.mask.sum(-1)
            found.append(PolicyOutput(own, scores - np.logaddexp.reduce(scores)))
            start += count
        return found

    def learn(self, rollout: Rollout) -> dict[str, float]:
        batch = self.assign_credit(rollout)
        losses = [naive_epoch(self, batch) for _ in range(self.settings.epochs)]
        return {"policy_loss": float(torch.stack(losses).mean())}


def make_model(shape: str, folder: Path) -> None:
    """Write a folder with a model of random weights and the embedded model's tokenizer.

    Call it in a process of its own: torch keeps the GPU memory of the weights until the process ends.
    """
    disable_progress_bar()
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((EMBEDDED_FOLDER / file).read_bytes())


def parameters_of_layers(config: LlamaConfig) -> int:
    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(config).model.layers
    return sum(weight.numel() for weight in layers.parameters())


def measure(task: Task) -> Speed:
    """Train for some iterations, alone in a process."""
    torch.set_num_threads(1)
    disable_progress_bar()
    settings = preset_settings("paper", task.environment, "poad")
    envs = lang_envs.make_vec(task.environment, NUM_ENVS, tokenizer=str(task.model))
    agent = (NaivePOAD if task.naive else POAD)(
        envs,
        model=str(task.model),
        quantize=task.quantize,
        max_action_tokens=task.max_action_tokens,
        **settings,
    )
    speed, _ = time_training(agent, envs, task.iterations, task.rollout_steps)
    envs.close()
    return speed


def time_training(agent: POAD, envs: Any, iterations: int, rollout_steps: int) -> tuple[Speed, list[dict[str, Any]]]:
    """Train for some iterations after one that warms up; returns the speed and the lines of metrics."""
    model = agent.language_model.model
    layers = parameters_of_layers(model.config)
    tokens, flops = 0, 0.0

    def count(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        nonlocal tokens, flops
        ids = options["input_ids"] if "input_ids" in options else arguments[0]
        tokens += ids.numel()
        # Of a frozen layer the backward pass makes the gradient of its input alone: as much as the forward pass.
        flops += ids.numel() * layers * (4 if torch.is_grad_enabled() else 2)

    hook = model.get_base_model().get_decoder().register_forward_pre_hook(count, with_kwargs=True)
    on_gpu = torch.cuda.is_available()
    trainers.train(agent, envs, NUM_ENVS, rollout_steps=1)  # what is only done once
    tokens, flops = 0, 0.0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    steps = iterations * NUM_ENVS * rollout_steps
    lines = trainers.train(agent, envs, steps, rollout_steps=rollout_steps)
    hook.remove()
    memory = torch.cuda.max_memory_allocated() if on_gpu else _peak_of_process()
    rollout, update = (sum(line["timing"][name] for line in lines) for name in ("rollout_seconds", "learn_seconds"))
    return Speed(steps, rollout, update, tokens, flops, memory / 1024**3), lines


def _peak_of_process() -> int:
    """The most memory that this process has held, in bytes; what rusage says is never less than its parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rollout-steps", type=int, default=8, help=f"in each of {NUM_ENVS} environments")
    parser.add_argument("--max-action-tokens", type=int, default=64, help="maximum number of tokens of a program")
    parser.add_argument("--quantize", nargs="*", default=["none", "4bit"], choices=["none", "4bit", "8bit"])
    parser.add_argument("--environments", nargs="*", default=ENVIRONMENTS)
    options = parser.parse_args()
    disable_progress_bar()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "one CPU core"
    peak = next((value for name, value in PEAKS.items() if name in device), None)
    print(
        f"{options.shape} ({parameters_of_layers(SHAPES[options.shape]):,} parameters in layers) on {device}: "
        f"{options.iterations} iterations of {NUM_ENVS * options.rollout_steps} steps"
    )
    print(
        f"{'environment':35} {'base':5} {'way':7} {'steps/s':>11} {'rollout s':>9} {'update s':>9} {'tokens/s':>9}",
        end="",
    )
    print(f" {'MFU':>6} {'GiB':>6} {'':>7}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        _in_own_process(make_model, options.shape, model)
        for environment in options.environments:
            for quantize in options.quantize:
                speeds = []
                for naive in (True, False):
                    task = Task(
                        environment,
                        naive,
                        None if quantize == "none" else quantize,
                        model,
                        options.iterations,
                        options.rollout_steps,
                        options.max_action_tokens,
                    )
                    speeds.append(_in_own_process(measure, task))
                    _show(task, speeds, peak)


def _in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(function, *arguments).result()


def _show(task: Task, speeds: Sequence[Speed], peak: float | None) -> None:
    now = speeds[-1]
    seconds = now.rollout + now.update
    base = task.quantize or ("bf16" if torch.cuda.is_available() else "f32")
    ratio = "" if task.naive else f"{(speeds[0].rollout + speeds[0].update) / seconds:6.1f}x"
    utilisation = "" if peak is None else f"{now.flops / seconds / peak:.1%}"
    print(
        f"{task.environment:35} {base:5} "
        f"{'naive' if task.naive else 'packed':7} {now.steps / seconds:11.2f} {now.rollout:9.2f} {now.update:9.2f} "
        f"{now.tokens / seconds:9,.0f} {utilisation:>6} {now.memory:6.2f} {ratio:>7}",
        flush=True,
    )


if __name__ == "__main__":
    main()
