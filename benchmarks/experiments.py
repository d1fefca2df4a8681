"""What the paper (arXiv 2405.15821) claims and what we ask further, each with the runs that speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.action_length import GRANULARITIES
from benchmarks.presets import PAPER_PROGRAMS
from lang_envs.virtualhome import UNSEEN_TASKS

SALAD, LARGE_SALAD = "Overcooked-tomato-salad-v0", "Overcooked-tomato-lettuce-salad-v0"
FOOD, ENTERTAINMENT = "VirtualHome-food-preparation-v0", "VirtualHome-entertainment-v0"
TOKEN_LEVEL = ("poad", "ntpo")
FAMILY = (*TOKEN_LEVEL, "twosome")
DISCOUNTS = {1.0: "poad", 0.95: "ntpo"} | {at: f"ntpo[gamma_token={at}]" for at in (0.99, 0.9, 0.8, 0.5)}
"""By γ_w the agent that has it, in an environment whose γ is 0.95: NTPO's family, in which POAD is the one without."""


@dataclass(frozen=True)
class Panel:
    """Agents beside each other in one environment."""

    env: str
    algos: tuple[str, ...] = FAMILY
    tokens: str | None = None
    """What their tokens are; by default the embedded model's own."""
    transfer: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.env if self.tokens is None else f"{self.env} in {self.tokens}"


@dataclass(frozen=True)
class Experiment:
    """One claim, the runs that speak of it, and what they cannot say."""

    title: str
    question: str
    limits: str
    panels: tuple[Panel, ...]
    seeds: int = 10
    first_seed: int = 0
    scales: tuple[str, ...] = ("embedded", "7b")


def _with(settings: str, algos: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{algo}[{settings}]" for algo in algos)


_RATES = ("actor_lr=0.0001", "actor_lr=0.001")  # beside 0.0003, the one that was chosen
_SEARCHED = (*FAMILY, *(algo for rate in _RATES for algo in _with(rate, FAMILY)))
_WHOLE = _with("sampling=candidates", TOKEN_LEVEL)
_SEARCHED_WHOLE = (*_WHOLE, *(algo for rate in _RATES for algo in _with(f"sampling=candidates,{rate}", TOKEN_LEVEL)))
_UNDISCOUNTED = _with("gamma=1.0", ("poad", "twosome"))
_ENDING = _with("gamma=1.0,truncation_is_termination=True", ("poad", "twosome"))
_UNHURRIED = _with("gamma=1.0,entropy_coefficient=0.0", ("poad", "twosome"))
_FADING = _with("gae_lambda_token=0.95", TOKEN_LEVEL)
_NO_BONUS, _PAPERS_BONUS = _with("entropy_coefficient=0.0", FAMILY), _with("entropy_level=token", TOKEN_LEVEL)

EXPERIMENTS: dict[str, Experiment] = {
    "search": Experiment(
        "The learning rate",
        "Which learning rate suits which agent? The same three for each, on seeds that no other experiment uses.",
        "What it cannot show: the best settings of any agent, for the other settings were found by hand, mostly with "
        "POAD, before this search.",
        (Panel(SALAD, (*_SEARCHED, *_SEARCHED_WHOLE)), Panel(FOOD, _SEARCHED)),
        seeds=3,
        first_seed=100,
        scales=("embedded",),
    ),
    "curves": Experiment(
        "Learning curves (figure 3)",
        "Do agents with credit for each token learn faster, and end better, than one with credit for each action?",
        "What it cannot show: how large models do. This one has read random play of these very environments, and most of its "
        "actions are two to seven tokens long, so that there is little to decompose. TWOSOME differs in more than its "
        "credit: it samples whole candidates, which another experiment takes apart; an entropy bonus weighs as "
        "many times less for it as an action has tokens, for losses are means over tokens or actions; and the KL "
        "threshold, of an action for it and of a token for the others, skips more of its steps. How many "
        "environments the household takes was chosen on seed 0 too.",
        tuple(Panel(env) for env in (FOOD, ENTERTAINMENT, SALAD, LARGE_SALAD)),
    ),
    "entropy": Experiment(
        "The same without an entropy bonus, and with the paper's",
        "Is it credit that makes the difference, or the bonus? One on the entropy of tokens moves a policy before it "
        "has met any reward, and TWOSOME has none of that kind.",
        "What it cannot show: which bonus is best. Its coefficient is the same everywhere, but losses are means over "
        "tokens or, for TWOSOME, actions: it weighs as many times more for POAD and NTPO as an action has tokens.",
        tuple(Panel(env, algos) for algos in (FAMILY, _NO_BONUS, _PAPERS_BONUS) for env in (SALAD, FOOD)),
        scales=("embedded",),
    ),
    "programs": Experiment(
        "Programs (figure 4, table 4)",
        "Do agents that write whole programs learn to write ones that work, and better ones?",
        "What it cannot show: who is better than the paper's agents or CAAFE, for model, rows, splits and classifiers "
        "differ. Best programs are maxima over many, found and scored on the same splits.",
        tuple(Panel(f"DataSciCoding-{name}-v0", TOKEN_LEVEL) for name in PAPER_PROGRAMS),
        seeds=3,
    ),
    "discount": Experiment(
        "The discount inside an action (figure 5)",
        "How much of a discount inside an action can learning bear?",
        "What it cannot show: what the discount does to longer actions than these, of four to seven tokens; the "
        "experiment on their length asks that.",
        (Panel(FOOD, tuple(DISCOUNTS.values())),),
    ),
    "endless": Experiment(
        "No discount at all (figure 5)",
        "Agents that have no discount inside an action: do they need one between actions? Without any, an episode that "
        "is cut off is worth what its last observation promises, unless the end of time counts as an end.",
        "What it cannot show: environments without a limit of steps, or other entropy bonuses than 0.01 and none.",
        (Panel(FOOD, ("poad", "twosome", *_UNDISCOUNTED, *_ENDING, *_UNHURRIED)),),
        scales=("embedded",),
    ),
    "length": Experiment(
        "What the discount costs, by the length of actions",
        "The paper's second insight, drawn: does the discount inside an action cost more, the more tokens an action "
        "has? The same environment in three tokenizers, each with a base model that has read the same text.",
        "What it cannot show: length apart from all that goes with it, for prompts grow longer with actions, the three "
        "base models are not one, and an entropy bonus weighs more, the more tokens an action has (TWOSOME's does "
        "not; hence the runs without one).",
        tuple(Panel(FOOD, algos, name) for name in GRANULARITIES for algos in ((*FAMILY, *_FADING), _NO_BONUS)),
        scales=("embedded",),
    ),
    "sampling": Experiment(
        "Sampling tokens, or whole candidates",
        "The paper samples whole candidates and improves the likelihood of their tokens, which are two different "
        "policies. Does it matter? And what of TWOSOME, whose unit is the action either way?",
        "What it cannot show: the best that sampling candidates can do, for all settings but the learning rate were "
        "chosen with tokens.",
        tuple(Panel(env, (*TOKEN_LEVEL, *_WHOLE, "twosome[sampling=trie]", "twosome")) for env in (SALAD, FOOD)),
        scales=("embedded",),
    ),
    "generalisation": Experiment(
        "Unseen tasks (table 1)",
        "What does an agent that was trained on one task do in others?",
        "What it cannot show: that a small model understands new words. It has read all of them in the text of random "
        "play, though it was never rewarded near them.",
        (Panel(FOOD, transfer=tuple(f"VirtualHome-{task}-v0" for task in UNSEEN_TASKS)),),
    ),
    "credit": Experiment(
        "Credit inside an action (figures 6 to 12)",
        "Which token of an action gets the credit? With the pancake in hand one should open the microwave, with the "
        "pancake inside close it; the two phrases differ in their first token alone.",
        "What it cannot show: credit while learning, for exact values are those of the untrained model, and critics "
        "were asked after training, when they hardly know the beginnings of actions that are no longer taken.",
        (Panel(FOOD),),
        scales=("embedded",),
    ),
    "language": Experiment(
        "Language ability (table 2)",
        "What does training do to the language of a model?",
        "What it cannot show: what becomes of a large model. Benchmarks of language say nothing of one this small; "
        "`python -m benchmarks language-ability` puts them to others.",
        (Panel(FOOD),),
        scales=("embedded",),
    ),
}
"""By name, in the order of the report."""
