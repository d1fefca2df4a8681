"""Growth of the cost of scoring and updates: ``python -m benchmarks.throughput.growth``.

Measured are packed batches, the naive way (a row of prompt + candidate for each candidate, logits everywhere), and the
arithmetic limit: the floating-point operations that the distinct tokens need, over the speed of this machine's own
matrix multiplication, measured in the same run. One quantity grows at a time: candidates of one query, the length of
prompts, the number of environments, and the share of them that see different observations.

Times are CPU times, so that other work on the machine does not count; on a GPU they are wall-clock times.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils.logging import disable_progress_bar

from benchmarks.processes import KEEP_MEMORY
from benchmarks.throughput.scoring import naive_log_probs
from lang_envs import load_tokenizer
from trainers.language_model import LanguageModel, load_language_model
from trainers.policy import LanguagePolicy
from trainers.prefix_tree import Query, build_tree

SWEEPS: dict[str, tuple[float, ...]] = {
    "candidates": (8, 32, 128, 512, 2048, 4096),
    "prompt tokens": (50, 200, 800, 2000, 4000),
    "environments": (1, 4, 16, 64, 256),
    "distinct observations": (1 / 16, 1 / 4, 1 / 2, 1),
}
"""Quantities that grow; all others have their value in :data:`DEFAULTS` or :data:`FEWER`."""
DEFAULTS = {"candidates": 8.0, "prompt tokens": 50.0, "environments": 16.0, "distinct observations": 1.0}
FEWER = {"candidates": {"environments": 1.0}, "prompt tokens": {"environments": 4.0}}
"""Quantities that are measured in fewer environments."""
_CANDIDATE = 6
"""Tokens of a candidate, the end token included."""
_NAIVE_LOGITS = 1e8
"""The naive way is measured up to this many logits; each takes over 20 bytes in an update."""


KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("scaled_dot_product",),
    "copies": ("copy_", "cat", "fill_", "zero_", "index", "contiguous", "clone"),
    "elementwise": (
        "mul",
        "add",
        "silu",
        "pow",
        "rsqrt",
        "mean",
        "sum",
        "neg",
        "div",
        "sub",
        "exp",
        "log",
        "cos",
        "sin",
    ),
    "other": (),
}
"""Kinds of operations, by parts of the names that the profiler gives them."""


@dataclass(frozen=True)
class Point:
    """Seconds of one batch: scoring alone, and scoring with its gradients; None where the naive way was not run."""

    quantity: str
    value: float
    tokens: int
    score: float
    update: float
    score_limit: float
    update_limit: float
    naive_score: float | None
    naive_update: float | None


def load(name: str, device: str) -> LanguageModel:
    """The embedded model, or a random Llama of hidden size 256 and 4 layers."""
    if name == "embedded":
        return load_language_model("embedded", device=device)
    torch.manual_seed(0)
    tokenizer = load_tokenizer("embedded")
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=32_000,
        max_position_embeddings=8192,
    )
    return load_language_model(AutoModelForCausalLM.from_config(config), tokenizer=tokenizer, device=device)


def queries(values: dict[str, float], vocabulary: int) -> list[Query]:
    """One query for each environment: random tokens, candidates that share their first tokens as phrases do."""
    rng = np.random.default_rng(0)
    environments = int(values["environments"])
    distinct = max(1, round(environments * values["distinct observations"]))
    asked = []
    for _ in range(distinct):
        found: dict[tuple[int, ...], None] = {}
        while len(found) < values["candidates"]:
            first = rng.integers(5, 5 + max(4, int(values["candidates"]) // 4))
            found[(int(first), *rng.integers(5, vocabulary, _CANDIDATE - 2).tolist(), 2)] = None
        prompt = rng.integers(5, vocabulary, int(values["prompt tokens"])).tolist()
        asked.append(Query(tuple(prompt), build_tree(tuple(found))))
    return [asked[i % distinct] for i in range(environments)]


def operations(model: LanguageModel, asked: list[Query]) -> tuple[float, float]:
    """Floating-point operations that distinct tokens need: of scoring, and of an update.

    Scoring multiplies by the layers' weights and by the adapters', by the keys and values that a token sees, and makes
    one logit for each edge. An update needs twice as much of frozen weights (the gradient of their input), and three
    times as much of what has gradients on both sides: adapters, and attention.
    """
    config = model.model.config.get_text_config()
    weights = {"frozen": 0, "adapters": 0}
    for name, weight in _layer_weights(model):
        weights["adapters" if "lora_" in name else "frozen"] += weight.numel()
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    once = twice = 0.0
    for prompt, tree in set(asked):
        p, inner = len(prompt), tree.node_depths[1:]
        tokens, keys = p + len(inner), p * (p + 1) / 2 + (p + inner).sum()
        twice += 2 * weights["frozen"] * tokens + 2 * config.hidden_size * len(tree.edge_nodes)
        once += 2 * weights["adapters"] * tokens + 4 * config.num_hidden_layers * width * keys
    return once + twice, 3 * once + 2 * twice


def _layer_weights(model: LanguageModel) -> Any:
    return model.model.get_base_model().get_decoder().layers.named_parameters()


def matrix_speed(device: torch.device, widths: tuple[int, int], seconds: Callable[[Callable[[], Any]], float]) -> float:
    """Operations a second of large matrix products: the best of a square one and one of the model's widths."""
    best = 0.0
    for m, k, n in ((1024, 1024, 1024), (2048, *widths)):
        a, b = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
        best = max(best, 2.0 * m * k * n / min(seconds(lambda a=a, b=b: a @ b.t()) for _ in range(10)))  # type: ignore[misc]
    return best


def best_of(model: LanguageModel, repeats: int) -> Callable[[Callable[[], Any]], float]:
    """A clock: the least time of some runs after one that warms up."""

    def seconds(work: Callable[[], Any]) -> float:
        on_gpu = model.device.type == "cuda"
        clock = time.perf_counter if on_gpu else time.process_time
        taken = []
        for _ in range(repeats + 1):
            started = clock()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(clock() - started)
            if sum(taken) > 20:
                break
        return min(taken[1:] or taken)

    return seconds


def measure(model: LanguageModel, quantity: str, value: float, speed: float, repeats: int) -> Point:
    policy = LanguagePolicy(model, sampling="trie", normalisation="token")
    asked = queries(DEFAULTS | FEWER.get(quantity, {}) | {quantity: value}, model.tokenizer.vocab_size)
    distinct = list(dict.fromkeys(asked))  # an agent asks each once
    seconds = best_of(model, repeats)

    def packed(learn: bool) -> None:
        with torch.set_grad_enabled(learn):
            for _, batch in model.groups(distinct):
                total = policy.score(batch).token_log_probs.sum()
                if learn:
                    total.backward()

    rows = [(prompt, candidate) for prompt, tree in asked for candidate in tree.candidates]

    def naive(learn: bool) -> None:
        with torch.set_grad_enabled(learn):
            total = naive_log_probs(model, rows).sum()
            if learn:
                total.backward()

    naive_tokens = sum(len(prompt) + len(candidate) for prompt, candidate in rows)
    run_naive = naive_tokens * model.model.config.get_text_config().vocab_size <= _NAIVE_LOGITS
    forward, update = operations(model, asked)
    return Point(
        quantity,
        value,
        sum(len(batch.input_ids) for _, batch in model.groups(distinct)),
        seconds(lambda: packed(False)),
        seconds(lambda: packed(True)),
        forward / speed,
        update / speed,
        seconds(lambda: naive(False)) if run_naive else None,
        seconds(lambda: naive(True)) if run_naive else None,
    )


def causal_ratio(model: LanguageModel, tokens: int, repeats: int) -> float:
    """Packed scoring of one long prompt, over a plain causal forward of the same prompt through the decoder."""
    (query,) = queries(DEFAULTS | {"environments": 1, "prompt tokens": tokens}, model.tokenizer.vocab_size)
    policy = LanguagePolicy(model, sampling="trie", normalisation="token")
    seconds = best_of(model, repeats)
    decoder = model.model.get_base_model().get_decoder()
    ids = torch.tensor([query[0]], device=model.device)
    with torch.no_grad():
        plain = seconds(lambda: decoder(input_ids=ids, use_cache=False))
        return seconds(lambda: policy.score(model.pack([query]))) / plain


def shares(model: LanguageModel) -> str:
    """What the time of an update of 64 environments is spent on: percentages by kind of operation."""
    policy = LanguagePolicy(model, sampling="trie", normalisation="token")
    asked = queries(DEFAULTS | {"environments": 64}, model.tokenizer.vocab_size)
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            policy.score(model.pack(asked)).token_log_probs.sum().backward()
    spent = dict.fromkeys(KINDS, 0.0)
    for event in profiled.key_averages():
        kind = next((kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), "other")
        spent[kind] += event.self_cpu_time_total
    return ", ".join(f"{kind} {time / sum(spent.values()):.0%}" for kind, time in spent.items())


def table(name: str, points: list[Point]) -> str:
    lines = [
        f"| {name} | tokens | score, ms | of the limit | update, ms | of the limit | naive / packed: score | update |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        ratios = (
            "– | –"
            if point.naive_score is None or point.naive_update is None
            else f"{point.naive_score / point.score:.1f} | {point.naive_update / point.update:.1f}"
        )
        lines.append(
            f"| {point.value:g} {point.quantity} | {point.tokens:,} | {1e3 * point.score:.1f} | "
            f"{point.score_limit / point.score:.0%} | {1e3 * point.update:.1f} | "
            f"{point.update_limit / point.update:.0%} | {ratios} |"
        )
    return "\n".join(lines)


def draw(points: dict[str, list[Point]], file: Path) -> None:
    """One panel for each quantity: milliseconds of scoring, packed, naive and the limit; a colour for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for panel, quantity in zip(panels, SWEEPS, strict=True):
        for colour, (model, found) in zip(("C0", "C1"), points.items(), strict=False):
            if not (own := [point for point in found if point.quantity == quantity]):
                continue
            values = [point.value for point in own]
            panel.plot(values, [1e3 * p.score for p in own], color=colour, marker="o", label=f"{model}, packed")
            panel.plot(values, [1e3 * p.score_limit for p in own], color=colour, ls=":", label=f"{model}, limit")
            naive = [(p.value, 1e3 * p.naive_score) for p in own if p.naive_score is not None]
            panel.plot(
                [v for v, _ in naive], [t for _, t in naive], color=colour, ls="--", marker="x", label=f"{model}, naive"
            )
        panel.set(xlabel=quantity, ylabel="ms for a batch")
        if panel.lines:
            panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    figure.legend(*figure.axes[-1].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def keep_memory() -> None:
    """Start again with the memory settings of benchmark runs, which are read when a process starts."""
    if any(name not in os.environ for name in KEEP_MEMORY):
        module = [sys.executable, "-m", "benchmarks.throughput.growth", *sys.argv[1:]]
        os.execve(sys.executable, module, KEEP_MEMORY | dict(os.environ))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["embedded", "llama-256"], choices=["embedded", "llama-256"])
    parser.add_argument("--device", default="cpu", help="cpu (one core), cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--largest", type=float, default=float("inf"), help="leave out larger values of what grows")
    parser.add_argument("--output", type=Path, default=Path("runs/growth"), help="folder of growth.json, .md and .svg")
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    disable_progress_bar()
    options.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Point]] = {}
    text: list[str] = []
    for name in options.models:
        model = load(name, options.device)
        config = model.model.config.get_text_config()
        speed = matrix_speed(model.device, (config.hidden_size, config.intermediate_size), best_of(model, 5))
        found[name] = []
        for quantity, values in SWEEPS.items():
            for value in values:
                if value <= options.largest:
                    found[name].append(measure(model, quantity, value, speed, options.repeats))
                    print(table(name, found[name]).splitlines()[-1], flush=True)
        longest = int(min(4000, options.largest))
        ratio = causal_ratio(model, longest, options.repeats)
        note = (
            f"{name}: matrix products at {speed / 1e9:.0f} GFLOP/s. A prompt of {longest:,} tokens with 8 candidates "
            f"takes {ratio:.2f} times a plain causal forward of the prompt."
        )
        if options.device == "cpu":
            note += f" The time of an update of 64 environments: {shares(model)}."
        print(note)
        text += [table(name, found[name]), "", note, ""]
    rows = {name: [asdict(point) for point in points] for name, points in found.items()}
    (options.output / "growth.json").write_text(json.dumps(rows, indent=1) + "\n")
    (options.output / "growth.md").write_text("\n".join(text))
    draw(found, options.output / "growth.svg")
    print(f"table, figure and numbers: {options.output}")


if __name__ == "__main__":
    main()
