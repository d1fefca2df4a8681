"""Train language-model agents on the simulated GPU, and print a line of JSON for each case.

``python tests/trainers/on_simulated_gpu.py`` runs all cases. With ``--remove PART …`` it instead tests the placements
of tensors (``.to(device)``, ``device=``, ``.cpu()``) in the source of ``trainers``. Each placement whose source line
contains a PART (without PART, each placement) is removed in turn, and the cases of the Llama run in a forked process.
The output tells whether they still succeed. Placements of indices may be unnecessary, because CUDA accepts indices from
the CPU.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import json
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import simulated_gpu

simulated_gpu.install()

import torch  # noqa: E402 — import what the simulated device changes after it
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402

DEVICE = f"{simulated_gpu.NAME}:0"
ENV = "Overcooked-tomato-salad-v0"
SAMPLING = ("trie", "candidates", "free")
NUM_ENVS, ROLLOUT_STEPS, MINIBATCHES = 2, 3, 2
TRAINERS = simulated_gpu.PROJECT / "trainers"


class Case(NamedTuple):
    """One training run, with the embedded model in float32 or a small Llama in bfloat16."""

    algo: str
    sampling: str
    model: str = "embedded"


def cases() -> list[Case]:
    """Return the paper's agents with every sampling mode, one agent without a critic and one with replay; the Llama
    only with POAD. The other agents differ from these in NumPy code alone."""
    embedded = [Case(algo, sampling) for algo in ("poad", "ntpo", "twosome") for sampling in SAMPLING]
    others = [Case("grpo", "trie"), Case("softq", "trie")]
    return embedded + others + [Case("poad", sampling, "llama") for sampling in SAMPLING]


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Make, train, evaluate, save, load and resume an agent. Operations raise where CUDA would."""
    import gymnasium as gym

    import lang_envs
    import trainers
    from trainers.agents import agent_class

    options: dict[str, Any] = {
        "sampling": case.sampling,
        "device": DEVICE,
        "epochs": 1,
        "minibatches": MINIBATCHES,
        "kl_threshold": 1e6,  # no step is skipped
        "max_action_tokens": 5,
        "critic_hidden": (8,),
    }
    known = agent_class(case.algo).settings_type.__dataclass_fields__
    options = {name: value for name, value in options.items() if name in known}
    tokenizer = {}
    if case.model == "llama":
        model = str(make_llama(folder / "llama"))
        options |= {"model": model, "dtype": "bfloat16", "gradient_checkpointing": True}
        tokenizer = {"tokenizer": model}
    short = {"max_episode_steps": ROLLOUT_STEPS} if case.algo == "grpo" else {}  # it learns from finished episodes
    envs = lang_envs.make_vec(ENV, NUM_ENVS, **tokenizer, **short)
    steps = NUM_ENVS * ROLLOUT_STEPS  # in each iteration

    def make() -> tuple[Any, list[dict[str, int]]]:
        agent = trainers.make(case.algo, envs, **options)
        learn, waits = agent.learn, []

        def counted(rollout: Any) -> dict[str, float]:
            before = simulated_gpu.synchronisations()
            metrics = learn(rollout)
            waits.append(dict(simulated_gpu.synchronisations() - before))
            return metrics

        agent.learn = counted
        return agent, waits

    agent, waits = make()
    language_model = agent.language_model
    if any(weight.device != torch.device(DEVICE) for weight in language_model.model.parameters()):
        raise RuntimeError("the model is not on the device")
    if not language_model.packs:
        raise RuntimeError("packing failed on the device: each candidate is scored in a row of its own")
    whole = trainers.train(agent, envs, 2 * steps, rollout_steps=ROLLOUT_STEPS)
    trainers.evaluate(agent, lambda: gym.make(ENV, max_episode_steps=3, **tokenizer), 1)
    stopped, _ = make()
    trainers.train(stopped, envs, steps, rollout_steps=ROLLOUT_STEPS, run_dir=folder / "run")
    resumed, waits_resumed = make()
    rest = trainers.train(resumed, envs, 2 * steps, rollout_steps=ROLLOUT_STEPS, run_dir=folder / "run", resume=True)
    resumed.save(folder / "saved")
    resumed.load(folder / "saved")
    return {
        "resumed_equals_whole": {**whole[-1], "timing": None} == {**rest[-1], "timing": None},
        "minibatches": whole[-1].get("updates", MINIBATCHES),
        "waits": waits[-1],
        "waits_resumed": waits_resumed[-1],
    }


def make_llama(folder: Path) -> Path:
    """Make a small Llama with the embedded tokenizer, wider than the embedded model; return its folder."""
    from trainers.language_model import EMBEDDED_FOLDER

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=1600, hidden_size=160, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((EMBEDDED_FOLDER / file).read_bytes())
    return folder


def results(chosen: Sequence[Case]) -> Iterator[dict[str, Any]]:
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            yield case._asdict() | run(case, Path(folder))


class Placement(NamedTuple):
    """A piece of source code that places a tensor on a device: the ``number``-th one of a file."""

    file: Path
    number: int
    line: int
    text: str


class _Remove(ast.NodeTransformer):
    """Collects the placements of a file, and removes the ``number``-th one."""

    def __init__(self, file: Path, number: int | None = None) -> None:
        self.file, self.number = file, number
        self.placements: list[Placement] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in ("to", "cpu"):
            call = ast.unparse(node)[len(ast.unparse(function.value)) :]
            if re.fullmatch(r"\.cpu\(\)|\.to\(.*device.*\)", call) and self._is_chosen(node, call):
                return function.value
        for keyword in node.keywords:
            if keyword.arg == "device" and "device" in ast.unparse(keyword.value):
                if self._is_chosen(node, ast.unparse(keyword)):
                    node.keywords = [other for other in node.keywords if other is not keyword]
                break
        return node

    def _is_chosen(self, node: ast.Call, text: str) -> bool:
        self.placements.append(Placement(self.file, len(self.placements), node.lineno, text))
        return self.number == len(self.placements) - 1


def placements() -> list[Placement]:
    """Return all placements in the source of ``trainers``."""
    collected: list[Placement] = []
    for file in sorted(TRAINERS.rglob("*.py")):
        if "embedded_lm" not in file.parts:
            remover = _Remove(file)
            remover.visit(ast.parse(file.read_text()))
            collected += remover.placements
    return collected


def remove(placement: Placement) -> None:
    """Make later imports of ``trainers`` compile the source without a placement."""
    original: Callable[..., types.CodeType | None] = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> types.CodeType | None:
        if Path(self.path) != placement.file:
            return original(self, name)
        tree = _Remove(placement.file, placement.number).visit(ast.parse(placement.file.read_text()))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    importlib.machinery.SourceFileLoader.get_code = get_code


def trains_without(placement: Placement) -> bool:
    """Return whether the Llama trains without a placement, in a fork of this process."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            remove(placement)
            for _ in results([case for case in cases() if case.model == "llama"]):
                pass
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--remove", nargs="*", metavar="PART", help="remove the placements in source lines that contain PART, in turn"
    )
    parts = parser.parse_args().remove
    torch.set_num_threads(1)
    disable_progress_bar()
    if parts is None:
        for line in results(cases()):
            print(json.dumps(line), flush=True)
        return
    import peft  # noqa: F401 — imported before the forks, to save time
    import safetensors.torch  # noqa: F401

    import lang_envs  # noqa: F401

    for placement in placements():
        source = placement.file.read_text().splitlines()[placement.line - 1].strip()
        if not parts or any(part in source for part in parts):
            where = f"{placement.file.relative_to(simulated_gpu.PROJECT)}:{placement.line}"
            line = {"line": where, "source": source, "text": placement.text, "trains": trains_without(placement)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
