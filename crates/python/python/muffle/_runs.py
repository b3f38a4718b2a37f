"""Runs with a folder on disk, as the program ``muffle`` makes them."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _muffle
from ._errors import InputError

Path = str | os.PathLike[str]
Report = Callable[[str, Any], None]


def _number(value: Any) -> Any:
    """A number of a document; JSON has no infinity."""
    return float(value) if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run."""

    #: The folder of the run, with ``model/``, ``ledger.json`` and ``report.html``.
    folder: pathlib.Path
    #: ε spent, an upper bound; infinite without noise. It holds only if ``private`` is true, which it is
    #: not with a fixed seed.
    epsilon: float
    #: δ of that ε.
    delta: float | None
    #: Whether there is a guarantee.
    private: bool
    #: Steps that were completed.
    steps: int
    #: Figures on the evaluation data; ``figures`` says whether they are public.
    metrics: dict[str, Any]
    #: All fields of ``result.json``.
    result: dict[str, Any]

    @property
    def model(self) -> pathlib.Path:
        """The trained model in the Hugging Face layout, with its ``privacy.json``."""
        return self.folder / "model"

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement, ``model/privacy.json``."""
        loaded: dict[str, Any] = json.loads((self.model / "privacy.json").read_text("utf-8"))
        return loaded


@dataclasses.dataclass(frozen=True)
class Plan:
    """Steps, noise and privacy of a run that has not started."""

    #: The optimizer.
    optimizer: str
    #: Number of records.
    records: int
    #: Number of steps.
    steps: int
    #: The public lot size.
    lot_size: float
    #: The noise multiplier of all blocks together; ``None`` without privacy.
    noise_multiplier: float | None
    #: ε of the whole run; ``None`` without privacy.
    epsilon: float | None
    #: δ of that ε.
    delta: float | None
    #: Number of trained parameters.
    trained_parameters: int
    #: Number of all parameters.
    parameters: int


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of recomputing a privacy statement from its files."""

    #: Whether no check failed.
    consistent: bool
    #: Whether no evidence is missing.
    complete: bool
    #: Whether the statement is consistent and claims privacy.
    private: bool
    #: ε as recomputed.
    epsilon: float | None
    #: The stated δ.
    delta: float | None
    #: The verdict in one sentence.
    sentence: str
    #: Each check: ``name``, ``passed``, ``detail``.
    checks: list[dict[str, Any]]
    #: What was not checked: ``name``, ``missing``, ``detail``.
    unchecked: list[dict[str, Any]]
    #: Who signed the statement, if a key was given.
    signer: str | None

    def __bool__(self) -> bool:
        return self.consistent and self.complete


@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an attack on a claim."""

    #: A lower bound on ε, with the given confidence.
    epsilon_lower: float
    #: The claimed ε.
    epsilon_claimed: float
    #: δ of both.
    delta: float
    #: Whether nothing contradicts the claim.
    passed: bool
    #: Contradictions to the claim, one line each.
    violations: list[str]
    #: All fields of the document.
    document: dict[str, Any]


def _value(value: object) -> str:
    """A value of a configuration, as in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise InputError(f"expected a text, number, truth value or list, got {value!r}")


def changes_of(changes: Mapping[str, object] | None) -> list[str]:
    """Changes to a configuration as the library reads them: ``key=value``."""
    return [f"{key}={_value(value)}" for key, value in (changes or {}).items()]


def _path(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


class _Progress:
    """Shows the progress of a run on standard error."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, kind: str, content: Any) -> None:
        if kind == "started":
            self.steps = content["steps"]
            self.line(
                "{optimizer}, {steps} steps, lots of {lot_size:g} of {records} records, "
                "{trained_parameters:,} trained parameters".format(**content)
            )
        elif kind == "message":
            self.line(content)
        elif kind == "step" and content["fresh"]:
            latest = content["latest"]
            names = ("nll", "accuracy", "rmse")
            figures = [f"{name} {latest[name]:.4f}" for name in names if latest.get(name)]
            epsilon = latest.get("epsilon")
            spent = [f"ε {epsilon:.2f}"] if epsilon is not None else []
            self.line(" · ".join([f"step {content['step']}/{self.steps}", *spent, *figures]))

    @staticmethod
    def line(text: str) -> None:
        print(text, file=sys.stderr)


def _report(progress: bool | Report) -> Callable[[str, str], None] | None:
    if progress is False:
        return None
    function: Report = _Progress() if progress is True else progress
    return lambda kind, content: function(kind, json.loads(content))


def run_of(text: str) -> Run:
    """Reads ``result.json``."""
    result = json.loads(text)
    result["epsilon"] = _number(result["epsilon"])
    return Run(
        folder=pathlib.Path(result["out"]),
        epsilon=result["epsilon"],
        delta=result["delta"],
        private=result["private"],
        steps=result["steps"],
        metrics=result["metrics"],
        result=result,
    )


def train(
    config: Path | None = None,
    *,
    out: Path,
    optimizer: str | None = None,
    set: Mapping[str, object] | None = None,
    progress: bool | Report = True,
) -> Run:
    """Trains a model privately, as ``muffle train`` does.

    Args:
        config: A ``RUN.toml``; without it, the embedded model on the embedded corpus.
        out: The folder of the run, which must be new.
        optimizer: Replaces the optimizer, without its learning rate and clip bound.
        set: Changes to the configuration by key: ``{"privacy.epsilon": 3, "training.steps": 50}``.
        progress: Whether to print the progress on standard error, or a function that gets a kind
            ("started", "message", "step", "evaluating") and its content. An exception in it stops
            the run, which can be resumed.

    Raises:
        InputError: The configuration, the data or the model is invalid.
        PromiseError: No noise keeps the promise.
        KeyboardInterrupt: Ctrl-C; the run is saved and can be resumed.
    """
    return run_of(
        _muffle.train(
            _path(config),
            os.fspath(out),
            optimizer=optimizer,
            changes=changes_of(set),
            report=_report(progress),
        )
    )


def resume(folder: Path, *, progress: bool | Report = True) -> Run:
    """Resumes an interrupted run within its budget, as ``muffle resume`` does."""
    return run_of(_muffle.resume(os.fspath(folder), report=_report(progress)))


def plan(
    config: Path | None = None,
    *,
    optimizer: str | None = None,
    set: Mapping[str, object] | None = None,
) -> Plan:
    """Checks the inputs of a run and computes its steps, noise and privacy. Nothing is trained."""
    text = _muffle.plan(_path(config), optimizer=optimizer, changes=changes_of(set))
    return Plan(**json.loads(text))


def verify(path: Path, *, key: Path | None = None) -> Verdict:
    """Verifies a privacy statement by recomputing it, as ``muffle verify`` does.

    Args:
        path: The folder of a run, a folder with a model and its ``privacy.json``, or that file.
        key: The public key that must have signed the statement.

    The verdict is true if no check failed and no evidence is missing.
    """
    document = json.loads(_muffle.verify(os.fspath(path), key=_path(key)))
    document["epsilon"] = _number(document["epsilon"])
    names = [field.name for field in dataclasses.fields(Verdict)]
    return Verdict(**{name: document[name] for name in names})


def audit(
    kind: str = "mechanism",
    config: Path | None = None,
    *,
    optimizer: str | None = None,
    set: Mapping[str, object] | None = None,
    **options: Any,
) -> Audit:
    """Attacks a claim, as ``muffle audit`` does, and returns a lower bound on ε.

    Args:
        kind: "mechanism" (many releases of a small model), "run" (a run with canaries) or "replay"
            (the same randomness on neighbouring data).
        config: For "run" and "replay": a ``RUN.toml``, or the folder of a run.
        optimizer: Replaces the optimizer.
        set: Changes to the configuration by key.
        options: ``noise_multiplier``, ``sampling_rate``, ``per_tensor``, ``delta`` and ``trials``
            for "mechanism"; ``canaries`` and ``folder`` for "run"; ``canaries`` and
            ``real_records`` (NON-PRIVATE) for "replay"; ``steps``, ``confidence`` and ``seed``.

    A bound below the claim proves nothing. A bound above it refutes it: ``passed`` is false.
    """
    if "folder" in options:
        options["folder"] = _path(options["folder"])
    text = _muffle.audit(
        kind, _path(config), optimizer=optimizer, changes=changes_of(set), **options
    )
    document = json.loads(text)
    for name in ("epsilon_lower", "epsilon_claimed", "delta"):
        document[name] = _number(document[name])
    return Audit(
        epsilon_lower=document["epsilon_lower"],
        epsilon_claimed=document["epsilon_claimed"],
        delta=document["delta"],
        passed=document["passed"],
        violations=document["violations"],
        document=document,
    )


def generate(
    model: Path,
    *,
    prompts: Sequence[str] = (),
    sources: Sequence[str] = (),
    **options: Any,
) -> list[str]:
    """Generates texts: continuations of prompts, then texts for sources, as in training on pairs.

    Args:
        model: The folder of a run, a directory in the Hugging Face layout, or a name on the hub.
        prompts: Texts to continue.
        sources: Sources to generate a text for.
        options: ``beams``, ``length_penalty``, ``temperature``, ``top_k``, ``top_p``, ``seed``,
            ``max_new_tokens``, ``min_new_tokens``, ``one_line``.
    """
    if isinstance(prompts, str) or isinstance(sources, str):
        raise InputError("prompts, sources: expected a list of texts, got a text")
    if not prompts and not sources:
        raise InputError("give prompts or sources")
    return _muffle.generate(
        os.fspath(model), prompts=list(prompts), sources=list(sources), **options
    )


def predict(
    model: Path,
    data: Path,
    *,
    labels: Sequence[str] = (),
    set: Mapping[str, object] | None = None,
) -> list[dict[str, Any]]:
    """Predicts the rows of a file with a classifier or a regression model.

    Each row is a dictionary with ``row`` and ``label`` and ``probabilities``, or ``labels`` and
    ``probabilities``, or ``value``; only ``row`` if it is empty.

    Args:
        model: The folder of a run, a directory in the Hugging Face layout, or a name on the hub.
        data: The file.
        labels: The names of the classes, if the model's files do not have them.
        set: How the file is read: ``{"data.text_column": "review"}``.
    """
    rows: list[dict[str, Any]] = json.loads(
        _muffle.predict(
            os.fspath(model), os.fspath(data), labels=list(labels), changes=changes_of(set)
        )
    )
    return rows
