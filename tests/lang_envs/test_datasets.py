"""Tests of data sets: pruning, search, download, and errors for invalid files.

The clients of OpenML and Kaggle talk to a server on the loopback that answers as theirs do.
"""

import functools
import hashlib
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from lang_envs.__main__ import main
from lang_envs.datascicoding import datasets, fetching
from lang_envs.datascicoding.catalog import find
from lang_envs.datascicoding.datasets import DATASETS, fetch, load_dataset, place_of
from lang_envs.datascicoding.generated import GENERATED, generated_table
from lang_envs.datascicoding.tables import read_table

REAL = Path(__file__).resolve().parents[3] / "shared" / "datasets"
WITH_REAL = pytest.mark.skipif(not REAL.is_dir(), reason="no ../shared/datasets beside the checkout")
PUBLISHED = {"cmc": (1473, 9, 3), "diabetes": (768, 8, 2), "tic-tac-toe": (95, 9, 2)}
"""Sizes that the table leaves open."""

ARFF = """% a comment
@RELATION weather

@attribute 'out look' {sunny, 'over cast', rainy}
@attribute Temperature numeric
@attribute day string
@attribute play {no, yes}
@data
'over cast', 20, mon, yes
rainy, 10.5, tue, no
% another
sunny, 30, mon, yes
rainy, ?, wed, no
"""
CSV = "id,size,colour,label\n1,2.5,red,yes\n2,3,blue,no\n3,,red,no\n4,1e1,green,yes\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or changes what the person who runs it has."""
    for variable in [name for name in os.environ if name.startswith(("KAGGLE_", "OPENML_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.delenv("LANG_ENVS_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    monkeypatch.setenv("OPENML_CACHE_DIR", str(tmp_path / "home" / "openml"))
    monkeypatch.setenv("LANG_ENVS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def mask() -> int:
    """Which permissions new files do not get."""
    os.umask(found := os.umask(0))
    return found


def of_csv(folder: Path, text: str | bytes, options: str = "target=label&drop=id", name: str = "own.csv") -> str:
    return f"csv:{write(folder, name, text)}?{options}"


# Pruning


@WITH_REAL
@pytest.mark.parametrize("name", DATASETS)
def test_real_file_is_pruned_to_the_published_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(REAL))
    if place_of(name) is None:
        pytest.skip(f"no {name} in ../shared/datasets")
    found, entry = load_dataset(name), DATASETS[name]
    assert (*found.x.shape, len(set(found.y))) == PUBLISHED.get(name, (entry.rows, entry.features, entry.classes))
    assert place_of(name) == "data folder"


@WITH_REAL
@pytest.mark.parametrize("name", GENERATED)
def test_generated_set_is_the_published_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generated, published = generated_table(name), read_table(REAL / "openml" / f"{name}.arff")
    assert generated.columns == published.columns
    assert [tuple(row) for _, row in generated.rows] == [tuple(row) for _, row in published.rows], "in the same order"
    fingerprint = load_dataset(name).fingerprint
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(REAL))
    assert load_dataset(name).fingerprint == fingerprint


def test_balance_scale_says_which_side_is_heavier() -> None:
    found = load_dataset("balance-scale")
    turns = found.x[:, 0] * found.x[:, 1] - found.x[:, 2] * found.x[:, 3]
    np.testing.assert_array_equal(found.y, np.select([turns > 0, turns == 0], [0, 1], 2))
    assert (place_of("balance-scale"), found.x.shape) == ("generated", (125, 4))


def test_tic_tac_toe_is_every_final_board() -> None:
    """958 boards, 626 of them won by x: the numbers that the source's own description gives."""
    rows = [row for _, row in generated_table("tic-tac-toe").rows]
    assert (len(rows), len(set(rows)), sum(row[-1] == "positive" for row in rows)) == (958, 958, 626)


def test_arff_is_read_with_its_quotes_comments_and_declared_order(home: Path) -> None:
    found = load_dataset(f"csv:{write(home, 'weather.arff', ARFF)}?target=play")
    rows = {(*x, y) for x, y in zip(found.x.tolist(), found.y.tolist(), strict=True)}
    assert rows == {(1, 20, 0, 1), (2, 10.5, 1, 0), (0, 30, 0, 1)}, "the row without a temperature is gone"


def test_csv_is_read_with_sorted_categories_and_without_dropped_columns(home: Path) -> None:
    found = load_dataset(of_csv(home, "\ufeff" + CSV.replace("\n", "\r\n")))
    rows = {(*x, y) for x, y in zip(found.x.tolist(), found.y.tolist(), strict=True)}
    assert rows == {(2.5, 2, 1), (3, 0, 0), (10, 1, 1)}
    assert (found.x.dtype, found.y.dtype, found.title) == (np.float64, np.int64, "own")


def test_numbers_are_sorted_before_words(home: Path) -> None:
    years = ["10.0", "9.0", "14+", "1.0"]
    text = "years,label\n" + "".join(f"{year},{k % 2}\n" for k, year in enumerate(years * 2))
    found = load_dataset(of_csv(home, text, "target=label"))
    assert sorted({(int(x), int(y)) for x, y in zip(found.x[:, 0], found.y, strict=True)}) == [
        (0, 1),  # 1.0
        (1, 1),  # 9.0
        (2, 0),  # 10.0
        (3, 0),  # 14+
    ]


def test_kept_rows_are_a_sample_of_the_whole_file(home: Path) -> None:
    text = "size,label\n" + "".join(f"{k},{'?' if k % 3 == 0 else k % 2}\n" for k in range(30_000))
    found = load_dataset(of_csv(home, text, "target=label"))
    sizes = found.x[:, 0]
    assert found.x.shape == (2000, 1) and len(set(sizes)) == 2000
    assert not np.any(sizes % 3 == 0), "rows with a missing value"
    np.testing.assert_array_equal(found.y, sizes % 2)
    # of a uniform sample each tenth of the file gives 200 rows, give or take a standard deviation of 12
    shares, _ = np.histogram(sizes, bins=10, range=(0, 30_000))
    assert np.all(np.abs(shares - 200) < 60)
    assert abs(np.corrcoef(np.arange(2000), sizes)[0, 1]) < 0.1, "shuffled"


def test_data_set_is_deterministic_and_read_only() -> None:
    one, two = load_dataset("tic-tac-toe"), load_dataset("openml:50")
    assert one.name == two.name and one.fingerprint == two.fingerprint
    assert one.fingerprint != load_dataset("balance-scale").fingerprint
    assert one.x.flags.c_contiguous
    for array in (one.x, one.y):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert pickle.loads(pickle.dumps(one)).fingerprint == one.fingerprint


def test_a_million_rows_load_in_seconds_and_little_memory(home: Path) -> None:
    block = "".join(f"{k},{k * 0.5},word{k % 7},{k % 11},{k % 2}\n" for k in range(1000))
    write(home, "large.csv", "a,b,c,d,label\n" + block * 1000)
    program = (
        "import resource, sys, time\n"
        "from lang_envs.datascicoding.datasets import load_dataset\n"
        "before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()\n"
        f"found = load_dataset('csv:{home}/large.csv?target=label')\n"
        "more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(found.x.shape, round(time.perf_counter() - start, 1), more // 1024)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shape, seconds, mebibytes = re.fullmatch(r"(\(.*\)) ([\d.]+) (\d+)\n", ran.stdout).groups()
    assert shape == "(2000, 4)" and float(seconds) < 10 and int(mebibytes) < 50


def test_loading_imports_neither_pandas_nor_a_client(home: Path) -> None:
    program = (
        "import sys\n"
        "from lang_envs.datascicoding.datasets import load_dataset\n"
        f"load_dataset('tic-tac-toe'), load_dataset({of_csv(home, CSV)!r})\n"
        "print(sorted({'pandas', 'scipy', 'sklearn', 'openml', 'kaggle', 'arff', 'requests'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# Names and places


def test_sets_of_scikit_learn_are_pruned_like_all_others() -> None:
    from sklearn.datasets import load_wine

    found, shipped = load_dataset("sklearn:wine"), load_wine()
    rows = {(*x, y) for x, y in zip(found.x.tolist(), found.y.tolist(), strict=True)}
    assert rows == {(*x, y) for x, y in zip(shipped.data.tolist(), shipped.target.tolist(), strict=True)}
    assert place_of("sklearn:wine") == "scikit-learn"
    with pytest.raises(ValueError, match=r"is not one of scikit-learn's: expected .*iris"):
        load_dataset("sklearn:linnerud")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("airlnes", "The nearest names are airlines"),
        ("../../etc/passwd", "`python -m lang_envs datasets` lists all"),
        ("http://x", "For other data sets, use openml:ID"),
        ("openml:iris", "has an unknown form: expected one of openml:ID"),
        ("kaggle:nobody", "has an unknown form: expected one of openml:ID"),
        ("kaggle:../..", "has an unknown form: expected one of openml:ID"),
        ("csv:a.csv?traget=x", "the unknown option 'traget'; csv: has target, drop"),
        ("openml:61?target=a&b", "must have the form name=value"),
        ("csv:nowhere.csv?target=x", "the file nowhere.csv of the data set csv:nowhere.csv does not exist"),
    ],
)
def test_error_for_an_unknown_name_says_what_to_do(name: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        load_dataset(name)


def test_missing_data_set_is_not_downloaded_automatically(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(home))
    with pytest.raises(FileNotFoundError) as error:
        load_dataset("airlines")
    for part in ("airlines", str(home), str(home / "cache"), "python -m lang_envs fetch airlines"):
        assert part in str(error.value)
    with pytest.raises(FileNotFoundError, match=re.escape("fetch 'kaggle:a/b?file=c.csv&target=d'")):
        load_dataset("kaggle:a/b?file=c.csv&target=d")


def test_data_folder_is_searched_first_including_subfolders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(home))
    (home / "inner").mkdir()
    write(home / "inner", "credit-g.csv", "a,class\n1,good\n2,bad\n")
    assert load_dataset("credit-g").x.shape == (2, 1)
    write(home, "credit-g.csv", "a,class\n1,good\n2,bad\n3,bad\n")
    assert load_dataset("credit-g").x.shape == (3, 1)
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(home / "gone"))
    with pytest.raises(FileNotFoundError, match=r"LANG_ENVS_DATA_DIR is .*gone, but this folder does not exist"):
        load_dataset("credit-g")


def test_registered_set_of_another_size_is_rejected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(home))
    write(home, "kidney-stone.csv", "id,gravity,target\n1,2,0\n2,3,1\n")
    with pytest.raises(ValueError, match=r"kidney-stone\.csv: .* 2 rows after pruning, expected 414: the source has"):
        load_dataset("kidney-stone")


# Bad files

ARFF_HEAD = "@relation r\n@attribute a numeric\n@attribute b {x,y}\n@data\n"


BAD_ARFF = [
    ("", ".arff: the file is empty"),
    ("@relation r\n@attribute a numeric\n", "no @data until its end, line 2: the file is incomplete"),
    ("@relation r\n@attribute a {x,y", "line 2: the values of 'a' have no closing brace"),
    ("@relation r\n@attr", "line 2: '@attr', expected @attribute or @data"),
    (
        "@relation r\n@attribute a relational\n@data\n",
        "line 2: the attribute 'a' has the unsupported type 'relational'",
    ),
    (ARFF_HEAD, "it has no rows"),
    (ARFF_HEAD + "1,x\n2\n", "line 6: 1 values, expected 2: the row is incomplete"),
    (ARFF_HEAD + "1,x\n2,\n", "line 6: '' is not one of the declared values of 'b'"),
    (ARFF_HEAD + "1,x\n2,z\n", "line 6: 'z' is not one of the declared values of 'b'"),
    (ARFF_HEAD + "1,x\ntwo,y\n", "line 6: 'two' in the column 'a' is not a number"),
    (ARFF_HEAD + "1,x\ninf,y\n", "line 6: 'inf' in the column 'a' is not finite"),
    (ARFF_HEAD + "1,x\n2,'y\n", "line 6: 1 values, expected 2"),
    (ARFF_HEAD + "{0 1, 1 x}\n", "line 5: a sparse row"),
    (ARFF_HEAD + "1,x\n2,x\n", "the target column 'b' has only one class, 'x'"),
    (ARFF_HEAD.replace("b {", "c {") + "1,x\n", "no column 'b'; the columns are 'a', 'c'"),
]


@pytest.mark.parametrize(("text", "message"), BAD_ARFF, ids=[message for _, message in BAD_ARFF])
def test_bad_arff_names_the_file_and_the_line(home: Path, text: str, message: str) -> None:
    path = write(home, "bad.arff", text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_dataset(f"csv:{path}?target=b")
    assert str(error.value).startswith(str(path))


def test_file_replaced_with_the_same_size_and_time_is_read_again(home: Path) -> None:
    rows = ["1,2,0", "2,3,1", "3,1,0", "4,4,1"]
    file = home / "own.csv"
    for values in (rows, [row.replace("4,4", "5,5") for row in rows]):
        beside = home / "beside.csv"
        beside.write_text("a,b,y\n" + "\n".join(values) + "\n")
        os.utime(beside, ns=(10**18, 10**18))
        beside.replace(file)
        found = load_dataset(f"csv:{file}?target=y")
        assert found.x.max() == (4 if values is rows else 5)


def test_large_class_numbers_are_distinct(home: Path) -> None:
    (home / "own.csv").write_text(f"a,b,y\n1,2,{10**18}\n2,3,{10**18 + 1}\n3,1,{10**18}\n4,4,-1.0\n5,5,-1\n")
    assert sorted(load_dataset(f"csv:{home / 'own.csv'}?target=y").y.tolist()) == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("name", ["csv:~nobody-of-that-name/x.csv?target=y", "airlines"])
def test_unknown_home_folders_are_named(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", "~nobody-of-that-name")
    with pytest.raises(ValueError, match=r"~nobody-of-that-name.*home"):
        load_dataset(name)


BAD_CSV = [
    (b"", ".csv: the file is empty"),
    ("id;size;label\n1;2;yes\n", "line 1: only one column, 'id;size;label': values must be separated by commas"),
    ("id,size,label\n", "it has no rows"),
    ("id,size,label\n1,2,yes\n2,3\n", "line 3: 2 values, expected 3 as in the header"),
    ('id,size,label\n1,"2\n3",yes\n2,3,no,4\n', "line 4: 4 values"),
    ('id,size,label\n1,"2,yes\n', "line 2: unexpected end of data"),
    (b"id,size,label\n1,2,yes\n2,\xe9,no\n", "line 3: byte 0xe9 at its position 3 is not valid UTF-8"),
    (
        "id,size,label\n1,,yes\n2,NA,no\n3,4,\n",
        "each of its 3 rows has a missing value, 2 of them in the column 'size'",
    ),
    ("id,size,label\n1,2,yes\n2,inf,no\n", "line 3: 'inf' in the column 'size' is not finite"),
    ("id,size,label\n1,2,yes\n", "the target column 'label' has only one class, 'yes'"),
    ("id,size,label\n1,2,0\n2,3,0.5\n", "'0.5' in the target column 'label' is a fraction, not a class"),
    ("id,size,label\n" + "".join(f"{k},{k},{k}\n" for k in range(60)), "60 different values in 60 rows"),
    ("id,size,Label\n1,2,yes\n", "no column 'label'; the columns are 'id', 'size', 'Label'"),
    ("size,label\n1,yes\n", "no column 'id'"),
    ("id,label,label\n1,2,yes\n", "more than one column 'label'"),
    ("id,label\n1,yes\n", "there is no feature column besides the target 'label'"),
    (b"x" * (1 << 24), "line 1: the line is longer than 16 MiB"),
]


@pytest.mark.parametrize(("text", "message"), BAD_CSV, ids=[message for _, message in BAD_CSV])
def test_bad_csv_names_the_file_and_the_line(home: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_dataset(of_csv(home, text))
    assert str(error.value).startswith(str(home / "own.csv"))


def test_error_for_an_own_set_without_a_target_lists_the_columns(home: Path) -> None:
    with pytest.raises(ValueError, match=r"add target=COLUMN to .*'id', 'size', 'colour'"):
        load_dataset(f"csv:{write(home, 'own.csv', CSV)}")


# Fetching


class Loopback:
    """A server on the loopback: ``routes`` give an answer to the path of a request, ``seen`` keeps the requests."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                loopback.seen.append((self.command, self.path, dict(self.headers)))
                answer = loopback.routes.get(self.path.partition("?")[0], functools.partial(reply, status=404))
                try:
                    answer(self)
                except ConnectionError:  # the client was killed
                    self.close_connection = True

            do_HEAD = do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, path: str) -> list[dict[str, str]]:
        return [headers for _, asked, headers in self.seen if asked.startswith(path)]


def reply(
    handler: BaseHTTPRequestHandler,
    body: bytes = b"",
    status: int = 200,
    gate: threading.Event | None = None,
    **headers: str,
) -> None:
    """Answer at once; with a ``gate``, half at once and half when it opens. Ranges work as in a file store."""
    size = len(body)
    given = handler.headers.get("Range")
    if given and status == 200:
        first = int(given.removeprefix("bytes=").partition("-")[0])
        body, status = body[first:], 206
        headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    half = len(body) // 2 if gate else len(body)
    handler.wfile.write(body[:half])
    if gate:
        handler.wfile.flush()
        gate.wait(20)
        handler.wfile.write(body[half:])


@pytest.fixture
def server() -> Iterator[Loopback]:
    loopback = Loopback()
    yield loopback
    loopback.close()


@pytest.fixture
def openml_server(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    openml = pytest.importorskip("openml", reason="openml is not installed: the extra data brings it")
    monkeypatch.setattr(openml.config, "server", f"{server.address}/api/v1/xml")
    monkeypatch.setattr(openml.config, "connection_n_retries", 1)
    return server


@pytest.fixture
def kaggle_server(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    pytest.importorskip("kaggle", reason="kaggle can't be imported", exc_type=ImportError)
    from kagglesdk import kaggle_env

    monkeypatch.setitem(kaggle_env._env_to_endpoint, kaggle_env.KaggleEnv.PROD, server.address)
    return server


def offer_openml(server: Loopback, number: int, text: str, gate: threading.Event | None = None, **more: str) -> None:
    """Data set ``number`` as OpenML offers it: a description in XML with the address of the ARFF file."""
    fields = {
        "id": str(number),
        "name": "weather",
        "version": "1",
        "description": "made for a test",
        "format": "ARFF",
        "upload_date": "2014-04-06T23:19:24",
        "licence": "Public",
        "url": f"{server.address}/data/v1/download/{number}/weather.arff",
        "parquet_url": f"{server.address}/datasets/0000/{number:04}/dataset_{number}.pq",
        "file_id": str(number),
        "visibility": "public",
        "status": "active",
        "md5_checksum": hashlib.md5(text.encode()).hexdigest(),
        **more,
    }
    xml = "".join(f"<oml:{name}>{value}</oml:{name}>" for name, value in fields.items())
    described = f'<oml:data_set_description xmlns:oml="http://openml.org/openml">{xml}</oml:data_set_description>'
    server.routes[f"/api/v1/xml/data/{number}"] = functools.partial(
        reply, body=described.encode(), Content_Type="text/xml"
    )
    server.routes[f"/data/v1/download/{number}/weather.arff"] = functools.partial(
        reply, body=text.encode(), gate=gate, Content_Type="text/plain; charset=utf-8"
    )


def offer_kaggle(
    server: Loopback, method: str, stored: str, body: bytes, gate: threading.Event | None = None, etag: str = '"1"'
) -> None:
    """A download as Kaggle offers it: the API answers with the address of a file store."""
    server.routes[f"/v1/{method}"] = functools.partial(
        reply, status=302, Location=f"{server.address}/storage/{stored}?token=1"
    )
    server.routes[f"/storage/{stored}"] = functools.partial(
        reply,
        body=body,
        gate=gate,
        ETag=etag,
        Accept_Ranges="bytes",
        Content_Type="application/zip",
        Last_Modified="Mon, 02 Jan 2023 03:04:05 GMT",
    )


ONE_DATASET = "datasets.DatasetApiService/DownloadDataset"
ONE_COMPETITION_FILE = "competitions.CompetitionApiService/DownloadDataFile"


def zipped(**texts: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name.replace("__", "/").replace("_csv", ".csv"), text)
    return content.getvalue()


def child(server: Loopback, name: str, log: Path) -> subprocess.Popen[bytes]:
    """Start another process that downloads ``name`` and prints its progress."""
    program = (
        "import sys\n"
        "from kagglesdk import kaggle_env\n"
        f"kaggle_env._env_to_endpoint[kaggle_env.KaggleEnv.PROD] = {server.address!r}\n"
        "if sys.argv[1].startswith('openml'):\n"
        "    import openml\n"
        f"    openml.config.server = {server.address + '/api/v1/xml'!r}\n"
        "from lang_envs.datascicoding.datasets import fetch\n"
        "fetch(sys.argv[1], progress=lambda text: print(text, flush=True))\n"
    )
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, "-c", program, name], stdout=out, stderr=out)


def wait_until(happens: Callable[[], object], seconds: float = 15) -> None:
    limit = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


def test_openml_set_is_downloaded_once_and_then_loaded_from_the_cache(openml_server: Loopback, home: Path) -> None:
    offer_openml(openml_server, 61, ARFF, default_target_attribute="play", ignore_attribute="day")
    reported: list[str] = []
    path = fetch("openml:61", progress=reported.append)
    assert reported == ["downloading openml:61 (openml:61)", "checking openml:61"]
    assert path.read_text() == ARFF and home / "cache" in path.parents
    found = load_dataset("openml:61")
    assert (found.x.shape, place_of("openml:61")) == ((3, 2), "cache"), "the target and what to ignore are known"
    assert load_dataset("openml:61?target=out look").y.max() == 2, "or chosen"
    fetch("openml:61")
    assert len(openml_server.asked("/data/v1/download")) == 1
    assert not openml_server.asked("/datasets/"), "the client would rather have had the Parquet file"
    fetch("openml:61", force=True)
    assert len(openml_server.asked("/data/v1/download")) == 2
    left = sorted(one.name for one in (home / "cache" / "datasets").rglob("*"))
    assert left == sorted([".partial", "openml:61.json", "openml:61.lock", path.name])
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask(), "others may read it as they may read other files"


def test_data_folder_cache_and_rule_are_searched_in_this_order(
    openml_server: Loopback, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, rows = generated_table("tic-tac-toe").columns, list(generated_table("tic-tac-toe").rows)
    declared = "".join(f"@attribute {c.name} {{{','.join(c.categories or ())}}}\n" for c in columns)
    text = f"@relation t\n{declared}@data\n" + "".join(",".join(row) + "\n" for _, row in rows)
    offer_openml(openml_server, 50, text)
    fingerprint = load_dataset("tic-tac-toe").fingerprint
    fetch("tic-tac-toe")
    assert place_of("tic-tac-toe") == "cache"
    assert load_dataset("tic-tac-toe").fingerprint == fingerprint
    monkeypatch.setenv("LANG_ENVS_DATA_DIR", str(home))
    write(home, "tic-tac-toe.arff", text)
    assert place_of("tic-tac-toe") == "data folder"


def test_openml_failures_are_explained(openml_server: Loopback, home: Path) -> None:
    with pytest.raises(ConnectionError, match=r"OpenML did not deliver openml:61 \(openml:61\)"):
        fetch("openml:61")
    offer_openml(openml_server, 61, ARFF, md5_checksum="0" * 32)
    with pytest.raises(ConnectionError, match=r"[Cc]hecksum"):
        fetch("openml:61")
    offer_openml(openml_server, 15, ARFF, default_target_attribute="play")
    with pytest.raises(ValueError, match="no column 'Class'"):
        fetch("breast-w")
    assert place_of("breast-w") is None, "what is no good stays out of the cache"
    openml_server.close()
    with pytest.raises(ConnectionError, match="OpenML did not deliver cmc"):
        fetch("cmc")


def test_damaged_file_in_the_cache_is_rejected_and_downloaded_again(openml_server: Loopback) -> None:
    offer_openml(openml_server, 61, ARFF, default_target_attribute="play")
    path = fetch("openml:61")
    for damage in (
        lambda: path.write_text(ARFF.replace("30", "31")),
        path.unlink,
        lambda: next(path.parent.glob("*.json")).write_text("{"),
    ):
        damage()
        with pytest.raises(ValueError, match=r"is missing or damaged\. Download it again: .* fetch openml:61"):
            load_dataset("openml:61")
        reported: list[str] = []
        fetch("openml:61", progress=reported.append)
        assert reported[0] == "openml:61 is damaged in the cache and is downloaded again"
        assert load_dataset("openml:61").x.shape == (3, 3)


def test_fetch_works_after_a_killed_one(openml_server: Loopback, home: Path) -> None:
    gate, log = threading.Event(), home / "log"
    offer_openml(openml_server, 61, ARFF, gate, default_target_attribute="play")
    first = child(openml_server, "openml:61", log)
    wait_until(lambda: openml_server.asked("/data/v1/download") or first.poll())
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, log.read_text()
    gate.set()
    # as if it had been killed while the client wrote the file
    for folder in (home / "cache").rglob("61"):
        write(folder, "dataset.arff", ARFF[:150])
    assert place_of("openml:61") is None
    fetch("openml:61")
    assert load_dataset("openml:61").x.shape == (3, 3)


def test_killed_download_from_kaggle_continues(kaggle_server: Loopback, home: Path) -> None:
    random = np.random.default_rng(0)
    rows = (f"{','.join(map(str, random.random(80)))},{k % 2}\n" for k in range(2000))
    text = ",".join(f"c{k}" for k in range(80)) + ",label\n" + "".join(rows)
    body, gate, log = zipped(all_csv=text), threading.Event(), home / "log"
    offer_kaggle(kaggle_server, ONE_DATASET, "archive.zip", body, gate)
    assert len(body) // 2 > 1 << 20, "the client writes a mebibyte at a time"
    name = "kaggle:owner/numbers?target=label"
    first = child(kaggle_server, name, log)
    partial = home / "cache" / "datasets" / ".partial"
    wait_until(lambda: [p for p in partial.rglob("*.zip") if p.stat().st_size] or first.poll() is not None)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, log.read_text()
    gate.set()
    fetch(name)
    ranges = [headers.get("Range") for headers in kaggle_server.asked("/storage")]
    assert ranges[0] is None and re.fullmatch(r"bytes=[1-9]\d*-", ranges[-1] or ""), ranges
    assert load_dataset(name).x.shape == (2000, 80)


def test_two_processes_download_only_once(kaggle_server: Loopback, home: Path) -> None:
    gate, log = threading.Event(), home / "log"
    offer_kaggle(kaggle_server, ONE_DATASET, "archive.zip", zipped(own_csv=CSV), gate)
    name = "kaggle:owner/own?target=label&drop=id"
    both = [child(kaggle_server, name, log) for _ in range(2)]
    wait_until(lambda: "waiting for another process" in log.read_text())
    gate.set()
    assert [one.wait(15) for one in both] == [0, 0], log.read_text()
    assert len(kaggle_server.asked("/storage")) == 1
    assert load_dataset(name).x.shape == (3, 2)
    assert "is in the cache" in log.read_text()


def test_kaggle_data_set_can_be_downloaded_without_credentials(kaggle_server: Loopback) -> None:
    offer_kaggle(kaggle_server, ONE_DATASET, "archive.zip", zipped(own_csv=CSV, other_csv="a,b\n1,2\n", readme="hello"))
    name = "kaggle:owner/own?target=label&drop=id"
    assert fetch(name).read_text() == CSV, "the only file with the target"
    assert "Authorization" not in kaggle_server.asked(f"/v1/{ONE_DATASET}")[0]
    assert load_dataset(name).title == "own"
    with pytest.raises(
        ValueError, match=r"has the tables 'own.csv', 'other.csv': choose one with kaggle:owner/own\?file=NAME"
    ):
        fetch("kaggle:owner/own?target=nothing", force=True)
    assert place_of(name) == "cache", "what failed leaves what is there"


def test_one_file_of_a_kaggle_data_set_is_chosen_by_name(kaggle_server: Loopback) -> None:
    offer_kaggle(kaggle_server, ONE_DATASET, "own%20one.csv", CSV.encode())
    name = "kaggle:owner/own?file=own one.csv&target=label"
    assert fetch(name).read_text() == CSV
    assert place_of(name) == "cache"
    assert place_of("kaggle:owner/own?target=label") is None, "another file, another place in the cache"


def test_competition_is_downloaded_with_credentials(kaggle_server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGGLE_USERNAME", "somebody")
    monkeypatch.setenv("KAGGLE_KEY", "secret")
    text = "id,size,label\n1,2,yes\n2,3,no\n"
    for body, stored in ((text.encode(), "train.csv"), (zipped(train_csv=text), "train.csv.zip")):
        offer_kaggle(kaggle_server, ONE_COMPETITION_FILE, stored, body)
        assert fetch("kaggle:competition/some-game?target=label", force=True).read_text() == text
    assert kaggle_server.asked(f"/v1/{ONE_COMPETITION_FILE}")[0]["Authorization"].startswith("Basic ")
    assert load_dataset("kaggle:competition/some-game?target=label").title == "some-game"


def test_missing_credentials_are_explained(kaggle_server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermissionError) as error:
        fetch("spaceship-titanic")
    for part in (
        "no Kaggle credentials were found",
        "https://www.kaggle.com/settings/api",
        "KAGGLE_API_TOKEN",
        "kaggle.json",
        "KAGGLE_USERNAME and KAGGLE_KEY",
        "accept its rules on https://www.kaggle.com/c/spaceship-titanic/rules",
        "python -m lang_envs fetch spaceship-titanic",
    ):
        assert part in str(error.value)
    assert not kaggle_server.seen, "nothing was asked"
    refused = b'{"code": 403, "message": "You must accept this competition\'s rules"}'
    for method in (ONE_DATASET, ONE_COMPETITION_FILE):
        kaggle_server.routes[f"/v1/{method}"] = functools.partial(
            reply, body=refused, status=403, Content_Type="application/json"
        )
    with pytest.raises(PermissionError, match="pharyngitis comes from Kaggle, and no Kaggle credentials were found"):
        fetch("pharyngitis")
    monkeypatch.setenv("KAGGLE_USERNAME", "somebody")
    monkeypatch.setenv("KAGGLE_KEY", "secret")
    with pytest.raises(PermissionError, match=r"Kaggle refuses it \(You must accept this competition's rules\)"):
        fetch("spaceship-titanic")


def test_kaggle_failures_are_explained(kaggle_server: Loopback, home: Path) -> None:
    with pytest.raises(ConnectionError, match="Kaggle did not deliver pharyngitis"):
        fetch("pharyngitis")
    broken = zipped(own_csv=CSV * 50)
    offer_kaggle(kaggle_server, ONE_DATASET, "archive.zip", broken[:40] + b"#" * 20 + broken[60:])
    with pytest.raises(ValueError, match="cannot be unpacked: Bad CRC-32"):
        fetch("kaggle:owner/own?target=label")
    assert not list((home / "cache").rglob("*.zip")), "so the next download starts again"


def test_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for client, name in (("openml", "cmc"), ("kaggle", "pharyngitis")):
        monkeypatch.setitem(sys.modules, client, None)
        with pytest.raises(ImportError, match=rf"{name} needs the client of .*pip install 'lang-envs\[data\]'"):
            fetch(name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    datasets.load_entry.cache_clear()
    with pytest.raises(ImportError, match=r"sklearn:wine needs scikit-learn\. Run: pip install 'lang-envs\[data\]'"):
        load_dataset("sklearn:wine")


def test_environment_variables_set_the_cache_folder(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert fetching.cache_folder() == home / "cache"
    monkeypatch.delenv("LANG_ENVS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert fetching.cache_folder() == home / "xdg" / "lang-envs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetching.cache_folder() == home / "home" / ".cache" / "lang-envs"


def test_a_set_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("a,label\n" + "1,x\n2,y\n" * 4)
    name = f"csv:{file}?target=label"
    first = load_dataset(name)
    assert load_dataset(name) is first, "environments side by side share it"
    file.write_text("a,label\n" + "1,x\n2,y\n" * 5)
    assert len(load_dataset(name).y) == 10


def test_no_two_sets_share_files() -> None:
    names = ["kaggle:a/b-c", "kaggle:a-b/c", "kaggle:a/b?file=c", "kaggle:a/b/1", "openml:61", *DATASETS]
    assert len({find(name).stem for name in names}) == len(names)
    assert not any("/" in find(name).stem for name in names)


# The commands


def test_datasets_command_shows_where_each_set_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert len(rows) == len(DATASETS) + 1
    assert re.fullmatch(r"airlines +2000 +7 +2 +openml:1169 +none; run: .* fetch airlines", rows["airlines"])
    assert re.fullmatch(r"tic-tac-toe +95 +9 +2 +openml:50 +generated", rows["tic-tac-toe"])


def test_fetch_command_continues_after_a_failure(openml_server: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    offer_openml(openml_server, 61, ARFF, default_target_attribute="play")
    assert main(["fetch", "nonsense", "balance-scale", "openml:61"]) == 1
    shown = capsys.readouterr()
    assert "nonsense: there is no data set 'nonsense'" in shown.err
    assert "downloading openml:61" in shown.err
    assert "balance-scale: no download needed (generated)" in shown.out
    assert re.search(r"openml:61: /.*\.arff", shown.out)
    next(fetching.datasets_folder().glob("*.arff")).write_text("")
    assert main(["fetch", "openml:61"]) == 0, "a damaged file is downloaded again"
    assert datasets.load_dataset("openml:61").x.shape == (3, 3)


def test_row_order_of_an_own_set_depends_on_all_labels(tmp_path: Path) -> None:
    """Else a file that is sorted by class and by features would tell labels by where a row is."""
    rows = [(number, number // 50) for number in range(100)]
    found = []
    for name, flipped in (("one", 0), ("same", 0), ("other", 99)):
        labels = [label ^ (number == flipped and name == "other") for number, label in rows]
        file = tmp_path / f"{name}.csv"
        file.write_text("x,y\n" + "".join(f"{n}.5,{label}\n" for (n, _), label in zip(rows, labels, strict=True)))
        found.append(load_dataset(f"csv:{file}?target=y"))
    one, same, other = ([float(value) for value in dataset.x[:, 0]] for dataset in found)
    assert sorted(one) == sorted(other) == [number + 0.5 for number, _ in rows]
    assert one == same != other
    assert all((found[0].y == (found[0].x[:, 0] > 50)).tolist()), "labels go with their rows"
