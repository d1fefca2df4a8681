"""What the figures of the POAD paper call ARCHER. It is not ArCHer (arXiv 2402.19446): no Q function, no replay."""

from __future__ import annotations

import numpy as np

from trainers.agents.ntpo import NTPO


class ADRLArcher(NTPO):
    """NTPO whose last token bootstraps from the value before the *last* token of the next action.

    The discount inside an action then distorts the value of one action, and does not accumulate over time as in NTPO:
    V(o) is the expectation of γ_w^(n−1) Q(o, a), with n the number of tokens of the action and Q its value.
    """

    def bootstrap_values(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        last = np.maximum(mask.sum(-1) - 1, 0)
        return np.take_along_axis(values, last[..., None], axis=-1)[..., 0]
