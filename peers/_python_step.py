"""One process of python.py: a training step of one contender, on GPT-2 or a small CNN.

    python3 peers/_python_step.py CONTENDER MODEL BATCH SEQ THREADS

It prints `ready`. For each line `WARMUP STEPS` of its input it makes these steps, and prints the
milliseconds of the timed ones and the peak memory so far. A step is forward and backward and, for
private contenders, clipping to norm 1 and summing: no noise and no update.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from _torch_step import BOUND, CONTENDERS, Gpt2, Loss, peak_kilobytes, quiet

GPT2_S = {"layers": 4, "width": 256, "heads": 4, "inner": 1024, "vocabulary": 8192, "positions": 1024}


class Cnn(nn.Module):
    """Three convolutions with group norm, for images of 32 x 32 pixels in colour."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 16, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


class ImageLoss:
    """Cross-entropy of each example, with the labels beside the images. Opacus reads `reduction`."""

    reduction = "sum"

    def __init__(self, labels):
        self.labels = labels

    def __call__(self, logits, images):
        return F.cross_entropy(logits, self.labels, reduction="none")


def ours(model, loss, inputs):
    """A step of the engine: observe, clip as the curator does, accumulate."""
    from muffle.torch import Engine

    def of_batch(module, batch):
        # The engine tests the module with other batches than the timed one.
        return loss(module(batch), batch) if len(batch) == len(inputs) else of_part(module, batch)

    def of_part(module, batch):
        if isinstance(loss, ImageLoss):
            return F.cross_entropy(module(batch), loss.labels[:1].expand(len(batch)), reduction="none")
        return loss(module(batch), batch)

    engine = Engine(model, of_batch, records=inputs, probe_records=list(inputs[:3]), collate=torch.stack)
    tensors = len(engine.trainable())
    blocks, indices = [list(range(tensors))], list(range(len(inputs)))
    engine.begin()

    def step():
        engine.start_sum()
        _, squares = engine.observe(indices, blocks)
        engine.accumulate([[min(1.0, BOUND / max(square**0.5, 1e-12)) for square in squares]])

    return step


def main():
    contender, name, batch, seq, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    quiet()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name == "gpt2-s":
        model, inputs, loss = Gpt2(**GPT2_S), torch.randint(8192, (batch, seq)), Loss()
    else:
        model, inputs = Cnn(), torch.randn(batch, 3, 32, 32)
        loss = ImageLoss(torch.randint(10, (batch,)))
    if contender == "muffle":
        step = ours(model, loss, inputs)
    else:
        import _torch_step

        # Its contenders make their own loss.
        _torch_step.Loss = lambda: loss
        made, _ = CONTENDERS[contender](model.train(), BOUND)
        step = lambda: made(inputs)
    print("ready", flush=True)
    for line in sys.stdin:
        warmup, steps = map(int, line.split())
        taken = []
        for _ in range(warmup + steps):
            began = time.perf_counter()
            step()
            taken.append(1000 * (time.perf_counter() - began))
        print(json.dumps({"ms": taken[warmup:], "peak_mb": peak_kilobytes() / 1024}), flush=True)


if __name__ == "__main__":
    main()
