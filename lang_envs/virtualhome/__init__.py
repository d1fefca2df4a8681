"""A household of four rooms, and tasks in it."""

from lang_envs.virtualhome.household import Thing
from lang_envs.virtualhome.task import Task
from lang_envs.virtualhome.tasks import TASKS, UNSEEN_TASKS, load_task, put_away

__all__ = ["TASKS", "UNSEEN_TASKS", "Task", "Thing", "load_task", "put_away"]
