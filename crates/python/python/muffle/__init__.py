"""Differentially private training of neural networks.

The accountant, for any training loop::

    import muffle

    muffle.account(noise_multiplier=1.1, sampling_rate=256 / 60_000, steps=14_040, delta=1e-5)
    muffle.calibrate(epsilon=3, delta=1e-5, dataset_size=60_000, lot_size=1024, epochs=20)

Whole runs, as the program ``muffle`` makes them::

    run = muffle.train("RUN.toml", out="runs/first")
    print(run.epsilon, run.metrics)
    assert muffle.verify("runs/first").consistent

==============================  ==========================================================
to find                         look in
==============================  ==========================================================
ε, δ and noise of a run         :func:`account`, :func:`calibrate`
events and ledgers              :class:`Event`, :class:`Ledger`
the accountant in Opacus        :mod:`muffle.opacus`
the accountant in dp-accounting :mod:`muffle.dp_accounting`
a PyTorch module, trained       :func:`muffle.torch.fit`, also as ``muffle.fit``
train, resume, verify, audit    :func:`train`, :func:`resume`, :func:`verify`, :func:`audit`
use a trained model             :func:`generate`, :func:`predict`
exceptions                      :class:`Error` and its subclasses
==============================  ==========================================================
"""

import importlib

from ._errors import Error, FaultError, InputError, PrivacyWarning, PromiseError, Stopped
from ._muffle import (
    Calibration,
    Event,
    Guarantee,
    Ledger,
    account,
    calibrate,
    default_delta,
    gdp_mu,
    optimizers,
)
from ._muffle import version as _version
from ._runs import Audit, Plan, Run, Verdict, audit, generate, plan, predict, resume, train, verify

__version__ = _version()


def __dir__() -> list[str]:
    """Lists also what is loaded when it is first used."""
    return sorted([*globals(), "fit", "torch"])


def __getattr__(name: str) -> object:
    """Loads what needs PyTorch when it is first used."""
    if name in ("fit", "torch"):
        package = importlib.import_module(".torch", __name__)
        return package if name == "torch" else package.fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Audit",
    "Calibration",
    "Error",
    "Event",
    "FaultError",
    "Guarantee",
    "InputError",
    "Ledger",
    "Plan",
    "PrivacyWarning",
    "PromiseError",
    "Run",
    "Stopped",
    "Verdict",
    "account",
    "audit",
    "calibrate",
    "default_delta",
    "gdp_mu",
    "generate",
    "optimizers",
    "plan",
    "predict",
    "resume",
    "train",
    "verify",
]
