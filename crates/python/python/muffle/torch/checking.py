"""Checks of the user's records before the first step.

Synthetic records test a module (`tracing.py`), but it may treat real ones in another way: longer
texts are padded, masks select other rows. So the losses of all records are compared between two
partitions into batches, and for some batches, examples whose losses have no effect must have
gradients of exactly zero.

A refusal depends on the records, before anything is computed from them that leaves the machine.
"""

from __future__ import annotations

from typing import Protocol, Sequence

import torch
from torch import Tensor

from .interaction import MIXED, is_same_loss

GRADIENT_BATCHES = 32
"""The number of batches of which gradients are checked."""

ERRORS = (ValueError, IndexError, RuntimeError, KeyError, TypeError)
"""What a module raises for a record that it cannot compute."""


class Computes(Protocol):
    """What is asked of an engine."""

    def losses(self, indices: Sequence[int]) -> list[float]:
        """Computes the loss of each example."""

    def zero_loss_norms(self, indices: Sequence[int], factors: Tensor) -> Tensor:
        """Returns the squared norm of each example's gradients, with its loss times its factor."""


def check_records(engine: Computes, count: int, examples: int, limit: int | None) -> None:
    """Refuses records whose losses cannot be computed, and modules in which records interact.

    Batches have `examples` records; at most `limit` records are checked, chosen at random.

    Raises ValueError. A loss that is not finite is no error: the record has weight 0.
    """
    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(count, generator=generator).tolist()[:limit]
    first: dict[int, float] = {}
    for part in _parts(sorted(order), examples):
        first.update(zip(part, _losses(engine, part)))
    # Another size, so that the batches differ even if there is only one.
    half = max(1, min(examples, len(order)) // 2)
    for part in _parts(order, half):
        for index, loss in zip(part, _losses(engine, part)):
            if not is_same_loss(first[index], loss) and not _is_random(engine, index):
                raise ValueError(f"record {index + 1}: {MIXED}")
    for part in _parts(order[: GRADIENT_BATCHES * examples], examples):
        factors = (torch.rand(len(part), generator=generator) < 0.5).float()
        norms = engine.zero_loss_norms(part, factors)
        # A norm that is not a number is that of a record that overflows; it has weight 0.
        if bool((norms.cpu()[factors == 0] > 0).any()):
            raise ValueError(f"records: {MIXED}")


def _is_random(engine: Computes, index: int) -> bool:
    """Whether a record is another one each time that it is read, as with random crops."""
    first, second = (engine.losses([index])[0] for _ in range(2))
    return not is_same_loss(first, second)


def _parts(indices: Sequence[int], size: int) -> list[list[int]]:
    return [list(indices[at : at + size]) for at in range(0, len(indices), size)]


def _losses(engine: Computes, part: Sequence[int]) -> list[float]:
    """Computes losses; an error names the record."""
    try:
        return engine.losses(part)
    except ERRORS:
        for index in part:
            try:
                engine.losses([index])
            except ERRORS as error:
                raise ValueError(
                    f"record {index + 1}: its loss cannot be computed: {error}"
                ) from error
        raise
