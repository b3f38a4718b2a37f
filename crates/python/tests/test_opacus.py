"""The accountant inside the real Opacus."""

import warnings

import muffle
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: Opacus needs PyTorch (pip install torch)")
opacus = pytest.importorskip("opacus", reason="SKIPPED: pip install opacus")
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from torch import nn

import muffle.opacus


@pytest.fixture(autouse=True)
def registered():
    with pytest.warns(muffle.PrivacyWarning, match="holds only if: lots are Poisson-sampled"):
        muffle.opacus.register()


def trained(accountant, steps=12, **private):
    """A model, its optimizer and data made private, and trained, as in a tutorial of Opacus."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(200, 8), torch.randint(2, (200,)))
    loader = torch.utils.data.DataLoader(data, batch_size=20)
    engine = opacus.PrivacyEngine(accountant=accountant)
    make = engine.make_private_with_epsilon if "target_epsilon" in private else engine.make_private
    model, optimizer, loader = make(
        module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, **private
    )
    done = 0
    while done < steps:
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return engine, model, optimizer


def test_a_tutorial_with_another_accountant():
    engine, _, _ = trained("muffle", noise_multiplier=1.1)
    prv, _, _ = trained("prv", noise_multiplier=1.1)
    rdp, _, _ = trained("rdp", noise_multiplier=1.1)
    ours = engine.get_epsilon(1e-5)
    exact = muffle.account(noise_multiplier=1.1, sampling_rate=0.1, steps=12, delta=1e-5).epsilon
    assert ours == pytest.approx(exact, rel=1e-9)
    assert ours == pytest.approx(prv.get_epsilon(1e-5), abs=0.02) and ours < rdp.get_epsilon(1e-5)
    assert engine.accountant.history == [(1.1, 0.1, 12)] and len(engine.accountant) == 12
    assert engine.accountant.mechanism() == "muffle"


def test_calibration_by_opacus_and_checkpoints(tmp_path):
    promise = {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 2}
    engine, model, optimizer = trained("muffle", steps=20, **promise)
    assert 1.9 < engine.get_epsilon(1e-5) <= 2.0
    engine.save_checkpoint(path=tmp_path / "state.pt", module=model, optimizer=optimizer)
    other = opacus.PrivacyEngine(accountant="muffle")
    other.load_checkpoint(path=tmp_path / "state.pt", module=model, optimizer=optimizer)
    assert other.get_epsilon(1e-5) == engine.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="state_dict of rdp cannot be loaded"):
        other.accountant.load_state_dict({"history": [], "mechanism": "rdp"})


def test_noise_multipliers_keep_the_promise():
    run = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 1000}
    ours = get_noise_multiplier(**run, accountant="muffle")
    theirs = get_noise_multiplier(**run, accountant="prv")
    best = muffle.calibrate(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=1000)
    assert best.noise_multiplier <= ours <= theirs * 1.01
    spent = muffle.account(noise_multiplier=ours, sampling_rate=0.01, steps=1000, delta=1e-5)
    assert 2.98 < spent.epsilon <= 3.0


def test_runs_of_different_rates_and_without_noise():
    accountant = create_accountant("muffle")
    for rate in (0.01, 0.01, 0.02, 0.0):
        accountant.step(noise_multiplier=1.0, sample_rate=rate)
    assert accountant.history == [(1.0, 0.01, 2), (1.0, 0.02, 1), (1.0, 0.0, 1)]
    assert len(accountant.ledger()) == 3 and 0 < accountant.get_epsilon(1e-5) < 10
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == float("inf")
    with pytest.raises(muffle.InputError, match="noise multiplier"):
        accountant.step(noise_multiplier=-1.0, sample_rate=0.1)
    assert len(accountant) == 5
    with pytest.raises(muffle.InputError, match="estimate"):
        accountant.get_epsilon(1e-5, accountant="gdp")


def test_doubts_are_told():
    with pytest.warns(muffle.PrivacyWarning, match="secure_mode is off"):
        trained("muffle", steps=1, noise_multiplier=1.0)
    hook = create_accountant("muffle").get_optimizer_hook_fn(0.1)

    class Realised:
        noise_multiplier, accumulated_iterations = 1.0, 1
        expected_batch_size, secure_mode = None, True

    with pytest.warns(muffle.PrivacyWarning, match="divided by the number of records in the lot"):
        hook(Realised())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hook(Realised())


def test_accumulated_lots_are_charged_one_by_one():
    """A record can be in each of n lots: charging one lot of rate n q would be too little."""
    accountant = create_accountant("muffle")
    hook = accountant.get_optimizer_hook_fn(0.25)

    class Accumulated:
        noise_multiplier, accumulated_iterations = 1.0, 4
        expected_batch_size, secure_mode = 64, True

    hook(Accumulated())
    assert accountant.history == [(0.5, 0.25, 4)]
    # If a record is in all four lots, which happens, the sum moves by four clip bounds.
    assert accountant.get_epsilon(1e-5) > 13.66
    with pytest.raises(muffle.InputError, match="sampling"):
        accountant.step(noise_multiplier=1.0, sample_rate=1.5)


def test_adaptive_clipping_is_refused():
    accountant = create_accountant("muffle")

    class AdaClip:
        noise_multiplier, accumulated_iterations = 1.0, 1
        expected_batch_size, secure_mode, unclipped_num_std = 64, True, 5.0

    with pytest.raises(muffle.InputError, match="adaptive clipping"):
        accountant.get_optimizer_hook_fn(0.1)(AdaClip())
    assert len(accountant) == 0
