"""Training and evaluation: collect, learn, log, checkpoint."""

from __future__ import annotations

import json
import logging
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from lang_envs import make_vec
from lang_envs.files import is_number, locked, open_regular, refuse_irregular, write_atomically
from lang_envs.storage import UnstorableError, encode
from trainers.agent import Agent, Episode, Player, Rollout
from trainers.checkpoint import LAST, DamagedRunError, is_checkpoint_link, load_checkpoint, newest, save_checkpoint
from trainers.rollout import CollectorState, autoreset_mode, begin, collect, env_attribute

METRICS_FILE = "metrics.jsonl"
BEST_PROGRAM_FILE = "best_program.py"
CHECKPOINTS_FOLDER = "checkpoints"
RECENT_EPISODES = 20
_TIME_LIMIT_COUNTER = "_elapsed_steps"
_COUNTS = ("step", "iteration", "episodes", "best_score_step", "metrics_bytes")
_SCORES = ("best", "best_score")
"""Fields of :class:`Progress` that a checkpoint holds as they are."""

logger = logging.getLogger(__name__)


class TrainingCollapsed(RuntimeError):
    """A metric is no longer a finite number; the last good checkpoint is kept."""


@dataclass
class Progress:
    """Where training stands; all of it goes into a checkpoint."""

    situation: CollectorState
    step: int = 0
    iteration: int = 0
    episodes: int = 0
    best: float = -math.inf
    best_score: float = -math.inf
    best_score_step: int = 0
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    metrics_bytes: int = 0
    environments: dict[str, list[Any]] | None = None


@dataclass(frozen=True)
class Evaluation:
    """Episodes of a fixed agent: discounted returns and whether each succeeded, arrays (episodes,)."""

    returns: np.ndarray
    successes: np.ndarray

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def success_rate(self) -> float:
        return float(self.successes.mean())


def train(
    agent: Agent,
    envs: gym.vector.VectorEnv,
    total_steps: int,
    *,
    run_dir: str | Path | None = None,
    seed: int = 0,
    rollout_steps: int = 64,
    checkpoint_every: int = 1,
    resume: bool = False,
    on_iteration: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Let an agent learn for (at least) ``total_steps`` decisions over all environments.

    Parameters
    ----------
    agent : Agent
    envs : gymnasium.vector.VectorEnv
        Token environments; autoreset SAME_STEP, or NEXT_STEP, with which a run cannot be resumed exactly.
    total_steps : int
        Steps of single environments, those that only reset not counted.
    run_dir : path, optional
        Gets ``metrics.jsonl`` (a line per iteration), TensorBoard events (where tensorboard is installed),
        ``checkpoints/last`` and ``checkpoints/best`` (by the mean return of the last 20 episodes) and, of environments in
        which programs are written, the best so far as ``best_program.py``.
    seed : int
        Of the environments; the n-th gets ``seed + n``.
    rollout_steps : int
        Steps in each environment between two updates.
    checkpoint_every : int
        Iterations between two checkpoints; the last iteration always writes one. With 1, a fault costs the iteration
        under way and no more.
    resume : bool
        Go on from the last checkpoint in ``run_dir`` as if nothing had happened: on a CPU the metrics are those of an
        uninterrupted run, bit for bit. A run that was stopped before its first checkpoint begins anew.
    on_iteration : callable, optional
        Gets each line of metrics; its ``timing`` is not part of what is reproducible.

    Returns
    -------
    list of dict
        The lines of metrics of this call.

    Raises
    ------
    TrainingCollapsed
        If a metric is not finite. The last checkpoint is from before.
    FileExistsError
        If ``run_dir`` holds a run already and ``resume`` is False.
    BlockingIOError
        If another process is at work in ``run_dir``.
    """
    folder = None if run_dir is None else Path(run_dir)
    if resume and folder is None:
        raise ValueError("resume=True needs the run_dir to resume from")
    if folder is not None and not resume and (folder / METRICS_FILE).exists():
        raise FileExistsError(f"{folder} holds a run already: resume it, or choose another run_dir")
    discount = float(env_attribute(envs, "discount"))
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(alone_in(folder))
        begun = resume and folder is not None and _has_checkpoint(folder)
        progress = _resume(agent, envs, folder, seed) if begun and folder else Progress(begin(envs, seed))
        log = stack.enter_context(closing(_Log(folder, progress)))
        while progress.step < total_steps:
            started = time.perf_counter()
            rollout = collect(agent, envs, progress.situation, rollout_steps, discount=discount)
            collected = time.perf_counter()
            learnt = agent.learn(rollout)
            finished = time.perf_counter()
            progress.step += int(rollout.valid.sum())
            progress.iteration += 1
            progress.episodes += len(rollout.episodes)
            progress.recent.extend(rollout.episodes)
            line: dict[str, Any] = {
                **{name: float(value) for name, value in learnt.items()},
                "step": progress.step,
                "iteration": progress.iteration,
                "episodes": progress.episodes,
                **_summary(rollout.episodes, progress.recent),
                **_programs(rollout, progress, folder),
            }
            _refuse_collapse(line)
            timing = {"rollout_seconds": collected - started, "learn_seconds": finished - collected}
            if tier := _sandbox_tier(rollout):
                line["sandbox"] = tier
            line["timing"] = timing | {"steps_per_second": float(rollout.valid.sum()) / (finished - started)}
            log.write(line)
            lines.append(line)
            if on_iteration is not None:
                on_iteration(line)
            done = progress.step >= total_steps
            if folder is not None and (done or progress.iteration % checkpoint_every == 0):
                _checkpoint(folder, agent, envs, progress, log)
    return lines


def evaluate(
    agent: Player,
    env: str | Callable[[], gym.Env],
    episodes: int,
    *,
    seed: int = 10_000,
    greedy: bool = False,
    num_envs: int = 4,
    **make_options: Any,
) -> Evaluation:
    """Play whole episodes of an environment, an id or a function that makes one, with an agent that does not learn.

    Every environment plays the same number of episodes, so that short ones are not counted more often than long ones;
    where ``episodes`` does not divide, the surplus is dropped. ``make_options`` go to ``gym.make``; the environment
    speaks the agent's tokenizer where it has one. Sampling takes numbers from the agent's random generator.
    """
    if tokenizer := getattr(agent, "tokenizer", None):
        make_options.setdefault("tokenizer", tokenizer)
    num_envs = min(num_envs, episodes)
    envs = make_vec(env, num_envs, **({} if callable(env) else make_options))
    played: list[list[Episode]] = [[] for _ in range(num_envs)]
    share = math.ceil(episodes / num_envs)
    with closing(envs):
        discount = float(env_attribute(envs, "discount"))
        situation = begin(envs, seed)
        while min(map(len, played)) < share:
            rollout = collect(agent, envs, situation, 1, discount=discount, greedy=greedy)
            for n, episode in zip(np.flatnonzero(rollout.episode_ends[0]), rollout.episodes, strict=True):
                played[n].append(episode)
    counted = [episode for row in zip(*(own[:share] for own in played), strict=True) for episode in row][:episodes]
    return Evaluation(
        np.array([episode.discounted_return for episode in counted]),
        np.array([episode.success for episode in counted]),
    )


def _summary(episodes: list[Episode], recent: deque[Episode]) -> dict[str, float]:
    """Means over the episodes that ended in an iteration, and over the last 20; absent where there are none."""
    found: dict[str, float] = {}
    for prefix, group in (("", episodes), ("recent_", list(recent))):
        if group:
            found[f"{prefix}return"] = float(np.mean([episode.discounted_return for episode in group]))
            found[f"{prefix}success"] = float(np.mean([episode.success for episode in group]))
            found[f"{prefix}length"] = float(np.mean([episode.length for episode in group]))
    return found


def _programs(rollout: Rollout, progress: Progress, folder: Path | None) -> dict[str, float]:
    """Means over the programs of a rollout, where programs are what is written; the best of all is kept."""
    rows = zip(rollout.outcomes, rollout.valid, strict=True)
    outcomes = [outcome for row, valid in rows for outcome, counts in zip(row, valid, strict=True) if counts]
    if not any("works" in outcome for outcome in outcomes):
        return {}
    working = [outcome for outcome in outcomes if outcome["works"]]
    found = {"reward": float(rollout.rewards[rollout.valid].mean()), "works": len(working) / len(outcomes)}
    if working:
        found["score"] = float(np.mean([outcome["score"] for outcome in working]))
        best = max(working, key=lambda outcome: outcome["score"])
        if best["score"] > progress.best_score:
            progress.best_score, progress.best_score_step = best["score"], progress.step
            if folder is not None:
                note = f"# Found by step {progress.step}.\n"
                write_atomically(folder / BEST_PROGRAM_FILE, best["script"] + note)
    if progress.best_score > -math.inf:
        found |= {"best_score": progress.best_score, "best_score_step": progress.best_score_step}
    return found


def _sandbox_tier(rollout: Rollout) -> str | None:
    """How well programs were isolated, where they were run."""
    return next((outcome["sandbox"] for row in rollout.outcomes for outcome in row if "sandbox" in outcome), None)


def _refuse_collapse(line: dict[str, Any]) -> None:
    for name, value in line.items():
        if not math.isfinite(value):
            raise TrainingCollapsed(
                f"{name} is {value} in iteration {line['iteration']}: training has collapsed; "
                "the last good checkpoint is kept (try a lower actor_lr or kl_threshold)"
            )


def _checkpoint(folder: Path, agent: Agent, envs: gym.vector.VectorEnv, progress: Progress, log: _Log) -> None:
    mean = np.mean([episode.discounted_return for episode in progress.recent]) if progress.recent else -math.inf
    best = bool(mean > progress.best) or not (folder / CHECKPOINTS_FOLDER / LAST).exists()
    progress.best = max(progress.best, float(mean))
    progress.metrics_bytes = log.flush()
    progress.environments = _environment_states(envs)
    save_checkpoint(folder / CHECKPOINTS_FOLDER, progress.step, agent.save, _to_store(progress), best=best)


def _environment_states(envs: Any) -> dict[str, list[Any]] | None:
    """What sub-environments need to go on where they stand, and TimeLimit's counter; None where that cannot be had."""
    if autoreset_mode(envs) is not AutoresetMode.SAME_STEP:
        return None
    # To ask for what is not there would end environments in processes of their own.
    names = [name for name in ("state", _TIME_LIMIT_COUNTER) if all(envs.call("has_wrapper_attr", name))]
    return {name: list(envs.get_attr(name)) for name in names} if "state" in names else None


def _to_store(progress: Progress) -> dict[str, Any]:
    """Progress as a checkpoint holds it: without the environments where those cannot be stored."""
    stored = {name: getattr(progress, name) for name in (*_COUNTS, *_SCORES)}
    stored |= {"recent": [astuple(episode) for episode in progress.recent], "environments": None}
    if progress.environments is None:
        return stored
    environments = {"situation": vars(progress.situation), "states": progress.environments}
    try:
        encode(environments, "environments")
    except UnstorableError as error:
        warnings.warn(f"{error}. A resumed run will begin new episodes, and so differ from this one", stacklevel=3)
        return stored
    return stored | {"environments": environments}


def _resume(agent: Agent, envs: Any, folder: Path, seed: int) -> Progress:
    try:
        refuse_irregular(folder / CHECKPOINTS_FOLDER, is_checkpoint_link)
    except ValueError as error:
        raise DamagedRunError(str(error)) from None
    fresh = begin(envs, seed)
    stored = load_checkpoint(folder / CHECKPOINTS_FOLDER, agent.load)
    try:
        return _restore(stored, envs, fresh)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DamagedRunError(
            f"the progress in {folder / CHECKPOINTS_FOLDER / LAST} does not fit these environments, or is damaged: "
            f"{error!r:.300}"
        ) from error


def _restore(stored: dict[str, Any], envs: Any, fresh: CollectorState) -> Progress:
    """Progress from a checkpoint, checked, and the environments where they stood."""
    progress = Progress(fresh)
    for name in _COUNTS:
        if type(stored[name]) is not int or not 0 <= stored[name] < 1 << 53:
            raise ValueError(f"{name} is {stored[name]!r:.80}")
        setattr(progress, name, stored[name])
    for name in _SCORES:
        if not is_number(stored[name]) and stored[name] != -math.inf:
            raise ValueError(f"{name} is {stored[name]!r:.80}")
        setattr(progress, name, stored[name])
    progress.recent.extend(Episode(*episode) for episode in stored["recent"])
    if not all(map(is_number, (value for episode in progress.recent for value in astuple(episode)[:3]))):
        raise ValueError("an episode holds what is no number")
    if (environments := stored["environments"]) is None:
        logger.warning("the environments cannot be put back where they stood (no `state`, or NEXT_STEP): new episodes")
        return progress
    found = environments["situation"]
    for name, value in vars(fresh).items():
        alike = type(found[name]) is type(value) and len(found[name]) == envs.num_envs
        if isinstance(value, np.ndarray):
            alike = alike and found[name].shape == value.shape and found[name].dtype == value.dtype
        if not alike:
            raise ValueError(f"{name} is {found[name]!r:.80}")
    if not all(isinstance(info, dict) for info in found["infos"]):
        raise ValueError("an info is no dict")
    if unknown := environments["states"].keys() - {"state", _TIME_LIMIT_COUNTER}:
        raise ValueError(f"it holds the states {unknown}")
    for name, values in environments["states"].items():
        envs.set_attr(name, values)
    progress.situation = CollectorState(**found)
    return progress


def _has_checkpoint(folder: Path) -> bool:
    if newest(folder / CHECKPOINTS_FOLDER) is not None:
        return True
    if (folder / METRICS_FILE).exists():
        logger.warning("%s was stopped before its first checkpoint: it begins anew", folder)
        return False
    raise FileNotFoundError(f"{folder} holds no checkpoint to resume from")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system lets go when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".lock"))
        except BlockingIOError:
            raise BlockingIOError(f"another process is at work in {folder}") from None
        yield


class _Log:
    """Lines of metrics in a file and, where it is installed, in TensorBoard."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self._file = None
        self._board = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        file = open_regular(path, "r+b")
        if (size := file.seek(0, os.SEEK_END)) < progress.metrics_bytes:
            file.close()
            raise DamagedRunError(
                f"{path} has lost lines: it has {size:,} bytes, and had {progress.metrics_bytes:,} at the last "
                f"checkpoint; delete {folder} and begin anew"
            )
        file.truncate(progress.metrics_bytes)  # lines after the last checkpoint are made again
        file.seek(progress.metrics_bytes)
        self._file = file
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            logger.info("tensorboard is not installed: metrics go to %s alone", path)
            return
        self._board = SummaryWriter(str(folder), purge_step=progress.step or None)

    def write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        if self._board is not None:
            for name, value in {**line, **line["timing"]}.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, line["step"])

    def flush(self) -> int:
        """Put all on disk; the size of the file of lines in bytes."""
        if self._file is None:
            return 0
        if self._board is not None:
            self._board.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
