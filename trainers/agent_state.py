"""Saving and loading the state of an agent: tensors as safetensors, everything else as JSON, no pickles."""

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
    """Reference in ``agent.json`` to a tensor of ``agent.safetensors``."""

    name: str


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors and of values for :func:`lang_envs.storage.encode`."""
    tensors: dict[str, torch.Tensor] = {}
    (folder / STATE_FILE).write_text(json.dumps(encode(_without_tensors(state, "", tensors))) + "\n")
    save_file(tensors, folder / TENSORS_FILE)


def load_state(folder: Path, *keys: str) -> dict[str, Any]:
    """Return the state that :func:`save_state` wrote; its tensors are on the CPU.

    Parameters
    ----------
    *keys : str
        Keys that the state must have.

    Raises
    ------
    ValueError
        If the folder contains no agent, a damaged one, or a pickle of an earlier version.
    """
    refuse_pickle(folder / _PICKLE)
    file = folder / STATE_FILE
    if not file.exists():
        raise ValueError(f"{folder} contains no saved agent (no {STATE_FILE})")
    tensors = load_tensors(folder / TENSORS_FILE)
    stored = read_json(file)
    try:
        state = _with_tensors(decode(stored), tensors)
    except KeyError as error:
        raise ValueError(f"{file} is damaged: it names the tensor {error}, which is not in {TENSORS_FILE}") from None
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(state, dict) or not set(keys) <= state.keys():
        raise ValueError(f"{file} is damaged: it contains no object with {', '.join(keys)}")
    return state


def load_tensors(file: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file.

    Raises
    ------
    ValueError
        If it is damaged or not a regular file.
    """
    open_regular(file).close()
    try:
        return load_file(file, device=device)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from None


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore an optimizer's state, after a check that it fits the optimizer's parameters.

    Moments move to the devices of their parameters. Adam's ``step`` stays on the CPU, so that reading it does not wait
    for a GPU.

    Raises
    ------
    ValueError
        If options, shapes or types differ.
    """
    groups = optimizer.state_dict()["param_groups"]
    if [_option_types(group) for group in saved["param_groups"]] != [_option_types(group) for group in groups]:
        raise ValueError("it contains an optimizer with other options")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in saved["state"].items():
        shapes = {name: value.shape for name, value in state.items()}
        if type(number) is not int or not 0 <= number < len(parameters):
            raise ValueError(
                f"it contains the moments of a parameter {number!r:.40}, expected one of {len(parameters)} parameters"
            )
        if any(shape != (() if name == "step" else parameters[number].shape) for name, shape in shapes.items()):
            raise ValueError(
                f"it contains the moments of other parameters: {shapes}, expected {parameters[number].shape}"
            )
    optimizer.load_state_dict(saved)


def _option_types(group: dict[str, Any]) -> dict[str, Any]:
    """Return the types of the options of a parameter group, and its number of parameters."""
    return {name: len(value) if name == "params" else type(value) for name, value in group.items()}


def _without_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a nested value with a :class:`TensorName` for each tensor; add the tensors to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return TensorName(name)
    if isinstance(value, dict):
        return {key: _without_tensors(own, f"{name}.{key}".lstrip("."), tensors) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(own, f"{name}.{n}", tensors) for n, own in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a nested value with the tensor for each :class:`TensorName`."""
    if isinstance(value, TensorName):
        return tensors[value.name]
    if isinstance(value, dict):
        return {key: _with_tensors(own, tensors) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(own, tensors) for own in value)
    return value
