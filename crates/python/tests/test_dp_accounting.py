"""The drop-in for dp-accounting, against their accountant."""

import importlib
import math
import unittest
import warnings

import muffle
import pytest

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting import pld

from muffle.dp_accounting import PLDAccountant

Relation = dp_accounting.NeighboringRelation


def gaussian(sigma, rate=None, count=1):
    event = dp_accounting.GaussianDpEvent(sigma)
    if rate is not None:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return dp_accounting.SelfComposedDpEvent(event, count)


def laplace(scale, rate=None, count=1):
    event = dp_accounting.LaplaceDpEvent(scale)
    if rate is not None:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return dp_accounting.SelfComposedDpEvent(event, count)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    "event",
    [
        gaussian(1.0),
        gaussian(20.0, count=100),
        gaussian(1.0, 0.01, 500),
        gaussian(0.6, 0.3, 20),
        dp_accounting.ComposedDpEvent([gaussian(1.0, 0.05, 50), gaussian(5.0), gaussian(2.0, 1.0)]),
    ],
)
def test_figures_equal_theirs(event, relation):
    ours, theirs = PLDAccountant(relation), pld.PLDAccountant(relation)
    assert ours.supports(event)
    assert ours.compose(event).ledger == theirs.compose(event).ledger
    for delta in (1e-8, 1e-5, 1e-2):
        assert ours.get_epsilon(delta) == pytest.approx(theirs.get_epsilon(delta), rel=2e-3, abs=1e-6)
    for epsilon in (0.1, 1.0, 3.0):
        assert ours.get_delta(epsilon) == pytest.approx(theirs.get_delta(epsilon), rel=2e-2, abs=1e-12)


@pytest.mark.parametrize(
    "event",
    [
        laplace(1.0),
        laplace(10.0, count=40),
        laplace(1.0, 0.01, 500),
        laplace(0.5, 0.3, 20),
        dp_accounting.ComposedDpEvent([gaussian(1.0, 0.05, 50), laplace(2.0), laplace(3.0, 1.0)]),
    ],
)
def test_laplace_noise_costs_what_theirs_does(event):
    for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL):
        ours, theirs = PLDAccountant(relation), pld.PLDAccountant(relation)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours.compose(event)
        theirs.compose(event)
        for delta in (1e-8, 1e-5, 1e-2):
            expected = theirs.get_epsilon(delta)
            assert ours.get_epsilon(delta) == pytest.approx(expected, rel=3e-3, abs=1e-6)
        # Theirs knows no largest loss, and has infinity at δ = 0.
        assert ours.get_epsilon(0.0) >= ours.get_epsilon(1e-8)
        for epsilon in (0.1, 0.55, 3.0):
            expected = theirs.get_delta(epsilon)
            assert ours.get_delta(epsilon) == pytest.approx(expected, rel=3e-2, abs=1e-12)
    # Their class has no figure for a replaced record.
    for accountant in (PLDAccountant, pld.PLDAccountant):
        assert not accountant(Relation.REPLACE_ONE).supports(event)


def test_laplace_noise_alone_is_private_without_delta():
    ours = PLDAccountant().compose(laplace(10.0, count=40)).compose(laplace(1.0, 0.3))
    exact = 4.0 + math.log1p(0.3 * math.expm1(1.0))
    assert ours.get_epsilon(0.0) == pytest.approx(exact, rel=1e-9)
    assert ours.compose(gaussian(10.0)).get_epsilon(0.0) == math.inf


def test_calibration_is_theirs_with_our_accountant():
    found = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant, lambda sigma: gaussian(sigma, 0.01, 1000), 2.0, 1e-5
    )
    accountant = PLDAccountant().compose(gaussian(found, 0.01, 1000))
    assert 1.99 < accountant.get_epsilon(1e-5) <= 2.0


def test_nothing_costs_nothing_and_no_noise_everything():
    empty = PLDAccountant()
    assert (empty.get_epsilon(1e-5), empty.get_delta(0.0)) == (0.0, 0.0)
    for nothing in (dp_accounting.NoOpDpEvent(), gaussian(1.0, 0.0), gaussian(0.0, 0.0)):
        assert empty.compose(nothing).get_epsilon(1e-5) == 0.0
    for everything in (dp_accounting.NonPrivateDpEvent(), gaussian(0.0), gaussian(0.0, 0.1)):
        accountant = PLDAccountant().compose(everything)
        assert math.isinf(accountant.get_epsilon(0.5)) and accountant.get_delta(3.0) == 1


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.SampledWithReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(1.0)),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.NoOpDpEvent()),
        dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(1.0)),
        # Their class needs another neighbouring relation for it.
        dp_accounting.RandomizedResponseDpEvent(0.5, 4),
        gaussian(-1.0),
        gaussian(math.nan, 0.1),
        gaussian(1.0, 1.5),
    ],
)
def test_other_events_are_refused(event):
    accountant = PLDAccountant()
    assert not accountant.supports(event)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        accountant.compose(dp_accounting.ComposedDpEvent([gaussian(1.0), event]))
    # A refused event leaves nothing behind.
    assert accountant.get_epsilon(1e-5) == 0.0


def test_other_noise_is_computed_by_their_class_with_a_warning():
    events = [gaussian(1.0, 0.1, 10), dp_accounting.RandomizedResponseDpEvent(0.5, 2), laplace(3.0)]
    ours, theirs = (accountant(Relation.REPLACE_SPECIAL) for accountant in (PLDAccountant, pld.PLDAccountant))
    ours.compose(events[0])
    with pytest.warns(muffle.PrivacyWarning, match="RandomizedResponseDpEvent is computed by dp-accounting"):
        ours.compose(events[1])
    ours.compose(events[2])
    for event in events:
        theirs.compose(event)
    assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
    assert ours.get_delta(1.0) == pytest.approx(theirs.get_delta(1.0), rel=1e-9)
    ours.compose(gaussian(1.0))
    assert ours.get_epsilon(1e-5) > theirs.get_epsilon(1e-5) * 1.1


def test_their_own_test_cases_pass():
    """Their tests, which are part of their package, with our class in place of theirs."""
    module = importlib.import_module("dp_accounting.pld.pld_privacy_accountant_test")
    original = module.pld_privacy_accountant.PLDAccountant
    module.pld_privacy_accountant.PLDAccountant = PLDAccountant
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", muffle.PrivacyWarning)
            result = unittest.TestResult()
            suite.run(result)
    finally:
        module.pld_privacy_accountant.PLDAccountant = original
    assert result.testsRun > 50
    problems = [f"{test}: {trace}" for test, trace in result.failures + result.errors]
    assert not problems, "\n".join(problems)
