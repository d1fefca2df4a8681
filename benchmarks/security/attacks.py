"""Try attacks on rewards and messages between programs: ``python -m benchmarks.security.attacks``.

Each is tried as root and as an ordinary user who owns Python's environment; messages with one worker and with two.
Programs that try to escape are in ``tests/lang_envs/sandbox_attacks.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.security.messages import MESSAGES, received
from benchmarks.security.rewards import HONEST, PAYS, REWARD_ATTACKS, TABLES, control, reward
from benchmarks.security.users import become
from lang_envs.sandbox import Sandbox

REPOSITORY = Path(__file__).resolve().parents[2]


def attempts(quick: bool) -> Iterator[dict[str, Any]]:
    """Try all attacks as the current user."""
    for workers in (1, 2):
        with Sandbox(max_workers=workers) as sandbox:
            if workers == 1:
                yield {"kind": "tier", "name": sandbox.tier}
            for message in MESSAGES[:: 8 if quick else 1]:
                arrived = bool(received(sandbox, [message], workers == 2))
                yield {"kind": f"messages, workers: {workers}", "name": message.name, "succeeded": arrived}
    for kind in TABLES:
        yield {"kind": "honest", "name": kind, "reward": reward(HONEST, kind)}
    with tempfile.TemporaryDirectory() as folder:
        for attack in REWARD_ATTACKS[:: 8 if quick else 1]:
            paid = reward(attack.program, attack.table)
            kind = "rewards" if attack.promised else "rewards, not promised"
            arrives = control(attack, Path(folder)) if "next repetition" in attack.name and attack.promised else None
            yield {
                "kind": kind,
                "name": attack.name,
                "succeeded": paid >= PAYS,
                "reward": paid,
                "if it arrived": arrives,
            }


def as_user(user: bool, quick: bool) -> list[dict[str, Any]]:
    """Try all attacks as root or as an ordinary user, in a process of its own."""
    command = [sys.executable, "-B", "-m", "benchmarks.security.attacks", "--become", "user" if user else "root"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/"}
    done = subprocess.run(
        [*command, *["--quick"] * quick], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="every eighth attack")
    parser.add_argument("--become", choices=("root", "user"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.become:
        reason = become(options.become == "user", REPOSITORY)
        print(json.dumps({"kind": "owner", "name": reason or "owns Python's environment"}))
        for attempt in attempts(options.quick):
            print(json.dumps(attempt), flush=True)
        return 0
    users = ("root", "an ordinary user") if os.geteuid() == 0 else ("an ordinary user",)
    failed = 0
    for user in users:
        found = as_user(user != "root", options.quick)
        facts = {row["kind"]: row["name"] for row in found if row["kind"] in ("tier", "owner")}
        owner = "" if user == "root" else f", who {facts['owner']}"
        print(f"\n{user}{owner}; tier: {facts['tier']}\n\n{'':28}{'tried':>8}{'succeeded':>12}")
        for kind in dict.fromkeys(row["kind"] for row in found if "succeeded" in row):
            tried = [row for row in found if row["kind"] == kind]
            won = [row for row in tried if row["succeeded"]]
            print(f"{kind:28}{len(tried):>8}{len(won):>12}")
            failed += 0 if kind.endswith("not promised") else len(won)
        for row in found:
            if row.get("succeeded"):
                print(f"  succeeded: {row['name']}" + (f" (reward {row['reward']:.3f})" if "reward" in row else ""))
        honest = ", ".join(f"{row['name']} {row['reward']:.3f}" for row in found if row["kind"] == "honest")
        paid = [row["reward"] for row in found if row["kind"] == "rewards"]
        arrived = [row["if it arrived"] for row in found if row.get("if it arrived") is not None]
        print(f"honest program: {honest}; chance: 0.5; highest reward of an attack: {max(paid):.3f}")
        if arrived:
            print(f"rewards if their messages arrived: {min(arrived):.3f} to {max(arrived):.3f}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
