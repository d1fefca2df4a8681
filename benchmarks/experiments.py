"""The paper's experiments (arXiv 2405.15821), and further ones of this project."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.action_length import GRANULARITIES
from benchmarks.agent_spec import AgentSpec
from benchmarks.presets import FOOD, PAPER_PROGRAMS
from lang_envs.virtualhome import UNSEEN_TASKS

SALAD, LARGE_SALAD = "Overcooked-tomato-salad-v0", "Overcooked-tomato-lettuce-salad-v0"
ENTERTAINMENT = "VirtualHome-entertainment-v0"
POAD, NTPO, TWOSOME = FAMILY = tuple(map(AgentSpec, ("poad", "ntpo", "twosome")))
TOKEN_LEVEL = (POAD, NTPO)
DISCOUNTS = (POAD, NTPO, *(AgentSpec("ntpo", {"gamma_token": at}) for at in (0.99, 0.9, 0.8, 0.5)))
"""Agents that differ in γ_w alone: 1 for POAD, and the environment's γ for NTPO by default."""
BOTH_SCALES = ("embedded", "7b")
LIMITATIONS_7B = (
    "The paper's settings of the agents differ in more than their credit (entropy bonus, minibatches, epochs). The "
    "effect of credit alone cannot be seen."
)
"""Limitations of all experiments with 7B models."""


@dataclass(frozen=True)
class Comparison:
    """Several agents in one environment."""

    env: str
    agents: tuple[AgentSpec, ...] = FAMILY
    tokens: str | None = None
    """The tokenizer, one of ``GRANULARITIES``; None is the embedded model's."""
    transfer: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Name of the folder of its runs."""
        return self.env if self.tokens is None else f"{self.env} in {self.tokens}"


@dataclass(frozen=True)
class Experiment:
    """A question, the runs that answer it, and the limitations of the answer."""

    title: str
    question: str
    limitations: str
    comparisons: tuple[Comparison, ...]
    analysis: str = "returns"
    seeds: int = 10
    first_seed: int = 0
    scales: tuple[str, ...] = ("embedded",)


def _with(agents: tuple[AgentSpec, ...], **settings: object) -> tuple[AgentSpec, ...]:
    return tuple(AgentSpec(agent.algorithm, {**agent.settings, **settings}) for agent in agents)


_CANDIDATES = _with(TOKEN_LEVEL, sampling="candidates")
# the default learning rate, 0.0003, was chosen from these three
_SEARCHED, _SEARCHED_CANDIDATES = (
    (*agents, *_with(agents, actor_lr=0.0001), *_with(agents, actor_lr=0.001)) for agents in (FAMILY, _CANDIDATES)
)
_ACTION_DISCOUNT = (POAD, TWOSOME)
_UNDISCOUNTED = (
    *_ACTION_DISCOUNT,
    *_with(_ACTION_DISCOUNT, gamma=1.0),
    *_with(_ACTION_DISCOUNT, gamma=1.0, truncation_is_termination=True),
    *_with(_ACTION_DISCOUNT, gamma=1.0, entropy_coefficient=0.0),
)
_NO_BONUS, _TOKEN_BONUS = _with(FAMILY, entropy_coefficient=0.0), _with(TOKEN_LEVEL, entropy_level="token")
_LENGTHS = ((*FAMILY, *_with(TOKEN_LEVEL, gae_lambda_token=0.95)), _NO_BONUS)
_UNSEEN = tuple(f"VirtualHome-{task}-v0" for task in UNSEEN_TASKS)

EXPERIMENTS: dict[str, Experiment] = {
    "search": Experiment(
        "Learning rate",
        "Which learning rate gives each agent the highest return? All agents try the same three rates, on seeds that "
        "no other experiment uses.",
        "The other settings were tuned by hand, mostly with POAD, before this search. The results do not show the best "
        "settings of any agent.",
        (Comparison(SALAD, (*_SEARCHED, *_SEARCHED_CANDIDATES)), Comparison(FOOD, _SEARCHED)),
        seeds=3,
        first_seed=100,
    ),
    "curves": Experiment(
        "Learning curves (figure 3 of the paper)",
        "Do agents with token-level credit (POAD, NTPO) learn faster than TWOSOME, whose credit is action-level, and "
        "do they reach higher returns?",
        "The embedded model is small and was pre-trained on text of these environments; large models may differ. Most "
        "actions have two to seven tokens, so credit for single tokens can make little difference. TWOSOME differs in "
        "more than its credit. It samples whole candidates (see the experiment on sampling). The policy loss is a mean "
        "over tokens for POAD and NTPO, and over actions for TWOSOME; the entropy bonus is a mean over actions for "
        "all. So, relative to the policy loss, TWOSOME's bonus is weaker by a factor of the number of tokens per "
        "action. TWOSOME's KL threshold applies to an action, that of POAD and NTPO to a token; it skips more of "
        "TWOSOME's steps. The number of parallel environments for the household "
        "was chosen on seed 0, which is also reported.",
        tuple(Comparison(env) for env in (FOOD, ENTERTAINMENT, SALAD, LARGE_SALAD)),
        scales=BOTH_SCALES,
    ),
    "entropy": Experiment(
        "Without an entropy bonus, and with the paper's",
        "Is a difference between agents due to credit or due to the entropy bonus? The paper's bonus on the entropy of "
        "tokens changes a policy before it has received any reward, and TWOSOME has no such bonus.",
        "The results do not show which bonus is best. The coefficient is the same for all agents, but losses are means "
        "over tokens (for TWOSOME: actions): the bonus of POAD and NTPO is stronger by the number of tokens per "
        "action.",
        tuple(Comparison(env, agents) for agents in (FAMILY, _NO_BONUS, _TOKEN_BONUS) for env in (SALAD, FOOD)),
    ),
    "programs": Experiment(
        "Programs (figure 4 and table 4 of the paper)",
        "Do agents that write whole programs learn to write programs that work, and better ones?",
        "Model, rows, splits and classifiers differ from those of the paper and of CAAFE, so the results do not show "
        "which is better. Best programs are maxima over many programs, chosen and scored on the same splits.",
        tuple(Comparison(f"DataSciCoding-{name}-v0", TOKEN_LEVEL) for name in PAPER_PROGRAMS),
        analysis="programs",
        seeds=3,
        scales=BOTH_SCALES,
    ),
    "discount": Experiment(
        "Discount inside an action (figure 5 of the paper)",
        "How much discount inside an action (γ_w below 1) can an agent have and still learn?",
        "Actions have four to seven tokens here. The experiment on the length of actions has longer ones.",
        (Comparison(FOOD, DISCOUNTS),),
        scales=BOTH_SCALES,
    ),
    "endless": Experiment(
        "No discount at all (figure 5 of the paper)",
        "POAD and TWOSOME have no discount inside an action. Do they need one between actions? Without it, delay is "
        "not penalised, and truncated episodes bootstrap from V(final observation), unless truncation counts as "
        "termination.",
        "All environments have a step limit, and the only entropy coefficients are 0.01 and 0.",
        (Comparison(FOOD, _UNDISCOUNTED),),
    ),
    "length": Experiment(
        "Discount inside an action and the length of actions",
        "Does a discount inside an action cost more if actions have more tokens (the paper's second insight)? The same "
        "environment is used with three tokenizers, each with a base model pre-trained on the same text.",
        "Length is not the only difference: prompts are longer too, and the three base models differ. The entropy "
        "bonus of POAD and NTPO grows with the number of tokens per action (TWOSOME's does not); hence the runs "
        "without a bonus.",
        tuple(Comparison(FOOD, agents, name) for name in GRANULARITIES for agents in _LENGTHS),
    ),
    "sampling": Experiment(
        "Sampling tokens or whole candidates",
        "The paper samples whole candidates and updates the likelihood of their tokens. These are two different "
        "policies. Does it matter? And does TWOSOME, whose credit is action-level, depend on it?",
        "All settings except the learning rate were tuned with token sampling. The results do not show the best return "
        "that candidate sampling can reach.",
        tuple(
            Comparison(env, (*TOKEN_LEVEL, *_CANDIDATES, AgentSpec("twosome", {"sampling": "trie"}), TWOSOME))
            for env in (SALAD, FOOD)
        ),
    ),
    "generalisation": Experiment(
        "Unseen tasks (table 1 of the paper)",
        "How well does an agent trained on one task do on other tasks?",
        "The small model does not need to understand new words: its pre-training text contains them, though it was "
        "never rewarded for them. All results are about this one base model.",
        (Comparison(FOOD, transfer=_UNSEEN),),
        analysis="transfer",
        scales=BOTH_SCALES,
    ),
    "credit": Experiment(
        "Credit inside an action (figures 6 to 12 of the paper)",
        "Which token of an action receives the credit? With the pancake in hand, the agent should open the microwave; "
        "with the pancake inside, it should close it. The two phrases differ in their first token alone.",
        "Exact values are those of the untrained model. Critics were evaluated after training, when they have seen few "
        "beginnings of actions that the policy no longer takes. Credit during learning is not shown.",
        (Comparison(FOOD),),
        analysis="credit",
    ),
    "language": Experiment(
        "Language ability (table 2 of the paper)",
        "How does training change a model's language ability?",
        "Language benchmarks are too hard for a model this small, so its perplexity is measured. Large models may "
        "differ; `python -m benchmarks language-ability` runs benchmarks on them.",
        (Comparison(FOOD),),
        analysis="language",
    ),
}
"""By name, in the order of the pages."""
