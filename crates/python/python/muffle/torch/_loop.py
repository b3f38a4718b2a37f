"""Progress and interruption of a training loop."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from .callbacks import Callback, TrainState

if TYPE_CHECKING:
    from .._runs import Run

WIDTH = 24


class Interrupts:
    """Remembers Ctrl-C until a step is complete, so that the run can be saved.

    A second one is raised at once. Outside of the main thread signals are left alone.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping after this step; press Ctrl-C again to stop now", file=sys.stderr)


class ProgressBar(Callback):
    """A bar on standard error; a line for each evaluation if it is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began, self._first = time.monotonic(), 0

    def on_start(self, state: TrainState) -> None:
        """Shows the plan."""
        self._began, self._first = time.monotonic(), state.step
        promise = ""
        if state.planned_epsilon is not None:
            promise = f", ε ≤ {state.planned_epsilon:.3g} at δ = {state.delta:.1e}"
        self._line(
            f"{state.steps} steps, lots of {state.lot_size:g} of {state.records} records, "
            f"{state.trained_parameters:,} trained parameters{promise}"
        )

    def on_step(self, state: TrainState) -> None:
        """Draws the bar."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K" + self._bar(state))
            sys.stderr.flush()

    def on_evaluate(self, state: TrainState) -> None:
        """Shows ε and the figures."""
        figures = [f"{name} {value:.4g}" for name, value in state.figures.items()]
        spent = [f"ε {state.epsilon:.3f}"] if state.epsilon is not None else []
        self._line(" · ".join([f"step {state.step}/{state.steps}", *spent, *figures]))

    def on_end(self, state: TrainState, run: Run) -> None:
        """Shows where the run is, and what did not change."""
        if state.unchanged:
            self._line(f"warning: {', '.join(state.unchanged)} did not change")
        self._line(f"{run.folder}: {'ε = %.4g' % run.epsilon if run.private else 'not private'}")

    def _bar(self, state: TrainState) -> str:
        share = state.step / max(1, state.steps)
        done = round(WIDTH * share)
        each = (time.monotonic() - self._began) / max(1, state.step - self._first)
        left = round(each * (state.steps - state.step))
        return (
            f"{'━' * done}{'─' * (WIDTH - done)} {state.step}/{state.steps} · {each:.2f} s a step · "
            f"{left // 60}:{left % 60:02d} left"
        )

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self._is_terminal else ""
        print(start + text, file=sys.stderr)
