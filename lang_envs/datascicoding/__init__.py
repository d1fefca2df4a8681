"""DataSciCoding: programs as actions, data sets as tasks, scores as rewards."""

from lang_envs.datascicoding.datasets import DATASETS, Dataset, load_dataset

__all__ = ["DATASETS", "Dataset", "load_dataset"]
