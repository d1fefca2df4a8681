"""The analysis of environments without training, from results written by hand."""

import json
from pathlib import Path

import pytest

from benchmarks.analyses.transfer import collect
from benchmarks.config import BenchmarkConfig
from benchmarks.runs import Benchmark


def test_every_number_is_in_its_column(tmp_path: Path) -> None:
    config = BenchmarkConfig(algo="poad,ntpo", seeds=2, transfer=("VirtualHome-cheese-v0", "VirtualHome-towel-v0"))
    benchmark = Benchmark(config, tmp_path)
    value = {}
    for a, run in enumerate(benchmark.runs):
        run.path.mkdir(parents=True)
        for s, stage in enumerate(("untrained", "trained")):
            found = {}
            for e, env in enumerate(config.transfer):
                value[run.agent.algorithm, run.seed, stage, env] = base = 0.1 * a + 0.05 * s + 0.01 * e
                found[env] = {
                    way: {"return": [base + shift] * 5, "success": [way == "greedy"] * 5}
                    for way, shift in (("sampled", 0.0), ("greedy", 0.5))
                }
            run.transfer_file(stage).write_text(json.dumps(found))
    data = collect([benchmark])
    assert [found["env"] for found in data["environments"]] == list(config.transfer)
    for found in data["environments"]:
        columns = [(own["stage"], own["algorithm"]) for own in found["agents"]]
        assert columns == [("untrained", "poad"), ("trained", "poad"), ("trained", "ntpo")]
        for own in found["agents"]:
            ends = [value[own["algorithm"], seed, own["stage"], found["env"]] for seed in (0, 1)]
            assert own["sampled_return"]["value"] == pytest.approx(sum(ends) / 2)
            assert (own["sampled_return"]["low"], own["sampled_return"]["high"]) == pytest.approx(tuple(ends))
            assert own["greedy_return"]["value"] == pytest.approx(sum(ends) / 2 + 0.5)
            assert (own["sampled_success"]["value"], own["greedy_success"]["value"]) == (0.0, 1.0)
