"""Private training of a PyTorch module: a run in a folder, from start to statement."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from .._errors import InputError
from .._muffle import EngineSession
from .._runs import Run, changes_of, run_of
from ._loop import Interrupts, ProgressBar
from ._seam import Seam
from .callbacks import Callback, TrainState
from .engine import Engine
from .language import CausalLanguageModel
from .structure import is_adapter, same_modes, trained_parameters

Path = str | os.PathLike[str]
CHECKED_TEXTS = 256
"""The number of texts whose losses are computed before the first step."""

ORIGINS = ("new", "pretrained", "partial", "adapters")


def fit(
    model: nn.Module,
    dataset: Sequence[Any],
    *,
    out: Path = "muffle-run",
    loss: Callable[[Any, Any], torch.Tensor] | nn.Module | None = None,
    tokenizer: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    lot_size: int | None = None,
    micro_batch: int = 16,
    max_length: int | None = None,
    device: torch.device | str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    probe_records: Sequence[Any] | None = None,
    roles: Mapping[str, str] | None = None,
    origin: str | None = None,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    evaluate_every: int | None = None,
    evaluation_data: str = "private",
    callbacks: Iterable[Callback] = (),
    data_identity: str | None = None,
    resume: bool = False,
    progress: bool = True,
    set: Mapping[str, object] | None = None,
) -> Run:
    """Trains a module with differential privacy, in place, and saves it with its privacy statement.

    The curator and the optimizers are those of the program ``muffle``: lots, clipping, noise and
    ledger are in Rust, and only gradients are computed by PyTorch. Before a record is read, the
    module is tested with synthetic ones, and refused if examples interact.

    ::

        model = transformers.AutoModelForCausalLM.from_pretrained("gpt2")
        run = muffle.fit(model, texts, tokenizer=tokenizer, epsilon=3.0, optimizer="dp-muon-bc")

    Args:
        model: Any module. Parameters with ``requires_grad`` are trained; all must be float32.
            Random layers and batch statistics are refused: call ``model.eval()``.
        dataset: The records, by index. One element is one record, and the unit of privacy.
        out: The folder of the run, which must be new: ledger, checkpoints, report, and ``model/``.
        loss: ``loss(module, batch)`` with one value for each example, or a loss of ``torch.nn``
            with ``reduction="none"`` for batches (inputs, targets). Not needed for causal language
            models of ``transformers``.
        tokenizer: For records that are texts; saved with the model.
        epsilon: The promised ε; 8 by default. The noise is calibrated to it.
        delta: The promised δ; 1/(10 N) by default.
        noise_multiplier: The noise instead of ε.
        optimizer: One of ``muffle.optimizers()``. dp-macadam, dp-adaclip and dp-prism clip in other
            coordinates, for which the gradients of all examples of a micro-batch are in memory.
            dp-prism trains adapters of PEFT, best with ``init_lora_weights="pissa"``.
        learning_rate: By default, the optimizer's own.
        steps: The number of steps; or give ``epochs``, 3 by default.
        epochs: The expected number of times that a record is used.
        lot_size: The expected number of records in a step.
        micro_batch: Records that are computed at a time: speed and memory only.
        max_length: The largest number of tokens of a text.
        device: Where the module is moved; by default it stays.
        collate: Makes a batch of a list of records; by default that of ``torch``.
        probe_records: Three synthetic records for the tests of the module, the longest first, if
            none can be made from the structure of the first record.
        roles: Roles of tensors by patterns of their names: "hidden", "table", "head", "vector".
        origin: "new", "pretrained", "partial" (some weights frozen) or "adapters", on which default
            learning rates depend; by default it follows from the model.
        evaluate: Returns figures of the module, such as ``{"nll": 3.2, "accuracy": 0.4}``, of data
            that are not trained on.
        evaluate_every: The number of steps between evaluations; by default 20 evaluations.
        evaluation_data: "public", or "private": its figures are then marked NON-PRIVATE.
        callbacks: Objects that are told of steps and evaluations and may stop the run.
        data_identity: A name of the records, instead of a digest of their content, by which a
            resumed run recognises them. Needed if records are random.
        resume: Whether to resume the run in ``out``, with its settings; others are refused.
        progress: Whether to show the progress on standard error.
        set: Other keys of the configuration: ``{"privacy.sampling": "fixed"}``.

    Returns:
        The run: ε, δ, figures, folder. The model has the trained parameters.

    Raises:
        InputError: The module, the records or a setting is refused.
        PromiseError: No noise keeps the promise.
        KeyboardInterrupt: Ctrl-C; the run is saved and can be resumed with ``resume=True``.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    _check_dataset(dataset)
    given = {
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.sigma": noise_multiplier,
        "optimizer.learning_rate": learning_rate,
        "training.steps": steps,
        "training.epochs": epochs,
        "training.lot_size": lot_size,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if resume and (given or optimizer is not None or set):
        named = [*given, *(["optimizer"] if optimizer is not None else []), *(set or {})]
        raise InputError(
            f"resume: the settings of a run do not change; expected none of {', '.join(named)}"
        )
    texts = None
    if loss is None:
        texts = _language_model(model, tokenizer, max_length)
    elif tokenizer is not None or max_length is not None:
        raise InputError("tokenizer, max_length: expected none with an own loss")
    engine = _refusing(
        lambda: Engine(
            model,
            texts.loss if texts is not None else loss,  # type: ignore[arg-type]
            device=device,
            collate=collate or (texts.collate if texts is not None else default_collate),
            records=dataset,
            probe_records=probe_records or (texts.probe_records() if texts is not None else None),
            roles=roles,
            validate=texts.validate if texts is not None else None,
            structured=texts is None,
        )
    )
    # Tokens are validated one by one, and passes of language models are long.
    limit = None if texts is None else CHECKED_TEXTS
    seam = Seam(engine, data_identity, examples=micro_batch, limit=limit)
    _refusing(engine.trainable)
    if resume:
        session = EngineSession.resume(seam, len(dataset), os.fspath(out))
    else:
        changes: dict[str, object] = {
            "model.source": f"external:{_origin(model, origin)}",
            "data.evaluation_data": evaluation_data,
            "training.micro_batch": micro_batch,
        }
        if evaluate_every is not None:
            changes["evaluation.every"] = evaluate_every
        changes.update(given)
        changes.update(set or {})
        session = EngineSession.create(
            seam, len(dataset), os.fspath(out), optimizer=optimizer, changes=changes_of(changes)
        )
    listeners = [*callbacks, *([ProgressBar()] if progress else [])]
    return _Loop(session, engine, model, evaluate, evaluate_every, listeners).run(tokenizer)


class _Loop:
    """The steps of a run, with evaluations and callbacks."""

    def __init__(
        self,
        session: EngineSession,
        engine: Engine,
        model: nn.Module,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
        evaluate_every: int | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self._session, self._engine, self._model = session, engine, model
        self._evaluate, self._callbacks = evaluate, callbacks
        self.state = TrainState(**json.loads(session.state()), _spent=session.epsilon)
        self._every = evaluate_every or max(1, -(-self.state.steps // 20))

    def run(self, tokenizer: Any) -> Run:
        """Trains up to the last step, saves the model and finishes the run."""
        try:
            self._train()
            self._load_released()
            self.state.unchanged = self._session.unchanged()
            # Read before the session is closed.
            _ = self.state.epsilon
            _refusing(lambda: self._engine.check_unchanged(thorough=True))
            _save(self._model, tokenizer, pathlib.Path(self.state.model_folder))
            run = run_of(self._session.finish(self._finite_figures()))
        finally:
            self._session.close()
        for callback in self._callbacks:
            callback.on_end(self.state, run)
        return run

    def _train(self) -> None:
        """Takes all steps, until a callback or Ctrl-C stops the run."""
        self._tell("on_start")
        if self.state.step == 0:
            self._measure()
        with Interrupts() as interrupts:
            while not self.state.stop:
                notes = self._session.step()
                if notes is None:
                    break
                self._update(notes)
                last = self.state.step == self.state.steps
                with self._saved_on_error():
                    self._tell("on_step")
                    if self.state.step % self._every == 0 or last or self.state.stop:
                        self._measure()
                if interrupts.requested and not last:
                    self._session.save()
                    self._load_released()
                    raise KeyboardInterrupt("the run is saved; resume it with resume=True")

    @contextlib.contextmanager
    def _saved_on_error(self) -> Iterator[None]:
        """Saves the run if a callback or an evaluation fails, so that no step is lost."""
        try:
            yield
        except BaseException:
            self._session.save()
            raise

    def _update(self, notes: list[str]) -> None:
        self.state.step, self.state.notes = self._session.steps(), notes

    def _measure(self) -> None:
        """Evaluates the released parameters and writes an entry of the history."""
        if self._evaluate is not None:
            self._load_released()
            with torch.no_grad(), same_modes(self._model):
                figures = self._evaluate(self._model)
            _refusing(self._engine.check_unchanged)
            if not isinstance(figures, Mapping):
                raise InputError(
                    f"evaluate: expected figures by name, got {type(figures).__name__}"
                )
            self.state.figures = {name: float(value) for name, value in figures.items()}
        self._session.record(self._finite_figures())
        self._tell("on_evaluate")

    def _finite_figures(self) -> str:
        """Returns the last figures as JSON, without those that are not finite."""
        figures = self.state.figures.items()
        return json.dumps({name: value for name, value in figures if math.isfinite(value)})

    def _load_released(self) -> None:
        for index in range(len(trained_parameters(self._model))):
            values = torch.frombuffer(self._session.released(index), dtype=torch.float32)
            self._engine.set_parameter(index, values)

    def _tell(self, event: str) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(self.state)


def _refusing(call: Callable[[], Any]) -> Any:
    """Calls a function of the engine; its refusals become errors of the package."""
    try:
        return call()
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        raise InputError(str(error)) from error


def _check_dataset(dataset: Any) -> None:
    """Refuses records that cannot be read by index."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"dataset: expected records by index (__len__, __getitem__), got {type(dataset).__name__}; "
            "lots are drawn at random, so a stream cannot be used"
        )
    if not len(dataset):
        raise InputError("dataset: expected at least one record, got none")
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise InputError("dataset: expected the records, got a DataLoader; pass its dataset")


def _language_model(model: Any, tokenizer: Any, max_length: int | None) -> CausalLanguageModel:
    """The loss and batches of a causal language model; refuses other modules."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise InputError("loss: expected one, because the module is no model of transformers")
    if not any("CausalLM" in name or "LMHead" in name for name in _class_names(model)):
        raise InputError(
            f"loss: expected one, because {type(model).__name__} is no causal language model"
        )
    return _refusing(lambda: CausalLanguageModel.of(model, tokenizer, max_length))


def _class_names(model: Any) -> list[str]:
    """The names of the classes of a model and, for adapters, of the model inside."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return [kind.__name__ for kind in (*type(model).__mro__, *type(inner).__mro__)]


def _origin(model: nn.Module, given: str | None) -> str:
    """How the parameters came about: given, or guessed from the model."""
    if given is not None:
        if given not in ORIGINS:
            raise InputError(f"origin: expected one of {', '.join(ORIGINS)}; got {given!r}")
        return given
    if any(is_adapter(name) for name in trained_parameters(model)):
        return "adapters"
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return "partial"
    config = getattr(model, "config", None)
    return "pretrained" if getattr(config, "_name_or_path", "") else "new"


def _save(model: Any, tokenizer: Any, folder: pathlib.Path) -> None:
    """Saves the model as its library does, otherwise its parameters in ``model.pt``."""
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(folder)
    else:
        torch.save(model.state_dict(), folder / "model.pt")
