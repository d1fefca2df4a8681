"""Training: collect a rollout, learn from it, write metrics and a checkpoint, repeat."""

from __future__ import annotations

import logging
import math
import re
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

from lang_envs.files import MIB, is_number, locked, refuse_irregular, write_atomically
from lang_envs.storage import UnstorableError, encode
from trainers.agent import Agent, Episode, Rollout
from trainers.checkpoint import LAST, DamagedRunError, is_checkpoint_link, load_checkpoint, newest, save_checkpoint
from trainers.metrics import METRICS_FILE, MetricsLog
from trainers.rollout import CollectorState, autoreset_mode, begin, collect, env_attribute

CHECKPOINTS_FOLDER = "checkpoints"
RECENT_EPISODES = 20
_TIME_LIMIT_COUNTER = "_elapsed_steps"
_LONGEST_WORD = 200
_ARTIFACT = re.compile(r"best_[\w.-]{1,80}", re.ASCII)
"""Names of artifacts: no file of a run begins so."""
_COUNTS = ("step", "iteration", "episodes", "best_score_step", "metrics_bytes")
_SCORES = ("best", "best_score")
"""Fields of :class:`Progress` that a checkpoint holds as they are."""

logger = logging.getLogger(__name__)


class TrainingCollapsed(RuntimeError):
    """A metric is no longer a finite number. The last checkpoint is from before and is kept."""


@dataclass
class Progress:
    """The state of training, all of which is part of a checkpoint.

    ``best`` is the highest mean return of the last 20 episodes at a checkpoint, ``best_score`` the highest score of an
    artifact (see :class:`lang_envs.Transition`), first reached at environment step ``best_score_step``.
    """

    collector: CollectorState
    step: int = 0
    iteration: int = 0
    episodes: int = 0
    best: float = -math.inf
    best_score: float = -math.inf
    best_score_step: int = 0
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    metrics_bytes: int = 0
    environments: dict[str, list[Any]] | None = None


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
    """Train an agent for at least ``total_steps`` environment steps, in whole rollouts.

    Parameters
    ----------
    agent : Agent
    envs : gymnasium.vector.VectorEnv
        With token observations and autoreset mode SAME_STEP or NEXT_STEP. With NEXT_STEP a run cannot be resumed
        exactly.
    total_steps : int
        Environment steps summed over all environments. Steps that only reset an environment do not count.
    run_dir : path, optional
        The folder of the run. It gets ``metrics.jsonl`` (one line for each iteration), TensorBoard events (if
        tensorboard is installed), ``checkpoints/last``, ``checkpoints/best`` (highest mean return of the last 20
        episodes), and the artifact with the highest score, if the environment has artifacts (``best_program.py`` of
        DataSciCoding).
    seed : int
        Environment n is seeded with ``seed + n``.
    rollout_steps : int
        Steps in each environment between two updates.
    checkpoint_every : int
        Iterations between two checkpoints. The last iteration always writes one.
    resume : bool
        Continue from the last checkpoint in ``run_dir``. On a CPU the metrics are bit for bit those of an
        uninterrupted run. A run that was stopped before its first checkpoint starts from the beginning.
    on_iteration : callable, optional
        Called with each line of metrics.

    Returns
    -------
    list of dict
        The lines of metrics of this call. All values but ``timing`` are reproducible.

    Raises
    ------
    TrainingCollapsed
        If a metric is not finite.
    FileExistsError
        If ``run_dir`` contains a run and ``resume`` is False.
    BlockingIOError
        If another process uses ``run_dir``.
    DamagedRunError
        If the files in ``run_dir`` cannot be used to resume.
    """
    folder = None if run_dir is None else Path(run_dir)
    if resume and folder is None:
        raise ValueError("resume=True needs a run_dir")
    if folder is not None and not resume and (folder / METRICS_FILE).exists():
        raise FileExistsError(f"{folder} contains a run: pass resume=True to continue it, or choose another run_dir")
    discount = float(env_attribute(envs, "discount"))
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(alone_in(folder))
        resumes = resume and folder is not None and _has_checkpoint(folder)
        progress = _resume(agent, envs, folder, seed) if resumes and folder else Progress(begin(envs, seed))
        log = stack.enter_context(closing(MetricsLog(folder, size=progress.metrics_bytes, step=progress.step)))
        while progress.step < total_steps:
            started = time.perf_counter()
            rollout = collect(agent, envs, progress.collector, rollout_steps, discount=discount)
            collected = time.perf_counter()
            update = agent.learn(rollout)
            finished = time.perf_counter()
            steps = int(rollout.valid.sum())
            progress.step += steps
            progress.iteration += 1
            progress.episodes += len(rollout.episodes)
            progress.recent.extend(rollout.episodes)
            own: dict[str, Any] = {
                **{name: float(value) for name, value in update.items()},
                "step": progress.step,
                "iteration": progress.iteration,
                "episodes": progress.episodes,
                **_episode_means(rollout.episodes, progress.recent),
            }
            of_envs = _env_metrics(rollout, progress, folder)
            if twice := own.keys() & of_envs.keys() | of_envs.keys() & {"timing"}:
                raise ValueError(f"an environment returned the metric {min(twice)!r}, which training itself reports")
            line = own | of_envs
            _refuse_collapse(line)
            line["timing"] = {
                "rollout_seconds": collected - started,
                "learn_seconds": finished - collected,
                "steps_per_second": steps / (finished - started),
            }
            log.write(line)
            lines.append(line)
            if on_iteration is not None:
                on_iteration(line)
            done = progress.step >= total_steps
            if folder is not None and (done or progress.iteration % checkpoint_every == 0):
                _checkpoint(folder, agent, envs, progress, log)
    return lines


def _episode_means(episodes: list[Episode], recent: deque[Episode]) -> dict[str, float]:
    """Return means over the episodes that ended in an iteration, and over the last 20; nothing where there are none."""
    means: dict[str, float] = {}
    for prefix, group in (("", episodes), ("recent_", list(recent))):
        if group:
            means[f"{prefix}return"] = float(np.mean([episode.discounted_return for episode in group]))
            means[f"{prefix}success"] = float(np.mean([episode.success for episode in group]))
            means[f"{prefix}length"] = float(np.mean([episode.length for episode in group]))
    return means


def _env_metrics(rollout: Rollout, progress: Progress, folder: Path | None) -> dict[str, Any]:
    """Return the environments' own metrics, means of numbers and first words; write the best artifact of the run."""
    infos = [info for row in rollout.outcomes for info in row]
    infos = [infos[i] for i in np.flatnonzero(rollout.valid)]
    values: dict[str, list[Any]] = {}
    for info in infos:
        for name, value in _checked_metrics(info).items():
            values.setdefault(name, []).append(value)
    means = {name: own[0] if isinstance(own[0], str) else float(np.mean(own)) for name, own in values.items()}
    for info in infos:
        if "artifact" in info:
            score, file, text = _checked_artifact(info["artifact"])
            if score > progress.best_score:
                progress.best_score, progress.best_score_step = score, progress.step
                if folder is not None:
                    write_atomically(folder / file, text)
    if progress.best_score > -math.inf:
        means |= {"best_score": progress.best_score, "best_score_step": progress.best_score_step}
    return means


def _checked_metrics(info: dict[str, Any]) -> dict[str, Any]:
    metrics = info.get("metrics", {})
    if not isinstance(metrics, dict):
        raise ValueError(f"an environment returned info['metrics'] = {metrics!r:.80}, expected a dict")
    for name, value in metrics.items():
        fits = is_number(value) or (isinstance(value, str) and len(value) <= _LONGEST_WORD)
        if not isinstance(name, str) or not fits:
            raise ValueError(
                f"an environment returned the metric {name!r:.80} = {value!r:.80}, expected a name and a finite number "
                f"or a text of at most {_LONGEST_WORD} characters"
            )
    return metrics


def _checked_artifact(artifact: Any) -> tuple[float, str, str]:
    """Return the score, file and text of an artifact; refuse one that could harm the run's own files."""
    keys = ("score", "file", "text")
    if not isinstance(artifact, dict) or not all(key in artifact for key in keys):
        raise ValueError(f"an environment returned info['artifact'] = {artifact!r:.80}, expected {', '.join(keys)}")
    score, file, text = (artifact[key] for key in keys)
    if not is_number(score) or not isinstance(text, str) or len(text) > MIB:
        raise ValueError(
            f"an artifact has the score {score!r:.80}: expected a finite number, and text of at most 1 MiB"
        )
    if not isinstance(file, str) or not _ARTIFACT.fullmatch(file):
        raise ValueError(
            f"an artifact has the file name {file!r:.80}: expected best_NAME, of letters, digits, '_', '-' and '.'"
        )
    return float(score), file, text


def _refuse_collapse(line: dict[str, Any]) -> None:
    for name, value in line.items():
        if isinstance(value, int | float) and not math.isfinite(value):
            raise TrainingCollapsed(
                f"{name} is {value} in iteration {line['iteration']}: training has collapsed. The last checkpoint is "
                "from before; try a lower actor_lr or kl_threshold"
            )


def _checkpoint(folder: Path, agent: Agent, envs: gym.vector.VectorEnv, progress: Progress, log: MetricsLog) -> None:
    mean = np.mean([episode.discounted_return for episode in progress.recent]) if progress.recent else -math.inf
    best = bool(mean > progress.best) or not (folder / CHECKPOINTS_FOLDER / LAST).exists()
    progress.best = max(progress.best, float(mean))
    progress.metrics_bytes = log.flush()
    progress.environments = _environment_states(envs)
    save_checkpoint(folder / CHECKPOINTS_FOLDER, progress.step, agent.save, _to_store(progress), best=best)


def _environment_states(envs: Any) -> dict[str, list[Any]] | None:
    """Return the states of all environments and of their time limits; None if they cannot be saved."""
    if autoreset_mode(envs) is not AutoresetMode.SAME_STEP:
        return None
    # Asking an environment in another process for an attribute that it lacks ends that process.
    names = [name for name in ("state", _TIME_LIMIT_COUNTER) if all(envs.call("has_wrapper_attr", name))]
    return {name: list(envs.get_attr(name)) for name in names} if "state" in names else None


def _to_store(progress: Progress) -> dict[str, Any]:
    """Return progress as a checkpoint stores it; without the environments if these cannot be stored."""
    stored = {name: getattr(progress, name) for name in (*_COUNTS, *_SCORES)}
    stored |= {"recent": [astuple(episode) for episode in progress.recent], "environments": None}
    if progress.environments is None:
        return stored
    environments = {"collector": vars(progress.collector), "states": progress.environments}
    try:
        encode(environments, "environments")
    except UnstorableError as error:
        warnings.warn(
            f"{error}. A resumed run will start new episodes, and its metrics will differ from an uninterrupted run's",
            stacklevel=3,
        )
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
    """Return the progress of a checkpoint, checked, and restore the environments."""
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
        raise ValueError("an episode contains a value that is not a number")
    if (environments := stored["environments"]) is None:
        logger.warning(
            "new episodes start: the checkpoint has no environment states (no `state` attribute, or NEXT_STEP)"
        )
        return progress
    saved = environments["collector"]
    for name, value in vars(fresh).items():
        alike = type(saved[name]) is type(value)
        if alike and len(saved[name]) != envs.num_envs:
            raise ValueError(f"saved with {len(saved[name])} environments, there are {envs.num_envs} now")
        if isinstance(value, np.ndarray):
            alike = alike and saved[name].shape == value.shape and saved[name].dtype == value.dtype
        if not alike:
            raise ValueError(f"{name} is {saved[name]!r:.80}")
    if not all(map(envs.single_observation_space.contains, saved["observations"])):
        raise ValueError("an observation is not in the observation space")
    if not all(isinstance(info, dict) for info in saved["infos"]):
        raise ValueError("an info is not a dict")
    if unknown := environments["states"].keys() - {"state", _TIME_LIMIT_COUNTER}:
        raise ValueError(f"it contains the unknown states {unknown}")
    for name, values in environments["states"].items():
        envs.set_attr(name, values)
    progress.collector = CollectorState(**saved)
    return progress


def _has_checkpoint(folder: Path) -> bool:
    if newest(folder / CHECKPOINTS_FOLDER) is not None:
        return True
    if (folder / METRICS_FILE).exists():
        logger.warning("%s was stopped before its first checkpoint: it starts from the beginning", folder)
        return False
    raise FileNotFoundError(f"{folder} contains no checkpoint to resume from")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. The operating system releases it when the process ends, in whatever way.

    Raises
    ------
    BlockingIOError
        If another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".lock"))
        except BlockingIOError:
            raise BlockingIOError(f"another process is using {folder}") from None
        yield
