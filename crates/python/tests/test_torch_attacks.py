"""Modules that treat real records in another way than the probe records, and misused sessions."""

import importlib
import os

import muffle
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: the engine needs PyTorch (pip install torch)")
from torch import nn
from torch.nn import functional

import muffle.torch
from muffle.torch import Engine


def numbers(count=24, width=6):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(width, generator=generator), torch.tensor(i % 3)) for i in range(count)]


def loss(module, batch):
    return functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def fit(module, data, out, loss=loss, **options):
    return muffle.fit(
        module, data, loss=loss, out=out, steps=3, lot_size=8, micro_batch=8, progress=False,
        **{"optimizer": "dp-sgd", **options},
    )


class Bag(nn.Module):
    """The mean embedding over the padded length, so that a longer text changes the others."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))


def padded(texts):
    width = max(len(tokens) for tokens, _ in texts)
    rows = [tokens + [0] * (width - len(tokens)) for tokens, _ in texts]
    return torch.tensor(rows), torch.tensor([label for _, label in texts])


def test_padding_that_counts_is_refused(tmp_path):
    texts = [([1 + (i + j) % 19 for j in range(2 + i % 9)], i % 3) for i in range(24)]
    with pytest.raises(muffle.InputError, match="one example changes another's"):
        fit(Bag(), texts, tmp_path / "run", collate=padded)


def test_padding_of_lengths_that_probe_records_do_not_have_is_refused(tmp_path):
    """The records show what probe records, all of one length, do not."""
    texts = [([1 + (i + j) % 19 for j in range(2 + i % 9)], i % 3) for i in range(24)]
    probes = [([1, 2, i + 3], i) for i in range(3)]
    with pytest.raises(muffle.InputError, match="record [0-9]+: one example changes another's"):
        fit(Bag(), texts, tmp_path / "run", collate=padded, probe_records=probes)


class Sorted(nn.Module):
    """Computes one layer in the order of a content, as for packed sequences."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        # Equal for all probe records, which have no zeros.
        order = torch.argsort((x == 0).sum(1), stable=True)
        h = torch.relu(self.middle(h[order]))[torch.argsort(order)]
        return self.head(h)


def test_a_layer_that_sorts_examples_is_refused(tmp_path):
    data = [(x * (torch.arange(6) >= i % 5), y) for i, (x, y) in enumerate(numbers())]
    with pytest.raises(muffle.InputError, match="one example changes another's"):
        fit(Sorted(), data, tmp_path / "run")


def test_batches_in_another_order_are_refused(tmp_path):
    """The loss at a position must be that of the record at this position."""

    def collate(samples):
        samples = sorted(samples, key=lambda sample: int((sample[0] == 0).sum()))
        return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

    data = [(x * (torch.arange(6) >= i % 5), y) for i, (x, y) in enumerate(numbers())]
    with pytest.raises(muffle.InputError, match="one example changes another's"):
        fit(nn.Linear(6, 3), data, tmp_path / "run", collate=collate)


def test_random_records_are_no_interaction(tmp_path):
    """Records may be other ones each time that they are read, as with random crops."""

    class Shifted(list):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.rand(()), y

    run = fit(nn.Linear(6, 3), Shifted(numbers()), tmp_path / "run", data_identity="shifted")
    assert muffle.verify(run.folder)


class Selected(nn.Module):
    """Computes a layer for rows that the content selects, of other numbers for each example."""

    def __init__(self):
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, tokens):
        h = self.table(tokens)
        mask = tokens < 10
        rows = self.layer(h[mask])
        return self.head(torch.zeros_like(h).masked_scatter(mask[..., None], rows).mean(1))


def test_selected_rows_belong_to_their_example():
    """Norms are those of each example, although the numbers of rows are divisible by chance."""
    generator = torch.Generator().manual_seed(3)
    probes = [(torch.tensor([i, 11, i + 1, 12]), torch.tensor(i)) for i in range(3)]
    data = [(torch.randint(20, (4,), generator=generator), torch.tensor(i % 3)) for i in range(12)]
    torch.manual_seed(1)
    engine = Engine(Selected(), loss, records=data, probe_records=probes)
    names = [one.name for one in engine.trainable()]
    engine.start_sum()
    _, squares = engine.observe(range(12), [list(range(len(names)))])
    for index, square in enumerate(squares):
        model = engine._module
        value = loss(model, engine._batch_of([data[index]]))[0]
        gradients = torch.autograd.grad(value, list(model.parameters()))
        expected = sum(float(gradient.square().sum()) for gradient in gradients)
        assert abs(square - expected) <= 1e-4 * expected, index


class Thresholds(nn.Module):
    """Divides by the largest number of the batch, if it is very large."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.layer(x / (x.abs().max() / 50).clamp(min=1))))


def test_a_threshold_over_the_batch_is_refused(tmp_path):
    with pytest.raises(muffle.InputError, match="one example changes another's"):
        fit(Thresholds(), numbers(), tmp_path / "run")


def test_longer_probe_records_must_not_change_others():
    class Long(nn.Module):
        """Other positions for all examples if one is long."""

        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

        def forward(self, tokens):
            h = self.table(tokens) * (2.0 if tokens.shape[1] > 30 else 1.0)
            return self.head(h[:, 0])

    def probe(length):
        return [1 + i % 19 for i in range(length)], length % 3

    probes = [probe(length) for length in (16, 8, 4)]
    Engine(Long(), loss, collate=padded, probe_records=probes).trainable()
    with pytest.raises(ValueError, match="one example changes another's"):
        Engine(Long(), loss, collate=padded, probe_records=[*probes, probe(40)]).trainable()


class Moded(nn.Module):
    """Centers over the batch in training mode."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x - x.mean(0) if self.training else x)


def test_an_evaluation_may_change_modes(tmp_path):
    model = Moded().eval()
    seen = []

    def evaluate(module):
        seen.append(module.training)
        module.train()
        return {"accuracy": 0.5}

    fit(model, numbers(), tmp_path / "run", evaluate=evaluate, evaluate_every=1)
    assert seen == [False] * 4 and not model.training


def test_a_mode_that_a_callback_changes_is_refused(tmp_path):
    model = Moded().eval()

    class Mode(muffle.torch.Callback):
        def on_step(self, state):
            model.train()

    with pytest.raises(muffle.FaultError, match="failed in a step") as raised:
        fit(model, numbers(), tmp_path / "run", callbacks=[Mode()])
    assert "train() or eval() was called" in str(raised.value.__cause__)


class Observer(nn.Module):
    """Records the largest number beyond a range, as quantization does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("largest", torch.tensor(5000.0))

    def forward(self, x):
        with torch.no_grad():
            self.largest.copy_(torch.maximum(self.largest, x.abs().max()))
        return self.layer(x)


def test_a_buffer_that_a_record_changes_is_refused(tmp_path):
    data = numbers()
    data[5] = (torch.full((6,), 12345.678), data[5][1])
    with pytest.raises(muffle.InputError, match="a buffer, or a parameter that is not trained"):
        fit(Observer(), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_buffer_that_an_evaluation_changes_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()

    def evaluate(module):
        module.train()
        module(torch.randn(4, 6))
        return {"accuracy": 0.5}

    with pytest.raises(muffle.InputError, match="a buffer, or a parameter that is not trained"):
        fit(model, numbers(), tmp_path / "run", evaluate=evaluate, evaluate_every=1)
    assert not list((tmp_path / "run").glob("model/*"))


def test_messages_of_a_failed_step_have_no_content(tmp_path):
    class Records(list):
        broken = False

        def __getitem__(self, index):
            if self.broken and index == 4:
                raise KeyError("patient 4711: no scan")
            return super().__getitem__(index)

    data = Records(numbers())

    class Break(muffle.torch.Callback):
        def on_start(self, state):
            data.broken = True

    with pytest.raises(muffle.FaultError, match="NON-PRIVATE") as raised:
        fit(
            nn.Linear(6, 3), data, tmp_path / "run", callbacks=[Break()],
            set={"privacy.sampling": "full", "training.lot_size": "auto"},
        )
    assert "4711" not in str(raised.value) and "4711" in str(raised.value.__cause__)


def test_a_resumed_run_has_as_many_records(tmp_path):
    class Stop(muffle.torch.Callback):
        def on_step(self, state):
            raise KeyboardInterrupt

    settings = {"data_identity": "records of a test"}
    with pytest.raises(KeyboardInterrupt):
        fit(
            nn.Linear(6, 3), numbers(24), tmp_path / "run", callbacks=[Stop()],
            set={"privacy.sampling": "full", "training.lot_size": "auto"}, **settings,
        )
    with pytest.raises(muffle.Error):
        fit(nn.Linear(6, 3), numbers(23), tmp_path / "run", resume=True, **settings)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SKIPPED: this system cannot fork")
def test_a_forked_process_cannot_take_a_step(tmp_path):
    """It would draw the same noise as its parent."""
    told = []

    class Fork(muffle.torch.Callback):
        def on_start(self, state):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    loop._session.step()
                    os.write(write, b"a step")
                except muffle.InputError as error:
                    os.write(write, str(error).encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            told.append(os.read(read, 1000).decode())

    module = importlib.import_module("muffle.torch.fit")
    created = module._Loop.__init__

    def remembered(self, *arguments):
        nonlocal loop
        loop = self
        created(self, *arguments)

    loop = None
    module._Loop.__init__ = remembered
    try:
        fit(nn.Linear(6, 3), numbers(), tmp_path / "run", callbacks=[Fork()])
    finally:
        module._Loop.__init__ = created
    assert "forked" in told[0], told
