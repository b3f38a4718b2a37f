"""What a run of `fit` tells while it trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._runs import Run


@dataclasses.dataclass
class TrainState:
    """Where a run is. All of it is public, except figures of private evaluation data."""

    #: Steps that were completed.
    step: int
    #: Steps of the plan.
    steps: int
    #: Number of records.
    records: int
    #: The public lot size.
    lot_size: float
    #: The noise multiplier of all blocks together; ``None`` without privacy.
    noise_multiplier: float | None
    #: δ of that ε.
    delta: float | None
    #: ε of the whole run.
    planned_epsilon: float | None
    #: Number of trained parameters.
    trained_parameters: int
    #: Where the model is saved.
    model_folder: str
    #: Figures of the last evaluation.
    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    #: Messages of the optimizer about the last step.
    notes: list[str] = dataclasses.field(default_factory=list)
    #: Set it to end the run after this step. All steps of the plan are charged nevertheless.
    stop: bool = False
    #: Names of trained tensors that have not changed; at the end of the run.
    unchanged: list[str] = dataclasses.field(default_factory=list)
    _spent: Callable[[], float] = lambda: 0.0
    _known: tuple[int, float] | None = None

    @property
    def epsilon(self) -> float | None:
        """ε spent so far, computed when it is read; ``None`` without privacy."""
        if self.planned_epsilon is None:
            return None
        if self._known is None or self._known[0] != self.step:
            self._known = self.step, self._spent()
        return self._known[1]


class Callback:
    """Is told of the progress of a run. Override the methods that are needed.

    An exception in a method stops the run, which can be resumed from its last checkpoint.
    """

    def on_start(self, state: TrainState) -> None:
        """Called before the first step, and when a run is resumed."""

    def on_step(self, state: TrainState) -> None:
        """Called after each step."""

    def on_evaluate(self, state: TrainState) -> None:
        """Called after each evaluation, with its figures."""

    def on_end(self, state: TrainState, run: Run) -> None:
        """Called when the run is finished."""
