#!/usr/bin/env python3
"""Generates golden values of the metrics of classifiers and regressors, by scikit-learn.

    python3 peers/golden_evaluation.py

Needs scikit-learn; if it is missing, it creates peers/.venv-sklearn and restarts there. Writes
crates/muffle/tests/golden/evaluation.json:
* classes  cases with a target and probabilities for each row. The values are accuracy, the macro-F1
           (over the classes that occur), the confusion matrix over all classes, and the AUROC: of
           class 1 if there are two classes, else the mean over the classes, each against the rest.
* labels   the same for several labels per row: micro-F1, macro-F1 and macro AUROC, threshold 0.5.
* values   targets and predictions: RMSE, MAE, R2.
Probabilities are rounded to a few digits, so that many are equal: ties count as half a pair.
"""

import json
import pathlib
import random

import _venv

_venv.ensure({"sklearn": "scikit-learn>=1.4", "numpy": "numpy"}, "sklearn")

import numpy as np
import sklearn
from sklearn import metrics

OUT = pathlib.Path(__file__).resolve().parent.parent / "crates/muffle/tests/golden/evaluation.json"


def classes(name, seed, rows, count, digits, missing=()):
    """A case with `count` classes; those in `missing` are no row's target."""
    draw = random.Random(seed)
    targets = [draw.choice([k for k in range(count) if k not in missing]) for _ in range(rows)]
    probabilities = []
    for target in targets:
        weights = [round(draw.random() + (0.4 if k == target else 0.0), digits) + 0.1 for k in range(count)]
        probabilities.append([weight / sum(weights) for weight in weights])
    array = np.array(probabilities)
    predicted = array.argmax(axis=1)
    targets_array = np.array(targets)
    if count == 2:
        auroc = metrics.roc_auc_score(targets_array, array[:, 1])
    else:
        present = [k for k in range(count) if 0 < (targets_array == k).sum() < rows]
        auroc = np.mean([metrics.roc_auc_score(targets_array == k, array[:, k]) for k in present])
        if not missing:
            ovr = metrics.roc_auc_score(targets_array, array, multi_class="ovr", average="macro")
            assert abs(auroc - ovr) < 1e-12
    return {
        "name": name, "targets": targets, "probabilities": probabilities,
        "accuracy": metrics.accuracy_score(targets_array, predicted),
        "macro_f1": metrics.f1_score(targets_array, predicted, average="macro"),
        "confusion_matrix": metrics.confusion_matrix(targets_array, predicted, labels=range(count)).tolist(),
        "auroc": float(auroc),
    }


def labels(name, seed, rows, count, digits):
    draw = random.Random(seed)
    targets = [[int(draw.random() < 0.15 + 0.2 * k) for k in range(count)] for _ in range(rows)]
    probabilities = [[round(min(1.0, max(0.0, draw.gauss(0.3 + 0.3 * t, 0.25))), digits) for t in row] for row in targets]
    truth, scores = np.array(targets), np.array(probabilities)
    predicted = scores > 0.5
    return {
        "name": name, "targets": targets, "probabilities": probabilities,
        "micro_f1": metrics.f1_score(truth, predicted, average="micro"),
        "macro_f1": metrics.f1_score(truth, predicted, average="macro"),
        "auroc": metrics.roc_auc_score(truth, scores, average="macro"),
    }


def values(name, seed, rows, offset):
    draw = random.Random(seed)
    targets = [offset + draw.gauss(0.0, 2.0) for _ in range(rows)]
    predictions = [target + draw.gauss(0.3, 1.0) for target in targets]
    return {
        "name": name, "targets": targets, "predictions": predictions,
        "rmse": metrics.mean_squared_error(targets, predictions) ** 0.5,
        "mae": metrics.mean_absolute_error(targets, predictions),
        "r2": metrics.r2_score(targets, predictions),
    }


def main():
    made = {
        "made_by": "peers/golden_evaluation.py", "scikit_learn": sklearn.__version__,
        "classes": [
            classes("two classes, many ties", 1, 60, 2, 1),
            classes("two classes", 2, 40, 2, 6),
            classes("three classes, many ties", 3, 60, 3, 1),
            classes("five classes, one without a row", 4, 50, 5, 2, missing=(2,)),
        ],
        "labels": [labels("three labels, many ties", 5, 50, 3, 1), labels("four labels", 6, 40, 4, 6)],
        "values": [values("centred", 7, 30, 0.0), values("far from zero", 8, 30, 1e6)],
    }
    rows = []
    for name, value in made.items():
        if isinstance(value, list):
            value = "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        else:
            value = json.dumps(value)
        rows.append(f" {json.dumps(name)}: {value}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    for kind in ("classes", "labels", "values"):
        for case in made[kind]:
            print(case["name"], {k: v for k, v in case.items() if isinstance(v, float)})


if __name__ == "__main__":
    main()
