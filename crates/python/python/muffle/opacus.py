"""The accountant of Muffle inside Opacus.

::

    import muffle.opacus

    muffle.opacus.register()
    engine = opacus.PrivacyEngine(accountant="muffle")

ε is a tight upper bound by privacy loss distributions, with both directions of add/remove. A query
takes milliseconds, so calibration in ``make_private_with_epsilon`` does, too.

An accountant sees the noise multiplier and the sampling rate of each step and nothing else. What it
cannot see is listed in :data:`NOT_COVERED`; :func:`register` shows it as a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant

from ._errors import InputError, PrivacyWarning
from ._muffle import Event, Ledger

__all__ = ["NOT_COVERED", "MuffleAccountant", "register"]

State = TypeVar("State", bound=Mapping[str, Any])

#: What the accountant computes is true only if all of these hold, and it can check none of them.
NOT_COVERED = (
    "lots are Poisson-sampled: poisson_sampling=True, and no other sampler or collate function",
    "gradients are divided by a public number: with expected_batch_size=None, or a loss that is "
    "divided by the number of examples in the lot, the divisor depends on the records",
    "every record is one example: several rows of a person need muffle.Ledger with rows_per_person",
    "noise comes from a secure source (secure_mode=True); floating-point noise has weaknesses that "
    "no accountant can see",
    "lots are not accumulated by optimizer.signal_skip_step: Opacus charges all lots of a step as one. "
    "BatchMemoryManager, which divides one lot, is right",
    "nothing else is computed from the records: validation, choice of hyperparameters, normalization",
)


class MuffleAccountant(IAccountant):  # type: ignore[misc]
    """An Opacus accountant that computes ε with Muffle.

    ``history`` has the form of Opacus: noise multiplier, sampling rate, number of steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Adds a step. Opacus calls it after each step of the optimizer."""
        # Refuses what has no cost before it becomes part of the history.
        _event(noise_multiplier, sample_rate)
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            count = self.history.pop()[2] + 1
        else:
            count = 1
        self.history.append((noise_multiplier, sample_rate, count))

    def get_epsilon(self, delta: float, *, accountant: str = "best", **_: Any) -> float:
        """ε of all steps at this δ: an upper bound under add/remove.

        Args:
            delta: The δ.
            accountant: "best", "pld" or "rdp".
        """
        if accountant == "gdp":
            raise InputError("accountant: expected best, pld or rdp; gdp is an estimate")
        return self.ledger().epsilon(delta, accountant=accountant).epsilon

    def ledger(self) -> Ledger:
        """The steps as a ledger, to merge with those of other runs on the same records."""
        ledger = Ledger()
        for noise_multiplier, sample_rate, count in self.history:
            event = _event(noise_multiplier, sample_rate)
            if event is not None:
                ledger.charge(event, count)
        return ledger

    def __len__(self) -> int:
        """The number of steps."""
        return sum(count for _, _, count in self.history)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """The function that Opacus calls with its optimizer after each step.

        It charges each of several accumulated lots, and warns once of each thing that the accountant
        cannot account for.
        """
        told: set[str] = set()

        def charge(optimizer: Any) -> None:
            if hasattr(optimizer, "unclipped_num_std"):
                raise InputError(
                    "adaptive clipping: Opacus accounts its count query, which a record changes by 1, "
                    "as if it changed by 1/2, so ε would be below the truth"
                )
            for text in _doubts(optimizer):
                if text not in told:
                    told.add(text)
                    warnings.warn(text, PrivacyWarning, stacklevel=3)
            # A record can be in each of n accumulated lots. The noise of the step is that of n
            # releases with σ/√n, one of each lot, and the sum of these is what is released.
            lots = int(getattr(optimizer, "accumulated_iterations", 1))
            noise_multiplier = float(optimizer.noise_multiplier) / lots**0.5
            for _ in range(lots):
                self.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)

        return charge

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus finds the accountant."""
        return "muffle"


def _event(noise_multiplier: float, sample_rate: float) -> Event | None:
    """The event of a step; ``None`` if no record can be in the lot."""
    if sample_rate == 0:
        return None
    if noise_multiplier == 0:
        return Event.non_private()
    return Event.gaussian(noise_multiplier, sampling_rate=sample_rate)


def _doubts(optimizer: Any) -> list[str]:
    """What an optimizer of Opacus does that the accountant cannot account for."""
    doubts = []
    if getattr(optimizer, "expected_batch_size", 1) is None:
        doubts.append(
            "expected_batch_size is None: gradients are divided by the number of records in the "
            "lot, which depends on the records, and ε does not cover this"
        )
    if not getattr(optimizer, "secure_mode", True):
        doubts.append(
            "secure_mode is off: the noise comes from a generator that is not secure, and ε "
            "assumes perfect noise"
        )
    return doubts


def register() -> None:
    """Registers the accountant in Opacus as "muffle", and warns of what it cannot see."""
    register_accountant(MuffleAccountant.mechanism(), MuffleAccountant, force=True)
    warnings.warn(
        "ε by accountant=\"muffle\" holds only if: " + "; ".join(NOT_COVERED),
        PrivacyWarning,
        stacklevel=2,
    )
