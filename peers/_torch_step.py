"""The PyTorch side of step.py: one step of a GPT-2, plainly, with hooks and with ghost clipping of Opacus.

step.py starts this file once for each contender, so that each has its own peak memory:

    python3 peers/_torch_step.py CONTENDER SHAPE THREADS

SHAPE is JSON. The script prints `ready`. For each line `WARMUP STEPS` of its input it makes these
steps, and prints the milliseconds of the timed ones and the peak memory so far.

A step is forward, backward and, for Opacus, clipping and summing: no noise and no update.
"""

import json
import sys
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

IGNORED = -100
BOUND = 1.0


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, seq, width))
        return x + self.out(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with an untied head: ghost clipping of Opacus refuses a head tied to the embedding."""

    def __init__(self, layers, width, heads, inner, vocabulary, positions):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        # Opacus reads the first dimension of every layer's input as the example. So each example has
        # its own copy of the positions: ghost clipping cannot read an expanded tensor.
        positions = torch.arange(ids.shape[1]).repeat(ids.shape[0], 1)
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Loss:
    """Mean cross-entropy of each example over its next ids. Opacus reads `reduction`."""

    reduction = "sum"

    def __call__(self, logits, ids):
        # The last position has no target. Ignoring it avoids a copy of the logits.
        targets = F.pad(ids[:, 1:], (0, 1), value=IGNORED)
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
        return each.view(ids.shape).sum(1) / (ids.shape[1] - 1)


def plain(model, bound):
    loss = Loss()

    def step(ids):
        model.zero_grad(set_to_none=True)
        loss(model(ids), ids).sum().backward()

    return step, lambda p: p.grad


def hooks(model, bound):
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model, loss = GradSampleModule(model, loss_reduction="sum"), Loss()
    optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), noise_multiplier=0.0, max_grad_norm=bound,
                            expected_batch_size=None, loss_reduction="sum")

    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        loss(model(ids), ids).sum().backward()
        optimizer.clip_and_accumulate()

    return step, lambda p: p.summed_grad


def ghost(model, bound):
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=bound,
                                                 use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=0.0), noise_multiplier=0.0, max_grad_norm=bound,
        expected_batch_size=None, loss_reduction="sum")
    loss = DPLossFastGradientClipping(model, optimizer, Loss(), loss_reduction="sum")

    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        loss(model(ids), ids).backward()  # runs both backward passes and leaves the clipped sum in p.grad

    return step, lambda p: p.grad


CONTENDERS = {"torch": plain, "hooks": hooks, "ghost": ghost}


def quiet():
    # Hooks of Opacus on layers whose inputs are ids cause a warning of PyTorch at every start. The
    # gradients are checked below.
    warnings.filterwarnings("ignore", message=".*backward hook.*")


def peak_kilobytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main():
    contender, shape, threads = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    quiet()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    batch, seq = shape.pop("batch"), shape.pop("seq")
    model = Gpt2(**shape).train()
    ids = torch.randint(shape["vocabulary"], (batch, seq))
    step, _ = CONTENDERS[contender](model, BOUND)
    print("ready", flush=True)
    for line in sys.stdin:
        warmup, steps = map(int, line.split())
        taken = []
        for _ in range(warmup + steps):
            began = time.perf_counter()
            step(ids)
            taken.append(1000 * (time.perf_counter() - began))
        print(json.dumps({"ms": taken[warmup:], "peak_kb": peak_kilobytes()}), flush=True)


def check():
    """Compares both modes of Opacus with a loop over single examples.

    In double precision, with a bound that clips some examples.
    """
    quiet()
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 16, "heads": 2, "inner": 64, "vocabulary": 29, "positions": 12}
    ids = torch.randint(shape["vocabulary"], (6, 9))
    model = Gpt2(**shape).double().train()
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}

    step, gradient = plain(model, None)
    singles = []
    for i in range(len(ids)):
        step(ids[i:i + 1])
        singles.append({n: gradient(p).clone() for n, p in model.named_parameters()})
    norms = torch.stack([sum((g**2).sum() for g in one.values()).sqrt() for one in singles])
    bound = float(norms.median())
    # Opacus divides by the norm plus 1e-6.
    factors = (bound / (norms + 1e-6)).clamp(max=1.0)
    assert 0 < int((factors < 1).sum()) < len(ids), norms
    expected = {n: sum(f * one[n] for f, one in zip(factors, singles)) for n in start}
    everything = {n: sum(one[n] for one in singles) for n in start}

    for contender, make in CONTENDERS.items():
        model = Gpt2(**shape).double().train()
        model.load_state_dict(start)
        step, gradient = make(model, bound)
        worst = 0.0
        for _ in range(2):  # a second step must not keep anything of the first
            step(ids)
            for n, p in model.named_parameters():
                wanted = (everything if contender == "torch" else expected)[n]
                worst = max(worst, float((gradient(p) - wanted).norm() / wanted.norm()))
        print(f"{contender}: differs from the sum over single examples by at most {worst:.1e} of its norm")
        if not worst < 1e-6:
            sys.exit(f"{contender}: wrong sums")


if __name__ == "__main__":
    main()
