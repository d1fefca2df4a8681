"""Downloading data sets from OpenML and Kaggle, with their own clients, into a cache that checks its files."""

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

from lang_envs.datascicoding.catalog import DatasetEntry, find
from lang_envs.datascicoding.pruning import prune
from lang_envs.datascicoding.tables import read_table
from lang_envs.files import at_home, locked, open_regular, read_object

_LOG = logging.getLogger(__name__)
_MAX_TABLE_BYTES = 4 << 30
_MAX_RATIO = 100
"""Greatest compression ratio: text tables have at most about 20, archives made to fill a disk about 1000."""
_ALWAYS_UNPACKED_BYTES = 64 << 20
"""Files up to this size are unpacked at any compression ratio."""
_MAX_MEMBERS = 10_000
_COPIED_BYTES = 1 << 20
"""Bytes that are copied at once, and the longest header."""
_CLIENTS = threading.Lock()
"""The clients have one configuration for the whole process, so only one data set is downloaded at a time."""


def cache_folder() -> Path:
    """Return ``LANG_ENVS_CACHE_DIR``, or ``lang-envs`` in ``XDG_CACHE_HOME``, or ``~/.cache/lang-envs``."""
    if own := os.environ.get("LANG_ENVS_CACHE_DIR"):
        return at_home(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else at_home("~/.cache")) / "lang-envs"


def fetch_command(name: str) -> str:
    """Return the shell command that downloads a data set."""
    return f"python -m lang_envs fetch {shlex.quote(name)}"


def cached(entry: DatasetEntry) -> tuple[Path, DatasetEntry] | None:
    """Look up a data set in the cache.

    Returns
    -------
    (Path, DatasetEntry) or None
        The file, and the entry completed with the columns that the source named; None if it is not in the cache.

    Raises
    ------
    ValueError
        If the file is not byte for byte what was downloaded.
    """
    record_path = path = datasets_folder() / f"{entry.stem}.json"
    found, expected, target, drop = "", "-", None, ()
    try:
        record = read_object(record_path, "file", "sha256", "target", "drop")
        name, target, drop = record["file"], record["target"], tuple(record["drop"])
        if not all(isinstance(text, str) for text in (name, *drop)) or not isinstance(target, str | None):
            raise ValueError(f"{record_path} is damaged")
        if Path(name).name != name or not name.startswith(f"{entry.stem}."):
            raise ValueError(f"{record_path} names a file in another folder")
        path = record_path.parent / name
        found, expected = sha256(path), record["sha256"]
    except FileNotFoundError:
        if path == record_path:
            return None
    except (ValueError, TypeError, OSError):
        pass
    if found != expected:
        raise ValueError(f"{path} is missing or damaged. Download it again: {fetch_command(entry.name)}")
    return path, replace(entry, target=entry.target or target, drop=entry.drop or drop)


def fetch(name: str, *, force: bool = False, progress: Callable[[str], None] | None = None) -> Path:
    """Download a data set into the cache, unless it is there.

    The download can be interrupted at any time: files in the cache are always complete. A Kaggle download continues
    where it stopped if the server supports it; an OpenML download starts again. Of several processes, one downloads and
    the others wait.

    Parameters
    ----------
    name : str
        A registered name or a specification, see :func:`load_dataset`.
    force : bool
        Download even if the data set is in the cache.
    progress : callable, optional
        Called with a line of text when a new phase begins; without it, the lines are logged.

    Returns
    -------
    Path
        The file in the cache.

    Raises
    ------
    ImportError
        If the client of the source is not installed.
    PermissionError
        If Kaggle requires credentials, or the rules of a competition must be accepted.
    OSError
        If the source cannot be reached or does not have the data set, or the cache cannot be written.
    ValueError
        If there is no such data set, it is not downloadable, or the downloaded table does not have the expected size.
    """
    entry = find(name)
    tell = progress or _LOG.info
    if entry.kind not in ("openml", "kaggle"):
        raise ValueError(f"{name} cannot be downloaded: expected a data set of OpenML or Kaggle")
    staging = datasets_folder() / ".partial" / entry.stem
    for place in (staging.parent, staging):
        if place.is_symlink():
            raise ValueError(f"{place} is a symbolic link, and files are not written through links: delete it")
    staging.mkdir(parents=True, exist_ok=True)
    with fetch_lock(entry, tell):
        if not force:
            try:
                if found := cached(entry):
                    tell(f"{entry.name} is in the cache")
                    return found[0]
            except ValueError:
                tell(f"{entry.name} is damaged in the cache and is downloaded again")
        if force or entry.kind == "openml":  # OpenML's client would accept an incomplete file
            shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, exist_ok=True)
        tell(f"downloading {entry.name} ({entry.source})")
        try:
            path, entry = (_from_openml if entry.kind == "openml" else _from_kaggle)(entry, staging)
            if entry.target is not None:
                tell(f"checking {entry.name}")
                prune(read_table(path), entry)
            stored = store(entry, path, staging)
        except ValueError:  # continuing an invalid download is useless
            shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging, ignore_errors=True)
    return stored


def datasets_folder() -> Path:
    """Return the folder of the cache that holds data sets."""
    return cache_folder() / "datasets"


@contextlib.contextmanager
def fetch_lock(entry: DatasetEntry, tell: Callable[[str], None]) -> Iterator[None]:
    """Let only one process, and one thread of it, download a data set.

    Raises
    ------
    ValueError
        If the lock file is a symbolic link or not a regular file.
    """

    def wait() -> None:
        tell(f"waiting for another process that is downloading {entry.name}")

    with locked(datasets_folder() / f"{entry.stem}.lock", wait), _CLIENTS:
        yield


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def store(entry: DatasetEntry, source: Path, staging: Path) -> Path:
    """Copy a file into the cache under a hash of its content, then write the record that names it; both atomically.

    Raises
    ------
    ValueError
        If the file is too large or not a regular file.
    """
    if (size := source.stat().st_size) > _MAX_TABLE_BYTES:
        raise ValueError(f"{entry.name}: the file has {size:,} bytes, expected at most {_MAX_TABLE_BYTES:,}")
    digest = sha256(source)
    path = datasets_folder() / f"{entry.stem}.{digest[:16]}{source.suffix.lower()}"
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
    """Keep the clients from printing, and from configuring logging for the whole process."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.getLogger().removeHandler(handler)


def _from_openml(entry: DatasetEntry, staging: Path) -> tuple[Path, DatasetEntry]:
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
        raise ConnectionError(f"OpenML did not deliver {entry.name} ({entry.source}): {error}") from error
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


def _from_kaggle(entry: DatasetEntry, staging: Path) -> tuple[Path, DatasetEntry]:
    signed_in = True
    try:
        with _quiet():
            import requests
            from kaggle import api

            api.authenticate()
    except ImportError as error:
        raise _no_client(entry, "Kaggle", error) from None
    except SystemExit:  # no credentials: data sets can be downloaded without them, those of competitions cannot
        signed_in = False
    except requests.RequestException as error:
        raise ConnectionError(f"Kaggle cannot be reached for {entry.name}: {error}") from error
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
        raise ConnectionError(f"Kaggle did not deliver {entry.name} ({entry.source}): {error}") from error
    except OSError as error:
        raise ConnectionError(f"Kaggle did not deliver {entry.name} ({entry.source}): {error}") from error
    temporary = (".kaggle-partial", ".unfinished")
    received = [path for path in staging.iterdir() if not path.is_dir() and path.suffix not in temporary]
    if len(received) != 1:
        raise ValueError(f"{entry.name}: Kaggle's client downloaded {len(received)} files, expected one")
    open_regular(received[0]).close()
    return (unpack(entry, received[0]) if zipfile.is_zipfile(received[0]) else received[0]), entry


def unpack(entry: DatasetEntry, archive: Path) -> Path:
    """Unpack the table of a data set from a ZIP file.

    It is the table named by ``entry.file``, or the only table, or the only one that has the target column.

    Raises
    ------
    ValueError
        If there is not exactly one such table, or the archive is damaged or unpacks to too many bytes.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            if len(content.filelist) > _MAX_MEMBERS:
                raise ValueError(f"{archive} contains more than {_MAX_MEMBERS:,} files")
            tables = [name for name in content.namelist() if name.lower().endswith((".csv", ".arff"))]
            chosen = tables
            if entry.file:
                chosen = [name for name in tables if entry.file in (name, Path(name).name)]
            elif len(tables) > 1 and entry.target:
                chosen = [name for name in tables if entry.target in _header(content, name)]
            if len(chosen) != 1:
                raise ValueError(
                    f"{entry.source} has the tables {', '.join(map(repr, tables)) or 'none'}: choose one with "
                    f"{entry.source}?file=NAME&target=COLUMN"
                )
            path = archive.parent / "unpacked" / f"table{Path(chosen[0]).suffix.lower()}"
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.mkdir()
            with content.open(chosen[0]) as source, path.open("xb") as copy:
                _copy(source, copy, content.getinfo(chosen[0]))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f"{archive} cannot be unpacked: {error}. Download it again: {fetch_command(entry.name)}"
        ) from error
    return path


def _copy(source: IO[bytes], copy: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Copy a file out of an archive, up to the size that it declares, if its compression ratio is plausible."""
    most = min(_MAX_TABLE_BYTES, max(_MAX_RATIO * member.compress_size, _ALWAYS_UNPACKED_BYTES))
    if member.file_size > most:
        raise ValueError(
            f"{member.filename!r:.200} has {member.compress_size:,} bytes and declares to unpack to "
            f"{member.file_size:,} bytes, expected at most {most:,}"
        )
    left = member.file_size
    while part := source.read(_COPIED_BYTES):
        left -= len(part)
        if left < 0:
            raise ValueError(
                f"{member.filename!r:.200} unpacks to more than the {member.file_size:,} bytes that it declares"
            )
        copy.write(part)


def _header(content: zipfile.ZipFile, name: str) -> list[str]:
    with content.open(name) as file:
        first = file.readline(_COPIED_BYTES).decode("utf-8-sig", errors="replace")
    return [column.strip() for column in next(csv.reader([first]), [])]


def _no_client(entry: DatasetEntry, source: str, error: ImportError) -> ImportError:
    return ImportError(f"{entry.name} needs the client of {source} ({error}). Run: pip install 'lang-envs[data]'")


def _credentials(entry: DatasetEntry, reason: str) -> str:
    rules = (
        f" It belongs to a competition: accept its rules on https://www.kaggle.com/c/{entry.competition}/rules."
        if entry.competition
        else ""
    )
    return (
        f"{entry.name} comes from Kaggle, and {reason}. Create a token on https://www.kaggle.com/settings/api and set "
        "KAGGLE_API_TOKEN to it, or store it as ~/.kaggle/access_token. A legacy key works as ~/.kaggle/kaggle.json or "
        f"in KAGGLE_USERNAME and KAGGLE_KEY.{rules} Then run: {fetch_command(entry.name)}"
    )
