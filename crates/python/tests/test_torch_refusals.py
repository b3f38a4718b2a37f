"""Modules, records and engines that must be refused before a record is read."""

import os
import pathlib

import muffle
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: the engine needs PyTorch (pip install torch)")
from torch import nn
from torch.nn import functional

from muffle._muffle import EngineSession
from muffle.torch import Engine
from muffle.torch._seam import Seam


def records(count=12, width=6):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(width, generator=generator), torch.tensor(i % 3)) for i in range(count)]


def loss(module, batch):
    return functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def mlp(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))


def refusal(module, out, loss=loss, data=None, **options):
    """The message with which `fit` refuses a module. Nothing may be left behind."""
    with pytest.raises(muffle.InputError) as raised:
        muffle.fit(
            module, records() if data is None else data, loss=loss, out=out, steps=2, lot_size=6,
            progress=False, **{"optimizer": "dp-sgd", **options},
        )
    assert not pathlib.Path(out).exists(), "a refused run leaves no folder"
    return str(raised.value)


class Buffer(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += x.detach().mean()
        return x


class Centered(nn.Module):
    """Subtracts the mean over the batch."""

    def forward(self, x):
        return x - x.mean(0)


class Wide(nn.Module):
    """Adds the maximum over the batch to every example."""

    def forward(self, x):
        return x + 0.1 * x.max()


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(8), "batch statistics mix examples"),
        (nn.Dropout(0.5), "call module.eval()"),
        (Buffer(), "buffer that changes"),
        (Centered(), "one example changes another's"),
        (Wide(), "one example changes another's"),
        (nn.Linear(8, 8).half(), "expected float32, got torch.float16"),
        (nn.Linear(8, 8).double(), "expected float32, got torch.float64"),
    ],
)
def test_modules_in_which_examples_interact_are_refused(layer, words, tmp_path):
    assert words in refusal(mlp(layer), tmp_path / "run")


def test_losses_that_mix_examples_are_refused(tmp_path):
    out = tmp_path / "run"
    assert 'expected reduction="none"' in refusal(mlp(), out, nn.CrossEntropyLoss())
    mean = lambda module, batch: functional.cross_entropy(module(batch[0]), batch[1])
    assert "one loss for each" in refusal(mlp(), out, mean)
    centered = lambda module, batch: loss(module, batch) - loss(module, batch).mean()
    assert "one example changes another's" in refusal(mlp(), out, centered)
    half = lambda module, batch: loss(module, batch).half()
    assert "expected float32" in refusal(mlp(), out, half)


def test_records_that_do_not_fit_are_refused(tmp_path):
    out, good = tmp_path / "run", records()
    for record, words in [
        ((torch.full((6,), float("nan")), torch.tensor(0)), "expected finite numbers"),
        ((torch.zeros(7), torch.tensor(0)), r"expected shape (6), got (7)"),
        ((torch.zeros(6, dtype=torch.float64), torch.tensor(0)), "expected torch.float32"),
        ((torch.zeros(6),), "expected the fields"),
        # A class that the module does not have is found before the first step.
        ((torch.zeros(6), torch.tensor(3)), "its loss cannot be computed"),
    ]:
        message = refusal(mlp(), out, data=[*good, record])
        assert message.startswith("record 13: ") and words in message
    assert "expected records by index" in refusal(mlp(), out, data=iter(good))
    assert "expected at least one record" in refusal(mlp(), out, data=torch.zeros(0, 6))


def test_wrong_settings_are_refused(tmp_path):
    out = tmp_path / "run"
    assert "no parameter requires gradients" in refusal(mlp().requires_grad_(False), out)
    assert "low-rank pairs" in refusal(mlp(), out, optimizer="dp-prism")
    assert "expected one" in refusal(mlp(), out, loss=None)
    assert "no trainable parameter matches" in refusal(mlp(), out, roles={"absent*": "head"})


def test_a_parameter_without_gradient_is_refused(tmp_path):
    module = mlp()
    module.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    assert "idle: trainable, but no example gives it a gradient" in refusal(module, tmp_path / "run")


def test_float16_activations_are_refused(tmp_path):
    class Half(nn.Module):
        def forward(self, x):
            return (x.half() * 1e4).half().float()

    class InHalf(nn.Linear):
        def forward(self, x):
            return functional.linear(x.half(), self.weight.half(), self.bias.half())

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), InHalf(8, 3))
    to_float = lambda module, batch: functional.cross_entropy(module(batch[0]).float(), batch[1], reduction="none")
    try:
        message = refusal(module, tmp_path / "run", loss=to_float)
    except pytest.fail.Exception:
        # Without a rule for the layer it is computed by automatic differentiation: its gradients are
        # float32, and a norm is that of the gradient that is summed.
        engine = Engine(module, to_float, records=records())
        assert {"1.weight", "1.bias"} <= set(engine.generic_parameters())
    else:
        assert "float" in message
    # Overflow to infinity: the example has weight 0.
    engine = Engine(mlp(Half()), loss, records=[(torch.full((6,), 1e30), torch.tensor(0)), *records()], probe_records=records(3))
    engine.load(engine.parameters())
    losses, squares = engine.observe([0, 1], [[0, 1, 2, 3]])
    assert not all(map(lambda x: abs(x) < 1e300, (losses[0], squares[0]))) and abs(losses[1]) < 1e3


class Wrong(Engine):
    """An engine with a planted error."""

    def __init__(self, *arguments, error, **options):
        super().__init__(*arguments, **options)
        self.error = error

    def observe(self, indices, blocks):
        losses, squares = super().observe(indices, blocks)
        names = list(self._model.parameters)
        hidden = [k for k, name in enumerate(names) if name.endswith(self.error)]
        for index in hidden:
            part = self._pass.squares[index]
            block = self._tensor_blocks[index]
            for i in range(len(indices)):
                squares[i * len(blocks) + block] -= part[i].item()
        return losses, squares


class Leaking(Engine):
    """An engine in which an example gets a part of its neighbour's gradient."""

    def accumulate(self, weights):
        leaked = [[a + 0.05 * b for a, b in zip(row, [0.0, *row])] for row in weights]
        super().accumulate(leaked)


class Mixing(Engine):
    """An engine whose losses depend on the batch, as with the statistics of batch norm."""

    def observe(self, indices, blocks):
        losses, squares = super().observe(indices, blocks)
        mean = sum(losses) / max(1, len(losses))
        return [0.99 * loss + 0.01 * mean for loss in losses], squares


class TiedOnce(Engine):
    """An engine that counts one use of a tied table only."""

    def observe(self, indices, blocks):
        losses, squares = super().observe(indices, blocks)
        table = self._pass.forms[0]
        if hasattr(table, "outer"):
            short = table.outer.squared_norms() - table.squared_norms()
        else:
            short = -0.5 * table.squared_norms()
        for i in range(len(indices)):
            squares[i * len(blocks) + self._tensor_blocks[0]] += short[i].item()
        return losses, squares


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(13, 8)
        self.inner = nn.Linear(8, 8)

    def forward(self, tokens):
        return torch.tanh(self.inner(self.table(tokens))) @ self.table.weight.T


def probed(engine, out):
    """Starts a run, in which the curator's probe tests the engine."""
    EngineSession.create(
        Seam(engine), 12, os.fspath(out), optimizer="dp-sgd",
        changes=['model.source="external:new"', "training.steps=2", "training.lot_size=6"],
    )


def test_wrong_engines_are_refused_by_the_probe(tmp_path):
    data = records()
    for number, engine in enumerate([
        Wrong(mlp(), loss, records=data, error="bias"),
        Wrong(mlp(), loss, records=data, error="1.weight"),
        Leaking(mlp(), loss, records=data),
        Mixing(mlp(), loss, records=data),
    ]):
        with pytest.raises(muffle.Error, match="norm|example"):
            probed(engine, tmp_path / f"run{number}")
    probed(Engine(mlp(), loss, records=data), tmp_path / "right")


def test_a_tied_table_that_is_counted_once_is_refused(tmp_path):
    generator = torch.Generator().manual_seed(0)
    data = [torch.randint(13, (6,), generator=generator) for _ in range(12)]

    def token_loss(module, batch):
        logits = module(batch)[:, :-1]
        return functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)

    torch.manual_seed(0)
    module = Tied()
    with pytest.raises(muffle.Error, match="the norm reported for an example"):
        probed(TiedOnce(module, token_loss, records=data), tmp_path / "wrong")
    probed(Engine(module, token_loss, records=data), tmp_path / "right")
