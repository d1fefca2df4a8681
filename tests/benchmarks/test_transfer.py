"""The table of environments that were not trained in, from results made by hand."""

import json
from pathlib import Path

import pytest

from benchmarks.cell import Benchmark
from benchmarks.config import BenchmarkConfig
from benchmarks.transfer import gather


def test_every_number_stands_in_its_column(tmp_path: Path) -> None:
    config = BenchmarkConfig(algo="poad,ntpo", seeds=2, transfer=("VirtualHome-cheese-v0", "VirtualHome-towel-v0"))
    benchmark = Benchmark(config, tmp_path)
    value = {}
    for a, cell in enumerate(benchmark.cells):
        cell.path.mkdir(parents=True)
        for s, stage in enumerate(("untrained", "trained")):
            found = {}
            for e, env in enumerate(config.transfer):
                value[cell.algo, cell.seed, stage, env] = base = 0.1 * a + 0.05 * s + 0.01 * e
                found[env] = {
                    way: {"return": [base + shift] * 5, "success": [way == "greedy"] * 5}
                    for way, shift in (("sampled", 0.0), ("greedy", 0.5))
                }
            cell.transfer_file(stage).write_text(json.dumps(found))
    table = gather(benchmark)
    for env, columns in table.items():
        assert list(columns) == ["untrained", "poad", "ntpo"]
        for column, found in columns.items():
            algo, stage = ("poad", "untrained") if column == "untrained" else (column, "trained")
            own = [value[algo, seed, stage, env] for seed in (0, 1)]
            assert found["sampled_return"]["value"] == pytest.approx(sum(own) / 2)
            assert (found["sampled_return"]["low"], found["sampled_return"]["high"]) == pytest.approx(tuple(own))
            assert found["greedy_return"]["value"] == pytest.approx(sum(own) / 2 + 0.5)
            assert (found["sampled_success"]["value"], found["greedy_success"]["value"]) == (0.0, 1.0)
