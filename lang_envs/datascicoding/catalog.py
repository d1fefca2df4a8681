"""Which data sets there are and where their source is; how a set of the user's own is named."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote

SHIPPED = ("breast_cancer", "digits", "iris", "wine")
"""The sets with classes that come with scikit-learn."""
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
class Entry:
    """A row of the table of data sets.

    ``source`` is ``openml:ID``, ``kaggle:owner/name``, ``kaggle:competition/name``, ``csv:path`` or ``sklearn:name``;
    ``file`` names one of several files there. Of the whole set one row in ``one_in`` is kept, and no more than 2000.
    ``rows``, ``features`` and ``classes`` are what pruning must leave; None where that is not known.
    """

    name: str
    title: str
    source: str
    target: str | None = None
    drop: tuple[str, ...] = ()
    file: str | None = None
    one_in: int = 1
    rows: int | None = None
    features: int | None = None
    classes: int | None = None

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]

    @property
    def address(self) -> str:
        return self.source.partition(":")[2]

    @property
    def competition(self) -> str | None:
        """The Kaggle competition whose data this is."""
        return self.address.removeprefix("competition/") if self.source.startswith("kaggle:competition/") else None

    @property
    def stem(self) -> str:
        """Its files are called this, and no other set's are."""
        return quote(self.name, safe=":")


DATASETS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("airlines", "Airlines", "openml:1169", "Delay", rows=2000, features=7, classes=2),
        Entry("balance-scale", "Balance Scale", "openml:11", "class", one_in=5, rows=125, features=4, classes=3),
        Entry("breast-w", "Wisconsin Breast Cancer", "openml:15", "Class", one_in=10, rows=69, features=9, classes=2),
        Entry("cmc", "Contraceptive Method Choice", "openml:23", "Contraceptive_method_used"),
        Entry("credit-g", "German Credit", "openml:31", "class"),
        Entry("diabetes", "Pima Indians Diabetes", "openml:37", "class"),
        Entry("eucalyptus", "Eucalyptus Soil Conservation", "openml:188", "Utility"),
        Entry(
            "health-insurance",
            "Health Insurance Lead Prediction",
            "kaggle:owaiskhan9654/health-insurance-lead-prediction-raw-data",
            "Response",
            drop=("ID",),
            rows=2000,
            features=12,
            classes=2,
        ),
        Entry("jungle-chess", "Jungle Chess Endgame", "openml:41027", "class"),
        Entry(
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
        Entry("pc1", "PC1 Software Defects", "openml:1068", "defects"),
        Entry(
            "pharyngitis",
            "Pharyngitis",
            "kaggle:yoshifumimiya/pharyngitis",
            "radt",
            drop=("number",),
            rows=512,
            features=18,
            classes=2,
        ),
        Entry(
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
        Entry("tic-tac-toe", "Tic-Tac-Toe Endgame", "openml:50", "Class", one_in=10, rows=95),
    )
}


def find(name: str) -> Entry:
    """The row of the table that is called ``name``, or one made from a specification such as ``"openml:61"``.

    A specification takes options as an address of the web does: ``kaggle:owner/name?file=a.csv&target=label``,
    ``csv:path?target=label&drop=id``. The specification of a set of the table is that set.

    Raises
    ------
    ValueError
        If there is no such set, or the specification is malformed.
    """
    if name in DATASETS:
        return DATASETS[name]
    kind, separator, rest = name.partition(":")
    if not separator or kind not in _SOURCES:
        near = difflib.get_close_matches(name.lower(), DATASETS, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"there is no data set {name!r}{hint} The sets are {', '.join(DATASETS)}; of your own: {_FORMS}"
        )
    address, question, query = rest.rpartition("?") if re.search(r"\?\w+=", rest) else (rest, "", "")
    if not re.fullmatch(_SOURCES[kind], address):
        raise ValueError(f"the data set {name!r} is not of a form known here: {_FORMS}")
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if question else {}
    except ValueError:
        raise ValueError(
            f"what follows the ? of the data set {name!r} is not of the form name=value&name=value"
        ) from None
    if strange := [option for option in options if option not in _OPTIONS[kind]]:
        takes = ", ".join(_OPTIONS[kind]) or "no options"
        raise ValueError(f"the data set {name!r} has the option {strange[0]!r}; {kind}: takes {takes}")
    source = f"{kind}:{address}"
    for entry in DATASETS.values():
        if entry.source == source and not options:
            return entry
    if kind == "sklearn" and address not in SHIPPED:
        raise ValueError(f"the data set {name!r} is not one of scikit-learn's sets with classes: {', '.join(SHIPPED)}")
    file = options.get("file") or ("train.csv" if address.startswith("competition/") and kind == "kaggle" else None)
    return Entry(
        name=source + (f"?file={options['file']}" if "file" in options else ""),
        title={"openml": source, "csv": Path(address).stem}.get(kind, address.split("/")[min(1, address.count("/"))]),
        source=source,
        target=options.get("target") or ("target" if kind == "sklearn" else None),
        drop=tuple(filter(None, options.get("drop", "").split(","))),
        file=file,
    )
