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


class Threshold(nn.Module):
    """Gradients above a norm of the whole batch are scaled, which usual losses do not reach."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 1).requires_grad_(False)

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g * (5 / (g.norm() + 1e-12)).clamp(max=1))
        return self.outer(hidden)[:, 0]


def test_a_threshold_on_the_gradients_of_a_batch_is_refused(tmp_path):
    data = [(x, torch.tensor(1e6 if i == 7 else 0.5)) for i, (x, _) in enumerate(numbers())]

    def square(module, batch):
        return (module(batch[0]) - batch[1]).square()

    with pytest.raises(muffle.InputError, match="one example changes another's"):
        fit(Threshold(), data, tmp_path / "run", loss=square)


def test_the_records_show_a_threshold_that_probe_records_do_not(tmp_path):
    """With probe records of zeros, no gradient passes the hook."""
    data = [(x, torch.tensor(1e6)) for x, _ in numbers()]
    probes = [(torch.zeros(6), torch.tensor(0.0)) for _ in range(3)]

    def square(module, batch):
        return (module(batch[0]) - batch[1]).square()

    engine = Engine(Threshold(), square, records=data, probe_records=probes)
    with pytest.raises(ValueError, match="one example changes another's"):
        engine.check_records(8)


class Routed(nn.Module):
    """Rows are sorted by a router, which at the start leaves them in their order."""

    def __init__(self):
        super().__init__()
        self.router, self.inner, self.head = nn.Linear(6, 2), nn.Linear(6, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.router.weight.zero_()
            self.router.bias.copy_(torch.tensor([5.0, 0.0]))

    def forward(self, x):
        order = torch.argsort(self.router(x).argmax(1), stable=True)
        hidden = torch.tanh(self.inner(x[order]))
        return self.head(hidden[torch.argsort(order)])


def test_a_module_that_sorts_examples_only_after_training_is_refused():
    engine = Engine(Routed(), loss, records=numbers())
    start = engine.parameters()
    engine.load(start)
    trained = [value.clone() for value in start]
    index = [tensor.name for tensor in engine.trainable()].index("router.weight")
    trained[index][0] = 40.0 * engine.probe_records()[1][0]
    trained[index][1] = 40.0 * engine.probe_records()[0][0]
    with pytest.raises(ValueError, match="inner.weight.*: after training, one example changes"):
        for _ in range(2):
            engine.load(trained)


class Remembers(nn.Module):
    """Keeps the largest number of all records, where PyTorch does not see it."""

    def __init__(self, extra):
        super().__init__()
        self.layer, self.extra, self.seen = nn.Linear(6, 3), extra, 0.0
        self.register_buffer("largest", torch.zeros(()))

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state

    def forward(self, x):
        if x.abs().max() > 100:
            if self.extra:
                self.seen = float(x.abs().max())
            else:
                self.largest.data.copy_(x.abs().max())
        return self.layer(x)


@pytest.mark.parametrize("extra", [False, True])
def test_what_a_module_remembers_of_a_record_is_not_saved(extra, tmp_path):
    data = numbers()
    data[5] = (torch.full((6,), 12345.0), data[5][1])
    with pytest.raises(muffle.InputError, match="a buffer, .* has changed"):
        fit(Remembers(extra), data, tmp_path / "run")
    assert not list(tmp_path.glob("run/model/*.pt"))


def test_a_replaced_parameter_is_refused(tmp_path):
    module = nn.Linear(6, 3)

    class Replace(muffle.torch.Callback):
        def on_step(self, state):
            module.weight = nn.Parameter(torch.zeros(3, 6))

    with pytest.raises(muffle.Error) as raised:
        fit(module, numbers(), tmp_path / "run", callbacks=[Replace()])
    assert "replaced by another tensor" in str(raised.value.__cause__)


class Capacity(nn.Module):
    """Examples beyond a number in the batch count less."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        late = (torch.arange(len(x)) >= 20).float()[:, None]
        return self.layer(x) * (1 - 0.9 * late)


@pytest.mark.parametrize("options", [{"micro_batch": 24}, {"set": {"training.micro_batch": 24}}])
def test_records_are_checked_in_micro_batches_of_the_run(options, tmp_path):
    with pytest.raises(muffle.InputError, match="one example changes another's"):
        muffle.fit(
            Capacity(), numbers(48), loss=loss, out=tmp_path / "run", steps=3, lot_size=8,
            optimizer="dp-sgd", progress=False, **options,
        )


def test_random_records_do_not_hide_interactions(tmp_path):
    class Jittered:
        def __init__(self, texts):
            self.texts = texts

        def __len__(self):
            return len(self.texts)

        def __getitem__(self, index):
            tokens, label = self.texts[index]
            return [1 + int(torch.randint(19, ())), *tokens[1:]], label

    texts = [([1 + (i + j) % 19 for j in range(2 + i % 9)], i % 3) for i in range(24)]
    probes = [([1, 2, i + 3], i) for i in range(3)]
    with pytest.raises(muffle.InputError, match="record [0-9]+: one example changes another's"):
        fit(
            Bag(), Jittered(texts), tmp_path / "run", collate=padded, probe_records=probes,
            data_identity="jittered",
        )


def test_messages_have_no_content_of_records(tmp_path):
    class Secret(list):
        def __getitem__(self, index):
            if index == 6:
                raise KeyError("patient 4711")
            return super().__getitem__(index)

    with pytest.raises(muffle.InputError) as raised:
        fit(nn.Linear(6, 3), Secret(numbers()), tmp_path / "run")
    assert "4711" not in str(raised.value)

    def refusing(module, batch):
        if (batch[0] == 4711).any():
            raise ValueError(f"no loss for {batch[0].max()}")
        return loss(module, batch)

    data = numbers()
    data[5] = (torch.full((6,), 4711.0), data[5][1])
    with pytest.raises(muffle.InputError, match="record 6: its loss cannot") as raised:
        fit(nn.Linear(6, 3), data, tmp_path / "run", loss=refusing)
    assert "4711" not in str(raised.value)


def test_a_parameter_that_the_forward_pass_changes_is_refused(tmp_path):
    class Renormalised(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(max=float(x.max()))
            return super().forward(x)

    with pytest.raises(muffle.Error):
        fit(Renormalised(6, 3), numbers(), tmp_path / "run")


def test_a_failing_callback_loses_no_step(tmp_path):
    class Fail(muffle.torch.Callback):
        def on_step(self, state):
            if state.step == 2:
                raise OSError("the disk is full")

    with pytest.raises(OSError):
        fit(nn.Linear(6, 3), numbers(), tmp_path / "run", callbacks=[Fail()])
    run = muffle.fit(
        nn.Linear(6, 3), numbers(), loss=loss, out=tmp_path / "run", resume=True, progress=False
    )
    assert run.steps == 3


def test_a_resumed_run_takes_no_other_settings(tmp_path):
    with pytest.raises(muffle.InputError, match="resume: .* none of privacy.epsilon"):
        muffle.fit(
            nn.Linear(6, 3), numbers(), loss=loss, out=tmp_path / "run", resume=True, epsilon=2.0
        )


def test_figures_that_are_not_finite_end_no_run(tmp_path):
    run = fit(
        nn.Linear(6, 3), numbers(), tmp_path / "run",
        evaluate=lambda module: {"nll": float("nan"), "accuracy": 0.5},
    )
    assert run.steps == 3
