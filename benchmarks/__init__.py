"""Experiments that compare agents: ``python -m benchmarks run --help``."""
