"""Run untrusted programs in isolation: ``Sandbox().run(program, inputs, limits)``.

:data:`LAYERS` lists the kernel's layers around a program, and :func:`tier_of` the sets of layers that are accepted.
``python -m lang_envs doctor`` shows those of this machine.

============================================  ===================================================================
module                                        task
============================================  ===================================================================
``pool``, ``worker``, ``cgroups``             in the trainer: run programs, watch them, limit a worker's memory
``fork_server``, ``preload``, ``child``       in a process of their own: import everything, fork, run one program
``isolation``, ``seccomp``, ``syscalls``      the layers
``selftest``                                  tests the layers before the first program
``protocol``                                  the messages between all of them
``tiers``, ``doctor``                         what a machine can do
============================================  ===================================================================
"""

from lang_envs.sandbox.pool import Result, Sandbox, shared_sandbox
from lang_envs.sandbox.tiers import LAYERS, SandboxError, tier_of
from lang_envs.sandbox.worker import Limits

__all__ = ["LAYERS", "Limits", "Result", "Sandbox", "SandboxError", "shared_sandbox", "tier_of"]
