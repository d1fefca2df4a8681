"""A torch device named ``simgpu`` that computes on the CPU and raises where CUDA would raise.

It is a PrivateUse1 backend of torch written in Python: a tensor of the device contains a CPU tensor, and operations
run on the CPU tensors. These operations raise, as with CUDA:

- operations on tensors of both devices, unless the CPU tensor has no dimensions, is an index, or is copied;
- in-place operations on a CPU tensor with a tensor of the device;
- operations with a CPU generator;
- access to the memory of a tensor of the device (``numpy()``, ``from_dlpack``).

The device counts the operations for which a CUDA program waits for the GPU ("synchronisations"): copies between the
devices, ``item()``, ``tolist()``, boolean indices, ``nonzero``, ``unique``. :func:`synchronisations` returns them by
source line.

:func:`install` changes torch and safetensors for the whole process. Call it in a separate process, before the code
under test is imported. The device does not simulate CUDA's kernels and their rounding, streams, memory limits, random
generators, or bitsandbytes.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "simgpu"
PROJECT = Path(__file__).parents[2]
_OURS = tuple(f"{PROJECT / package}/" for package in ("trainers", "benchmarks", "lang_envs"))

aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default, aten._copy_from_and_resize.default}
_TAKE_CPU_INDICES = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_WAIT = {
    aten._local_scalar_dense.default: "item",
    aten.bincount.default: "bincount",
    aten.equal.default: "equal",
    aten.masked_select.default: "masked_select",
    aten.nonzero.default: "nonzero",
    aten.repeat_interleave.Tensor: "repeat_interleave",
    aten._unique2.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.unique_dim.default: "unique",
}
_waits: collections.Counter[str] = collections.Counter()
_cpu_tensor = torch.tensor  # as it was before `install`


def synchronisations() -> collections.Counter[str]:
    """Return how often an operation has waited for the device, by ``file:line kind``."""
    return collections.Counter(_waits)


def _wait(kind: str) -> None:
    _waits[f"{_line_of_the_project()} {kind}"] += 1


def _line_of_the_project() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            return f"{file.removeprefix(f'{PROJECT}/')}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class SimulatedTensor(torch.Tensor):
    """A tensor of the device; ``raw`` is the CPU tensor with its values."""

    __slots__ = ["raw"]
    __torch_function__ = torch._C._disabled_torch_function_impl
    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor, requires_grad: bool = False) -> SimulatedTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        tensor.raw = raw
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_on_device(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_on_device(index), value)

    def tolist(self) -> Any:
        _wait("tolist")
        return self.raw.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy. Use Tensor.cpu() first")

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise BufferError(f"a {NAME} tensor's memory cannot be shared")

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"SimulatedTensor({self.raw!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {NAME} tensor cannot be pickled; torch.save can")


def _on_device(index: Any) -> Any:
    """Return an index with lists and arrays as tensors of the device, as CUDA converts them."""
    if isinstance(index, tuple):
        return tuple(map(_on_device, index))
    if isinstance(index, list | np.ndarray):
        _wait("index from the CPU")
        return SimulatedTensor(torch.as_tensor(index))
    return index


def _is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _raw(value: Any) -> Any:
    """Return the CPU tensor of a tensor of the device, anything else unchanged."""
    return value.raw if isinstance(value, SimulatedTensor) else value


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``change`` to each argument or result of an operation. (torch's own tree functions are too slow.)"""
    if isinstance(value, list | tuple):
        return type(value)([_each(change, one) for one in value])
    return change(value)


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU tensors; return its result on the device that CUDA would choose."""
    if function is aten._fused_sdp_choice.default:
        return 0  # scaled_dot_product_attention is composed of elementary operations
    tensors: list[torch.Tensor] = []
    _each(lambda value: tensors.append(value) if isinstance(value, torch.Tensor) else None, [*args, *kwargs.values()])
    ours = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)}
    target = kwargs.get("device")
    here = _is_here(target) if target is not None else bool(ours)
    _refuse_mixtures(function, args, kwargs, tensors, here)
    if ours:
        _count_waits(function, args)
    if function in _COPIES:
        _count_copies(function, args, here, bool(ours))
    kwargs = {name: _each(_raw, value) for name, value in kwargs.items() if name != "pin_memory"}
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    out = function(*_each(_raw, args), **kwargs)
    if function is aten.copy_.default:
        return args[0]

    def wrap(value: Any) -> Any:
        if not here or not isinstance(value, torch.Tensor):
            return value
        return ours[id(value)] if id(value) in ours else SimulatedTensor(value)

    return out if function is aten._local_scalar_dense.default else _each(wrap, out)


def _refuse_mixtures(function: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor], here: bool) -> None:
    generator = kwargs.get("generator")
    if here and generator is not None and generator.device.type == "cpu":
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, SimulatedTensor)]
    if function in _COPIES or not elsewhere or len(elsewhere) == len(tensors):
        return
    allowed = [
        tensor
        for tensor in elsewhere
        if tensor.dim() == 0 and not any(tensor is out for out in _written(function, args))
    ]
    if function in _TAKE_CPU_INDICES and isinstance(args[0], SimulatedTensor):
        allowed += [index for index in args[1] if isinstance(index, torch.Tensor)]
    if wrong := [tensor for tensor in elsewhere if not any(tensor is one for one in allowed)]:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu: "
            f"{function} with CPU tensors of shapes {[tuple(tensor.shape) for tensor in wrong]}"
        )


def _written(function: Any, args: Any) -> list[Any]:
    """Return the arguments that an operation changes."""
    declared = zip(function._schema.arguments, args, strict=False)
    return [value for argument, value in declared if argument.alias_info is not None and argument.alias_info.is_write]


def _count_waits(function: Any, args: Any) -> None:
    if function in _WAIT:
        _wait(_WAIT[function])
    if function in _TAKE_CPU_INDICES:
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
                _wait("boolean index")
            if isinstance(index, torch.Tensor) and not isinstance(index, SimulatedTensor):
                _wait("index from the CPU")


def _count_copies(function: Any, args: Any, here: bool, ours: bool) -> None:
    if function is aten._to_copy.default:
        source, destination = ours, here
    else:
        pair = args[:2] if function is aten.copy_.default else args[1::-1]
        destination, source = (isinstance(tensor, SimulatedTensor) for tensor in pair)
    if source != destination:
        _wait("copy to the device" if destination else "copy from the device")


class _Backend(_DummyBackendModule):
    """``torch.simgpu``: a part of the interface of ``torch.cuda``, with the CPU's random numbers."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def synchronize(self, device: Any = None) -> None:
        _wait("synchronize")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_libraries: list[torch.library.Library] = []  # a registration ends when its library is deleted


def install() -> None:
    """Add the device to torch, with saving and loading of its tensors. Call it once in a process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(lambda function, *args, **kwargs: _run(function, args, kwargs), dispatch_key="PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for name, function in (
        ("empty.memory_format", aten.empty.memory_format),
        ("empty_strided", aten.empty_strided.default),
    ):
        factories.impl(name, lambda *args, _f=function, **kwargs: _run(_f, args, kwargs), "PrivateUse1")
    _libraries.extend([everything, factories])
    _device_constructors()  # caches torch's own functions, which `with torch.device():` needs
    torch.tensor = _tensor
    torch.save = _saving(torch.save)
    torch.load = _loading(torch.load)
    for name in ("save", "save_file"):
        setattr(safetensors.torch, name, _saving(getattr(safetensors.torch, name)))
    safetensors.torch.safe_open = _opening(safetensors.torch.safe_open)
    safetensors.torch.load_file = _loading_file(safetensors.torch.load_file)


def _tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> torch.Tensor:
    data = tree_map(lambda one: one.cpu() if isinstance(one, SimulatedTensor) else one, data)
    if _is_here(device):
        _wait("torch.tensor")
        return SimulatedTensor(_cpu_tensor(data, dtype=dtype), requires_grad)
    return _cpu_tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)


def _saving(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``save`` with tensors of the device replaced by their CPU tensors."""
    return lambda content, *args, **kwargs: save(tree_map(_raw, content), *args, **kwargs)


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if not isinstance(map_location, str | torch.device) or not _is_here(map_location):
            return load(file, map_location=map_location, **kwargs)
        content = load(file, map_location="cpu", **kwargs)
        return tree_map(lambda value: SimulatedTensor(value) if isinstance(value, torch.Tensor) else value, content)

    return loaded


def _loading_file(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(filename: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        if not isinstance(device, str | torch.device) or not _is_here(device):
            return load(filename, device=device, **kwargs)
        return {name: SimulatedTensor(tensor) for name, tensor in load(filename, device="cpu", **kwargs).items()}

    return loaded


def _opening(safe_open: Any) -> Any:
    class OnDevice:
        """``safe_open`` with tensors on the device."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._file = safe_open(*args, **kwargs)

        def __enter__(self) -> OnDevice:
            self._file.__enter__()
            return self

        def __exit__(self, *details: Any) -> Any:
            return self._file.__exit__(*details)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_tensor(self, name: str) -> SimulatedTensor:
            return SimulatedTensor(self._file.get_tensor(name))

    def opened(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if not isinstance(device, str | torch.device) or not _is_here(device):
            return safe_open(filename, framework, device=device, **kwargs)
        return OnDevice(filename, framework, device="cpu", **kwargs)

    return opened
