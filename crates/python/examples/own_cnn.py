"""A convolutional network of one's own, trained privately.

The images are synthetic, so that the script needs no files: a bright square in one of four corners.
"""

import tempfile

import muffle
import torch
from torch import nn


class Corners(torch.utils.data.Dataset):
    """Images of 12 x 12 pixels, with the corner of a bright square as label."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(4, (count,), generator=generator)
        self.images = 0.3 * torch.randn(count, 1, 12, 12, generator=generator)
        for image, label in zip(self.images, self.labels.tolist()):
            top, left = 6 * (label // 2), 6 * (label % 2)
            image[0, top : top + 6, left : left + 6] += 1.0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def network() -> nn.Module:
    """Two convolutions with group norm; batch norm would mix the examples of a batch."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 9, 4),
    )


def main(out: str, records: int = 2000, steps: int = 40) -> muffle.Run:
    """Trains the network and evaluates it on public images."""
    torch.manual_seed(0)
    test = Corners(400, seed=1)

    def accuracy(model: nn.Module) -> dict[str, float]:
        right = model(test.images).argmax(1) == test.labels
        return {"accuracy": right.float().mean().item()}

    return muffle.fit(
        network(),
        Corners(records, seed=0),
        loss=nn.CrossEntropyLoss(reduction="none"),
        out=out,
        epsilon=3.0,
        delta=1e-5,
        optimizer="dp-adam",
        steps=steps,
        lot_size=200,
        micro_batch=64,
        evaluate=accuracy,
        evaluation_data="public",
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run = main(f"{folder}/run")
        print(f"ε = {run.epsilon:.3f}, accuracy {run.metrics['accuracy']:.3f}")
        assert muffle.verify(run.folder)
