"""``python -m lang_envs list`` shows the environments, ``play ID`` lets a person play one, ``solve ID`` plans in it.

``datasets`` shows the data sets of DataSciCoding, ``fetch NAME`` downloads them; ``doctor`` shows how well this machine
can isolate programs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from lang_envs import ENVIRONMENTS, LanguageEnv
from lang_envs.datascicoding.datasets import DATASETS, fetch, find, load_dataset, place_of
from lang_envs.planner import solve
from lang_envs.registration import TEMPLATES, named_value
from lang_envs.sandbox import SandboxError
from lang_envs.sandbox.doctor import examine

KNOWN = ENVIRONMENTS | TEMPLATES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lang_envs",
        description="The environments of lang-envs, and ways for a person to look into them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "list",
        help="show every environment: id, number of phrases, best known return, summary",
        description="Show every environment. A return is discounted as the environment's published returns are.",
    )
    one_env = argparse.ArgumentParser(add_help=False)
    one_env.add_argument(
        "id",
        help="an environment's id, as `list` shows it, for example Overcooked-tomato-salad-v0, or module:ID of one that a "
        "module registers",
    )
    one_env.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the environment, for example task=chores.yaml for VirtualHome-v0",
    )
    player = commands.add_parser(
        "play",
        parents=[one_env],
        help="play an environment in the terminal",
        description="Play an environment in the terminal: answer with the number of an action or with its phrase, q to quit.",
    )
    player.add_argument("--seed", type=int, help="seed of the episode; without it, a random one")
    player.add_argument(
        "--render",
        choices=("ansi", "none"),
        default="ansi",
        help="ansi: show the whole environment beside what the agent is told, where the environment can be shown (default); "
        "none: only what the agent is told",
    )
    solver = commands.add_parser(
        "solve",
        parents=[one_env],
        help="find the shortest solution and the best return of a finite environment",
        description="Try everything in a finite environment: the shortest solution, the best discounted return, and how many "
        "situations there are. Step limits play no part.",
    )
    commands.add_parser(
        "datasets",
        help="show the data sets of DataSciCoding: where they come from, their size, and where they are now",
        description="Show the data sets of DataSciCoding: source, size after pruning, and where they are now.",
    )
    fetcher = commands.add_parser(
        "fetch",
        help="download data sets from OpenML and Kaggle",
        description="Download data sets into the cache. It may be stopped and run again at any point.",
    )
    fetcher.add_argument(
        "names", nargs="+", metavar="NAME", help="a set, as `datasets` shows it, or openml:ID, or kaggle:owner/name"
    )
    fetcher.add_argument("--force", action="store_true", help="download even what is here already")
    commands.add_parser(
        "doctor",
        help="show how well this machine can isolate programs",
        description="Show every layer that the sandbox puts around a program, and which of them this machine has.",
    )
    options = parser.parse_args(arguments)
    if options.command == "list":
        _list()
        return 0
    if options.command == "datasets":
        _datasets()
        return 0
    if options.command == "fetch":
        return _fetch(options.names, options.force)
    if options.command == "doctor":
        well, report = examine()
        print("\n".join(report))
        return 0 if well else 1
    chosen = player if options.command == "play" else solver
    name = options.id.removeprefix("lang_envs:")
    if name not in KNOWN and ":" not in name:
        chosen.error(_unknown(name))
    try:
        given = dict(map(named_value, options.set))
    except ValueError as error:
        chosen.error(f"--set {error}")
    if name in KNOWN:
        env_class: Any = load_env_creator(KNOWN[name].entry_point)
        takes = [argument for argument in inspect.signature(env_class).parameters if argument != "render_mode"]
        if strange := [argument for argument in given if argument not in takes]:
            chosen.error(f"--set {strange[0]}: {name} takes {', '.join(takes)}")
        given["interface"] = "text"
        if options.command == "play" and options.render == "ansi" and "ansi" in env_class.metadata["render_modes"]:
            given["render_mode"] = "ansi"
    if options.command == "play" and options.seed is not None and options.seed < 0:
        player.error(f"--seed {options.seed} is negative")
    try:
        env = gym.make(name, **given)
    except (ImportError, gym.error.Error, ValueError, TypeError, OSError, SandboxError) as error:
        chosen.error(str(error))  # what is given with --set may not fit
    if name not in KNOWN:
        env = env.unwrapped  # the text environment below its tokens
        if not isinstance(env, LanguageEnv):
            chosen.error(
                f"{name} is a {type(env).__name__}, and this is for environments that are a lang_envs.LanguageEnv"
            )
    if options.command == "play":
        play(env, options.seed)
        return 0
    try:
        _solve(env)
    except ValueError as error:  # no environment for a planner, or a task whose menu leads into nothing
        solver.error(str(error))
    return 0


def _solve(env: gym.Env[str, str]) -> None:
    environment = env.unwrapped
    assert isinstance(environment, LanguageEnv) and env.spec is not None
    last = [0]

    def show(searched: int, known: int) -> None:
        if sys.stderr.isatty() and (searched - last[0] >= 500 or searched == known):
            last[0] = searched
            print(f"\r{searched:,} of {known:,} situations known so far\033[K", end="", file=sys.stderr, flush=True)

    found = solve(environment, on_state=show)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{env.spec.id}: {found.states:,} reachable situations, the ends of episodes included")
    if found.shortest is None:
        print("No sequence of phrases leads to success.")
    else:
        print(f"Shortest solution, {len(found.shortest)} actions:")
        _number(found.shortest)
        env.reset(seed=0)
        over = next(k for k, phrase in enumerate(found.shortest) if any(env.step(phrase)[2:4]))
        if over < len(found.shortest) - 1:
            print(f"That is longer than an episode, which ends after action {over + 1}.")
    print(f"Best return {found.optimal_return:.6f} (discounted by {environment.discount} a step)")
    if found.best is None and found.optimal_return > 0:
        print("No episode that ends earns it: it is approached by going on forever.")
    elif found.best is not None and found.best != found.shortest:
        print("is earned by:")
        _number(found.best)


def _number(phrases: Sequence[str]) -> None:
    for number, phrase in enumerate(phrases, start=1):
        print(f"{number:3}  {phrase}")


def _list() -> None:
    rows = [("id", "phrases", "best return", "summary")]
    for name, environment in ENVIRONMENTS.items():
        if not environment.finite:
            rows.append((name, "any text", "unknown", environment.summary))
            continue
        env = gym.make(name, interface="text").unwrapped
        assert isinstance(env, LanguageEnv)
        best = "unknown" if env.optimal_return is None else f"{env.optimal_return:.4f}"
        rows.append((name, str(len(env.action_names)), best, environment.summary))
    rows += [(name, "", "", environment.summary) for name, environment in TEMPLATES.items()]
    _table(rows, "<>><")


def _table(rows: Sequence[Sequence[str]], sides: str) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        print("  ".join(f"{text:{side}{width}}" for text, side, width in cells).rstrip())


def _datasets() -> None:
    rows: list[Sequence[str]] = [("name", "rows", "features", "classes", "source", "where it is now")]
    for name, entry in DATASETS.items():
        size = [entry.rows, entry.features, entry.classes]
        try:
            place = place_of(name)
            if place and None in size:
                found = load_dataset(name)
                size = [*found.x.shape, int(found.y.max()) + 1]
        except (ValueError, OSError) as error:
            place = f"can't be used: {error}"
        numbers = ("?" if number is None else str(number) for number in size)
        rows.append((name, *numbers, entry.source, place or f"not here: python -m lang_envs fetch {name}"))
    _table(rows, "<>>><<")


def _fetch(names: Sequence[str], force: bool) -> int:
    failures = 0
    for name in dict.fromkeys(names):
        try:
            with _progress() as tell:
                outcome = _fetched(name, force, tell)
            print(f"{name}: {outcome}")
        except (ValueError, OSError, ImportError) as error:
            failures += 1
            print(f"{name}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print(f"{name}: stopped; run the same command again to go on", file=sys.stderr)
            return 130
    return min(failures, 1)


def _fetched(name: str, force: bool, tell: Callable[[str], None]) -> str:
    if not force and find(name).kind in ("openml", "kaggle"):
        with contextlib.suppress(ValueError):  # what is damaged in the cache is fetched anew
            place = place_of(name)
            if place in ("data folder", "generated"):
                return f"needs no fetching ({place}); --force fetches it all the same"
    return str(fetch(name, force=force, progress=tell))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show what goes on: a line that says since when, on a terminal with rich; plain lines elsewhere."""
    try:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        Progress = None  # type: ignore[assignment,misc]
    if Progress is None or not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda text: shown.reset(task, description=text)


def _unknown(name: str) -> str:
    by_lower_case = {known.lower(): known for known in KNOWN}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    hint = f"; did you mean {by_lower_case[near[0]]}?" if near else "."
    return f"there is no environment {name!r}{hint} The environments are:\n  " + "\n  ".join(KNOWN)


def play(env: gym.Env[str, str], seed: int | None = None) -> None:
    """Let a person play one episode of a text environment at the terminal."""
    environment = env.unwrapped
    assert isinstance(environment, LanguageEnv)
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
            earned += environment.discount**elapsed * float(reward)
            elapsed += lasted
            print(f"\nReward {float(reward):+.4f}   primitive steps {lasted}, in all {elapsed}   return {earned:.4f}")
    except (EOFError, KeyboardInterrupt):
        print()
    if not ended:
        print(f"You left after {elapsed} primitive steps with a return of {earned:.4f}. Goodbye.")
        return
    _show(env, text)
    outcome = "Success" if info.get("success", terminated) else "No success" + ": the time is over" * bool(truncated)
    best = "" if environment.optimal_return is None else f", at best {environment.optimal_return:.4f}"
    print(
        f"{outcome}. {elapsed} primitive steps; return {earned:.4f} (discounted by {environment.discount} a step){best}."
    )


def _show(env: gym.Env[str, str], text: str) -> None:
    print()
    if env.render_mode == "ansi":
        picture: Any = env.render()
        print(picture, end="\n\n")
    print(text)


def _ask(phrases: Sequence[str] | None) -> str | None:
    """What the person wants to do: one of the phrases, any text where there are none to choose from, None to quit."""
    if phrases is None:
        print("\nWrite anything, of as many lines as you like; a line with nothing but a dot ends it, q quits.")
        lines: list[str] = []
        while (line := input("> ")) != "." or not lines:
            if line.strip() == "q" and not lines:
                return None
            if line != ".":
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
