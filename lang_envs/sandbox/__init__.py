"""Programs that nobody trusts, run apart from everything: ``Sandbox().run(program, inputs, limits)``.

The kernel's layers, their order and what each machine without one of them gets stand in :data:`LAYERS` and
:func:`tier_of`; ``python -m lang_envs doctor`` shows those of this machine.
"""

from lang_envs.sandbox.pool import Result, Sandbox, shared_sandbox
from lang_envs.sandbox.tiers import LAYERS, SandboxError, tier_of
from lang_envs.sandbox.worker import Limits

__all__ = ["LAYERS", "Limits", "Result", "Sandbox", "SandboxError", "shared_sandbox", "tier_of"]
