"""Measure what needs a GPU: ``make gpu-check``, or ``python -m benchmarks.throughput.gpu_check``.

It takes less than ten minutes and needs no network. Every part runs in a process of its own with its own time limit, so
that a failure of one part does not affect the others. Results are printed and written
to ``gpu-check.json`` and ``gpu-check.md``. Without a GPU the command lists its parts and exits with code 2;
``--device cpu --shape tiny`` runs all parts on a CPU as a test.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

JSON_FILE, TABLE_FILE = "gpu-check.json", "gpu-check.md"
ENV = "Overcooked-tomato-lettuce-salad-v0"
SECONDS = 570
"""For all parts together."""
_GIB = 1024**3


@dataclass(frozen=True)
class Setup:
    """Input of a part: ``model`` is the folder of the random Llama, ``folder`` is the part's own."""

    device: str
    shape: str
    model: Path
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def rollout_steps(self) -> int:
        return 4 if self.shape == "tiny" else 32


@dataclass(frozen=True)
class Part:
    """One measurement; ``seconds`` is its time limit, ``needs`` the packages without which it is skipped."""

    run: Callable[[Setup], dict[str, Any]]
    what: str
    seconds: int = 120
    needs: tuple[str, ...] = ("gymnasium", "peft")


# ------------------------------------------------------------------------------------------------------------- parts


def machine(setup: Setup) -> dict[str, Any]:
    from benchmarks.versions import versions

    found: dict[str, Any] = {"versions": versions(), "CUDA": torch.version.cuda}
    size, kind = (8192, torch.bfloat16) if setup.on_gpu else (512, torch.float32)
    one, other = (torch.randn(size, size, device=setup.device).to(kind) for _ in range(2))
    best = min(_seconds(setup, lambda: one @ other) for _ in range(10))
    found["TFLOP/s of a matrix product"] = 2 * size**3 / best / 1e12
    if setup.on_gpu:
        properties = torch.cuda.get_device_properties(setup.device)
        found |= {"GPU": properties.name, "GPU memory, GiB": properties.total_memory / _GIB}
    return found


def bench(setup: Setup) -> dict[str, Any]:
    """A small ``make bench``, whose runs have processes of their own."""
    steps = 64 if setup.shape == "tiny" else 2048
    command = [
        *("-m", "benchmarks", "run", "--algo", "poad", "--seeds", "1", "--steps", str(steps), "--eval-episodes", "4"),
        *("--rollout-steps", "16", "--device", setup.device, "--runs-dir", str(setup.folder / "runs")),
    ]
    started = time.monotonic()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    (metrics,) = setup.folder.glob("runs/*/poad/seed-0/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = sum(line["timing"]["rollout_seconds"] + line["timing"]["learn_seconds"] for line in lines)
    return {"seconds of the command": time.monotonic() - started, "steps/s": lines[-1]["step"] / seconds}


def model(setup: Setup) -> dict[str, Any]:
    from benchmarks.throughput.large import make_model

    make_model(setup.shape, setup.model)
    return {"GiB on disk": sum(file.stat().st_size for file in setup.model.iterdir()) / _GIB}


def packed(setup: Setup) -> dict[str, Any]:
    return _train(setup, naive=False, quantize=None)


def naive(setup: Setup) -> dict[str, Any]:
    return _train(setup, naive=True, quantize=None)


def packed_4bit(setup: Setup) -> dict[str, Any]:
    return _train(setup, naive=False, quantize="4bit")


def naive_4bit(setup: Setup) -> dict[str, Any]:
    return _train(setup, naive=True, quantize="4bit")


def _train(setup: Setup, *, naive: bool, quantize: str | None) -> dict[str, Any]:
    """POAD with the paper's settings: speed of rollouts and updates, memory, and reported metrics."""
    from benchmarks.throughput.footprint import footprint
    from benchmarks.throughput.large import NUM_ENVS, PEAKS, time_training

    agent, envs = _agent(setup, naive=naive, quantize=quantize)
    language_model = agent.language_model
    largest = 0

    def note(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        nonlocal largest
        ids = options["input_ids"] if "input_ids" in options else arguments[0]
        largest = max(largest, ids.numel() if torch.is_grad_enabled() else 0)

    decoder = language_model.model.get_base_model().get_decoder()
    hook = decoder.register_forward_pre_hook(note, with_kwargs=True)
    speed, lines = time_training(agent, envs, 1 if naive else 3, setup.rollout_steps)
    hook.remove()
    seconds = speed.rollout + speed.update
    peak = next((value for name, value in PEAKS.items() if name in _device_name(setup)), None)
    found = {
        "steps/s": speed.steps / seconds,
        f"rollout, s for {NUM_ENVS * setup.rollout_steps} steps": speed.rollout / len(lines),
        f"update, s for {NUM_ENVS * setup.rollout_steps} steps": speed.update / len(lines),
        "tokens/s": speed.tokens / seconds,
        "MFU": None if peak is None else speed.flops / seconds / peak,
        "peak memory, GiB": speed.memory,
        "tokens of the largest update forward": largest,
    }
    if not naive:
        estimate = footprint(str(setup.model), agent.settings, minibatch_tokens=largest)
        found |= {
            "estimated memory, GiB": estimate.total,
            "packs": language_model.packs,
            "packing error (ratio to control)": getattr(language_model, "packing_error", None),
            "first-ratio error": lines[0].get("first_ratio_error"),
        }
    return found


def free_text(setup: Setup) -> dict[str, Any]:
    return _generate(setup, quantize=None)


def free_text_4bit(setup: Setup) -> dict[str, Any]:
    return _generate(setup, quantize="4bit")


def _generate(setup: Setup, quantize: str | None) -> dict[str, Any]:
    """A rollout in which every action is free text, sampled token by token, and the update on it."""
    from trainers.rollout import begin, collect

    found: dict[str, Any] = {}
    for num_envs in (4, 64):
        agent, envs = _agent(setup, quantize=quantize, num_envs=num_envs, sampling="free", end_token=True)
        state = begin(envs, seed=0)
        collect(agent, envs, state, 1, discount=1.0)
        started = time.perf_counter()
        rollout = collect(agent, envs, state, 2, discount=1.0)
        seconds = time.perf_counter() - started
        tokens = sum(len(decision.token_ids) for row in rollout.actions for decision in row)
        found[f"generated tokens/s, {num_envs} environments"] = tokens / seconds
        found[f"tokens of an action, {num_envs} environments"] = tokens / (2 * num_envs)
        if num_envs > 4:
            found["update, s"] = _seconds(setup, partial(agent.learn, rollout))
        del agent
    return found


@torch.no_grad()
def adapter_gain(setup: Setup) -> dict[str, Any]:
    """Return which fraction of a small adapter step reaches the outputs of adapted layers; 1 without rounding errors.

    All entries of LoRA's B are ±step, with signs that stay, and the layers' inputs are those of one forward pass. The
    change of the outputs is projected on their change by a step of 0.01, scaled to the small step.
    """
    from benchmarks.throughput.large import SHAPES

    agent, _ = _agent(setup)
    adapted = agent.language_model.model
    generator = torch.Generator().manual_seed(0)
    shape = (16, 64) if setup.shape != "tiny" else (2, 16)
    tokens = torch.randint(0, SHAPES[setup.shape].vocab_size, shape, generator=generator).to(setup.device)
    layers = [module for module in adapted.modules() if hasattr(module, "lora_B")]
    inputs: dict[Any, torch.Tensor] = {}
    hooks = [layer.register_forward_pre_hook(lambda one, given: inputs.update({one: given[0]})) for layer in layers]
    adapted.get_base_model().get_decoder()(input_ids=tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    large, steps = 1e-2, (1, 100, 1000)
    moved, length = dict.fromkeys(steps, 0.0), 0.0
    for layer in layers:
        (up,) = layer.lora_B.parameters()
        sign = torch.randint(0, 2, up.shape, generator=generator).to(up) * 2 - 1
        outputs = {}
        for step in (0.0, large, *(count * 5e-7 for count in steps)):
            up.copy_(step * sign)
            outputs[step] = layer(inputs[layer]).float()
        direction = outputs[large] - outputs[0.0]
        length += float((direction * direction).sum())
        for count in steps:
            moved[count] += float(((outputs[count * 5e-7] - outputs[0.0]) * direction).sum())
    gains = {f"gain of {count} steps of 5e-7": moved[count] / length * large / (count * 5e-7) for count in steps}
    return gains | {"dtype": str(adapted.dtype)}


def resume(setup: Setup) -> dict[str, Any]:
    """Compare the metrics of a run that was stopped and resumed with those of one that was not."""
    import lang_envs
    import trainers
    from benchmarks.throughput.large import make_model

    found: dict[str, Any] = {}
    llama = str(setup.folder / "llama")
    make_model("tiny" if setup.shape == "tiny" else "small", Path(llama))
    for name, options in {"embedded": {}, "small Llama": {"model": llama}}.items():
        tokenizer: dict[str, Any] = {"tokenizer": options["model"]} if options else {}
        envs = lang_envs.make_vec(ENV, 4, **tokenizer)
        folder = setup.folder / name
        runs: list[list[dict[str, Any]]] = []
        for until, stop, folder_of_run in ((64, 64, None), (64, 32, folder)):
            agent = trainers.make("poad", envs, device=setup.device, seed=0, **options)
            lines = trainers.train(agent, envs, stop, rollout_steps=4, run_dir=folder_of_run)
            if stop < until:
                del agent
                agent = trainers.make("poad", envs, device=setup.device, seed=1, **options)
                lines += trainers.train(agent, envs, until, rollout_steps=4, run_dir=folder_of_run, resume=True)
            runs.append(lines)
            del agent
        differences = [
            abs(float(one[key]) - float(other[key])) / max(1e-12, abs(float(one[key])))
            for one, other in zip(*runs, strict=True)
            for key in one
            if key != "timing"
        ]
        found[f"{name}: equal"] = max(differences) == 0
        found[f"{name}: largest relative difference"] = max(differences)
    return found


def killed_worker(setup: Setup) -> dict[str, Any]:
    """GPU memory that a training killed with SIGKILL leaves behind."""
    before = _used(setup)
    child = start("hold", setup)
    ready = setup.folder / "holds"
    while not ready.exists():
        if child.poll() is not None:
            raise RuntimeError(f"the worker ended with code {child.returncode} before it was killed")
        time.sleep(0.2)
    during = _used(setup)
    child.kill()
    child.wait()
    started = time.monotonic()
    while _used(setup) > before + 0.05 and time.monotonic() - started < 20:
        time.sleep(0.1)
    return {
        "GPU memory held, GiB": during - before,
        "GPU memory left after 20 s at most, GiB": _used(setup) - before,
        "seconds until it was free": time.monotonic() - started,
    }


def hold(setup: Setup) -> dict[str, Any]:
    """Train without end, for :func:`killed_worker`."""
    import trainers

    agent, envs = _agent(setup)
    while True:
        trainers.train(agent, envs, 32, rollout_steps=4)
        (setup.folder / "holds").touch()


PARTS: dict[str, Part] = {
    "machine": Part(machine, "name, memory, speed of a matrix product, versions", needs=()),
    "bench": Part(bench, "`make bench`, small, with the embedded model", needs=("gymnasium", "peft", "tyro", "rich")),
    "model": Part(model, "a Llama of random weights is written to a temporary folder"),
    "bf16": Part(packed, "POAD with that Llama: rollout, update, MFU, memory, packing, first-ratio error"),
    "bf16, naive": Part(naive, "the same, every candidate scored by itself"),
    "bf16, free text": Part(free_text, "generated tokens/s, and an update on free text"),
    "adapter gain": Part(adapter_gain, "how much of an adapter step of 5e-7 rounding leaves over"),
    "resume": Part(resume, "a resumed run beside an uninterrupted one"),
    "killed worker": Part(killed_worker, "GPU memory after a training was killed"),
    "4bit": Part(packed_4bit, "POAD with the Llama in 4 bit", needs=("gymnasium", "peft", "bitsandbytes")),
    "4bit, naive": Part(naive_4bit, "the same, naive", needs=("gymnasium", "peft", "bitsandbytes")),
    "4bit, free text": Part(free_text_4bit, "generated tokens/s in 4 bit", needs=("gymnasium", "peft", "bitsandbytes")),
}
_HELPERS = {"hold": Part(hold, "the worker that is killed")}

_WITHOUT_MODEL = {"machine", "bench", "resume"}
"""Parts that do not read the random Llama."""


def _agent(
    setup: Setup, *, naive: bool = False, quantize: str | None = None, num_envs: int = 4, **settings: Any
) -> tuple[Any, Any]:
    """POAD with the random Llama and the paper's settings, and its environments."""
    import lang_envs
    from benchmarks.presets import preset_settings
    from benchmarks.throughput.large import NaivePOAD
    from trainers.agents.poad import POAD

    envs = lang_envs.make_vec(ENV, num_envs, tokenizer=str(setup.model))
    options = preset_settings("paper", ENV, "poad") | {"quantize": quantize, "device": setup.device} | settings
    return (NaivePOAD if naive else POAD)(envs, model=str(setup.model), **options), envs


def _seconds(setup: Setup, work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    if setup.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _used(setup: Setup) -> float:
    """GiB of the GPU's memory that all processes use."""
    if not setup.on_gpu:
        return 0.0
    free, total = torch.cuda.mem_get_info(setup.device)
    return (total - free) / _GIB


def _device_name(setup: Setup) -> str:
    return torch.cuda.get_device_name(setup.device) if setup.on_gpu else "CPU"


# ------------------------------------------------------------------------------------------ a process for each part


def start(part: str, setup: Setup, *, own_group: bool = False) -> subprocess.Popen[str]:
    """A process for a part; with ``own_group`` it can be killed with all that it starts."""
    setup.folder.mkdir(parents=True, exist_ok=True)
    options = ["--device", setup.device, "--shape", setup.shape, "--model", str(setup.model)]
    with (setup.folder / "stderr").open("w") as errors:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.throughput.gpu_check",
                "--part",
                part,
                "--folder",
                str(setup.folder),
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=own_group,
        )


def work(name: str, setup: Setup) -> None:
    """Run one part in its process; write its result, or the error, into the part's folder."""
    part = (PARTS | _HELPERS)[name]
    if not setup.on_gpu:
        torch.set_num_threads(1)
    outcome: dict[str, Any]
    try:
        for package in part.needs:
            importlib.import_module(package)
        outcome = {"result": part.run(setup)}
    except ImportError as error:
        outcome = {"skipped": f"a package is missing: {error}"}
    except Exception as error:  # whatever it is, the other parts go on
        traceback.print_exc()
        outcome = {"failed": f"{type(error).__name__}: {error}"}
    (setup.folder / "outcome.json").write_text(json.dumps(outcome))


def run_part(name: str, setup: Setup, seconds: float) -> dict[str, Any]:
    if seconds < 1:
        return {"skipped": "no time is left"}
    started = time.monotonic()
    process = start(name, setup, own_group=True)
    try:
        process.wait(seconds)
        failure = f"the process ended with code {process.returncode}"
    except subprocess.TimeoutExpired:
        failure = f"not done after {seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    file = setup.folder / "outcome.json"
    outcome: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"failed": failure}
    if "failed" in outcome:
        outcome["stderr"] = (setup.folder / "stderr").read_text()[-4000:]
    return outcome | {"seconds": time.monotonic() - started}


# ------------------------------------------------------------------------------------------------------- the command


def check(device: str, shape: str, output: Path, names: Sequence[str]) -> dict[str, Any]:
    """Run some parts; return the content of ``gpu-check.json``."""
    started = time.monotonic()
    parts: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for index, name in enumerate(names):
            setup = Setup(device, shape, Path(scratch, "model"), Path(scratch, f"part-{index}"))
            left = SECONDS - (time.monotonic() - started)
            parts[name] = run_part(name, setup, min(PARTS[name].seconds, left))
            print(_rows(name, parts[name]), flush=True)
    found = {"device": device, "shape": shape, "seconds": time.monotonic() - started, "parts": parts}
    output.mkdir(parents=True, exist_ok=True)
    (output / JSON_FILE).write_text(json.dumps(found, indent=2) + "\n")
    (output / TABLE_FILE).write_text(_table(found))
    return found


def _rows(name: str, outcome: dict[str, Any]) -> str:
    """The table's rows of one part."""
    values = outcome.get("result") or {why: outcome[why] for why in ("skipped", "failed") if why in outcome}
    return "\n".join(f"| {name} | {what} | {_say(value)} |" for what, value in values.items())


def _table(found: dict[str, Any]) -> str:
    head = f"{found['shape']} on {found['device']}, {found['seconds']:.0f} s"
    rows = [_rows(name, outcome) for name, outcome in found["parts"].items()]
    return "\n".join([head, "", "| part | measure | value |", "|---|---|---|", *rows, ""])


def _say(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if value is None:
        return "not known"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value).replace("\n", " ").replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=("7b", "small", "tiny"), default="7b", help="of the Llama")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="where the results are written")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="these parts, and the model that they need")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        work(options.part, Setup(options.device, options.shape, options.model, options.folder))
        return 0
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA GPU. On one, this would run within ten minutes:")
        print("\n".join(f"  {name:16} {part.what}" for name, part in PARTS.items()))
        print(
            "To run the parts on the CPU with a tiny model: "
            "python -m benchmarks.throughput.gpu_check --device cpu --shape tiny"
        )
        return 2
    chosen = options.only or list(PARTS)
    names = [name for name in PARTS if name in chosen or (name == "model" and {*chosen} - _WITHOUT_MODEL)]
    found = check(options.device, options.shape, options.output, names)
    print(f"table: {options.output / TABLE_FILE}, {found['seconds']:.0f} s")
    failed = [name for name, outcome in found["parts"].items() if "failed" in outcome]
    if failed:
        print(f"failed: {', '.join(failed)}; their errors are in {options.output / JSON_FILE}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
