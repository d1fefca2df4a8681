"""Random programs: bodies of ``build_model(x_train, y_train)`` with scikit-learn, drawn from a grammar.

The grammar has many classifiers, arguments and preprocessing steps. Every choice is uniform, and no score was used to
select them. Half of the programs are then broken on purpose, in ways in which real programs break. Values that would
make a fit slow are not in the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

MAX_CHARACTERS = 280
"""Longer programs are drawn again: an action has at most 128 tokens."""

MODULES = {
    "calibration": "CalibratedClassifierCV",
    "decomposition": "PCA",
    "discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "dummy": "DummyClassifier",
    "ensemble": "AdaBoostClassifier BaggingClassifier ExtraTreesClassifier GradientBoostingClassifier "
    "HistGradientBoostingClassifier RandomForestClassifier RandomForestRegressor StackingClassifier VotingClassifier",
    "feature_selection": "SelectKBest VarianceThreshold",
    "kernel_approximation": "Nystroem",
    "linear_model": "LinearRegression LogisticRegression Perceptron Ridge RidgeClassifier SGDClassifier",
    "multiclass": "OneVsRestClassifier",
    "naive_bayes": "BernoulliNB GaussianNB",
    "neighbors": "KNeighborsClassifier KNeighborsRegressor NearestCentroid",
    "neural_network": "MLPClassifier",
    "pipeline": "make_pipeline",
    "preprocessing": "KBinsDiscretizer MaxAbsScaler MinMaxScaler Normalizer PolynomialFeatures PowerTransformer "
    "QuantileTransformer RobustScaler SplineTransformer StandardScaler",
    "semi_supervised": "LabelPropagation LabelSpreading",
    "svm": "LinearSVC SVC SVR",
    "tree": "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier",
}
MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}

# A row is a call and its optional arguments. One of the values between bars is drawn; @ becomes a call of SIMPLE.
# Arguments inside the call are always used: without them there are no probabilities, or the fit is slow.
CLASSIFIERS: tuple[tuple[str, ...], ...] = (
    ("LogisticRegression()", "C=0.01|0.1|1|10|100", "max_iter=100|200|1000", 'class_weight="balanced"'),
    ("SVC(probability=True)", "C=0.1|1|10|30", 'gamma="scale"|"auto"|0.01|0.1|1', 'kernel="rbf"|"sigmoid"'),
    ("KNeighborsClassifier()", "n_neighbors=1|3|5|10|20|30", 'weights="uniform"|"distance"', "p=1|2"),
    ("DecisionTreeClassifier()", "max_depth=1|2|3|5|10", "min_samples_leaf=1|5|20", 'criterion="gini"|"entropy"'),
    ("ExtraTreeClassifier()", "max_depth=2|5|10", "min_samples_leaf=1|5|20", "random_state=0"),
    (
        "RandomForestClassifier()",
        "n_estimators=10|20|50|100",
        "max_depth=2|3|5|10",
        "min_samples_leaf=1|2|5|10",
        "random_state=0",
    ),
    ("ExtraTreesClassifier()", "n_estimators=10|20|50|100", "max_depth=3|5|10", "min_samples_leaf=2|5|10"),
    ("GradientBoostingClassifier(n_estimators=5|10|20|30)", "learning_rate=0.01|0.1|0.3|1", "max_depth=1|2|3|4"),
    ("HistGradientBoostingClassifier(max_iter=10|20|50)", "learning_rate=0.01|0.1|0.3", "max_depth=2|3|5"),
    ("AdaBoostClassifier(n_estimators=10|20|50)", "estimator=@", "learning_rate=0.01|0.1|0.5|1"),
    ("BaggingClassifier()", "estimator=@", "n_estimators=5|10|20", "max_samples=0.2|0.5|0.8", "max_features=0.5"),
    ('VotingClassifier([("a", @), ("b", @)], voting="soft")',),
    ('StackingClassifier([("a", @), ("b", @)])', "cv=2|3|5"),
    ("CalibratedClassifierCV(@)", "cv=2|3|5", 'method="isotonic"|"sigmoid"'),
    ("OneVsRestClassifier(@)",),
    ("GaussianNB()", "var_smoothing=0.001|0.01|0.1"),
    ("BernoulliNB()", "alpha=0.01|0.1|1|10", "binarize=0.5|1|2"),
    ("LinearDiscriminantAnalysis()", 'solver="lsqr"|"eigen", shrinkage="auto"|0.1|0.5'),
    ("QuadraticDiscriminantAnalysis()", "reg_param=0.01|0.1|0.5"),
    (
        "MLPClassifier(max_iter=10|20|50)",
        "hidden_layer_sizes=(10,)|(32,)|(16, 16)",
        "alpha=0.001|0.1|1",
        'activation="tanh"|"logistic"',
        'solver="lbfgs"|"sgd"',
        "learning_rate_init=0.01|0.1",
    ),
    ('SGDClassifier(loss="log_loss"|"modified_huber")', "alpha=0.00001|0.001|0.01|0.1", 'penalty="l1"|"elasticnet"'),
    ("NearestCentroid()", "shrink_threshold=0.1|0.5|1"),
    ('LabelSpreading(kernel="knn")', "n_neighbors=3|7|20", "alpha=0.1|0.2|0.8"),
    ('LabelPropagation(kernel="knn")', "n_neighbors=3|7|20"),
    ("DummyClassifier()", 'strategy="prior"|"stratified"|"uniform"|"most_frequent"'),
)
SIMPLE = "DecisionTreeClassifier(max_depth=1|2|3|5)", "GaussianNB()", "LogisticRegression(C=0.1|1|10)"
STEPS: tuple[tuple[str, ...], ...] = (
    ("StandardScaler()",),
    ("MinMaxScaler()",),
    ("MaxAbsScaler()",),
    ("RobustScaler()",),
    ("Normalizer()",),
    ("PowerTransformer()",),
    ('QuantileTransformer(n_quantiles=10|20|30, output_distribution="normal"|"uniform")',),
    ('KBinsDiscretizer(n_bins=3|5|10, encode="ordinal"|"onehot-dense")',),
    ("SplineTransformer()", "n_knots=3|4|5", "degree=1|2|3"),
    ("PolynomialFeatures(2)", "interaction_only=True"),
    ("Nystroem()", "n_components=10|20|50", "gamma=0.01|0.1|1"),
    ("PCA()", "n_components=2|3|0.9|0.95", "whiten=True"),
    ("SelectKBest(k=2|3|4)",),
    ("VarianceThreshold()", "threshold=0.01|0.1"),
)
FITS = "model = {}\n    model.fit(x_train, y_train)", "model = {}.fit(x_train, y_train)"
# Steps that multiply the number of features, before steps or classifiers that are slow with many features.
WIDE = "Spline|Polynomial|KBins|Nystroem"
TOO_SLOW = re.compile(rf"({WIDE})\w*\(.*({WIDE}|Power|Bagging|Forest|Boost|Trees|SVC)")
WITHOUT_PROBABILITIES: tuple[tuple[str, ...], ...] = (
    ("LinearSVC()", "C=0.01|0.1|1|10", 'class_weight="balanced"'),
    ("SVC()", "C=0.1|1|10|100", 'gamma="scale"|"auto"|0.01|0.1|1', 'kernel="rbf"|"sigmoid"'),
    ("RidgeClassifier()", "alpha=0.1|1|10", 'class_weight="balanced"'),
    ("Perceptron()", "alpha=0.0001|0.01", 'penalty="l1"|"l2"'),
    ("SGDClassifier()", 'loss="hinge"|"squared_hinge"', "alpha=0.001|0.01|0.1"),
    ('VotingClassifier([("a", @), ("b", @)])',),
    ("LinearRegression()",),
    ("Ridge()", "alpha=0.1|1|10"),
    ("SVR()", "C=0.1|1|10", "gamma=0.01|0.1|1"),
    ("KNeighborsRegressor()", "n_neighbors=1|3|5|10|20"),
    ("DecisionTreeRegressor()", "max_depth=2|3|5|10", "min_samples_leaf=1|5|20"),
    ("RandomForestRegressor(n_estimators=5|10|20)", "max_depth=2|3|5"),
)
# Ways to break a working program: a regular expression, and templates for what replaces its match.
MISSPELT = r"\2\1", r"\1", r"\1\2\2"
BREAKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "no probabilities": ("^", ("",)),  # nothing is replaced: the classifier comes from WITHOUT_PROBABILITIES
    "forgotten import": (r"from .*\n    ", ("",)),
    "wrong module": (r"sklearn\.\w+", ("sklearn", *(f"sklearn.{module}" for module in MODULES))),
    "misspelt module": (r"([a-z])([a-z])(?=\w* import)", MISSPELT),
    "misspelt name": (r"(?<=\w)([a-z])([a-z])(?=\w*\()", MISSPELT),
    "misspelt argument": (r"([a-z])([a-z])(?=\w*=[^ ])", MISSPELT),
    "argument of another": (r"\w+(?==[^ ])", ("C", "alpha", "n_estimators", "n_neighbors", "n_iter", "k")),
    "invalid value": (r'(?<=\w=)(?!True)["\w.]+', ("-1", "-0.5", '"best"', '"10"', "[1]", "(1, 2)")),
    "missing comma": (r", (?=\w+=|y_train)", (" ",)),
    "missing quote": (r'"(\w+)"', (r"\1", r'"\1', r'\1"')),
    "class for instance": (r"(?<=[(, ])([A-Z]\w+)\(\)", (r"\1",)),
    "pipeline": (
        r"make_pipeline\((\w+\([^()]*\)), (.+?)\)(?=\n|\.fit)",
        (
            r"make_pipeline(\2, \1)",
            r"make_pipeline(\1)",
            r"make_pipeline([\1, \2])",
            r"make_pipeline(\1 \2)",
            r"Pipeline(\1, \2)",
        ),
    ),
    "missing fit": (r"(\n    model)?\.fit.*", ("",)),
    "wrong method": (r"\.fit", (".train", ".fit_transform", ".predict", ".learn")),
    "fit without labels": ("x_train, y_train", ("x_train",)),
    "swapped data": ("x_train, y_train", ("y_train, x_train",)),
    "wrong data": ("([xy])_train", (r"\1", r"\1_test", r"train_\1", r"\1train", "X_train", "data")),
    "wrong shape": (
        "([xy]_train)",
        (r"\1[0]", r"\1[1:]", r"\1[:, 0]", r"\1[:, :2]", r"\1.reshape(-1, 1)", r"\1.reshape(1, -1)"),
    ),
    "wrong model name": ("model = ", ("clf = ", "classifier = ", "m = ", "")),
    "fit before creation": (r"(model = .+)\n    (model\.fit.+)", (r"\2\n    \1",)),
    "not the model": (r"$", (r"\n    model = model.predict(x_train)", r"\n    model = model.predict_proba(x_train)")),
    "parentheses": (r"\)", ("", "))", "]")),
    "indentation": (r"\n    ", (r"\n  ", r"\n     ", r"\n        ")),
    "line break": (r"\n    ", (" ",)),
}


class Program(NamedTuple):
    """A random program."""

    text: str
    """The body of ``build_model``."""
    classifier: str
    """Class name of the classifier."""
    breakage: str
    """A key of ``BREAKAGES``; empty for a working program."""


def random_program(rng: np.random.Generator) -> str:
    """Draw the body of ``build_model``; half of the programs work.

    The first line is not indented, because it follows the indentation in the prompt; the other lines are.
    """
    return draw(rng).text


def draw(rng: np.random.Generator) -> Program:
    """Draw a program.

    Programs that are too long, too slow, or cannot be broken in the drawn way are drawn again. The way, and the
    classifier of a working program, are drawn only once, so all ways and all classifiers are equally frequent.
    """
    breakage = _one(rng, BREAKAGES) if rng.random() < 0.5 else ""
    if breakage:
        table = WITHOUT_PROBABILITIES if breakage == "no probabilities" else CLASSIFIERS
    else:
        table = (CLASSIFIERS[rng.integers(len(CLASSIFIERS))],)
    while True:
        call = _call(rng, table, 2)
        steps = [_call(rng, STEPS, 1) for _ in range(rng.integers(3))]
        model = f"make_pipeline({', '.join([*steps, call])})" if steps else call
        working = _imports(model) + _one(rng, FITS).format(model)
        text = _replace(rng, working, *BREAKAGES[breakage]) if breakage else working
        if (
            len(text) <= MAX_CHARACTERS
            and not TOO_SLOW.search(model)
            and (text != working or breakage in ("", "no probabilities"))
        ):
            return Program(text, call[: call.index("(")], breakage)


def _one(rng: np.random.Generator, choices: Iterable[str]) -> str:
    choices = tuple(choices)
    return choices[rng.integers(len(choices))]


def _call(rng: np.random.Generator, table: tuple[tuple[str, ...], ...], most: int) -> str:
    """Draw a row of a table, and 0 to ``most`` of its optional arguments."""
    call, *more = table[rng.integers(len(table))]
    chosen = rng.choice(len(more), rng.integers(min(most, len(more)) + 1), replace=False)
    arguments = ", ".join(more[index] for index in sorted(chosen))
    if arguments:
        call = f"{call[:-1]}{'' if call.endswith('()') else ', '}{arguments})"
    call = re.sub("@", lambda _: _one(rng, SIMPLE), call)
    value = r'(?:\([\d, ]+\)|[\w."-]+(?:\(\))?)'
    return re.sub(rf"{value}(?:\|{value})+", lambda found: _one(rng, found[0].split("|")), call)


def _imports(model: str) -> str:
    """Return the import statements that an expression needs, one line for each module."""
    called = sorted(set(re.findall(r"\w+(?=\()", model)))
    lines: dict[str, list[str]] = {}
    for name in called:
        lines.setdefault(MODULE_OF[name], []).append(name)
    return "".join(f"from sklearn.{module} import {', '.join(names)}\n    " for module, names in sorted(lines.items()))


def _replace(rng: np.random.Generator, text: str, pattern: str, templates: tuple[str, ...]) -> str:
    """Replace one random match of a pattern; return the same text if there is none."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    place = found[rng.integers(len(found))]
    return text[: place.start()] + place.expand(_one(rng, templates)) + text[place.end() :]
