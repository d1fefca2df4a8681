"""VirtualHome: tasks in a household of four rooms."""

from lang_envs.virtualhome.household import Thing
from lang_envs.virtualhome.task import HouseholdTask
from lang_envs.virtualhome.tasks import TASKS, UNSEEN_TASKS, load_task, put_away

__all__ = ["TASKS", "UNSEEN_TASKS", "HouseholdTask", "Thing", "load_task", "put_away"]
