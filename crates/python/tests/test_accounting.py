"""Accounting: figures, errors, ledgers."""

import copy
import math
import threading
import time

import muffle
import pytest

STEP = {"noise_multiplier": 1.1, "sampling_rate": 256 / 60_000, "steps": 14_040}


def test_epsilon_and_delta_are_inverse():
    guarantee = muffle.account(**STEP, delta=1e-5)
    # The golden value of the specification, by other accountants.
    assert guarantee.epsilon == pytest.approx(2.3796, abs=1e-3)
    assert (guarantee.adjacency, guarantee.accountant, guarantee.estimate) == ("add-remove", "pld", False)
    back = muffle.account(**STEP, epsilon=guarantee.epsilon)
    assert back.delta == pytest.approx(1e-5, rel=1e-3)
    rdp = muffle.account(**STEP, delta=1e-5, accountant="rdp")
    assert rdp.epsilon > guarantee.epsilon and rdp.order > 1


def test_sizes_and_defaults():
    sized = muffle.account(
        noise_multiplier=1.1, dataset_size=60_000, lot_size=256, epochs=60, delta=1e-5
    )
    assert sized.epsilon == pytest.approx(2.38, abs=0.01)
    assert muffle.account(**STEP, dataset_size=60_000).delta == muffle.default_delta(60_000)
    assert muffle.default_delta(1000) == pytest.approx(1e-4)


def test_blocks_of_a_lot_are_one_release():
    one = muffle.account(noise_multiplier=1.0, sampling_rate=0.01, steps=100, delta=1e-6)
    many = muffle.account(noise_multiplier=7.0, blocks=49, sampling_rate=0.01, steps=100, delta=1e-6)
    assert many.epsilon == pytest.approx(one.epsilon, rel=1e-9)


def test_calibration_keeps_the_promise():
    target = {"epsilon": 3, "delta": 1e-5, "dataset_size": 60_000}
    found = muffle.calibrate(**target, lot_size=1024, epochs=20)
    assert 2.9999 < found.guarantee.epsilon <= 3 and found.steps == 1172
    less = muffle.account(
        noise_multiplier=found.noise_multiplier * 0.999, dataset_size=60_000, lot_size=1024,
        steps=1172, delta=1e-5,
    )
    assert less.epsilon > 3
    steps = muffle.calibrate(**target, lot_size=1024, noise_multiplier=1, find="steps").steps
    run = {"noise_multiplier": 1, "dataset_size": 60_000, "lot_size": 1024, "delta": 1e-5}
    assert muffle.account(**run, steps=steps).epsilon <= 3 < muffle.account(**run, steps=steps + 1).epsilon
    lot = muffle.calibrate(**target, noise_multiplier=1, steps=500, find="lot_size")
    assert lot.lot_size > 1024 and lot.guarantee.epsilon <= 3


def test_laplace_noise_and_known_guarantees():
    def epsilon(event, count=1, delta=1e-5, **options):
        ledger = muffle.Ledger()
        ledger.charge(event, count)
        return ledger.epsilon(delta, **options).epsilon

    laplace = muffle.Event.laplace(2.0)
    assert epsilon(laplace, 3, delta=0.0) == pytest.approx(1.5)
    assert epsilon(laplace, 3, delta=0.01) < 1.5
    assert epsilon(muffle.Event.laplace(2.0, sampling_rate=0.1), 3) < 0.3
    known = muffle.Event.epsilon_delta(1.0, 1e-5)
    assert epsilon(known) == pytest.approx(1.0)
    assert math.isinf(epsilon(known, delta=1e-6)) and math.isinf(epsilon(known, delta=0.0))
    assert epsilon(known, delta=1e-4, adjacency="replace-one") == pytest.approx(2.0, rel=1e-2)
    zcdp = muffle.Event.zcdp(0.5)
    assert epsilon(zcdp) == pytest.approx(epsilon(muffle.Event.gaussian(1.0), accountant="rdp"), rel=1e-6)
    with pytest.raises(ValueError, match="use rdp"):
        epsilon(zcdp, accountant="pld")
    with pytest.raises(ValueError, match="does not support"):
        epsilon(muffle.Event.zcdp(0.5, adjacency="replace-one"))
    for event in (laplace, known, zcdp):
        assert muffle.Event.from_json(event.to_json()) == event
    for bad in (lambda: muffle.Event.laplace(0.0), lambda: muffle.Event.epsilon_delta(1.0, 1.0),
                lambda: muffle.Event.epsilon_delta(-1.0), lambda: muffle.Event.zcdp(math.nan)):
        with pytest.raises(ValueError):
            bad()


def test_ledgers():
    ledger = muffle.Ledger()
    event = muffle.Event.gaussian(1.0, sampling_rate=0.01)
    ledger.charge(event, 400)
    other = copy.deepcopy(ledger)
    ledger.charge(event, 200)
    ledger.merge(other)
    assert len(ledger) == 1000 and ledger.events == [(event, 1000)]
    assert ledger.epsilon(1e-5).epsilon == pytest.approx(1.8282, abs=1e-3)
    assert ledger.delta(1.8283).delta == pytest.approx(1e-5, rel=1e-2)
    rates = ledger.trade_off([0.01, 0.1])
    assert 0.01 < rates[0] < rates[1] < 1
    assert muffle.Ledger.from_json(ledger.to_json()) == ledger
    assert muffle.Event.from_json(event.to_json()) == event
    assert "1000 ×" in repr(ledger) and "σ = 1" in repr(event)
    replaced = ledger.epsilon(1e-5, adjacency="replace-one")
    person = ledger.epsilon(1e-5, rows_per_person=2)
    assert replaced.epsilon > ledger.epsilon(1e-5).epsilon < person.epsilon
    ledger.charge(muffle.Event.non_private())
    assert math.isinf(ledger.epsilon(1e-5).epsilon)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"noise_multiplier": -1}, "noise multiplier must be finite and greater than 0"),
        ({"noise_multiplier": math.nan}, "noise multiplier"),
        ({"sampling_rate": 1.5}, "sampling rate"),
        ({"sampling_rate": None}, "give sampling_rate, or dataset_size with lot_size"),
        ({"delta": None}, "give delta, or dataset_size"),
        ({"delta": 0}, "delta must be greater than 0"),
        ({"epsilon": 1}, "give delta or epsilon, not both"),
        ({"accountant": "moments"}, "expected one of best, pld, rdp, gdp"),
        ({"adjacency": "both"}, "expected one of add-remove, replace-one"),
        ({"sampling": "fixed"}, "dataset_size and lot_size"),
    ],
)
def test_invalid_arguments_are_refused(arguments, words):
    with pytest.raises(muffle.InputError, match=words) as raised:
        muffle.account(**{**STEP, "delta": 1e-5, **arguments})
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, muffle.Error)


def test_a_promise_that_cannot_be_kept():
    with pytest.raises(muffle.PromiseError, match="no lot size keeps"):
        muffle.calibrate(
            epsilon=1e-4, delta=1e-12, sampling_rate=1, noise_multiplier=1e-2, find="lot-size",
            dataset_size=10, steps=1,
        )
    with pytest.raises(muffle.InputError, match="epsilon must be a finite number"):
        muffle.calibrate(epsilon=math.inf, delta=1e-5, sampling_rate=0.1, steps=1)


def test_weak_settings_give_warnings():
    with pytest.warns(muffle.PrivacyWarning, match="publishes one random row"):
        muffle.account(noise_multiplier=1, dataset_size=100, lot_size=10, steps=1, delta=0.1)
    with pytest.warns(muffle.PrivacyWarning, match="not a guarantee"):
        assert muffle.account(**STEP, delta=1e-5, accountant="gdp").estimate


def test_other_threads_run_during_a_computation():
    count, done = 0, threading.Event()

    def work():
        events = muffle.Ledger()
        for i in range(40):
            events.charge(muffle.Event.gaussian(0.9 + i / 100, sampling_rate=0.01), 1000)
        events.epsilon(1e-5)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        count += 1
        time.sleep(0.0005)
    thread.join()
    assert count > 5


def test_versions_and_names():
    assert muffle.__version__ and "dp-muon-bc" in muffle.optimizers()
    assert muffle.gdp_mu(2.38, 1e-5) == pytest.approx(0.63, abs=0.1)
    for name in muffle.__all__:
        assert getattr(muffle, name).__doc__, name
