"""Credit without a critic: returns of episodes compared with those of a group, in NumPy.

An episode is a sequence of actions with rewards r_t and discounts γ_t. Its return-to-go is G_t = r_t + γ_t G_{t+1}, its
return R = G_0. All actions of an episode get a number; without a critic there is no credit to assign inside an action.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def returns_to_go(rewards: Floats, discounts: Floats) -> Floats:
    """Return G_t = r_t + γ_t G_{t+1} for the actions of one finished episode; arrays (T,)."""
    returns = np.array(rewards, dtype=np.float64)
    for t in reversed(range(len(returns) - 1)):
        returns[t] += discounts[t] * returns[t + 1]
    return returns


def normalised(values: Floats, std_floor: float) -> Floats:
    """Return (x − mean) / max(std, floor); arrays (M,).

    Of all actions' returns-to-go this is REINFORCE with return batch normalisation (GEM, arXiv 2510.01051). Of the
    returns of a group of episodes it is GRPO's advantage (arXiv 2402.03300). The floor keeps a group with nearly equal
    returns from being scaled up.
    """
    return (values - values.mean()) / max(float(values.std()), std_floor, 1e-8)


def scaled(values: Floats, std_floor: float) -> Floats:
    """Return x / max(std, floor): the scale that the entropy bonus and the clip range assume; arrays (M,)."""
    return values / max(float(values.std()), std_floor, 1e-8)


def leave_one_out(returns: Floats) -> Floats:
    """Return R_i − mean of the other R_k: RLOO's advantage (arXiv 2402.14740); 0 for a group of one; arrays (M,)."""
    if len(returns) < 2:
        return np.zeros_like(returns)
    return (returns - returns.mean()) * len(returns) / (len(returns) - 1)


def against_same_observation(
    returns: Floats, observations: Sequence[Hashable], episodes: Sequence[int] | NDArray[np.int64]
) -> Floats:
    """Return each action's return-to-go minus the mean over other episodes' actions on the same observation.

    GiGPO's step-level advantage (arXiv 2505.10978), with the baseline over *other* episodes, which keeps it unbiased.
    It is 0 where no other episode met the observation.

    Parameters
    ----------
    returns : float64 array (M,)
        Return-to-go of each action.
    observations : sequence of M hashables
    episodes : sequence of M ints
        The episode of each action.
    """
    members: dict[Hashable, list[int]] = {}
    for index, observation in enumerate(observations):
        members.setdefault(observation, []).append(index)
    own = np.asarray(episodes)
    advantages = np.zeros_like(returns)
    for group in map(np.array, members.values()):
        distinct, place = np.unique(own[group], return_inverse=True)
        sums, counts = np.bincount(place, returns[group]), np.bincount(place)
        others = len(group) - counts
        if len(distinct) > 1:
            baseline = (sums.sum() - sums) / np.maximum(others, 1)
            advantages[group] = returns[group] - baseline[place]
    return advantages
