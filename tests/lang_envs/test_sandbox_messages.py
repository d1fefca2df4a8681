"""Tests that programs cannot send messages to each other, and that attacks have no higher reward than chance."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the sandbox needs Linux", allow_module_level=True)
pytest.importorskip("sklearn")

from benchmarks.security.messages import MESSAGES, WITHOUT_STATE, received
from benchmarks.security.rewards import PAYS, REWARD_ATTACKS, RewardAttack, control, reward
from lang_envs.sandbox import Sandbox, SandboxError, syscalls

GROUPS = [MESSAGES[start : start + 4] for start in range(0, len(MESSAGES), 4)]
"""Few at a time where both programs run at once, so that each is tried often."""
BY_NAME = {message.name: message for message in MESSAGES}
PAID = ("the lines of equal rows", "an attribute of NumPy", "the code of a library", "pages of a library evicted")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        with Sandbox(max_workers=2) as two:
            yield two
    except SandboxError as error:
        if error.absent is None:
            raise
        pytest.skip(str(error))


def test_every_allowed_call_with_state_has_a_message() -> None:
    tried = {call for message in MESSAGES for call in message.calls.split()}
    allowed = syscalls.ALLOWED | set(syscalls.BY_ARGUMENT)
    assert allowed <= tried | WITHOUT_STATE
    assert tried <= allowed | set(syscalls.ANSWERED) | {"pipe2"}


def test_no_message_reaches_the_next_program() -> None:
    with Sandbox() as one:
        assert received(one, MESSAGES, at_once=False) == []


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].name)
def test_no_message_reaches_a_program_that_runs_at_the_same_time(group: tuple, sandbox: Sandbox) -> None:
    assert received(sandbox, group, at_once=True) == []


@pytest.fixture(scope="module")
def unfiltered() -> Iterator[Sandbox]:
    with Sandbox(max_workers=2, without=("seccomp",)) as two:
        yield two


@pytest.mark.parametrize(
    ("name", "at_once"),
    [
        ("flags of the descriptors that all inherit", False),
        ("waking who waits on a page of a library", True),
        ("waiting on a page of a library", True),
    ],
)
def test_messages_arrive_where_no_filter_stops_them(name: str, at_once: bool, unfiltered: Sandbox) -> None:
    """Otherwise a slip of the pen in a message would pass for a refusal for ever."""
    group = next(group for group in GROUPS if BY_NAME[name] in group)
    assert name in received(unfiltered, group, at_once)


@pytest.mark.parametrize(
    "attack", [attack for attack in REWARD_ATTACKS if attack.name.endswith(PAID)], ids=lambda attack: attack.name
)
def test_reward_of_an_attack_is_that_of_chance(attack: RewardAttack, sandbox: Sandbox, tmp_path: Path) -> None:
    assert -1 <= reward(attack.program, attack.table) < PAYS
    if "next repetition" in attack.name:
        assert control(attack, tmp_path) > PAYS, "it would be paid if its message arrived"
