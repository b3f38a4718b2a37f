"""Whole runs on modules of PyTorch."""

import json
import os
import signal

import muffle
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: muffle.fit needs PyTorch (pip install torch)")
from torch import nn

from muffle.torch import Callback

LOSS = nn.CrossEntropyLoss(reduction="none")


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def dataset(count=400):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator)
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())


def figures(model):
    inputs, labels = dataset(200)[:]
    return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}


RUN = {"loss": LOSS, "epsilon": 4.0, "delta": 1e-4, "steps": 12, "lot_size": 80, "progress": False}


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp-adam-bc", "dp-muon-bc", "dp-macadam"])
def test_a_run_learns_and_is_verified(optimizer, tmp_path):
    model, seen = module(), []

    class Steps(Callback):
        def on_step(self, state):
            seen.append((state.step, state.epsilon))

        def on_end(self, state, run):
            seen.append(run.epsilon)

    run = muffle.fit(
        model, dataset(), out=tmp_path / "run", optimizer=optimizer, evaluate=figures,
        evaluation_data="public", callbacks=[Steps()], evaluate_every=4, **RUN,
    )
    assert run.private and run.steps == 12 and run.epsilon <= 4
    assert [step for step, _ in seen[:-1]] == list(range(1, 13))
    assert seen[0][1] < seen[5][1] < seen[-2][1] == seen[-1] == run.epsilon
    assert run.metrics["accuracy"] == figures(model)["accuracy"] > 0.8
    verdict = muffle.verify(run.folder)
    assert verdict and verdict.private, verdict
    assert run.statement["coverage"]["isolation"] == "up-to-rounding"
    saved = torch.load(run.model / "model.pt", weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
    history = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in history] == [0, 4, 8, 12]
    # Other weights than the stated ones are found.
    torch.save(module().state_dict(), run.model / "model.pt")
    assert not muffle.verify(run.folder).consistent


def test_a_run_without_privacy_says_so(tmp_path):
    run = muffle.fit(module(), dataset(), out=tmp_path / "run", optimizer="adam", **{**RUN, "epsilon": None, "delta": None})
    assert not run.private and run.epsilon == float("inf") and not run.statement["private"]


def interrupt(at):
    class Interrupt(Callback):
        def on_step(self, state):
            if state.step == at:
                os.kill(os.getpid(), signal.SIGINT)

    return Interrupt()


def test_an_interrupted_run_is_resumed_within_its_budget(tmp_path):
    out, options = tmp_path / "run", {"optimizer": "dp-adam", **RUN}
    with pytest.raises(KeyboardInterrupt):
        muffle.fit(module(), dataset(), out=out, callbacks=[interrupt(5)], **options)
    with pytest.raises(muffle.InputError, match="resume"):
        muffle.fit(module(), dataset(), out=out, **options)
    with pytest.raises(muffle.InputError, match="not those that the run started with"):
        muffle.fit(module(), dataset(400)[:][0].unsqueeze(1), out=out, resume=True, loss=lambda m, b: m(b).sum((1, 2)), progress=False)
    model, steps = module(), []

    class Steps(Callback):
        def on_step(self, state):
            steps.append(state.step)

    run = muffle.fit(model, dataset(), out=out, loss=LOSS, resume=True, callbacks=[Steps()], progress=False)
    # The step that was interrupted was completed and saved.
    assert steps == list(range(6, 13)) and run.steps == 12 and run.epsilon <= 4
    assert len(run.statement["sessions"]) == 2 and muffle.verify(run.folder)
    with pytest.raises(muffle.InputError, match="complete"):
        muffle.fit(module(), dataset(), out=out, loss=LOSS, resume=True, progress=False)


def test_exceptions_leave_a_run_that_can_be_resumed(tmp_path):
    class Fails(torch.utils.data.Dataset):
        def __init__(self):
            self.data, self.broken = dataset(), False

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            if self.broken:
                raise OSError("disk unplugged")
            return self.data[index]

    data = Fails()

    class Break(Callback):
        def on_step(self, state):
            data.broken = state.step == 3

    options = {"optimizer": "dp-adam", "out": tmp_path / "run", **RUN, "set": {"training.checkpoint_every": 1}}
    with pytest.raises(muffle.FaultError, match="failed in a step") as raised:
        muffle.fit(module(), data, callbacks=[Break()], **options)
    assert isinstance(raised.value.__cause__, OSError) and "unplugged" not in str(raised.value)
    data.broken = False
    run = muffle.fit(module(), data, out=tmp_path / "run", loss=LOSS, resume=True, progress=False)
    # The lot that was charged and lost is not repeated.
    assert run.steps == 11 and run.epsilon <= 4 and muffle.verify(run.folder)


def test_a_callback_ends_a_run_and_all_steps_are_charged(tmp_path):
    class Stop(Callback):
        def on_evaluate(self, state):
            state.stop = state.step >= 4

    run = muffle.fit(
        module(), dataset(), out=tmp_path / "run", optimizer="dp-adam", evaluate=figures,
        evaluate_every=2, callbacks=[Stop()], **RUN,
    )
    assert run.steps == 4 and sum(count for _, count in muffle.Ledger.from_json(json.dumps(run.statement["ledger"])).events) == 12
    assert muffle.verify(run.folder)


def test_frozen_weights_and_origins(tmp_path):
    model = module()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    run = muffle.fit(model, dataset(), out=tmp_path / "run", optimizer="dp-sgd", **{**RUN, "steps": 2})
    assert torch.equal(before, model[0].weight) and run.statement["coverage"]["frozen_weights"]
    assert 'source = "external:partial"' in (run.folder / "config.toml").read_text()
    with pytest.raises(muffle.InputError, match="origin: expected one of"):
        muffle.fit(model, dataset(), out=tmp_path / "other", origin="unknown", **RUN)


def test_micro_batches_change_nothing_but_rounding(tmp_path):
    def trained(micro_batch):
        model = module()
        muffle.fit(
            model, dataset(), out=tmp_path / str(micro_batch), optimizer="dp-adam",
            micro_batch=micro_batch, set={"privacy.seed": 7}, **RUN,
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    one, all_at_once = trained(1), trained(100)
    assert (one - all_at_once).norm() <= 1e-4 * one.norm()


def test_noise_has_the_planned_size(tmp_path):
    """Without gradients, released sums are noise: its size follows from plan and lot size."""
    model = nn.Linear(100, 100, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    data = torch.zeros(50, 100) + 1e-20
    model_loss = lambda m, b: 1e-6 * m(b).sum(1)
    muffle.fit(
        model, data, out=tmp_path / "run", optimizer="dp-sgd", noise_multiplier=3.0, steps=1,
        lot_size=25, learning_rate=1.0, loss=model_loss, progress=False, origin="new",
        set={"optimizer.clip": 2.0, "optimizer.momentum": 0.0},
    )
    # 10,000 draws: the standard deviation is within 5 % with a false-alarm rate below 1e-6.
    expected = 3.0 * 2.0 / 25
    assert model.weight.std().item() == pytest.approx(expected, rel=0.05)
