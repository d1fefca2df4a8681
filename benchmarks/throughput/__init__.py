"""Speed, measured side by side in one process: ``python -m benchmarks.throughput.<name>``."""
