"""The accountant of Muffle behind the interface of dp-accounting.

::

    import dp_accounting
    from muffle.dp_accounting import PLDAccountant

    accountant = PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(step, 1000)
    accountant.get_epsilon(1e-5)

``supports``, ``compose``, ``ledger``, ``get_epsilon``, ``get_delta`` and
``dp_accounting.calibrate_dp_mechanism`` work as with their class, and accept and refuse the same
events. Gaussian noise is computed by Muffle: on all records or on Poisson-sampled lots, in any
composition. If another event is composed, such as Laplace noise, all figures are those of
dp-accounting, and a warning says so.
"""

from __future__ import annotations

import math
import warnings

from dp_accounting import dp_event, pld, privacy_accountant

from ._errors import PrivacyWarning
from ._muffle import Event, Ledger

__all__ = ["PLDAccountant"]

_Relation = privacy_accountant.NeighboringRelation
_Details = privacy_accountant.PrivacyAccountant.CompositionErrorDetails

#: Their relations by ours. If a record is replaced by one without values, a sum changes as if it
#: were removed, and whether it is in a lot does not affect other records.
_ADJACENCY = {
    _Relation.ADD_OR_REMOVE_ONE: "add-remove",
    _Relation.REPLACE_SPECIAL: "add-remove",
    _Relation.REPLACE_ONE: "replace-one",
}


class PLDAccountant(pld.PLDAccountant):  # type: ignore[misc]
    """Their accountant by privacy loss distributions, computed by Muffle.

    Muffle chooses the grid for each query, so ``value_discretization_interval`` matters only for
    events that dp-accounting computes.
    """

    def __init__(
        self,
        neighboring_relation: _Relation = _Relation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float = 1e-4,
    ) -> None:
        super().__init__(neighboring_relation, value_discretization_interval)
        self._events = Ledger()
        #: Gaussian events that dp-accounting has not composed.
        self._gaussians: list[tuple[dp_event.DpEvent, int]] = []
        self._is_theirs = False

    def _maybe_compose(
        self, event: dp_event.DpEvent, count: int, do_compose: bool
    ) -> _Details | None:
        # These three are composed of others, for which this method is called again.
        if isinstance(event, (dp_event.SelfComposedDpEvent, dp_event.ComposedDpEvent)):
            return super()._maybe_compose(event, count, do_compose)
        if isinstance(event, (dp_event.NoOpDpEvent, dp_event.NonPrivateDpEvent)):
            return super()._maybe_compose(event, count, do_compose)
        gaussian, rate = _gaussian(event)
        if gaussian is None:
            details = super()._maybe_compose(event, count, do_compose)
            if do_compose and details is None:
                self._leave_to_them(event)
            return details
        try:
            ours = _event(gaussian.noise_multiplier, rate)
        except ValueError as error:
            return _Details(invalid_event=event, error_message=str(error))
        if do_compose and ours is not None:
            if ours == Event.non_private():
                self._contains_non_dp_event = True
            elif count > 0:
                self._events.charge(ours, count)
                self._gaussians.append((event, count))
        return None

    def _leave_to_them(self, event: dp_event.DpEvent) -> None:
        if not self._is_theirs:
            self._is_theirs = True
            warnings.warn(
                f"{type(event).__name__} is computed by dp-accounting, and so are all figures of "
                "this accountant",
                PrivacyWarning,
                stacklevel=5,
            )

    def _compose_theirs(self) -> None:
        """Composes the Gaussian events in their distribution, too."""
        for event, count in self._gaussians:
            super()._maybe_compose(event, count, True)
        self._gaussians.clear()

    def get_epsilon(self, target_delta: float) -> float:
        """ε of all composed events at this δ, an upper bound."""
        if self._contains_non_dp_event:
            return math.inf
        if self._is_theirs:
            self._compose_theirs()
            return float(super().get_epsilon(target_delta))
        if not len(self._events) or target_delta >= 1:
            return 0.0
        if target_delta == 0:
            return math.inf
        adjacency = _ADJACENCY[self.neighboring_relation]
        return self._events.epsilon(target_delta, adjacency=adjacency).epsilon

    def get_delta(self, target_epsilon: float) -> float:
        """δ of all composed events at this ε, an upper bound."""
        if self._contains_non_dp_event:
            return 1.0
        if self._is_theirs:
            self._compose_theirs()
            return float(super().get_delta(target_epsilon))
        if not len(self._events):
            # δ of a mechanism that releases nothing; below ε = 0 it is 1 − e^ε.
            return max(0.0, -math.expm1(target_epsilon))
        adjacency = _ADJACENCY[self.neighboring_relation]
        return self._events.delta(target_epsilon, adjacency=adjacency).delta


def _gaussian(event: dp_event.DpEvent) -> tuple[dp_event.GaussianDpEvent | None, float | None]:
    """The Gaussian event in an event, and the sampling rate of its lots; none for other noise."""
    if isinstance(event, dp_event.GaussianDpEvent):
        return event, None
    sampled = isinstance(event, dp_event.PoissonSampledDpEvent)
    if sampled and isinstance(event.event, dp_event.GaussianDpEvent):
        return event.event, event.sampling_probability
    return None, None


def _event(noise_multiplier: float, rate: float | None) -> Event | None:
    """Our event; ``None`` if no record can be in a lot."""
    if rate == 0:
        return None
    if noise_multiplier == 0:
        return Event.non_private()
    return Event.gaussian(noise_multiplier, sampling_rate=rate)
