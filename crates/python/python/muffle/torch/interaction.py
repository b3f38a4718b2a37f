"""Tests whether the examples of a batch change each other, with probe records.

Losses and gradients of each probe record alone are compared with those in a batch, by automatic
differentiation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Sequence

import torch
from torch import Tensor, nn

from . import generic
from .records import scaled

MIXED = (
    "one example changes another's loss or gradient: such a model cannot be trained privately "
    "(a mean or a norm over the batch? padding that counts?)"
)

TOLERANCE = 2e-3
"""The largest relative difference of two gradients that are equal up to rounding."""

SHARE = 1e-5
"""A difference of less than this share of the whole gradient is rounding."""


@dataclasses.dataclass(frozen=True)
class LossModel:
    """A module with its loss, its trained parameters and its batches."""

    module: nn.Module
    loss: generic.Loss
    parameters: dict[str, nn.Parameter]
    """The trained parameters by name, in the order of tensor indices."""
    batch_of: Callable[[Sequence[Any]], Any]
    """Makes a batch of samples, on the device of the module."""
    chunk: int
    """The number of examples of the generic path at a time."""


def losses_of(loss: generic.Loss, module: nn.Module, batch: Any, examples: int) -> Tensor:
    """Computes the losses of a batch, and checks their shape and dtype."""
    losses = loss(module, batch)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (examples,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"loss: expected one loss for each of {examples} examples, shape ({examples},), got "
            f"{got}; a loss must not be averaged over the batch (reduction=\"none\")"
        )
    if losses.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"loss: expected float32, got {losses.dtype}")
    return losses


def check_forward(model: LossModel, samples: Sequence[Any], longer: Sequence[Any]) -> None:
    """Refuses random losses, buffers that change, and losses that longer samples change."""
    before = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
    batch = model.batch_of(samples)
    with torch.no_grad():
        first, second = (
            losses_of(model.loss, model.module, batch, len(samples)) for _ in range(2)
        )
    changed = [
        name
        for name, buffer in model.module.named_buffers()
        if name in before and not _equal(before[name], buffer)
    ]
    if changed:
        with torch.no_grad():
            for name, buffer in model.module.named_buffers():
                if name in changed and buffer.shape == before[name].shape:
                    buffer.copy_(before[name])
        raise ValueError(
            f"{changed[0]}: a buffer that changes in the forward pass would hold values of records "
            "without noise; call module.eval(), or replace its layer"
        )
    if not _equal(first, second):
        raise ValueError(
            "loss: two evaluations of the same batch differ, so gradients are random (dropout?); "
            "call module.eval()"
        )
    with torch.no_grad():
        for sample in longer:
            alone = losses_of(model.loss, model.module, model.batch_of(samples[-1:]), 1)
            both = losses_of(model.loss, model.module, model.batch_of([samples[-1], sample]), 2)
            _require_same_loss(alone[0].item(), both[0].item())


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, where NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.all((a == b) | ((a != a) & (b != b))))


def reference_of(model: LossModel, samples: Sequence[Any], example: int) -> list[Tensor]:
    """Computes the gradient of a probe record alone; refuses if others change it."""
    parameters = list(model.parameters.values())
    alone = losses_of(model.loss, model.module, model.batch_of([samples[example]]), 1)
    together = losses_of(model.loss, model.module, model.batch_of(samples), len(samples))
    _require_same_loss(alone[0].item(), together[example].item())
    gradients = generic.single_gradients(alone, parameters)
    whole = norm_of(gradients)
    others = generic.single_gradients(together, parameters, example)
    for name, a, b in zip(model.parameters, gradients, others):
        if not float((a - b).norm()) <= TOLERANCE * float(a.norm()) + SHARE * whole:
            raise ValueError(f"{name}: {MIXED}")
    return gradients


def is_same_loss(expected: float, got: float) -> bool:
    """Whether two losses of an example are equal up to rounding, or both not finite."""
    if not math.isfinite(expected):
        return not math.isfinite(got)
    return abs(expected - got) <= 1e-4 * max(abs(expected), 1e-3)


def _require_same_loss(alone: float, together: float) -> None:
    """Refuses a loss of a probe record that other records change."""
    if not is_same_loss(alone, together):
        raise ValueError(f"loss: {MIXED}; a loss alone is {alone:.6e}, in a batch {together:.6e}")


def check_extremes(model: LossModel, samples: Sequence[Any]) -> None:
    """Refuses a module in which records of zeros or of large numbers change others.

    A maximum over the batch, or a threshold on it, may be the same for all usual records.
    """
    others = [scaled(sample, factor) for sample in samples[1:] for factor in (0.0, 1000.0)]
    parameters = list(model.parameters.values())
    alone = losses_of(model.loss, model.module, model.batch_of(samples[:1]), 1)
    together = losses_of(
        model.loss, model.module, model.batch_of([samples[0], *others]), 1 + len(others)
    )
    _require_same_loss(alone[0].item(), together[0].item())
    expected = generic.single_gradients(alone, parameters)
    got = generic.single_gradients(together, parameters, 0)
    whole = norm_of(expected)
    for name, a, b in zip(model.parameters, expected, got):
        # Where another record overflows, its zero gradient is not a number.
        if not bool(torch.isfinite(b).all()):
            continue
        if not float((a - b).norm()) <= TOLERANCE * float(a.norm()) + SHARE * whole:
            raise ValueError(f"{name}: {MIXED}")


SCALES = (0.0, 1e4)
"""Factors of the losses of some examples, which must not change the gradients of the others."""

SCALED = 1e-3
"""The largest relative change of a squared norm that is rounding."""


def scales_keep_norms(norms_of: Callable[[Tensor], Tensor], chosen: Tensor) -> bool:
    """Whether the gradients of examples stay the same when the losses of the chosen ones are scaled.

    `norms_of` returns squared norms, examples x tensors, for losses times factors. A threshold on the gradients of a batch
    may be out of reach of the losses as they are, so one factor is large; with 0, the chosen examples
    have no gradient at all. A norm that is not finite is that of a record that overflows, which has
    weight 0.
    """
    expected = norms_of(torch.ones(len(chosen))).cpu()
    for scale in SCALES:
        norms = norms_of(torch.where(chosen, scale, 1.0)).cpu()
        others, before = norms[~chosen], expected[~chosen]
        known = torch.isfinite(before)
        slack = SCALED * before + SHARE**2 * before.sum(1, keepdim=True)
        if bool(((others - before).abs() > slack)[known].any()):
            return False
        if not bool(torch.isfinite(others[known]).all()):
            return False
        if scale == 0.0 and bool((norms[chosen] > 0).any()):
            return False
    return True


def norm_of(gradients: Sequence[Tensor]) -> float:
    """Returns the L2 norm of several tensors together."""
    return sum(float(gradient.norm()) ** 2 for gradient in gradients) ** 0.5
