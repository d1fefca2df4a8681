"""What an agent needs to go on learning, in files that are only data: tensors as safetensors, all else as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lang_envs.files import open_regular, read_json
from lang_envs.storage import decode, encode, storable
from trainers.checkpoint import refuse_pickle

STATE_FILE = "agent.json"
TENSORS_FILE = "agent.safetensors"
_PICKLE = "agent.pt"


@storable
class TensorName(NamedTuple):
    """Stands in ``agent.json`` where ``agent.safetensors`` holds a tensor."""

    name: str


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write nested dicts, lists and tuples that hold tensors and what :func:`lang_envs.storage.encode` takes."""
    tensors: dict[str, torch.Tensor] = {}
    (folder / STATE_FILE).write_text(json.dumps(encode(_without_tensors(state, "", tensors))) + "\n")
    save_file(tensors, folder / TENSORS_FILE)


def load_state(folder: Path, *keys: str) -> dict[str, Any]:
    """Read what :func:`save_state` wrote, in which ``keys`` must not be missing. All tensors are on the CPU.

    Raises
    ------
    ValueError
        If the folder holds no agent, a damaged one, or a pickle of an earlier version; names the file.
    """
    refuse_pickle(folder / _PICKLE)
    file = folder / STATE_FILE
    if not file.exists():
        raise ValueError(f"{folder} holds no saved agent (no {STATE_FILE})")
    tensors = load_tensors(folder / TENSORS_FILE)
    stored = read_json(file)
    try:
        state = _with_tensors(decode(stored), tensors)
    except KeyError as error:
        raise ValueError(f"{file} names the tensor {error}, which {TENSORS_FILE} does not hold") from None
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(state, dict) or not set(keys) <= state.keys():
        raise ValueError(f"{file} is damaged: it holds no object with {', '.join(keys)}")
    return state


def load_tensors(file: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Read a file of safetensors.

    Raises
    ------
    ValueError
        If it is damaged, or no regular file; names it.
    """
    open_regular(file).close()
    try:
        return load_file(file, device=device)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from None


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore an optimizer, after comparing what was saved with the parameters that it has.

    Adam's ``step`` stays on the CPU, where reading it waits for no GPU; the moments go where their parameters are.

    Raises
    ------
    ValueError
        If shapes or types differ.
    """
    own = optimizer.state_dict()
    groups, kinds = saved["param_groups"], [_kinds(group) for group in own["param_groups"]]
    if [_kinds(group) for group in groups] != kinds:
        raise ValueError("it holds an optimizer with other options")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in saved["state"].items():
        shapes = {name: value.shape for name, value in state.items()}
        if type(number) is not int or not 0 <= number < len(parameters):
            raise ValueError(f"it holds the moments of a parameter {number!r:.40}, and there are {len(parameters)}")
        if any(shape != (() if name == "step" else parameters[number].shape) for name, shape in shapes.items()):
            raise ValueError(f"it holds the moments of other parameters: {shapes}")
    optimizer.load_state_dict(saved)


def _kinds(group: dict[str, Any]) -> dict[str, Any]:
    return {name: len(value) if name == "params" else type(value) for name, value in group.items()}


def _without_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The same with names in the place of tensors, which are collected."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return TensorName(name)
    if isinstance(value, dict):
        return {key: _without_tensors(own, f"{name}.{key}".lstrip("."), tensors) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(own, f"{name}.{n}", tensors) for n, own in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, TensorName):
        return tensors[value.name]
    if isinstance(value, dict):
        return {key: _with_tensors(own, tensors) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(own, tensors) for own in value)
    return value
