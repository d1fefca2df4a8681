"""Compare honest scores before and after a change of the sandbox: ``python -m benchmarks.security.scores``.

``store FILE`` scores every published best program, and programs of the random grammar, on each data set; ``compare
OLD NEW`` names the scores that differ in any bit.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np

from lang_envs.datascicoding import load_dataset
from lang_envs.datascicoding.programs import draw
from lang_envs.datascicoding.prompts import function_of
from lang_envs.datascicoding.scoring import Scorer
from lang_envs.sandbox import Limits

PUBLISHED = Path(__file__).parents[1] / "results" / "programs.json"
SETS = (
    "airlines balance-scale breast-w cmc diabetes tic-tac-toe health-insurance kidney-stone pharyngitis "
    "spaceship-titanic"
)


def programs(drawn: int) -> dict[str, str]:
    """Return definitions of ``build_model`` by name."""
    found = {}
    for block in json.loads(PUBLISHED.read_text()):
        for name, agents in block["sets"].items():
            for agent, best in agents.items():
                body = best["program"].partition('"""\n\n')[2].partition("\n\n\nif __name__")[0]
                found[f"published, {name}, {agent}"] = body
    rng = np.random.default_rng(7)
    for number in range(drawn):
        program = draw(rng)
        found[f"drawn {number}, {program.classifier} {program.breakage}".strip()] = function_of(program.text)
    return found


def store(file: Path, drawn: int, sets: list[str]) -> None:
    """Write mean, deviation, error and status of each program on each set."""
    scores = {}
    for name in sets:
        scorer = Scorer(load_dataset(name), Limits(wall_seconds=60, cpu_seconds=60), "auto", 1)
        for program, definition in programs(drawn).items():
            score = scorer.submit(definition).result()
            scores[f"{name}: {program}"] = [score.mean, score.std, score.error, score.status]
        print(f"{name}: {len(scores)} scores", flush=True)
    file.write_text(json.dumps(scores, indent=1))


def compare(old: Path, new: Path) -> bool:
    """Print which scores differ."""
    before, after = json.loads(old.read_text()), json.loads(new.read_text())
    if before.keys() != after.keys():
        raise SystemExit(f"{old} and {new} hold scores of different programs")
    differ = [key for key in before if before[key] != after[key]]
    print(f"{len(before)} scores, {len(before) - len(differ)} the same bit for bit")
    for program, count in Counter(key.partition(": ")[2] for key in differ).most_common():
        print(f"  differs on {count} sets: {program}")
    return not differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    storing = commands.add_parser("store")
    storing.add_argument("file", type=Path)
    storing.add_argument("--drawn", type=int, default=150, help="programs of the random grammar")
    storing.add_argument("--sets", nargs="*", default=SETS.split())
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return 0 if compare(options.old, options.new) else 1
    store(options.file, options.drawn, options.sets)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
