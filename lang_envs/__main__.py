"""``python -m lang_envs list`` shows the worlds, ``python -m lang_envs play ID`` lets a person play one."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from lang_envs import WORLDS, LanguageEnv


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lang_envs", description="The worlds of lang-envs, and a way for a person to play them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "list",
        help="show every world: id, number of phrases, best known return, summary",
        description="Show every world. A return is discounted as the world's published returns are.",
    )
    player = commands.add_parser(
        "play",
        help="play a world in the terminal",
        description="Play a world in the terminal: answer with the number of an action or with its phrase, q to quit.",
    )
    player.add_argument("id", help="a world's id, as `list` shows it, for example Overcooked-tomato-salad-v0")
    player.add_argument("--seed", type=int, help="seed of the episode; without it, a random one")
    player.add_argument(
        "--render",
        choices=("ansi", "none"),
        default="ansi",
        help="ansi: show the whole world beside what the agent is told, where the world can be shown (default); "
        "none: only what the agent is told",
    )
    options = parser.parse_args(arguments)
    if options.command == "list":
        _list()
        return 0
    name = options.id.removeprefix("lang_envs:")
    if name not in WORLDS:
        player.error(_unknown(name))
    if options.seed is not None and options.seed < 0:
        player.error(f"--seed {options.seed} is negative")
    world_class: Any = load_env_creator(WORLDS[name].entry_point)
    shown = options.render == "ansi" and "ansi" in world_class.metadata["render_modes"]
    play(gym.make(name, interface="text", render_mode="ansi" if shown else None), options.seed)
    return 0


def _list() -> None:
    rows = [("id", "phrases", "best return", "summary")]
    for name, world in WORLDS.items():
        env = gym.make(name, interface="text").unwrapped
        assert isinstance(env, LanguageEnv)
        best = "unknown" if env.optimal_return is None else f"{env.optimal_return:.4f}"
        rows.append((name, str(len(env.action_names) or "any text"), best, world.summary))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}")


def _unknown(name: str) -> str:
    by_lower_case = {known.lower(): known for known in WORLDS}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.3)
    hint = f"; did you mean {by_lower_case[near[0]]}?" if near else "."
    return f"there is no world {name!r}{hint} The worlds are:\n  " + "\n  ".join(WORLDS)


def play(env: gym.Env[str, str], seed: int | None = None) -> None:
    """Let a person play one episode of a text world at the terminal."""
    world = env.unwrapped
    assert isinstance(world, LanguageEnv)
    text, info = env.reset(seed=seed)
    earned, elapsed, ended = 0.0, 0, False
    try:
        while not ended:
            _show(env, text)
            action = _ask(info.get("available_actions"))
            if action is None:
                break
            text, reward, terminated, truncated, info = env.step(action)
            ended, lasted = terminated or truncated, info.get("primitive_steps", 1)
            earned += world.discount**elapsed * float(reward)
            elapsed += lasted
            print(f"\nReward {float(reward):+.4f}   primitive steps {lasted}, in all {elapsed}   return {earned:.4f}")
    except (EOFError, KeyboardInterrupt):
        print()
    if not ended:
        print(f"You left after {elapsed} primitive steps with a return of {earned:.4f}. Goodbye.")
        return
    _show(env, text)
    outcome = "Success" if info.get("success", terminated) else "No success" + ": the time is over" * bool(truncated)
    best = "" if world.optimal_return is None else f", at best {world.optimal_return:.4f}"
    print(f"{outcome}. {elapsed} primitive steps; return {earned:.4f} (discounted by {world.discount} a step){best}.")


def _show(env: gym.Env[str, str], text: str) -> None:
    print()
    if env.render_mode == "ansi":
        picture: Any = env.render()
        print(picture, end="\n\n")
    print(text)


def _ask(phrases: Sequence[str] | None) -> str | None:
    """What the person wants to do: one of the phrases, any text where there are none to choose from, None to quit."""
    if phrases is None:
        print("\nWrite anything; an empty line ends it, q quits.")
        lines: list[str] = []
        while (line := input("> ")) or not lines:
            if line.strip() == "q" and not lines:
                return None
            if line:
                lines.append(line)
        return "\n".join(lines)
    print()
    for number, phrase in enumerate(phrases, start=1):
        print(f"{number:3}  {phrase}")
    while (answer := input("> ").strip()) != "q":
        if answer in phrases:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(phrases):
            return phrases[int(answer) - 1]
        near = difflib.get_close_matches(answer, phrases, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"{answer!r} can't be done here. Answer with a number from 1 to {len(phrases)}, a phrase, or q.{hint}")
    return None


if __name__ == "__main__":
    raise SystemExit(main())
