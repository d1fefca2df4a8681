"""Data sets from OpenML and Kaggle, through the clients of both, into a cache that checks what it holds."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import logging
import os
import shlex
import shutil
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO
from xml.parsers.expat import ExpatError

from lang_envs.datascicoding.catalog import Entry, find
from lang_envs.datascicoding.pruning import prune
from lang_envs.datascicoding.tables import read_table
from lang_envs.files import at_home, locked, open_regular, read_object

_LOG = logging.getLogger(__name__)
_MAX_TABLE = 4 << 30
_MAX_RATIO = 100
"""Tables of text seldom shrink to less than a twentieth; what is made to fill a disk, to a thousandth."""
_ALWAYS_UNPACKED = 64 << 20
_MAX_MEMBERS = 10_000
_CLIENTS = threading.Lock()
"""The clients are configured for the whole process, so one fetches at a time."""


def cache_folder() -> Path:
    """``LANG_ENVS_CACHE_DIR``, else ``lang-envs`` in ``XDG_CACHE_HOME``, else ``~/.cache/lang-envs``."""
    if own := os.environ.get("LANG_ENVS_CACHE_DIR"):
        return at_home(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else at_home("~/.cache")) / "lang-envs"


def fetch_command(name: str) -> str:
    return f"python -m lang_envs fetch {shlex.quote(name)}"


def cached(entry: Entry) -> tuple[Path, Entry] | None:
    """The file of a set in the cache, and its row with what the source told of the columns; None if it isn't there.

    Raises
    ------
    ValueError
        If the file is not, byte for byte, what was fetched.
    """
    record_path = path = _folder() / f"{entry.stem}.json"
    found, expected, target, drop = "", "-", None, ()
    try:
        record = read_object(record_path, "file", "sha256", "target", "drop")
        name, target, drop = record["file"], record["target"], tuple(record["drop"])
        if not all(isinstance(text, str) for text in (name, *drop)) or not isinstance(target, str | None):
            raise ValueError(f"{record_path} is damaged")
        if Path(name).name != name or not name.startswith(f"{entry.stem}."):
            raise ValueError(f"{record_path} names a file elsewhere")
        path = record_path.parent / name
        found, expected = _sha256(path), record["sha256"]
    except FileNotFoundError:
        if path == record_path:
            return None
    except (ValueError, TypeError, OSError):
        pass
    if found != expected:
        raise ValueError(f"{path} is missing or is not what was fetched; fetch it anew: {fetch_command(entry.name)}")
    return path, replace(entry, target=entry.target or target, drop=entry.drop or drop)


def fetch(name: str, *, force: bool = False, progress: Callable[[str], None] | None = None) -> Path:
    """Download a data set into the cache, unless it is there; return the file.

    It may be stopped at any point: what is in the cache stays whole, and what Kaggle's client had received it continues
    where the server can; OpenML's client starts anew. Of several processes one downloads and the others wait.

    Parameters
    ----------
    name
        A set of the table or a specification, as `load_dataset` takes it.
    force
        Download even if the cache has it.
    progress
        Called with a line of text whenever something new begins; without it, the lines are logged.

    Raises
    ------
    ImportError
        If the client of the source is not installed.
    PermissionError
        If Kaggle wants credentials, or the rules of a competition accepted.
    OSError
        If the source can't be reached or does not have it, or the cache can't be written.
    ValueError
        If there is no such set, nothing to fetch of it, or what came is not a table of the known shape.
    """
    entry = find(name)
    tell = progress or _LOG.info
    if entry.kind not in ("openml", "kaggle"):
        raise ValueError(f"{name} has nothing to fetch: only sets of OpenML and Kaggle are downloaded")
    staging = _folder() / ".partial" / entry.stem
    for place in (staging.parent, staging):
        if place.is_symlink():
            raise ValueError(f"{place} is a symbolic link, and no file is written through one: delete it")
    staging.mkdir(parents=True, exist_ok=True)
    with _locked(entry, tell):
        if not force:
            try:
                if found := cached(entry):
                    tell(f"{entry.name} is in the cache")
                    return found[0]
            except ValueError:
                tell(f"{entry.name} is damaged in the cache and is fetched anew")
        if force or entry.kind == "openml":  # OpenML's client takes a file that is cut off for a whole one
            shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, exist_ok=True)
        tell(f"downloading {entry.name} ({entry.source})")
        try:
            path, entry = (_from_openml if entry.kind == "openml" else _from_kaggle)(entry, staging)
            if entry.target is not None:
                tell(f"checking {entry.name}")
                prune(read_table(path), entry)
            stored = _store(entry, path, staging)
        except ValueError:  # a bad file is not worth continuing
            shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging, ignore_errors=True)
    return stored


def _folder() -> Path:
    return cache_folder() / "datasets"


@contextlib.contextmanager
def _locked(entry: Entry, tell: Callable[[str], None]) -> Iterator[None]:
    def wait() -> None:
        tell(f"waiting for another process that is fetching {entry.name}")

    with locked(_folder() / f"{entry.stem}.lock", wait), _CLIENTS:
        yield


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _store(entry: Entry, source: Path, staging: Path) -> Path:
    """Put a file under the name of its content, then the record that points to it: no moment shows half of either."""
    if (size := source.stat().st_size) > _MAX_TABLE:
        raise ValueError(f"{entry.name}: the file has {size:,} bytes, and more than {_MAX_TABLE:,} are not kept")
    digest = _sha256(source)
    path = _folder() / f"{entry.stem}.{digest[:16]}{source.suffix.lower()}"
    with open_regular(source) as file:
        _write(path, file, staging)
    record = {"file": path.name, "sha256": digest, "source": entry.source, "target": entry.target, "drop": entry.drop}
    _write(path.parent / f"{entry.stem}.json", io.BytesIO(json.dumps(record, indent=1).encode()), staging)
    return path


def _write(path: Path, content: io.BufferedIOBase, staging: Path) -> None:
    unfinished = staging / "to-store.unfinished"
    unfinished.unlink(missing_ok=True)
    with unfinished.open("xb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the clients from printing, and from setting up logging for the whole process."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.getLogger().removeHandler(handler)


def _from_openml(entry: Entry, staging: Path) -> tuple[Path, Entry]:
    try:
        import openml
    except ImportError as error:
        raise _no_client(entry, "OpenML", error) from None
    before = openml.config.get_config_as_dict()["cachedir"]
    skip = os.environ.get("OPENML_SKIP_PARQUET")
    openml.config.set_root_cache_directory(staging)
    os.environ["OPENML_SKIP_PARQUET"] = "true"  # ARFF declares the order of categories, and has a checksum
    try:
        with _quiet():
            found = openml.datasets.get_dataset(int(entry.address), download_data=True)
    except (openml.exceptions.PyOpenMLError, OSError, ExpatError) as error:
        raise ConnectionError(f"OpenML did not give {entry.name} ({entry.source}): {error}") from error
    finally:
        openml.config.set_root_cache_directory(before)
        if skip is None:
            del os.environ["OPENML_SKIP_PARQUET"]
        else:
            os.environ["OPENML_SKIP_PARQUET"] = skip
    unused = ",".join(filter(None, [found.row_id_attribute, *(found.ignore_attribute or ())]))
    drop = entry.drop or tuple(name.strip() for name in unused.split(",") if name.strip())
    if found.data_file is None:
        raise ConnectionError(f"OpenML has no ARFF file of {entry.name} ({entry.source})")
    return Path(found.data_file), replace(entry, target=entry.target or found.default_target_attribute, drop=drop)


def _from_kaggle(entry: Entry, staging: Path) -> tuple[Path, Entry]:
    signed_in = True
    try:
        with _quiet():
            import requests
            from kaggle import api

            api.authenticate()
    except ImportError as error:
        raise _no_client(entry, "Kaggle", error) from None
    except SystemExit:  # it finds no credentials; data sets may be had without, those of competitions not
        signed_in = False
    except requests.RequestException as error:
        raise ConnectionError(f"Kaggle can't be reached for {entry.name}: {error}") from error
    if entry.competition and not signed_in:
        raise PermissionError(_credentials(entry, "no Kaggle credentials were found"))
    whole = {"path": str(staging), "quiet": True}
    try:
        with _quiet():
            if entry.competition and entry.file:
                api.competition_download_file(entry.competition, entry.file, **whole)
            elif entry.file:
                api.dataset_download_file(entry.address, entry.file, **whole)
            else:
                api.dataset_download_files(entry.address, **whole)
    except requests.HTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403):
            reason = f"Kaggle refuses it ({error})" if signed_in else "no Kaggle credentials were found"
            raise PermissionError(_credentials(entry, reason)) from error
        raise ConnectionError(f"Kaggle did not give {entry.name} ({entry.source}): {error}") from error
    except OSError as error:
        raise ConnectionError(f"Kaggle did not give {entry.name} ({entry.source}): {error}") from error
    aside = (".kaggle-partial", ".unfinished")
    received = [path for path in staging.iterdir() if not path.is_dir() and path.suffix not in aside]
    if len(received) != 1:
        raise ValueError(f"{entry.name}: Kaggle's client left {len(received)} files where there should be one")
    open_regular(received[0]).close()
    return (_unpacked(entry, received[0]) if zipfile.is_zipfile(received[0]) else received[0]), entry


def _unpacked(entry: Entry, archive: Path) -> Path:
    """The one table in a ZIP file: the one named by ``file``, or the only one, or the only one with the target."""
    try:
        with zipfile.ZipFile(archive) as content:
            if len(content.filelist) > _MAX_MEMBERS:
                raise ValueError(f"{archive} holds more than {_MAX_MEMBERS:,} files")
            tables = [name for name in content.namelist() if name.lower().endswith((".csv", ".arff"))]
            chosen = tables
            if entry.file:
                chosen = [name for name in tables if entry.file in (name, Path(name).name)]
            elif len(tables) > 1 and entry.target:
                chosen = [name for name in tables if entry.target in _header(content, name)]
            if len(chosen) != 1:
                raise ValueError(
                    f"which table of {entry.source}? It has {', '.join(map(repr, tables)) or 'none'}; "
                    f"name one: {entry.source}?file=NAME&target=COLUMN"
                )
            path = archive.parent / "unpacked" / f"table{Path(chosen[0]).suffix.lower()}"
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.mkdir()
            with content.open(chosen[0]) as source, path.open("xb") as copy:
                _copy(source, copy, content.getinfo(chosen[0]))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{archive} can't be unpacked: {error}; fetch it anew: {fetch_command(entry.name)}") from error
    return path


def _copy(source: IO[bytes], copy: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Unpack a file no further than its archive declares, and not at all where that is out of all proportion."""
    most = min(_MAX_TABLE, max(_MAX_RATIO * member.compress_size, _ALWAYS_UNPACKED))
    if member.file_size > most:
        raise ValueError(
            f"{member.filename!r:.200} is {member.compress_size:,} bytes that declare to unpack to "
            f"{member.file_size:,}, and at most {most:,} are unpacked"
        )
    left = member.file_size
    while part := source.read(1 << 20):
        left -= len(part)
        if left < 0:
            raise ValueError(f"{member.filename!r:.200} unpacks to more than the {member.file_size:,} bytes declared")
        copy.write(part)


def _header(content: zipfile.ZipFile, name: str) -> list[str]:
    with content.open(name) as file:
        first = file.readline(1 << 20).decode("utf-8-sig", errors="replace")
    return [column.strip() for column in next(csv.reader([first]), [])]


def _no_client(entry: Entry, source: str, error: ImportError) -> ImportError:
    return ImportError(f"{entry.name} needs the client of {source} ({error}): pip install 'lang-envs[data]'")


def _credentials(entry: Entry, reason: str) -> str:
    rules = (
        f" It is the data of a competition: accept its rules on https://www.kaggle.com/c/{entry.competition}/rules."
        if entry.competition
        else ""
    )
    return (
        f"{entry.name} comes from Kaggle, and {reason}. Make a token on https://www.kaggle.com/settings/api and set "
        "KAGGLE_API_TOKEN to it or store it as ~/.kaggle/access_token; a legacy key works as ~/.kaggle/kaggle.json or "
        f"in KAGGLE_USERNAME and KAGGLE_KEY.{rules} Then: {fetch_command(entry.name)}"
    )
