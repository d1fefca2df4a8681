"""Tests of the command line: list, play and solve."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from lang_envs import ENVIRONMENTS, LanguageEnv
from lang_envs.__main__ import main, play
from lang_envs.registration import TEMPLATES

TOMATO = "Overcooked-tomato-salad-v0"


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[str | type[BaseException]]], None]:
    """Simulate a person who types these lines; an exception means a key such as Ctrl-C. EOF follows the last line."""

    def set_answers(lines: Iterable[str | type[BaseException]]) -> None:
        left = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(left, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", read)

    return set_answers


def test_list_shows_every_environment_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [*ENVIRONMENTS, *TEMPLATES]
    assert header.split()[:2] == ["id", "phrases"]
    at = header.index("summary")
    for row, (name, environment) in zip(rows, (ENVIRONMENTS | TEMPLATES).items(), strict=True):
        assert row[at:] == environment.summary
        assert row.startswith(f"{name} ")
    assert f"{TOMATO}  " in rows[0]
    assert rows[0].split()[1:3] == ["5", "0.9205"]


def test_best_plan_by_number_and_by_phrase_succeeds_with_the_best_return(capsys, answer) -> None:
    answer(["1", "go to the cutting board", " 5 ", "get the tomato", "2", "4"])
    assert main(["play", TOMATO, "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "  1  get the tomato\n  2  get the bowl\n" in shown
    return_after_chopping = -0.001 * sum(0.99**k for k in range(9)) + 0.99**9 * 0.199
    assert f"Reward +0.1930   primitive steps 3, total 10   return {return_after_chopping:.4f}" in shown
    assert "Success. 28 primitive steps; return 0.9205 (discount 0.99 per primitive step), best return 0.9205." in shown


def test_map_is_shown_above_the_text_unless_render_is_none(capsys, answer) -> None:
    text = "Make a tomato salad. You stand at a counter."
    for arguments, pictured in (([], True), (["--render", "none"], False), (["--render", "ansi"], True)):
        answer(["q"])
        assert main(["play", TOMATO, *arguments]) == 0
        shown = capsys.readouterr().out
        assert ("cutting board  D delivery counter" in shown) == pictured
        assert text in shown


def test_unsuccessful_episode_says_so(capsys, answer) -> None:
    answer(["5"] * 200)
    main(["play", f"lang_envs:{TOMATO}", "--render", "none"])
    shown = capsys.readouterr().out
    assert "No success: the time is over. 200 primitive steps; return -0.0866" in shown


@pytest.mark.parametrize("wrong", ["0", "6", "-1", "99", "get the tomto", "", "1.5", "\u00b2"])
def test_invalid_answers_take_no_step_and_are_asked_again(capsys, answer, wrong: str) -> None:
    answer([wrong, "q"])
    main(["play", TOMATO, "--render", "none"])
    shown = capsys.readouterr().out
    assert "Type a number from 1 to 5, a phrase, or q." in shown
    assert "You quit after 0 primitive steps" in shown
    assert ("Did you mean 'get the tomato'?" in shown) == (wrong == "get the tomto")


@pytest.mark.parametrize("farewell", ["q", EOFError, KeyboardInterrupt])
def test_every_way_to_quit_prints_the_return(capsys, answer, farewell) -> None:
    answer(["1", farewell])
    assert main(["play", TOMATO]) == 0
    assert capsys.readouterr().out.endswith("You quit after 2 primitive steps with a return of -0.0020.\n")


def test_numbers_refer_to_the_available_phrases(capsys, answer, door: LanguageEnv) -> None:
    answer(["walk through the door", "1", "2"])
    play(door)
    shown = capsys.readouterr().out
    assert "'walk through the door' is not available" in shown
    assert "  1  close the door\n  2  walk through the door\n" in shown
    assert "Success. 2 primitive steps; return 0.5000 (discount 0.5 per primitive step), best return 0.5000." in shown


def test_free_text_ends_with_a_line_of_one_dot(capsys, answer, diary: LanguageEnv) -> None:
    answer([".", "Monday:", "", "q is a letter", ".", "the end", "."])
    play(diary, seed=1)
    shown = capsys.readouterr().out
    assert "Monday:\n\nq is a letter " in shown
    assert "Success. 2 primitive steps; return 2.0000 (discount 1.0 per primitive step).\n" in shown


OF_ONES_OWN = """
import gymnasium as gym
from lang_envs import LanguageEnv, TokenEnv, Transition

class Doors(LanguageEnv):
    action_names = ("open the left door", "open the right door")
    discount = 0.9
    optimal_return = 1.0
    text_parts = (("The sign points left.", "The sign points right."),)
    state_fields = ("side",)

    def __init__(self, **options):
        super().__init__(max_text_length=40, **options)

    def start(self, options):
        self.side = int(self.np_random.integers(2))

    def advance(self, action):
        return Transition(float(action == self.side), True, False, {"success": action == self.side})

    def narrate(self):
        return self.text_parts[0][self.side]

gym.register("Doors-v0", entry_point=lambda tokenizer="embedded", **options: TokenEnv(Doors(**options), tokenizer))
gym.register("Numbers-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv")
"""


def test_own_environment_can_be_played(tmp_path: Path) -> None:
    (tmp_path / "my_doors.py").write_text(OF_ONES_OWN)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lang_envs", "play", *arguments]
        return subprocess.run(command, cwd=tmp_path, input="1\n2\n", capture_output=True, text=True)

    played = run("my_doors:Doors-v0", "--seed", "0")
    assert "  1  open the left door" in played.stdout
    assert "uccess. 1 primitive steps; return" in played.stdout, played.stderr
    for name, message in (
        ("my_doors:Dors-v0", "Did you mean"),
        ("nowhere:Doors-v0", "nowhere"),
        ("my_doors:Numbers-v0", "is a CartPoleEnv, expected a subclass of lang_envs.LanguageEnv"),
    ):
        refused = run(name)
        assert refused.returncode == 2 and message in refused.stderr and "Traceback" not in refused.stderr


def test_error_for_an_unknown_id_names_the_nearest_ids_and_the_command_that_lists_all() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "lang_envs", "play", "overcooked-tomato-salat"], capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert (
        "there is no environment 'overcooked-tomato-salat'. The nearest ids are Overcooked-tomato-sal" in ended.stderr
    )
    assert ended.stderr.count("-v0") <= 5
    assert "`python -m lang_envs list` lists all" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["play"],
        ["play", "xyz"],
        ["play", TOMATO, "--seed", "x"],
        ["play", TOMATO, "--seed", "-1"],
        ["play", TOMATO, "--render", "oil"],
        ["play", TOMATO, "--set", "colour=red"],
        ["play", TOMATO, "--set", "dish"],
        ["play", TOMATO, "--set", "entry_point=os:system"],
        ["play", "VirtualHome-cheese-v0", "--set", "render_mode=oil"],
        ["play", "VirtualHome-v0"],
        ["play", "DataSciCoding-v0"],
        ["solve"],
        ["solve", "VirtualHome-v0", "--set", "task=nothing"],
        ["solve", "VirtualHome-v0", "--set", "task=nowhere.yaml"],
    ],
)
def test_wrong_command_lines_end_with_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m lang_envs" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["play", "--help"], ["solve", "--help"]])
def test_help_explains_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: python -m lang_envs" in capsys.readouterr().out


def test_a_household_is_played_with_its_floor_plan(capsys, answer) -> None:
    answer(["walk to the cheese", "grab the cheese", "walk to the microwave", "open the microwave"])
    assert main(["play", "VirtualHome-v0", "--set", "task=cheese", "--seed", "0"]) == 0
    shown = capsys.readouterr().out
    assert "| > microwave (open) " in shown
    assert "In hand: cheese" in shown
    assert "You quit after 4 primitive steps" in shown


def test_solve_prints_the_number_of_states_the_shortest_solution_and_the_best_return(capsys) -> None:
    assert main(["solve", "lang_envs:VirtualHome-entertainment-v0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("VirtualHome-entertainment-v0: 136 reachable states")
    assert lines[1] == "Shortest solution, 11 actions:"
    assert lines[12] == " 11  sit on the sofa"
    assert lines[13] == "Best return 0.598737 (discount 0.95 per primitive step)"


def test_solve_reports_missing_and_too_long_solutions(capsys, tmp_path: Path) -> None:
    file = tmp_path / "stuck.yaml"
    file.write_text(
        "instruction: Take the hat.\nthings: [{name: hat, place: attic box, properties: [grabbable]},"
        " {name: attic box, place: bedroom, properties: [container]}]\ngoal: [hold_hat]\n"
    )
    assert main(["solve", "VirtualHome-v0", "--set", f"task={file}"]) == 0
    assert "Shortest solution, 4 actions:" in capsys.readouterr().out
    text = file.read_text() + "menu: {open the attic box: [in_kitchen]}\n"
    file.write_text(text)
    assert main(["solve", "VirtualHome-v0", "--set", f"task={file}"]) == 0
    shown = capsys.readouterr().out
    assert "No sequence of phrases leads to success." in shown
    assert "Best return 0.000000" in shown
    assert main(["solve", "VirtualHome-v0", "--set", "task=cheese", "--set", "max_steps=3"]) == 0
    assert "The solution is longer than an episode, which ends after action 3." in capsys.readouterr().out
