"""DataSciCoding as an environment."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np

from lang_envs.core import LanguageEnv, Transition
from lang_envs.datascicoding.datasets import Dataset, load_dataset
from lang_envs.datascicoding.programs import random_program
from lang_envs.datascicoding.prompts import STYLES, Attempt, attempt, function_of, prompt, style_for
from lang_envs.datascicoding.scoring import Score, Scorer, script_of, shared_scorer
from lang_envs.sandbox import Limits
from lang_envs.tokenizer import Tokenizer

BEST_PROGRAM_FILE = "best_program.py"
_MAX_TEXT = 8192


class DataSciCodingEnv(LanguageEnv):
    """Write a program that learns to tell classes apart, and be paid by how well it does.

    Description
    -----------
    From "Reinforcing Language Agents via Policy Optimization with Action Decomposition" (arXiv 2405.15821), after
    CAAFE (arXiv 2305.03403). One step is one program, run in a sandbox (:mod:`lang_envs.sandbox`) on real or generated
    tables.

    Action Space
    ------------
    Free text: the body of ``def build_model(x_train, y_train)``, which leaves a fitted classifier in ``model``. Lines
    that stand indented are taken as they are, others are indented as a block, and ``return model`` follows. A fenced
    block counts alone, and a whole definition of ``build_model`` will do as well. ``x_train`` is a float64 array
    (rows, features), ``y_train`` int64 (rows,). A program can import the standard library, NumPy, SciPy and
    scikit-learn, whose experimental estimators are enabled, and open no file.

    Observation Space
    -----------------
    The data set's public name, the shape of ``x_train``, the number of classes; after a program that failed, the
    program and the last lines of its error; the head of the function to write. ``prompt_style`` says in which form.

    Starting State
    --------------
    No program has been written.

    Rewards
    -------
    The mean ROC AUC over five repetitions, each a random split in halves (seeds 0 to 4, not stratified): the program
    sees one half, and the features of the other in an order that follows from them; its probabilities are scored
    outside. One against one where there are more than two classes. −1 for a program that fails: it raises, takes too
    long, is refused by the sandbox, or its probabilities are of the wrong shape, not finite, negative, or do not sum to
    one.

    The splits are the same for every program and share rows. Of its own run a program learns nothing of the other
    half, and it can leave nothing for the next; but an agent that goes on writing programs can come to know labels by
    heart, in small steps by their scores, in large ones by raising errors that say them, since an error is shown in the
    next prompt. A reward says what a program is worth on these splits, not on rows that nobody has seen.

    Episode End
    -----------
    Terminated by a program that works; truncated after ``max_programs`` that do not.

    Information
    -----------
    After a step ``works``, ``success`` (the same), ``error``, ``status`` (see :class:`lang_envs.sandbox.Result`),
    ``program`` (the whole definition), ``sandbox`` (its tier); of a program that works also ``score``, ``score_std``
    and ``script``, the program as a file that scores itself with scikit-learn.

    Arguments
    ---------
    dataset : str or Dataset
        A name of ``python -m lang_envs datasets``, ``"openml:ID"``, ``"kaggle:owner/name"``,
        ``"csv:path?target=column"``, ``"sklearn:wine"``, or a data set of your own.
    max_programs : int
        Programs in an episode.
    seconds : float
        Time on the clock for all five repetitions together; they have one thread.
    memory_mb : int
        ActionRecord over that of the idle process, in MiB.
    prompt_style : str, optional
        ``"completion"``, ``"infill"`` or ``"chat"``; by default what suits the tokenizer, completion where there is
        none.
    sandbox : str
        ``"auto"`` isolates programs or refuses to start; ``"process"`` only gives each a process and limits.
    max_workers : int
        Programs that run at once, in all environments of this process that say the same number.
    cache_dir : str, optional
        A folder in which scores are kept from one process to the next.

    Raises
    ------
    FileNotFoundError
        If the data set is not here; the message says how to get it.
    lang_envs.sandbox.SandboxError
        If programs can't be isolated here, and whenever the machinery (not a program) fails.

    References
    ----------
    - Paper: https://arxiv.org/abs/2405.15821
    - CAAFE: https://arxiv.org/abs/2305.03403

    Version History
    ---------------
    - v0: initial version
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 — as Gymnasium declares it
    symbolic_fields = ("programs_written", "training_rows", "features", "classes")
    discount = 0.95
    state_fields: ClassVar[tuple[str, ...]] = ("_written", "_last", "_last_score")

    def __init__(
        self,
        dataset: str | Dataset | None = None,
        *,
        max_programs: int = 5,
        seconds: float = 30.0,
        memory_mb: int = 1024,
        prompt_style: str | None = None,
        sandbox: str = "auto",
        max_workers: int = 1,
        cache_dir: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_text_length=_MAX_TEXT, max_action_length=_MAX_TEXT, render_mode=render_mode)
        if dataset is None:
            raise ValueError(
                "dataset: none was given; give a Dataset, a name that `python -m lang_envs datasets` shows, openml:ID, "
                "kaggle:owner/name or csv:path?target=column (on the command line --set dataset=...)"
            )
        if prompt_style is not None and prompt_style not in STYLES:
            raise ValueError(f"prompt_style={prompt_style!r} is not one of {STYLES} or None")
        if isinstance(max_programs, bool) or not isinstance(max_programs, int) or max_programs < 1:
            raise ValueError(f"max_programs={max_programs!r} must be a whole number of at least 1")
        self.dataset = load_dataset(dataset) if isinstance(dataset, str) else dataset
        self._name = dataset if isinstance(dataset, str) else None
        self.max_programs = max_programs
        self.prompt_style = prompt_style or "completion"
        self._style_is_chosen = prompt_style is not None
        rows, features = self.dataset.x.shape
        self._shape = (rows // 2, features)
        self._classes = len(np.unique(self.dataset.y))
        limits = Limits(wall_seconds=seconds, cpu_seconds=seconds, memory_bytes=int(memory_mb * 2**20))
        self._scoring = (self.dataset, limits, sandbox, max_workers, cache_dir)
        self._scorer: Scorer | None = shared_scorer(*self._scoring)
        self._begun: dict[str, Future[Score]] = {}
        self.start({})

    def configure_tokenizer(self, tokenizer: Tokenizer) -> None:
        if not self._style_is_chosen:
            self.prompt_style = style_for(tokenizer)
        elif self.prompt_style == "infill" and not tokenizer.infill:
            raise ValueError(f"prompt_style='infill': the tokenizer {tokenizer.name!r} has no infill markers")

    def random_text(self, rng: np.random.Generator) -> str:
        """A program of :mod:`lang_envs.datascicoding.programs`."""
        return random_program(rng)

    def start(self, options: dict[str, Any]) -> None:
        self._written = 0
        self._last: Attempt | None = None
        self._last_score: Score | None = None
        self._begun.clear()

    def prefetch(self, action: str) -> None:
        """Begin to score a program in the background; the step that says it waits for the score."""
        function = function_of(action)
        future = self.scorer.submit(function)
        self._begun[function] = future

    @property
    def scorer(self) -> Scorer:
        """What runs the programs; a copy of this environment in another process has its own."""
        if self._scorer is None or self._scorer.owner != os.getpid():
            self._begun.clear()
            self._scorer = shared_scorer(*self._scoring)
        return self._scorer

    def advance(self, action: int | str | None) -> Transition:
        assert isinstance(action, str)
        function = function_of(action)
        scorer = self.scorer
        score = (self._begun.pop(function, None) or scorer.submit(function)).result()
        self._begun.clear()
        self._written += 1
        self._last_score = score
        self._last = attempt(function, score.error)
        info = {
            "works": score.works,
            "success": score.works,
            "error": score.error,
            "status": score.status,
            "program": function,
            "sandbox": scorer.tier,
        }
        if score.mean is None:
            info["metrics"] = {"reward": -1.0, "works": 0.0, "sandbox": scorer.tier}
            return Transition(-1.0, terminated=False, truncated=self._written >= self.max_programs, info=info)
        script = script_of(function, self.dataset, score, self._name)
        info |= {
            "score": score.mean,
            "score_std": score.std,
            "script": script,
            "metrics": {"reward": score.mean, "works": 1.0, "score": score.mean, "sandbox": scorer.tier},
            "artifact": {"score": score.mean, "file": BEST_PROGRAM_FILE, "text": script},
        }
        return Transition(score.mean, terminated=True, truncated=False, info=info)

    def narrate(self) -> str:
        return prompt(self.prompt_style, self.dataset.title, self._shape, self._classes, self._last)

    def symbolic_observation(self) -> np.ndarray:
        return np.array([self._written, *self._shape, self._classes], dtype=np.int64)

    def render(self) -> str | None:
        """The last program and what came of it."""
        if self.render_mode != "ansi":
            return None
        lines = [f"{self.dataset.title}: {self._written} of {self.max_programs} programs written"]
        if self._last is not None and self._last_score is not None:
            score = self._last_score
            said = f"ROC AUC {score.mean:.4f} ± {score.std:.4f}" if score.works else score.error
            lines += ["", self._last.function, "", said]
        # a program may hold what moves a terminal's cursor
        return "".join(c if c.isprintable() or c == "\n" else "?" for c in "\n".join(lines))

    def close(self) -> None:
        """Let go of the sandbox, which ends with the last environment that uses it."""
        self._scorer = None
        self._begun.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_scorer": None, "_begun": {}}
