"""The registered household tasks, and reading tasks from files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lang_envs.files import read_text
from lang_envs.virtualhome.household import ROOMS, Thing, identifier
from lang_envs.virtualhome.task import Conditions, HouseholdTask, keywords

_MAX_BYTES, _MAX_DEPTH = 1 << 16, 20
"""Limits of a YAML file: a task needs a few thousand bytes, and PyYAML is slow on more."""


def put_away(
    instruction: str,
    thing: str,
    container: str,
    *,
    thing_in: str = "kitchen",
    container_in: str = "kitchen",
    plural: bool = False,
) -> HouseholdTask:
    """Return a task like the source's food preparation: put a thing into a container and close it.

    The menu is the source's. At the container, opening, closing and putting are always available, whether or not they
    change something. Walking to the thing is available while it is in hand. Walking to something near is not available.

    Parameters
    ----------
    instruction : str
        The first sentence of every observation.
    thing, container : str
        Names.
    thing_in, container_in : str
        The rooms in which they are; the person starts in the kitchen.
    plural : bool
        Whether the thing's name is plural.
    """
    x, c = identifier(thing), identifier(container)
    near_container = (f"close_to_{c}",)
    return HouseholdTask(
        instruction,
        things=(
            Thing(thing, thing_in, ("grabbable",), plural),
            Thing(container, container_in, ("container",)),
        ),
        goal=(f"{x}_in_{c}", f"not is_{c}_open"),
        menu=(
            (
                f"walk to the {thing}",
                (
                    f"see_{x}",
                    f"in_{identifier(thing_in)} or in_{identifier(container_in)}",
                    f"not close_to_{x} or hold_{x}",
                ),
            ),
            (f"walk to the {container}", (f"see_{c}", f"not close_to_{c}")),
            (f"grab the {thing}", (f"close_to_{x}", f"not hold_{x}", f"not close_to_{c}")),
            (f"put the {thing} in the {container}", (f"hold_{x}", *near_container)),
            (f"open the {container}", near_container),
            (f"close the {container}", near_container),
        ),
    )


def _entertainment() -> HouseholdTask:
    """Return the source's second task, with the peculiarities of its menu.

    Walking to one snack is available while the other one is seen. A person who sits cannot stand up. At the coffee
    table with empty hands, only walking to other rooms is available. While the TV is off, both turning it on and
    turning it off are available.
    """
    not_stuck_at_table = "not close_to_coffeetable or hold_chips or hold_milk"
    at_empty_table = ("close_to_coffeetable", "not chips_on_coffeetable", "not milk_on_coffeetable")
    at_dark_tv = ("close_to_tv", "not is_tv_on")
    at_sofa_before_tv = ("close_to_sofa", "is_tv_on", "not is_sit_sofa")

    def snack(name: str, other: str) -> tuple[tuple[str, Conditions], ...]:
        while_other_is_seen = (f"see_{other}", f"not hold_{other} or see_{name}")
        return (
            (f"walk to the {name}", ("in_kitchen", f"not close_to_{name}", *while_other_is_seen)),
            (f"grab the {name}", ("in_kitchen", f"close_to_{name}", f"not hold_{name}")),
            (f"put the {name} on the coffee table", (f"hold_{name}", *at_empty_table)),
        )

    return HouseholdTask(
        "Sit on the sofa and watch TV with the chips and the milk at hand.",
        things=(
            Thing("chips", "kitchen", ("grabbable",), plural=True),
            Thing("milk", "kitchen", ("grabbable",)),
            Thing("coffee table", "living room", ("surface",)),
            Thing("TV", "living room", ("switch", "screen")),
            Thing("sofa", "living room", ("seat",)),
        ),
        goal=(
            "is_sit_sofa",
            "is_face_tv",
            "is_tv_on",
            "hold_chips or chips_on_coffeetable",
            "hold_milk or milk_on_coffeetable",
        ),
        menu=(
            *((f"walk to the {room}", (f"not in_{identifier(room)}",)) for room in ROOMS),
            *snack("chips", "milk"),
            *snack("milk", "chips"),
            ("walk to the coffee table", ("in_livingroom", "not close_to_coffeetable", "not is_sit_sofa")),
            ("walk to the TV", ("in_livingroom", "not close_to_tv", "not is_sit_sofa", not_stuck_at_table)),
            ("walk to the sofa", ("in_livingroom", "not close_to_sofa", not_stuck_at_table)),
            ("turn on the TV", at_dark_tv),
            ("turn off the TV", at_dark_tv),
            ("sit on the sofa", at_sofa_before_tv),
            ("stand up from the sofa", at_sofa_before_tv),
        ),
    )


TASKS: dict[str, HouseholdTask] = {
    "food-preparation": put_away("Heat the pancake in the microwave.", "pancake", "microwave"),
    "entertainment": _entertainment(),
    "cheese": put_away("Heat the cheese in the microwave.", "cheese", "microwave"),
    "hamburger": put_away("Heat the hamburger in the microwave.", "hamburger", "microwave"),
    "apple-pie": put_away("Heat the apple pie in the microwave.", "apple pie", "microwave"),
    "pizza": put_away("Heat the pizza in the microwave.", "pizza", "microwave"),
    "washing-plate": put_away("Wash the dirty plate in the dishwasher.", "dirty plate", "dishwasher"),
    "laundry": put_away("Wash the clothes in the washing machine.", "clothes", "washing machine", plural=True),
    "juice": put_away("Cool the juice in the fridge.", "juice", "fridge", thing_in="living room"),
    "towel": put_away(
        "Wash the towel in the washing machine.",
        "towel",
        "washing machine",
        thing_in="bedroom",
        container_in="bathroom",
    ),
}
"""The two tasks of the source and eight unseen tasks; the last two need more steps."""

UNSEEN_TASKS = tuple(TASKS)[2:]
"""Names of tasks for evaluation: no agent of the project is trained on them."""


def load_task(task: HouseholdTask | Mapping[str, Any] | str | Path) -> HouseholdTask:
    """Return a task.

    Parameters
    ----------
    task : HouseholdTask, mapping, str or Path
        A task, a mapping of its fields, a name in :data:`TASKS`, or the path of a YAML file with such a mapping.

    Returns
    -------
    HouseholdTask

    Raises
    ------
    ValueError
        If the task is invalid; the message names the file and the field.
    FileNotFoundError
        If the file does not exist.
    """
    if isinstance(task, HouseholdTask):
        return task
    if isinstance(task, Mapping):
        return HouseholdTask(**keywords("task", task, HouseholdTask))
    if not isinstance(task, str | Path):
        raise ValueError(f"task: {task!r} is not a HouseholdTask, a mapping of its fields, a name or a path")
    if task in TASKS:
        return TASKS[str(task)]
    path = Path(task)
    if path.suffix.lower() not in (".yaml", ".yml"):
        near = difflib.get_close_matches(str(task), TASKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"task: {task!r} is neither a .yaml file nor one of {', '.join(TASKS)}.{hint}")
    if not path.is_file():
        raise FileNotFoundError(f"task: the file {str(path)!r} does not exist")
    try:
        read = _read_yaml(read_text(path, _MAX_BYTES))
        if not isinstance(read, Mapping):
            raise ValueError(f"a task must be a mapping of its fields, not {type(read).__name__}")
        return load_task(read)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error!s:.2000}") from None


def _read_yaml(text: str) -> Any:
    """Read YAML without aliases, with which a short file can define billions of values, and of limited depth."""
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it contains an alias (*name), which tasks may not have: write the value again")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:  # PyYAML takes quadratic time in the depth
                raise ValueError(f"it is nested too deeply: expected at most {_MAX_DEPTH} levels")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (AttributeError, LookupError, TypeError, OverflowError) as error:  # raised for tags that do not fit
        raise ValueError(f"a value has a tag that does not fit it: {error!r}") from None
