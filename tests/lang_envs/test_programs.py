"""Tests of random programs: their form, their frequencies, and that about half of them work."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

from lang_envs.datascicoding.programs import BREAKAGES, CLASSIFIERS, MAX_CHARACTERS, Program, draw, random_program


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    rng = np.random.default_rng(0)
    return [draw(rng) for _ in range(3000)]


def works(program: str, classes: int) -> bool:
    rng = np.random.default_rng(classes)
    x, y = rng.normal(size=(120, 5)), rng.permutation(np.arange(120) % classes)
    names: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(f"def build_model(x_train, y_train):\n    {program}\n    return model", names)
            found = np.asarray(names["build_model"](x[:80], y[:80]).predict_proba(x[80:]))
    except Exception:
        return False
    return found.shape == (40, classes) and bool(np.isfinite(found).all())


def test_seed_determines_the_programs(programs: list[Program]) -> None:
    first, second, other = (np.random.default_rng(seed) for seed in (0, 0, 1))
    drawn = [random_program(first) for _ in range(50)]
    assert drawn == [random_program(second) for _ in range(50)] == [program.text for program in programs[:50]]
    assert drawn != [random_program(other) for _ in range(50)]
    assert len({program.text for program in programs}) > 0.75 * len(programs)


def test_programs_are_short_and_indented(programs: list[Program]) -> None:
    for text, _, breakage in programs:
        first, *others = text.split("\n")
        assert len(text) <= MAX_CHARACTERS
        assert re.match(r"\S", first)
        indents = {len(line) - len(line.lstrip()) for line in others}
        assert (indents <= {4}) == (breakage != "indentation") and 0 not in indents
        assert "@" not in text and "|" not in text


def test_all_kinds_are_equally_frequent(programs: list[Program]) -> None:
    broken = [program.breakage for program in programs if program.breakage]
    whole = [program.classifier for program in programs if not program.breakage]
    assert 0.45 < len(broken) / len(programs) < 0.55
    for kinds, found in (BREAKAGES, broken), ({row[0].split("(")[0] for row in CLASSIFIERS}, whole):
        assert set(found) == set(kinds)
        counts = [found.count(kind) * len(kinds) / len(found) for kind in kinds]
        assert min(counts) > 0.5 and max(counts) < 1.6


def test_about_half_of_the_programs_work(programs: list[Program]) -> None:
    pytest.importorskip("sklearn")
    outcomes = [(program.breakage, works(program.text, 2 + index % 2)) for index, program in enumerate(programs[:240])]
    assert 0.4 < np.mean([working for _, working in outcomes]) < 0.6
    assert np.mean([working for breakage, working in outcomes if not breakage]) > 0.95
    assert np.mean([working for breakage, working in outcomes if breakage]) < 0.1


def test_every_classifier_works(programs: list[Program]) -> None:
    pytest.importorskip("sklearn")
    for row in CLASSIFIERS:
        name = row[0].split("(")[0]
        text = next(text for text, classifier, breakage in programs if classifier == name and not breakage)
        assert works(text, 2) and works(text, 3), text
