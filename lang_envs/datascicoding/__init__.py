"""DataSciCoding: actions are programs, tasks are data sets, rewards are scores."""

from lang_envs.datascicoding.datasets import DATASETS, Dataset, load_dataset

__all__ = ["DATASETS", "Dataset", "load_dataset"]
