"""Tests of untrusted data files, caches and archives: read in linear time, checked, and confined to their folder."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.security.parsing import LINES, YAML_TEXTS, seconds_to_read
from lang_envs.datascicoding import fetching
from lang_envs.datascicoding.catalog import DatasetEntry, find
from lang_envs.datascicoding.scoring import Score, kept_score
from lang_envs.datascicoding.tables import read_table
from lang_envs.virtualhome.tasks import load_task


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANG_ENVS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache" / "datasets").mkdir(parents=True)
    return tmp_path / "cache" / "datasets"


# Lines


@pytest.mark.parametrize("name", LINES | YAML_TEXTS)
def test_hostile_lines_are_read_in_linear_time(name: str, tmp_path: Path) -> None:
    kind = name.partition(":")[0].lower()
    file = tmp_path / f"hostile.{kind}"
    file.write_text((LINES | YAML_TEXTS)[name](20_000 if kind == "arff" else 30_000))
    started = time.perf_counter()
    seconds_to_read(file)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("'a', b", ["a", "b"]),
        ("  'a'  ,  b c  ", ["a", "b c"]),
        ("'it\\'s',\"x,y\"", ["it's", "x,y"]),
        (" 'a' ,", ["a", ""]),
    ],
)
def test_quoted_values_are_read_correctly(line: str, values: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.arff").write_text(f"@attribute a string\n@attribute 'b c' string\n@data\n{line}\n")
    table = read_table(tmp_path / "a.arff")
    assert [column.name for column in table.columns] == ["a", "b c"]
    assert [row for _, row in table.rows] == [values]


@pytest.mark.parametrize("text", ["," * 70_000, "@attribute x real\n" * 70_000 + "@data\n"])
def test_too_many_columns_are_rejected(text: str, tmp_path: Path) -> None:
    file = tmp_path / ("a.csv" if text[0] == "," else "a.arff")
    file.write_text(text)
    with pytest.raises(ValueError, match=r"65,536"):
        read_table(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a 1\nb: *a\n", "contains an alias"),
        ("a: &a {b: *a}\n", "contains an alias"),
        ("<<: &a {b: 1}\n", "task"),
        ("[" * 1000, "nested too deeply: expected at most 20"),
        ("- " * 1000, "nested too deeply: expected at most 20"),
        ("!!bool x", "tag that does not fit"),
        ("!!int ''", "tag that does not fit"),
        ("!!timestamp x", "tag that does not fit"),
        ("x" * 70_000, "too large"),
        ("a: 2026-99-99", "a.yaml"),
        ("instruction: " + "x" * 60_000, "a.yaml"),
    ],
)
def test_hostile_yaml_is_rejected_with_a_short_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        load_task(tmp_path / "a.yaml")
    assert "a.yaml" in str(refused.value) and len(str(refused.value)) < 2_500


# Scores

GOOD = {"mean": 0.75, "std": 0.01, "error": "", "status": "ok"}
FAILED = {"mean": None, "std": None, "error": "NameError: x", "status": "error"}


@pytest.mark.parametrize("good", [GOOD, FAILED, GOOD | {"mean": 1, "std": 0}])
def test_valid_score_is_read_from_the_cache(good: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(good))
    assert kept_score(tmp_path / "a.json") == Score(**good)


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": 1e9},
        {"mean": 1.0000001},
        {"mean": -0.1},
        {"mean": float("nan")},
        {"mean": float("inf")},
        {"mean": 10**400},
        {"mean": True},
        {"mean": "0.9"},
        {"mean": [0.9]},
        {"mean": None},
        {"std": None},
        {"std": -1},
        {"std": float("nan")},
        {"error": "x"},
        {"error": 3},
        {"status": "timeout"},
        {"status": None},
        {"bonus": 1},
        FAILED | {"error": ""},
        FAILED | {"status": "ok"},
        FAILED | {"status": "timeout"},
        FAILED | {"mean": 0.5},
    ],
)
def test_invalid_cached_score_is_computed_again(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(GOOD | changes))
    assert kept_score(tmp_path / "a.json") is None


def test_cached_score_is_read_from_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "good").write_text(json.dumps(GOOD))
    (tmp_path / "link").symlink_to("good")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "deep").write_text("[" * 200_000)
    (tmp_path / "folder").mkdir()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("link", "fifo", "deep", "folder", "huge", "absent"):
        assert kept_score(tmp_path / name) is None
    assert asdict(kept_score(tmp_path / "good") or Score(None, None, "", "")) == GOOD


# The cache of data sets

SPEC = "openml:61"


def put(cache: Path, **changes: Any) -> Path:
    """A whole set in the cache, some of its record changed."""
    data = cache / f"{SPEC}.0123456789abcdef.csv"
    data.write_text("x,label\n1,a\n2,b\n")
    record = {"file": data.name, "sha256": fetching.sha256(data), "source": SPEC, "target": "label", "drop": []}
    (cache / f"{SPEC}.json").write_text(json.dumps(record | changes))
    return data


def test_complete_set_in_the_cache_is_found(cache: Path) -> None:
    data = put(cache)
    found = fetching.cached(find(SPEC))
    assert found is not None and found[0] == data and found[1].target == "label"


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "/etc/passwd"},
        {"file": "../../secret.csv"},
        {"file": "openml:61.x/../../../secret.csv"},
        {"file": "other.csv"},
        {"file": ""},
        {"file": "."},
        {"file": 3},
        {"file": "openml:61.\x00"},
        {"file": "openml:61." + "x" * 5000},
        {"sha256": None},
        {"target": 3},
        {"drop": 3},
        {"drop": [1]},
        {"drop": {"a": [[1]]}, "target": []},
    ],
)
def test_record_cannot_name_files_outside_the_cache(changes: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("x,label\n1,a\n2,b\n")
    (cache / "other.csv").write_text("x,label\n1,a\n2,b\n")
    put(cache, **changes)
    with pytest.raises(ValueError, match="is missing or damaged"):
        fetching.cached(find(SPEC))


@pytest.mark.parametrize("name", [f"{SPEC}.json", f"{SPEC}.0123456789abcdef.csv"])
def test_links_and_fifos_in_the_cache_are_rejected(name: str, cache: Path, tmp_path: Path) -> None:
    put(cache)
    (cache / name).rename(tmp_path / "elsewhere")
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkfifo, Path.mkdir):
        make(cache / name)
        with pytest.raises(ValueError, match="is missing or damaged"):
            fetching.cached(find(SPEC))
        (cache / name).rmdir() if (cache / name).is_dir() else (cache / name).unlink()


def test_lock_file_that_is_a_link_does_not_truncate_its_target(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (cache / f"{SPEC}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(ValueError, match="lock is a symbolic link"), fetching.fetch_lock(find(SPEC), print):
        pass
    assert (tmp_path / "target").read_text() == "kept"


def test_links_in_the_download_folder_are_rejected(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (cache / ".partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"\.partial is a symbolic link"):
        fetching.fetch(SPEC)
    (cache / ".partial").unlink()
    (cache / ".partial").mkdir()
    (cache / ".partial" / "to-store.unfinished").symlink_to(tmp_path / "target")
    source = tmp_path / "a.csv"
    source.write_text("x,label\n1,a\n")
    stored = fetching.store(find(SPEC), source, cache / ".partial")
    assert stored.read_text() == source.read_text() and not (tmp_path / "target").exists()


# Archives

KAGGLE = DatasetEntry("kaggle:owner/own", "own", "kaggle:owner/own", "label")


def archive(folder: Path, write: Callable[[zipfile.ZipFile], Any]) -> Path:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as content:
        write(content)
    return folder / "a.zip"


def test_archive_with_a_compression_ratio_of_a_thousand_is_rejected(tmp_path: Path) -> None:
    path = archive(tmp_path, lambda content: content.writestr("a.csv", b"label,x\n" + bytes(70 << 20)))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match=r"'a\.csv' has [\d,]+ bytes and declares to unpack to 73,400,328"):
        fetching.unpack(KAGGLE, path)
    assert not [file for file in (tmp_path / "unpacked").iterdir() if file.stat().st_size]


def test_archive_that_declares_too_small_a_size_is_rejected(tmp_path: Path) -> None:
    path = archive(tmp_path, lambda content: content.writestr("a.csv", b"label,x\n" * 100_000))
    size = (800_000).to_bytes(4, "little")
    assert path.read_bytes().count(size) == 2
    path.write_bytes(path.read_bytes().replace(size, (8_000).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"a\.zip cannot be unpacked|more than the 8,000 bytes"):
        fetching.unpack(KAGGLE, path)


def test_archive_of_very_many_files_is_rejected(tmp_path: Path) -> None:
    path = archive(tmp_path, lambda content: [content.writestr(f"{n}.csv", "") for n in range(10_001)])
    with pytest.raises(ValueError, match="more than 10,000 files"):
        fetching.unpack(KAGGLE, path)


def test_names_in_an_archive_cannot_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "unpacked").symlink_to(tmp_path)
    (tmp_path / "table.csv").write_text("kept")
    path = archive(folder, lambda content: content.writestr("../../table.csv", "label,x\na,1\n"))
    with pytest.raises((ValueError, OSError)):
        fetching.unpack(KAGGLE, path)
    (folder / "unpacked").unlink()
    found = fetching.unpack(KAGGLE, path)
    assert found == folder / "unpacked" / "table.csv" and found.read_text() == "label,x\na,1\n"
    assert (tmp_path / "table.csv").read_text() == "kept"
