"""Replay for off-policy agents: transitions between queries; trees and features of queries are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from trainers.agent import Rollout
from trainers.language_agent import LanguageAgent
from trainers.prefix_tree import Query, build_tree


class Transitions(NamedTuple):
    """B transitions, arrays (B,): query, taken candidate, reward, discount to the next query, next query, bound.

    Queries are numbers in a :class:`QueryTable`; the next one is −1 after a termination. The bound is the discounted
    return that followed in a terminated episode, −inf where it is not known.
    """

    query: np.ndarray
    choice: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    next_query: np.ndarray
    bound: np.ndarray


class Replay:
    """The last ``capacity`` transitions of an agent. Steps that only reset an environment are not stored.

    Parameters
    ----------
    capacity : int
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._next = self._count = 0
        self._columns = Transitions(*(np.zeros(capacity, dtype) for dtype in (int, int, float, float, int, float)))

    def __len__(self) -> int:
        return self._count

    def add(self, transitions: Transitions) -> np.ndarray:
        """Append transitions and return their places; the oldest are overwritten."""
        places = (self._next + np.arange(len(transitions.query))) % self.capacity
        for column, values in zip(self._columns, transitions, strict=True):
            column[places] = values
        self._next = int(self._next + len(places)) % self.capacity
        self._count = min(self.capacity, self._count + len(places))
        return places

    def set_bounds(self, places: np.ndarray, bounds: np.ndarray) -> None:
        """Set the bounds of transitions."""
        self._columns.bound[places] = bounds

    def sample(self, count: int, rng: np.random.Generator) -> Transitions:
        """Return ``count`` transitions, drawn uniformly with replacement."""
        rows = rng.integers(self._count, size=count)
        return Transitions(*(column[rows] for column in self._columns))

    def state_dict(self) -> dict[str, Any]:
        columns = {name: torch.from_numpy(own[: self._count]) for name, own in self._columns._asdict().items()}
        return {"next": self._next, "columns": columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        columns = Transitions(**{name: own.numpy() for name, own in state["columns"].items()})
        count, after = len(columns.query), state["next"]
        if not 0 <= after < self.capacity or count > self.capacity or any(len(own) != count for own in columns):
            raise ValueError(f"the saved replay has {count} transitions, expected at most {self.capacity}")
        for column, values in zip(self._columns, columns, strict=True):
            column[:count] = values
        self._count, self._next = count, after


class Trees(NamedTuple):
    """The trees of Q queries as flat arrays; nodes, edges and candidates of one query after the other.

    Attributes
    ----------
    features : float32 tensor (N, hidden)
        Of the frozen base model at each node.
    nodes, tokens : int64 tensor (E,)
        The node that each edge leaves, and its token.
    prior : float32 tensor (E,)
        Log-probability of the edge's token among its siblings under the base model.
    last_edges, queries : int64 tensor (C,)
        The last edge of each candidate, and the query (0 to Q − 1) to which the candidate belongs.
    paths : int64 tensor (C, L)
        The edges of each candidate; −1 is padding.
    first_candidates : int64 array (Q,)
        The number of each query's first candidate.
    """

    features: torch.Tensor
    nodes: torch.Tensor
    tokens: torch.Tensor
    prior: torch.Tensor
    last_edges: torch.Tensor
    queries: torch.Tensor
    paths: torch.Tensor
    first_candidates: np.ndarray


class QueryTable:
    """Queries by number, with features and prior of the frozen base model, each computed once for the whole run.

    Parameters
    ----------
    agent : LanguageAgent
        Its adapter must not be trained: the prior is the agent's own policy.
    """

    def __init__(self, agent: LanguageAgent) -> None:
        self._agent = agent
        self._queries: dict[Query, int] = {}
        self._features: list[torch.Tensor] = []
        self._prior: list[torch.Tensor] = []
        self._all: Trees | None = None

    def numbers(self, queries: Sequence[Query]) -> np.ndarray:
        """Return the numbers of queries, int64 array; new ones are added."""
        new = [query for query in dict.fromkeys(queries) if query not in self._queries]
        if new:
            self._all = None
            self._queries |= {query: len(self._queries) + n for n, query in enumerate(new)}
            self._features += [own.float() for own in self._agent.language_model.features(new)]
            for query, output in zip(new, self._agent.policy.outputs(new), strict=True):
                prior = np.zeros(len(query.tree.edge_nodes))
                prior[query.tree.paths[query.tree.mask]] = output.token_log_probs[query.tree.mask]
                self._prior.append(torch.from_numpy(prior).float().to(self._agent.language_model.device))
        return np.array([self._queries[query] for query in queries], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._queries)

    def all_trees(self) -> Trees:
        """Return the trees of all queries as flat arrays, kept until a query is added."""
        if self._all is None:
            self._all = self.trees(np.arange(len(self)))
        return self._all

    def trees(self, numbers: np.ndarray) -> Trees:
        """Return the trees of queries as flat arrays."""
        device = self._agent.language_model.device
        known = list(self._queries)
        trees = [known[number].tree for number in numbers]
        longest = max(tree.mask.shape[1] for tree in trees)
        nodes = edges = candidates = 0
        columns: dict[str, list[np.ndarray]] = {name: [] for name in ("nodes", "tokens", "last", "queries", "paths")}
        first = np.zeros(len(trees), dtype=np.int64)
        for index, tree in enumerate(trees):
            count, length = tree.mask.shape
            paths = np.full((count, longest), -1, dtype=np.int64)
            paths[:, :length] = np.where(tree.mask, tree.paths + edges, -1)
            columns["nodes"].append(tree.edge_nodes + nodes)
            columns["tokens"].append(tree.edge_tokens)
            columns["last"].append(paths.max(1))
            columns["queries"].append(np.full(count, index))
            columns["paths"].append(paths)
            first[index] = candidates
            nodes, edges, candidates = nodes + len(tree.parents), edges + len(tree.edge_nodes), candidates + count
        flat = {name: torch.from_numpy(np.concatenate(own)).to(device) for name, own in columns.items()}
        return Trees(
            torch.cat([self._features[number] for number in numbers]),
            flat["nodes"],
            flat["tokens"],
            torch.cat([self._prior[number] for number in numbers]),
            flat["last"],
            flat["queries"],
            flat["paths"],
            first,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return queries, features and prior: computed again in another batch, they would differ in the last bits."""
        queries = [[list(query.prompt), [list(own) for own in query.tree.candidates]] for query in self._queries]
        return {"queries": queries, "features": self._features, "prior": self._prior}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device, width = self._agent.language_model.device, self._agent.language_model.hidden_size
        queries = [Query(tuple(prompt), build_tree(tuple(map(tuple, own)))) for prompt, own in state["queries"]]
        features, prior = state["features"], state["prior"]
        for query, nodes, edges in zip(queries, features, prior, strict=True):
            if nodes.shape != (len(query.tree.parents), width) or edges.shape != query.tree.edge_nodes.shape:
                raise ValueError("the saved queries have features of another model")
        self._queries = {query: number for number, query in enumerate(queries)}
        self._features = [own.to(device) for own in features]
        self._prior = [own.to(device) for own in prior]
        self._all = None


def transitions_of(
    rollout: Rollout, agent: LanguageAgent, table: QueryTable, discounts: np.ndarray, *, truncation_is_termination: bool
) -> Transitions:
    """Return the valid steps of a rollout as transitions, by time, then by environment."""
    following = list(rollout.next_observations())
    records = [rollout.actions[after.t][after.n].record for after in following]
    continues = [
        after.observation is not None and not (after.truncated and truncation_is_termination) for after in following
    ]
    queries = [
        agent.query(after.observation, after.info["available_actions"])
        for after, more in zip(following, continues, strict=True)
        if more and after.observation is not None
    ]
    next_query = np.full(len(following), -1, dtype=np.int64)
    next_query[continues] = table.numbers(queries)
    steps = tuple(np.array([(after.t, after.n) for after in following]).T)
    return Transitions(
        table.numbers([record.query for record in records]),
        np.array([record.choice for record in records]),
        rollout.rewards[steps],
        discounts[steps],
        next_query,
        np.full(len(records), -np.inf),
    )
