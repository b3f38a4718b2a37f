"""A model with a layer that Muffle does not know, with and without a rule for it.

Without a rule, the gradients of the layer's parameters are computed for each example by
`torch.func`: correct, and slower. A rule returns them from the input of the layer and the gradient
of its output (`layer(x)` would call the hooks: use `layer.forward(x)`). It is compared with automatic
differentiation before it is used.
"""

import tempfile

import muffle
import torch
from muffle.torch import Direct, Engine, register_layer
from torch import nn


class Gate(nn.Module):
    """Multiplies each channel by a learned factor, and shifts it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * self.factor + self.shift)


def of_shift(layer: Gate, x: torch.Tensor, d: torch.Tensor) -> Direct:
    """The gradient of `shift`: d is the gradient of the output."""
    y = layer.forward(x)
    return Direct(d * y * (1 - y))


def of_factor(layer: Gate, x: torch.Tensor, d: torch.Tensor) -> Direct:
    """The gradient of `factor`."""
    y = layer.forward(x)
    return Direct(d * y * (1 - y) * x)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), Gate(32), nn.Linear(32, 2))


def records(count: int) -> torch.utils.data.Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 10, generator=generator)
    return torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())


def main(out: str, count: int = 2000, steps: int = 30) -> muffle.Run:
    """Trains the model with a rule for its layer."""
    loss = nn.CrossEntropyLoss(reduction="none")
    slow = Engine(network(), loss, records=records(count)).generic_parameters()
    print("without a rule, by torch.func:", slow)
    register_layer(Gate, factor=of_factor, shift=of_shift)
    assert Engine(network(), loss, records=records(count)).generic_parameters() == []
    inputs, labels = records(500)[:]

    def accuracy(model: nn.Module) -> dict[str, float]:
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}

    return muffle.fit(
        network(), records(count), loss=loss, out=out, epsilon=4.0, delta=1e-5, steps=steps,
        optimizer="dp-adam", lot_size=min(200, count // 2), evaluate=accuracy,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run = main(f"{folder}/run")
        print(f"ε = {run.epsilon:.3f}, accuracy {run.metrics['accuracy']:.3f} (NON-PRIVATE)")
