"""The command line of lang-envs: ``python -m lang_envs COMMAND``.

============  =======================================================================
command       what it does
============  =======================================================================
``list``      lists all environments
``play``      lets a person play an environment in the terminal
``solve``     finds the shortest solution and the best return of an environment
``datasets``  lists the data sets of DataSciCoding
``fetch``     downloads data sets
``doctor``    shows how well this machine can isolate programs
============  =======================================================================
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
_STATES_BETWEEN_REPORTS = 500
_NEAREST = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    Raises
    ------
    SystemExit
        With code 2 if the command line is invalid.
    """
    parser, player, solver = _parsers()
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
        can_isolate, report = examine()
        print("\n".join(report))
        return 0 if can_isolate else 1
    if options.command == "play":
        play(_make(options, player), options.seed)
        return 0
    try:
        _solve(_make(options, solver))
    except ValueError as error:  # not finite, or a menu without available phrases
        solver.error(str(error))
    return 0


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of the command line, and those of ``play`` and ``solve``."""
    parser = argparse.ArgumentParser(
        prog="python -m lang_envs",
        description="List, play and solve the environments of lang-envs, and prepare this machine for them.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "list",
        help="list all environments: id, number of phrases, optimal return, summary",
        description="List all environments. The optimal return is discounted with the environment's own discount.",
    )
    one_env = argparse.ArgumentParser(add_help=False)
    one_env.add_argument(
        "id",
        help="id of an environment, as `list` shows it, for example Overcooked-tomato-salad-v0; or module:ID for an "
        "environment that your module registers",
    )
    one_env.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set an argument of the environment, for example task=chores.yaml for VirtualHome-v0",
    )
    player = commands.add_parser(
        "play",
        parents=[one_env],
        help="play an environment in the terminal",
        description="Play an environment in the terminal. Type the number of a phrase or the phrase; q quits.",
    )
    player.add_argument("--seed", type=int, help="seed of the episode, 0 or greater (default: random)")
    player.add_argument(
        "--render",
        choices=("ansi", "none"),
        default="ansi",
        help="ansi: show the state of the environment above each observation, if it can be rendered (default); none: "
        "show observations only",
    )
    solver = commands.add_parser(
        "solve",
        parents=[one_env],
        help="find the shortest solution and the best return of an environment with finitely many states",
        description="Search all states of an environment. Print their number, the shortest solution, the best "
        "discounted return, and how to earn it. Step limits of episodes are ignored.",
    )
    commands.add_parser(
        "datasets",
        help="list the data sets of DataSciCoding: size, source, and place on this machine",
        description="List the data sets of DataSciCoding: size after pruning, source, and place on this machine.",
    )
    fetcher = commands.add_parser(
        "fetch",
        help="download data sets from OpenML and Kaggle",
        description="Download data sets into the cache. You can interrupt the command and run it again.",
    )
    fetcher.add_argument(
        "names", nargs="+", metavar="NAME", help="name of a data set in `datasets`, openml:ID or kaggle:owner/name"
    )
    fetcher.add_argument("--force", action="store_true", help="download data sets that are on this machine, too")
    commands.add_parser(
        "doctor",
        help="show how well this machine can isolate programs",
        description="Show the layers of isolation around a program, and which of them this machine has.",
    )
    return parser, player, solver


def _make(options: argparse.Namespace, parser: argparse.ArgumentParser) -> gym.Env[str, str]:
    """Make the text environment of a command line; exit with an error message if that fails."""
    name = options.id.removeprefix("lang_envs:")
    if name not in KNOWN and ":" not in name:
        parser.error(_unknown(name))
    try:
        given = dict(map(named_value, options.set))
    except ValueError as error:
        parser.error(f"--set {error}")
    if name in KNOWN:
        env_class: Any = load_env_creator(KNOWN[name].entry_point)
        known = [argument for argument in inspect.signature(env_class).parameters if argument != "render_mode"]
        if strange := [argument for argument in given if argument not in known]:
            parser.error(f"--set {strange[0]}: {name} has the arguments {', '.join(known)}")
        given["interface"] = "text"
        if options.command == "play" and options.render == "ansi" and "ansi" in env_class.metadata["render_modes"]:
            given["render_mode"] = "ansi"
    if options.command == "play" and options.seed is not None and options.seed < 0:
        parser.error(f"--seed {options.seed} is negative: expected 0 or greater")
    try:
        env = gym.make(name, **given)
    except (ImportError, gym.error.Error, ValueError, TypeError, OSError, SandboxError) as error:
        parser.error(str(error))  # values of --set can be invalid
    if name not in KNOWN:
        env = env.unwrapped  # the text environment without token ids
        if not isinstance(env, LanguageEnv):
            parser.error(f"{name} is a {type(env).__name__}, expected a subclass of lang_envs.LanguageEnv")
    return env


def _solve(env: gym.Env[str, str]) -> None:
    language_env = env.unwrapped
    assert isinstance(language_env, LanguageEnv) and env.spec is not None
    last = [0]

    def show(searched: int, known: int) -> None:
        if sys.stderr.isatty() and (searched - last[0] >= _STATES_BETWEEN_REPORTS or searched == known):
            last[0] = searched
            print(f"\rsearched {searched:,} of {known:,} known states\033[K", end="", file=sys.stderr, flush=True)

    found = solve(language_env, on_state=show)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{env.spec.id}: {found.states:,} reachable states, including the ends of episodes")
    if found.shortest is None:
        print("No sequence of phrases leads to success.")
    else:
        print(f"Shortest solution, {len(found.shortest)} action{'s' * (len(found.shortest) != 1)}:")
        _number(found.shortest)
        env.reset(seed=0)
        over = next(k for k, phrase in enumerate(found.shortest) if any(env.step(phrase)[2:4]))
        if over < len(found.shortest) - 1:
            print(f"The solution is longer than an episode, which ends after action {over + 1}.")
    print(f"Best return {found.optimal_return:.6f} ({_discount(language_env)})")
    if found.best is None and found.optimal_return > 0:
        print("No finite episode earns this return: longer and longer episodes approach it.")
    elif found.best is not None and found.best != found.shortest:
        print("Phrases that earn it:")
        _number(found.best)


def _number(phrases: Sequence[str]) -> None:
    for number, phrase in enumerate(phrases, start=1):
        print(f"{number:3}  {phrase}")


def _list() -> None:
    rows = [("id", "phrases", "optimal return", "summary")]
    for name, entry in ENVIRONMENTS.items():
        if not entry.finite:
            rows.append((name, "any text", "unknown", entry.summary))
            continue
        env = gym.make(name, interface="text").unwrapped
        assert isinstance(env, LanguageEnv)
        best = "unknown" if env.optimal_return is None else f"{env.optimal_return:.4f}"
        rows.append((name, str(len(env.action_names)), best, entry.summary))
    rows += [(name, "", "", entry.summary) for name, entry in TEMPLATES.items()]
    _table(rows, "<>><")


def _table(rows: Sequence[Sequence[str]], sides: str) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        print("  ".join(f"{text:{side}{width}}" for text, side, width in cells).rstrip())


def _datasets() -> None:
    rows: list[Sequence[str]] = [("name", "rows", "features", "classes", "source", "place on this machine")]
    for name, entry in DATASETS.items():
        size = [entry.rows, entry.features, entry.classes]
        try:
            place = place_of(name)
            if place and None in size:
                found = load_dataset(name)
                size = [*found.x.shape, int(found.y.max()) + 1]
        except (ValueError, OSError) as error:
            place = f"invalid: {error}"
        numbers = ("?" if number is None else str(number) for number in size)
        rows.append((name, *numbers, entry.source, place or f"none; run: python -m lang_envs fetch {name}"))
    _table(rows, "<>>><<")


def _fetch(names: Sequence[str], force: bool) -> int:
    failures = 0
    for name in dict.fromkeys(names):
        try:
            with _progress() as report:
                result = _fetch_one(name, force, report)
            print(f"{name}: {result}")
        except (ValueError, OSError, ImportError) as error:
            failures += 1
            print(f"{name}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print(f"{name}: interrupted; run the same command again to continue", file=sys.stderr)
            return 130
    return min(failures, 1)


def _fetch_one(name: str, force: bool, report: Callable[[str], None]) -> str:
    if not force and find(name).kind in ("openml", "kaggle"):
        with contextlib.suppress(ValueError):  # a damaged file in the cache is downloaded again
            place = place_of(name)
            if place in ("data folder", "generated"):
                return f"no download needed ({place}); --force downloads it"
    return str(fetch(name, force=force, progress=report))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show progress: on a terminal with rich, the present phase and its time; elsewhere, a line for each phase."""
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
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=_NEAREST, cutoff=0.5)
    hint = f" The nearest ids are {', '.join(by_lower_case[match] for match in near)}." if near else ""
    return f"there is no environment {name!r}.{hint} `python -m lang_envs list` lists all."


def play(env: gym.Env[str, str], seed: int | None = None) -> None:
    """Let a person play one episode in the terminal.

    Parameters
    ----------
    env : gymnasium.Env
        A text environment, a :class:`lang_envs.LanguageEnv`, wrapped or not.
    seed : int, optional
        Seed of the episode.
    """
    language_env = env.unwrapped
    assert isinstance(language_env, LanguageEnv)
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
            earned += language_env.discount**elapsed * float(reward)
            elapsed += lasted
            print(f"\nReward {float(reward):+.4f}   primitive steps {lasted}, total {elapsed}   return {earned:.4f}")
    except (EOFError, KeyboardInterrupt):
        print()
    if not ended:
        print(f"You quit after {elapsed} primitive steps with a return of {earned:.4f}.")
        return
    _show(env, text)
    result = "Success" if info.get("success", terminated) else "No success" + ": the time is over" * bool(truncated)
    best = "" if language_env.optimal_return is None else f", best return {language_env.optimal_return:.4f}"
    print(f"{result}. {elapsed} primitive steps; return {earned:.4f} ({_discount(language_env)}){best}.")


def _discount(env: LanguageEnv) -> str:
    return f"discount {env.discount} per primitive step"


def _show(env: gym.Env[str, str], text: str) -> None:
    print()
    if env.render_mode == "ansi":
        picture: Any = env.render()
        print(picture, end="\n\n")
    print(text)


def _ask(phrases: Sequence[str] | None) -> str | None:
    """Ask the person for an action: a phrase, or any text if there are no phrases; None to quit."""
    if phrases is None:
        print("\nType any text of one or more lines, then a line with only a dot; q quits.")
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
        print(f"{answer!r} is not available. Type a number from 1 to {len(phrases)}, a phrase, or q.{hint}")
    return None


if __name__ == "__main__":
    raise SystemExit(main())
