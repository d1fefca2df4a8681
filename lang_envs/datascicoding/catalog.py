"""The registered data sets with their sources, and specifications of other data sets."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote

SHIPPED = ("breast_cancer", "digits", "iris", "wine")
"""The classification data sets that come with scikit-learn."""
_FORMS = "openml:ID, kaggle:owner/name, kaggle:competition/name, csv:path?target=column, sklearn:wine"
_SOURCES = {
    "openml": r"\d+",
    "kaggle": r"[\w-]+/[\w-]+(/\d+)?",
    "csv": r".+",
    "sklearn": r"\w+",
}
_OPTIONS = {
    "openml": ("target", "drop"),
    "kaggle": ("file", "target", "drop"),
    "csv": ("target", "drop"),
    "sklearn": (),
}


@dataclass(frozen=True)
class DatasetEntry:
    """What is known about a data set before it is loaded."""

    name: str
    title: str
    """Public name."""
    source: str
    """``openml:ID``, ``kaggle:owner/name``, ``kaggle:competition/name``, ``csv:path`` or ``sklearn:name``."""
    target: str | None = None
    """Name of the column with the classes."""
    drop: tuple[str, ...] = ()
    """Names of columns to drop."""
    file: str | None = None
    """Name of the file, if the source has several."""
    one_in: int = 1
    """One row in so many is kept, and at most 2000."""
    rows: int | None = None
    features: int | None = None
    classes: int | None = None
    """Expected size after pruning; None where it is not known."""

    @property
    def kind(self) -> str:
        """The source without the address, such as ``openml``."""
        return self.source.partition(":")[0]

    @property
    def address(self) -> str:
        """The source after the colon."""
        return self.source.partition(":")[2]

    @property
    def competition(self) -> str | None:
        """Name of the Kaggle competition; None for other sources."""
        return self.address.removeprefix("competition/") if self.source.startswith("kaggle:competition/") else None

    @property
    def stem(self) -> str:
        """Name of its files without suffix, which no other data set shares."""
        return quote(self.name, safe=":")


DATASETS: dict[str, DatasetEntry] = {
    entry.name: entry
    for entry in (
        DatasetEntry("airlines", "Airlines", "openml:1169", "Delay", rows=2000, features=7, classes=2),
        DatasetEntry("balance-scale", "Balance Scale", "openml:11", "class", one_in=5, rows=125, features=4, classes=3),
        DatasetEntry(
            "breast-w", "Wisconsin Breast Cancer", "openml:15", "Class", one_in=10, rows=69, features=9, classes=2
        ),
        DatasetEntry("cmc", "Contraceptive Method Choice", "openml:23", "Contraceptive_method_used"),
        DatasetEntry("credit-g", "German Credit", "openml:31", "class"),
        DatasetEntry("diabetes", "Pima Indians Diabetes", "openml:37", "class"),
        DatasetEntry("eucalyptus", "Eucalyptus Soil Conservation", "openml:188", "Utility"),
        DatasetEntry(
            "health-insurance",
            "Health Insurance Lead Prediction",
            "kaggle:owaiskhan9654/health-insurance-lead-prediction-raw-data",
            "Response",
            drop=("ID",),
            rows=2000,
            features=12,
            classes=2,
        ),
        DatasetEntry("jungle-chess", "Jungle Chess Endgame", "openml:41027", "class"),
        DatasetEntry(
            "kidney-stone",
            "Kidney Stone Prediction",
            "kaggle:competition/playground-series-s3e12",
            "target",
            drop=("id",),
            file="train.csv",
            rows=414,
            features=6,
            classes=2,
        ),
        DatasetEntry("pc1", "PC1 Software Defects", "openml:1068", "defects"),
        DatasetEntry(
            "pharyngitis",
            "Pharyngitis",
            "kaggle:yoshifumimiya/pharyngitis",
            "radt",
            drop=("number",),
            rows=512,
            features=18,
            classes=2,
        ),
        DatasetEntry(
            "spaceship-titanic",
            "Spaceship Titanic",
            "kaggle:competition/spaceship-titanic",
            "Transported",
            drop=("PassengerId",),
            file="train.csv",
            rows=2000,
            features=12,
            classes=2,
        ),
        DatasetEntry("tic-tac-toe", "Tic-Tac-Toe Endgame", "openml:50", "Class", one_in=10, rows=95),
    )
}


def find(name: str) -> DatasetEntry:
    """Return the entry of a registered data set, or of a specification such as ``"openml:61"``.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``, or a specification. A specification can have options, as a URL does:
        ``kaggle:owner/name?file=a.csv&target=label``, ``csv:path?target=label&drop=id``. The specification of a
        registered data set, without options, returns the registered entry.

    Raises
    ------
    ValueError
        If there is no such data set, or the specification is malformed.
    """
    if name in DATASETS:
        return DATASETS[name]
    kind, separator, rest = name.partition(":")
    if not separator or kind not in _SOURCES:
        near = difflib.get_close_matches(name.lower(), DATASETS, n=5, cutoff=0.6)
        hint = f" The nearest names are {', '.join(near)}." if near else ""
        raise ValueError(
            f"there is no data set {name!r}.{hint} `python -m lang_envs datasets` lists all. For other data sets, use "
            f"{_FORMS}"
        )
    address, question, query = rest.rpartition("?") if re.search(r"\?\w+=", rest) else (rest, "", "")
    if not re.fullmatch(_SOURCES[kind], address):
        raise ValueError(f"the data set {name!r} has an unknown form: expected one of {_FORMS}")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if question else {}
    except ValueError:
        raise ValueError(
            f"the options of the data set {name!r} (after the ?) must have the form name=value&name=value"
        ) from None
    if strange := [option for option in options if option not in _OPTIONS[kind]]:
        known = ", ".join(_OPTIONS[kind]) or "no options"
        raise ValueError(f"the data set {name!r} has the unknown option {strange[0]!r}; {kind}: has {known}")
    source = f"{kind}:{address}"
    for entry in DATASETS.values():
        if entry.source == source and not options:
            return entry
    if kind == "sklearn" and address not in SHIPPED:
        raise ValueError(f"the data set {name!r} is not one of scikit-learn's: expected {', '.join(SHIPPED)}")
    file = options.get("file") or ("train.csv" if address.startswith("competition/") and kind == "kaggle" else None)
    return DatasetEntry(
        name=source + (f"?file={options['file']}" if "file" in options else ""),
        title={"openml": source, "csv": Path(address).stem}.get(kind, address.split("/")[min(1, address.count("/"))]),
        source=source,
        target=options.get("target") or ("target" if kind == "sklearn" else None),
        drop=tuple(filter(None, options.get("drop", "").split(","))),
        file=file,
    )
