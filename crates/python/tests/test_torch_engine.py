"""The engine in PyTorch against loops over single examples, for every kind of layer."""

import math

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: the engine needs PyTorch (pip install torch)")
from torch import nn
from torch.nn import functional

from muffle.torch import CausalLanguageModel, Direct, Engine, register_layer
from muffle.torch._seam import Seam
from muffle.torch.forms import sum_of_squares


class Scaled(nn.Module):
    """A layer with parameters of its own, for the generic path."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)
        self.mix = nn.Parameter(torch.randn(width, width) / width)

    def forward(self, x):
        return x * self.gain + torch.tanh(x @ self.mix)


class Registered(nn.Module):
    """A layer with a rule of its own."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return x * self.gain


register_layer(Registered, gain=lambda layer, x, d: Direct((x * d).flatten(1, -2).sum(1) if x.dim() > 2 else x * d))


class LowRank(nn.Module):
    """A frozen linear layer with adapters, named as in PEFT."""

    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.lora_A = nn.Linear(width, 2, bias=False)
        self.lora_B = nn.Linear(2, width, bias=False)

    def forward(self, x):
        return self.base(x) + 2.0 * self.lora_B(self.lora_A(x))


class Attention(nn.Module):
    """Causal attention with separate projections and tied tables."""

    def __init__(self, vocabulary=11, width=8, positions=9):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.final = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens) + self.positions(torch.arange(tokens.shape[1]))
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return self.head(self.final(x))


class Padded(nn.Module):
    """A table of which one row is padding, and a table without tie."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=3)
        self.last = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.last(torch.tanh(self.table(tokens)).mean(1))


class Shared(nn.Module):
    """One layer used twice."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def vectors(*shape):
    return [(torch.randn(shape), torch.tensor(i % 3)) for i in range(7)]


def class_loss(module, batch):
    return functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def token_loss(module, batch):
    logits = module(batch)
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), batch[:, 1:], reduction="none").mean(1)


def images(*layers, size=8, channels=3, outputs=3):
    body = nn.Sequential(*layers)
    with torch.no_grad():
        width = body(torch.zeros(1, channels, *[size] * 2)).flatten(1).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, outputs))


def zoo():
    torch.manual_seed(0)
    flat, image = vectors(6), vectors(3, 8, 8)
    tokens = [torch.randint(11, (7,)) for _ in range(7)]
    line, volume = vectors(2, 12), vectors(2, 4, 4, 4)
    mlp = lambda *layers: nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))
    return {
        "linear": (mlp(nn.Tanh()), class_loss, flat),
        "linear on rows": (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)), class_loss, vectors(4, 6)),
        "layer norm": (mlp(nn.LayerNorm(8)), class_loss, flat),
        "layer norm without bias": (mlp(nn.LayerNorm(8, bias=False)), class_loss, flat),
        "rms norm": (mlp(nn.RMSNorm(8)), class_loss, flat),
        "group norm": (images(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), class_loss, image),
        "convolution": (images(nn.Conv2d(3, 4, 3, stride=2, padding=1)), class_loss, image),
        "convolution, groups": (images(nn.Conv2d(3, 6, 3, groups=3, dilation=2)), class_loss, image),
        "convolution, circular": (images(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")), class_loss, image),
        "convolution, same": (images(nn.Conv2d(3, 4, 3, padding="same", bias=False)), class_loss, image),
        "convolution, 1 dimension": (nn.Sequential(nn.Conv1d(2, 3, 4), nn.Flatten(), nn.Linear(27, 3)), class_loss, line),
        "convolution, 3 dimensions": (nn.Sequential(nn.Conv3d(2, 3, 2), nn.Flatten(), nn.Linear(81, 3)), class_loss, volume),
        "transposed convolution": (images(nn.ConvTranspose2d(3, 2, 3)), class_loss, image),
        "adapters": (mlp(LowRank(8)), class_loss, flat),
        "parameters of its own": (mlp(Scaled(8)), class_loss, flat),
        "registered layer": (mlp(Registered(8)), class_loss, flat),
        "layer used twice": (Shared(6), class_loss, flat),
        "multi-head attention": (MultiHead(), class_loss, vectors(4, 8)),
        "tied tables, attention": (Attention(), token_loss, tokens),
        "table with padding": (Padded(), class_loss, [(torch.randint(11, (7,)), torch.tensor(i % 3)) for i in range(7)]),
        "recurrent": (Recurrent(), class_loss, vectors(5, 6)),
        "bilinear": (Bilinear(), class_loss, flat),
    }


class MultiHead(nn.Module):
    """The attention of PyTorch, with one parameter for all projections."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    """A recurrent layer, of which no rule is known."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(6, 4, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.cell(x)[0][:, -1])


class Bilinear(nn.Module):
    """A layer with two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(6, 6, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.layer(x, torch.tanh(x)))


ZOO = zoo()


def brute_force(engine, module, loss, records):
    """Losses and gradients of single examples, by automatic differentiation of each alone."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    losses, gradients = [], []
    for record in records:
        value = loss(module, engine._batch_of([record]))[0]
        losses.append(value.item())
        gradients.append([g.double() for g in torch.autograd.grad(value, parameters)])
    return losses, gradients


@pytest.mark.parametrize("name", list(ZOO))
def test_norms_and_sums_are_those_of_single_examples(name):
    module, loss, records = ZOO[name]
    engine = Engine(module, loss, records=records)
    losses, gradients = brute_force(engine, module, loss, records)
    count = len(gradients[0])
    each = [[k] for k in range(count)]
    weights = torch.linspace(0.0, 1.0, len(records)).tolist()
    engine.load(engine.parameters())
    for blocks in ([list(range(count))], each):
        engine.start_sum()
        for part in (range(3), range(3, len(records))):
            got, squares = engine.observe(list(part), blocks)
            assert got == pytest.approx([losses[i] for i in part], rel=1e-4)
            squares = torch.tensor(squares).view(len(part), len(blocks))
            for row, i in zip(squares, part):
                for square, block in zip(row, blocks):
                    exact = sum(gradients[i][k].square().sum() for k in block).item()
                    # A norm covers the rounding of the engine's own numbers, so it may be larger. The
                    # gradient of the bias of attention keys is 0 and has nothing but rounding.
                    assert exact * (1 - 1e-5) - 1e-12 <= square <= exact * 1.01 + 1e-12
            engine.accumulate([[weights[i] for i in part] for _ in blocks])
        for k, total in enumerate(engine.take_sum()):
            expected = sum(w * g[k] for w, g in zip(weights, gradients))
            right = engine.trainable()[k].role == "right"
            expected = expected.T if right else expected.reshape(total.shape)
            assert (total - expected).norm() <= 1e-4 * expected.norm() + 1e-7
    engine.unload()


@pytest.mark.parametrize("name", list(ZOO))
def test_norms_of_encoded_gradients_are_those_of_single_examples(name):
    module, loss, records = ZOO[name]
    engine = Engine(module, loss, records=records)
    _, gradients = brute_force(engine, module, loss, records)
    engine.load(engine.parameters())
    tensors = engine.trainable()
    torch.manual_seed(3)
    centers = [0.05 * torch.randn(tensor.shape) for tensor in tensors]
    scales = [0.5 + torch.rand(tensor.shape) for tensor in tensors]
    seam = Seam(engine)
    seam.use_affine([[bytearray(v.numpy().tobytes()) for v in pair] for pair in zip(centers, scales)])
    _, squares = seam.observe(list(range(len(records))), [[k] for k in range(len(tensors))])
    squares = torch.tensor(squares).view(len(records), len(tensors))
    for row, gradient in zip(squares, gradients):
        for k, square in enumerate(row):
            g = gradient[k].T if tensors[k].role == "right" else gradient[k].reshape(tensors[k].shape)
            exact = ((g - centers[k]) / scales[k]).square().sum().item()
            assert exact * (1 - 1e-5) <= square <= exact * 1.01 + 1e-12
    # A sum after it is that of gradients as they are.
    seam.start_sum()
    seam.accumulate([[1.0] * len(records) for _ in tensors])
    for k, total in enumerate(engine.take_sum()):
        expected = sum(g[k] for g in gradients)
        expected = expected.T if tensors[k].role == "right" else expected.reshape(total.shape)
        assert (total - expected).norm() <= 1e-4 * expected.norm() + 1e-7
    # Without it, norms are plain again.
    seam.use_identity()
    _, plain = seam.observe([0], [[k] for k in range(len(tensors))])
    exact = [g.square().sum().item() for g in gradients[0]]
    assert plain == pytest.approx(exact, rel=1e-2, abs=1e-12)


def test_norms_in_tangent_spaces_are_those_of_single_examples():
    module, loss, records = ZOO["adapters"]
    engine = Engine(module, loss, records=records)
    tensors = engine.trainable()
    pairs = [(k, tensor.partner) for k, tensor in enumerate(tensors) if tensor.role == "left"]
    assert pairs
    torch.manual_seed(4)
    engine.load([torch.randn(tensor.shape) for tensor in tensors])
    _, gradients = brute_force(engine, module, loss, records)
    frames, expected = [], [[g.square().sum() for g in gradient] for gradient in gradients]
    for left, right in pairs:
        a, b = engine.parameter(left).double(), engine.parameter(right).double()
        (_, r_a), (q_b, r_b) = torch.linalg.qr(a), torch.linalg.qr(b)
        matrices = [q_b.float(), torch.inverse(r_a).float(), torch.inverse(r_b).float()]
        bytes_of = [bytearray(matrix.contiguous().numpy().tobytes()) for matrix in matrices]
        frames.append((left, right, *bytes_of))
        for gradient, row in zip(gradients, expected):
            x = gradient[left] @ torch.inverse(r_b)
            y = gradient[right].T @ torch.inverse(r_a)
            row[left] = x.square().sum()
            row[right] = (y - q_b @ (q_b.T @ y)).square().sum()
    seam = Seam(engine)
    seam.use_tangent(frames)
    _, squares = seam.observe(list(range(len(records))), [[k] for k in range(len(tensors))])
    for row, exact in zip(torch.tensor(squares).view(len(records), -1), expected):
        for square, value in zip(row, exact):
            assert value * (1 - 1e-5) - 1e-12 <= square <= value * 1.01 + 1e-9


@pytest.mark.parametrize(
    "name", ["linear", "convolution", "tied tables, attention", "adapters", "registered layer", "layer norm", "layer used twice", "table with padding", "rms norm", "group norm"]
)
def test_known_layers_take_the_fast_path(name):
    module, loss, records = ZOO[name]
    assert Engine(module, loss, records=records).generic_parameters() == []


@pytest.mark.parametrize("name", ["parameters of its own", "recurrent", "multi-head attention"])
def test_unknown_layers_take_the_generic_path(name):
    module, loss, records = ZOO[name]
    engine = Engine(module, loss, records=records)
    assert engine.generic_parameters()
    # By `vmap`; a recurrent layer is computed one by one.
    assert engine._prepared().dimensions == (None if name == "recurrent" else [0, 0])


def test_gram_matrices_give_the_norms_of_gradients():
    """Long inputs with small rows: norms from Gram matrices, and from gradients."""
    torch.manual_seed(1)
    for rows, inputs, outputs in [(3, 40, 50), (60, 4, 5)]:
        module = nn.Sequential(nn.Linear(inputs, outputs), nn.Flatten(), nn.Linear(rows * outputs, 2))
        records = [(torch.randn(rows, inputs), torch.tensor(i % 2)) for i in range(4)]
        engine = Engine(module, class_loss, records=records)
        _, gradients = brute_force(engine, module, class_loss, records)
        engine.load(engine.parameters())
        _, squares = engine.observe(list(range(4)), [[0], [1], [2], [3]])
        for i in range(4):
            assert squares[4 * i] == pytest.approx(gradients[i][0].square().sum().item(), rel=2e-3)


def test_long_sums_of_squares_cover_their_rounding():
    torch.manual_seed(0)
    for elements in (1, 5, 255, 256, 257, 1000):
        rows = torch.randn(5, elements)
        rows[1], rows[2], rows[3] = 0.0, rows[2] * 1e-18, rows[3] * 1e15
        rows[4] = torch.cat([torch.zeros(elements - 1), torch.ones(1)])
        exact = rows.double().square().sum(1)
        got = sum_of_squares(rows)
        assert got[1] == 0
        assert ((got - exact).abs() <= 1e-6 * exact + elements * 2.0**-126).all()


@pytest.mark.parametrize(("vocabulary", "width", "length"), [(300, 40, 4), (7, 5, 12)])
def test_tied_tables_from_gram_matrices_and_from_gradients(vocabulary, width, length):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(vocabulary, width)
            self.inner = nn.Linear(width, width)

        def forward(self, tokens):
            return torch.tanh(self.inner(self.table(tokens))) @ self.head().T

        def head(self):
            return self.table.weight

    class Head(Tied):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(width, vocabulary, bias=False)
            self.last.weight = self.table.weight

        def forward(self, tokens):
            return self.last(torch.tanh(self.inner(self.table(tokens))))

    torch.manual_seed(0)
    records = [torch.randint(vocabulary, (length,)) for _ in range(4)]
    # A tie by a functional call is found, and takes the generic path.
    for module, is_generic in [(Head(), False), (Tied(), True)]:
        engine = Engine(module, token_loss, records=records)
        assert bool(engine.generic_parameters()) == is_generic
        _, gradients = brute_force(engine, module, token_loss, records)
        engine.load(engine.parameters())
        _, squares = engine.observe(list(range(4)), [[0], [1], [2]])
        is_direct = isinstance(engine._pass.forms[0], Direct)
        assert is_generic or is_direct == (vocabulary < 10)
        for i in range(4):
            exact = gradients[i][0].square().sum().item()
            assert exact * (1 - 1e-6) <= squares[3 * i] <= exact * 1.01


@pytest.mark.parametrize("poison", [3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["linear", "linear on rows", "convolution", "parameters of its own"])
def test_an_example_that_is_not_finite_changes_nothing(name, poison):
    module, loss, records = ZOO[name]
    poisoned = [*records, (torch.full_like(records[0][0], poison), torch.tensor(0))]
    engine = Engine(module, loss, records=poisoned, probe_records=records[:3])
    engine.load(engine.parameters())
    blocks = [list(range(len(engine.trainable())))]

    def total(indices):
        engine.start_sum()
        losses, squares = engine.observe(indices, blocks)
        sound = [math.isfinite(a) and math.isfinite(b) for a, b in zip(losses, squares)]
        engine.accumulate([[float(ok) for ok in sound]])
        return sound, engine.take_sum()

    sound, with_poison = total([0, 1, 7])
    assert sound[:2] == [True, True] and (poison == 3e38 or not sound[2])
    _, without = total([0, 1])
    if sound[2]:
        return
    for a, b in zip(with_poison, without):
        assert torch.isfinite(a).all() and (a - b).norm() <= 1e-6 * b.norm() + 1e-9


def test_a_language_model_pads_and_masks():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention(positions=16)

        def forward(self, input_ids, use_cache):
            return type("Output", (), {"logits": self.inner(input_ids)})()

    model = Model()
    texts = CausalLanguageModel(vocabulary=11, max_length=16)
    records = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 1, 2], ([3, 4, 5, 6], 2)]
    engine = Engine(
        model, texts.loss, collate=texts.collate, validate=texts.validate, records=records,
        probe_records=texts.probe_records(), structured=False,
    )
    engine.load(engine.parameters())
    together = engine.losses([0, 1, 2])
    assert together == pytest.approx([engine.losses([i])[0] for i in range(3)], rel=1e-5)
    logits = model.inner(torch.tensor([[3, 4, 5, 6]]))[0]
    assert together[2] == pytest.approx(functional.cross_entropy(logits[1:3], torch.tensor([5, 6])).item(), rel=1e-4)
    engine.set_records([[1, 2, 11]])
    with pytest.raises(ValueError, match="record 1: expected tokens below 11"):
        engine.validate(0)


class Experts(nn.Module):
    """A mixture of experts: each example is computed by one of them."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        scores = self.router(x).softmax(1)
        best = scores.argmax(1)
        hidden = x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            chosen = best == number
            hidden = hidden.index_put((chosen,), expert(x[chosen]))
        return self.head(hidden * scores.gather(1, best[:, None]))


@pytest.mark.parametrize("seed", range(4))
def test_experts_take_the_generic_path(seed):
    torch.manual_seed(seed)
    module = Experts()
    generator = torch.Generator().manual_seed(seed)
    records = [(torch.randn(6, generator=generator), torch.tensor(i % 3)) for i in range(8)]

    def loss(module, batch):
        return functional.cross_entropy(module(batch[0]), batch[1], reduction="none")

    engine = Engine(module, loss, records=records)
    assert {name for name in engine.generic_parameters() if "experts" in name}
    engine.check_records(4)
    _, gradients = brute_force(engine, module, loss, records)
    engine.load(engine.parameters())
    _, squares = engine.observe(list(range(8)), [list(range(len(engine.trainable())))])
    for square, gradient in zip(squares, gradients):
        exact = sum(g.square().sum() for g in gradient).item()
        assert exact * (1 - 1e-5) <= square <= exact * 1.01
