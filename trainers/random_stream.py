"""Random numbers of torch that belong to one agent."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_HEADER = struct.Struct("<QiiQ")
"""The beginning of a state: seed, words left until the next twist, whether it is seeded, next word."""
_WORDS = 624

logger = logging.getLogger(__name__)


class RandomStream:
    """A state of torch's generators, seeded once, that no other user of the global generators reads or advances.

    Models and ``transformers``' sampling draw from torch's global generators. Within :meth:`active` these continue this
    stream; afterwards they are as they were.

    Parameters
    ----------
    seed : int
    device : torch.device
        A GPU's own generator belongs to the stream, too.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        self._active = False
        with torch.random.fork_rng(self._gpus):
            torch.manual_seed(seed)
            self.state = self._current()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let torch's global generators continue this stream."""
        if self._active:
            raise RuntimeError("this random stream is active already: a nested use would repeat its numbers")
        self._active = True
        try:
            with torch.random.fork_rng(self._gpus):
                torch.set_rng_state(self.state[0])
                for gpu, state in zip(self._gpus, self.state[1:], strict=False):
                    torch.cuda.set_rng_state(state, gpu)
                try:
                    yield
                finally:
                    self.state = self._current()
        finally:
            self._active = False

    def load_state(self, state: list[torch.Tensor]) -> None:
        """Continue from a saved state. Generators of another number of GPUs keep the state of this run's seed.

        Raises
        ------
        ValueError
            If it is no state of torch's generators.
        """
        try:
            with torch.random.fork_rng(self._gpus):
                set_cpu_generator(state[0])
                for gpu, own in zip(self._gpus, state[1:], strict=False):
                    torch.cuda.set_rng_state(own, gpu)
                self.state = self._current()
        except (IndexError, RuntimeError, TypeError) as error:
            raise ValueError(f"it contains no state of torch's random generators: {error}") from error
        if len(state) != len(self.state):
            logger.warning("saved with %d random generators, restored with %d", len(state), len(self.state))

    def _current(self) -> list[torch.Tensor]:
        """The states of the CPU's and the GPU's generator: uint8 tensors on the CPU."""
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in self._gpus)]


def set_cpu_generator(state: torch.Tensor) -> None:
    """Set the state of torch's global CPU generator, uint8 tensor, after a check that torch omits.

    Raises
    ------
    ValueError
        If the position of the Mersenne Twister is outside its 624 words: its numbers would come from other memory.
    RuntimeError, TypeError
        If the tensor has another size or type.
    """
    if state.dtype == torch.uint8 and len(state) >= _HEADER.size:
        _, left, _, position = _HEADER.unpack(bytes(state[: _HEADER.size].tolist()))
        fresh = (left, position) == (1, 0)
        if not fresh and not (1 <= left <= _WORDS and position == _WORDS + 1 - left):
            raise ValueError(f"torch's random generator has the position {position} with {left} words left")
    torch.set_rng_state(state)
