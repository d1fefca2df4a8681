"""DataSciCoding as a text environment: the class that is registered with Gymnasium."""

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
"""File in the folder of a training run that holds the best program."""
_MAX_TEXT = 8192
"""Characters of the longest observation and of the longest action."""
FAILURE_REWARD = -1.0


class DataSciCodingEnv(LanguageEnv):
    """Write a program that trains a classifier; the reward is its score on held-out data.

    Description
    -----------
    Each action is one program. It runs in a sandbox (:mod:`lang_envs.sandbox`) on a data set of at most 2000 rows.
    ``python -m lang_envs datasets`` lists the 14 registered sets; ``DataSciCoding-v0`` takes a data set of your own.

    Action Space
    ------------
    Text of at most 8192 characters: the body of ``def build_model(x_train, y_train)``, which assigns a fitted
    classifier to ``model``. ``return model`` is appended.

    - ``x_train`` is a float64 array (rows, features), ``y_train`` an int64 array (rows,) of classes from 0.
    - If the text contains a fenced code block, only that block counts. A whole definition of ``build_model`` is
      accepted as well. Indented lines are taken as they are; other lines are indented as a block.
    - A program can import the standard library, NumPy, SciPy and scikit-learn, with the experimental estimators
      enabled. It cannot open files and has one thread.

    Observation Space
    -----------------
    Text: the name of the data set, the shape of ``x_train`` and the number of classes; after a program that failed,
    that program and the last lines of its error; then the head of the function. The first observation of balance scale
    is::

        # Balance Scale: x_train (62, 4), 3 classes.
        def build_model(x_train, y_train):

    Its form is the argument ``prompt_style``:

    ==============  ================================================================  ================================
    prompt_style    form                                                              default for
    ==============  ================================================================  ================================
    ``completion``  comments and the head of the function, which the model continues  a tokenizer without the others
    ``infill``      the same with infill markers around the missing body              a tokenizer with infill markers
    ``chat``        an instruction in English                                         a tokenizer with a chat template
    ==============  ================================================================  ================================

    ``symbolic_observation()`` is an int64 vector of 4 entries: programs written, training rows, features, classes.

    Starting State
    --------------
    No program has been written.

    Rewards
    -------
    ==========================  ===============  ===============================================================
    status                      reward           cause
    ==========================  ===============  ===============================================================
    ``ok``                      ROC AUC, 0 to 1  the program works
    ``error``                   −1               it raises an error, ends itself, or is longer than 64 KiB
    ``rejected``                −1               its probabilities have the wrong shape, are not between 0 and
                                                 1, or do not sum to one (checked for three or more classes)
    ``timeout``, ``cpu limit``  −1               the five runs together take longer than ``seconds``
    ``violation``, ``crash``    −1               it makes a forbidden system call, or a signal ends it
    ==========================  ===============  ===============================================================

    The ROC AUC is the mean over five random splits into halves (seeds 0 to 4, not stratified). For each split, the
    program sees one half and the features of the other; its probabilities for the other half are scored outside the
    sandbox. With more than two classes it is the mean over all pairs of classes (one against one).

    *The reward is not an estimate of the accuracy on new data.* The splits are the same for every program and share
    rows. A program learns nothing about the labels of the other half, and can leave nothing for the next program. But
    an agent that writes many programs can learn labels: slowly from scores, fast from errors, which are shown in the
    next observation and can contain labels of the training half.

    Episode End
    -----------
    *Terminated* by a program that works. *Truncated* after ``max_programs`` programs that do not work.

    Information
    -----------
    =========================  =================================================================================
    entry                      meaning
    =========================  =================================================================================
    ``text``                   the observation as text (str)
    ``action_valid``           after a step: always True
    ``works``, ``success``     whether the program works (bool, both the same)
    ``error``                  the reason why it does not (str); empty if it works
    ``status``                 see :class:`lang_envs.sandbox.Result`
    ``program``                the whole definition of ``build_model`` (str)
    ``sandbox``                the tier of the sandbox, see :func:`lang_envs.sandbox.tier_of`
    ``score``, ``score_std``   if it works: mean and standard deviation of the ROC AUC over the five splits
                               (float)
    ``script``                 if it works: a Python file (str) that computes the score with scikit-learn,
                               without the sandbox
    ``metrics``, ``artifact``  for training, see :class:`lang_envs.Transition`; the artifact is the script
    =========================  =================================================================================

    Arguments
    ---------
    dataset : str or Dataset
        A name that ``python -m lang_envs datasets`` lists, ``"openml:ID"``, ``"kaggle:owner/name"``,
        ``"csv:path?target=column"``, ``"sklearn:wine"``, or a :class:`lang_envs.datascicoding.Dataset`. Each registered
        id except ``DataSciCoding-v0`` sets it.
    max_programs : int
        Greatest number of programs in an episode; default 5.
    seconds : float
        Time limit of a program, in s, for all five splits together; default 30.
    memory_mb : int
        Memory limit of a program in MiB, in addition to that of the idle process; default 1024.
    prompt_style : str, optional
        ``"completion"``, ``"infill"`` or ``"chat"``; by default it follows from the tokenizer.
    sandbox : str
        ``"auto"`` isolates programs, or raises an error where the machine cannot. ``"process"`` only gives each program
        a process and limits: no protection.
    max_workers : int
        Number of programs that run at the same time. All environments of a process with the same number share the
        workers.
    cache_dir : str, optional
        Folder in which scores are kept for other processes.
    render_mode : str, optional
        ``"ansi"``: the last program and its score or error.

    Raises
    ------
    FileNotFoundError
        If the data set is not on this machine; the message names the command that fetches it.
    ValueError
        If an argument is invalid, or a class has too few rows for the splits.
    lang_envs.sandbox.SandboxError
        If this machine cannot isolate programs; during a step, if the sandbox itself fails (not a program).

    References
    ----------
    Source: POAD (arXiv:2405.15821), whose data sets and scores follow CAAFE (arXiv:2305.03403). Sandbox, prompts and
    the treatment of errors are ours.

    Version History
    ---------------
    - v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
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
                "dataset is missing: expected a Dataset, a name that `python -m lang_envs datasets` lists, openml:ID, "
                "kaggle:owner/name or csv:path?target=column (on the command line: --set dataset=...)"
            )
        if prompt_style is not None and prompt_style not in STYLES:
            raise ValueError(f"prompt_style={prompt_style!r} is not one of {STYLES} or None")
        if isinstance(max_programs, bool) or not isinstance(max_programs, int) or max_programs < 1:
            raise ValueError(f"max_programs={max_programs!r} is not valid: expected a whole number of at least 1")
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
        """Choose the prompt style, unless it was given."""
        if not self._style_is_chosen:
            self.prompt_style = style_for(tokenizer)
        elif self.prompt_style == "infill" and not tokenizer.infill:
            raise ValueError(
                f"prompt_style='infill' needs infill markers, which the tokenizer {tokenizer.name!r} does not have: "
                "choose completion or chat"
            )

    def random_text(self, rng: np.random.Generator) -> str:
        """Draw a program; see :mod:`lang_envs.datascicoding.programs`."""
        return random_program(rng)

    def start(self, options: dict[str, Any]) -> None:
        self._written = 0
        self._last: Attempt | None = None
        self._last_score: Score | None = None
        self._begun.clear()

    def prefetch(self, action: str) -> None:
        """Start to score a program in the background; the step with this program waits for the score."""
        function = function_of(action)
        future = self.scorer.submit(function)
        self._begun[function] = future

    @property
    def scorer(self) -> Scorer:
        """Runs and scores the programs. A copy of this environment in another process has its own."""
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
            info["metrics"] = {"reward": FAILURE_REWARD, "works": 0.0, "sandbox": scorer.tier}
            return Transition(FAILURE_REWARD, terminated=False, truncated=self._written >= self.max_programs, info=info)
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
        """Return the last program and its score or error, as text (``ansi``)."""
        if self.render_mode != "ansi":
            return None
        lines = [f"{self.dataset.title}: {self._written} of {self.max_programs} programs written"]
        if self._last is not None and self._last_score is not None:
            score = self._last_score
            result = f"ROC AUC {score.mean:.4f} ± {score.std:.4f}" if score.works else score.error
            lines += ["", self._last.function, "", result]
        # Control characters of a program could move the terminal's cursor.
        return "".join(c if c.isprintable() or c == "\n" else "?" for c in "\n".join(lines))

    def close(self) -> None:
        """Release the sandbox, which ends with the last environment that uses it."""
        self._scorer = None
        self._begun.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_scorer": None, "_begun": {}}
