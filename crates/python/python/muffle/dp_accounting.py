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
events. Gaussian and Laplace noise are computed by Muffle: on all records or on Poisson-sampled lots,
in any composition. If another event is composed, such as randomized response, all figures are those
of dp-accounting, and a warning says so.
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
        #: Events that Muffle has charged and dp-accounting has not composed.
        self._charged: list[tuple[dp_event.DpEvent, int]] = []
        self._is_theirs = False

    def _maybe_compose(
        self, event: dp_event.DpEvent, count: int, do_compose: bool
    ) -> _Details | None:
        # These three are composed of others, for which this method is called again.
        if isinstance(event, (dp_event.SelfComposedDpEvent, dp_event.ComposedDpEvent)):
            return super()._maybe_compose(event, count, do_compose)
        if isinstance(event, (dp_event.NoOpDpEvent, dp_event.NonPrivateDpEvent)):
            return super()._maybe_compose(event, count, do_compose)
        noise, rate = _noise(event)
        details = super()._maybe_compose(event, count, do_compose and noise is None)
        if noise is None and do_compose and details is None:
            self._leave_to_them(event)
        if noise is None or details is not None:
            return details
        try:
            ours = _event(noise, rate)
        except ValueError as error:
            return _Details(invalid_event=event, error_message=str(error))
        if do_compose and ours is not None:
            if ours == Event.non_private():
                self._contains_non_dp_event = True
            elif count > 0:
                self._events.charge(ours, count)
                self._charged.append((event, count))
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
        """Composes the events that Muffle has charged in their distribution, too."""
        for event, count in self._charged:
            super()._maybe_compose(event, count, True)
        self._charged.clear()

    def get_epsilon(self, target_delta: float) -> float:
        """ε of all composed events at this δ, an upper bound."""
        if self._contains_non_dp_event:
            return math.inf
        if self._is_theirs:
            self._compose_theirs()
            return float(super().get_epsilon(target_delta))
        if not len(self._events) or target_delta >= 1:
            return 0.0
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


_Noise = dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent


def _noise(event: dp_event.DpEvent) -> tuple[_Noise | None, float | None]:
    """The Gaussian or Laplace noise in an event, and the sampling rate of its lots."""
    if isinstance(event, _Noise):
        return event, None
    if isinstance(event, dp_event.PoissonSampledDpEvent) and isinstance(event.event, _Noise):
        return event.event, event.sampling_probability
    return None, None


def _event(noise: _Noise, rate: float | None) -> Event | None:
    """Our event; ``None`` if no record can be in a lot."""
    if rate == 0:
        return None
    if noise.noise_multiplier == 0:
        return Event.non_private()
    kind = Event.gaussian if isinstance(noise, dp_event.GaussianDpEvent) else Event.laplace
    return kind(noise.noise_multiplier, sampling_rate=rate)
