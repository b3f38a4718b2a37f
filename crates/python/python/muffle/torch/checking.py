"""Checks of the user's records before the first step.

Synthetic records test a module (`tracing.py`), but it may treat real ones in another way: longer
texts are padded, masks select other rows. So the losses of batches are compared with those of their
halves, and for some batches, the losses of other examples are multiplied by 0 and by a large number,
which must not change the gradients of the rest.

A refusal depends on the records, before anything is computed from them that leaves the machine.
"""

from __future__ import annotations

from typing import Any, Protocol, Sequence

import torch
from torch import Tensor

from .interaction import MIXED, is_same_loss, scales_keep_norms

GRADIENT_BATCHES = 32
"""The number of batches of which gradients are checked."""

ERRORS = (ValueError, IndexError, RuntimeError, KeyError, TypeError)
"""What a module raises for a record that it cannot compute."""


class Computes(Protocol):
    """What is asked of an engine."""

    def sample(self, index: int) -> Any:
        """Reads a record."""

    def losses_of(self, samples: Sequence[Any]) -> list[float]:
        """Computes the loss of each sample, in one batch."""

    def scaled_norms(self, samples: Sequence[Any], factors: Tensor) -> Tensor:
        """Returns the squared norm of each example's gradients, with its loss times its factor."""


def check_records(engine: Computes, count: int, examples: int, limit: int | None) -> None:
    """Refuses records whose losses cannot be computed, and modules in which records interact.

    Batches have `examples` records; at most `limit` records are checked, chosen at random. Each is
    read once: it may be another one the next time, as with random crops.

    Raises ValueError. A loss that is not finite is no error: the record has weight 0.
    """
    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(count, generator=generator).tolist()[:limit]
    for number, part in enumerate(_parts(order, examples)):
        samples = [_read(engine, index) for index in part]
        whole = _losses(engine, part, samples)
        # Other neighbours and another size; a single record, twice.
        half = max(1, len(part) // 2)
        pieces = [samples[half - 1 :: -1], samples[half:]] if len(part) > 1 else [samples * 2]
        halves = [loss for piece in pieces if piece for loss in _losses(engine, part, piece)]
        expected = [*whole[half - 1 :: -1], *whole[half:]] if len(part) > 1 else whole * 2
        for index, a, b in zip([*part[half - 1 :: -1], *part[half:]], expected, halves):
            if not is_same_loss(a, b):
                raise ValueError(f"record {index + 1}: {MIXED}")
        if number < GRADIENT_BATCHES:
            chosen = torch.rand(len(part), generator=generator) < 0.5
            if not scales_keep_norms(lambda scales: engine.scaled_norms(samples, scales), chosen):
                raise ValueError(f"records: {MIXED}")


def _parts(indices: Sequence[int], size: int) -> list[list[int]]:
    return [list(indices[at : at + size]) for at in range(0, len(indices), size)]


def _read(engine: Computes, index: int) -> Any:
    """Reads a record; an error names the record, and not its content."""
    try:
        return engine.sample(index)
    except ERRORS as error:
        raise ValueError(f"record {index + 1}: it cannot be read ({type(error).__name__})") from error


def _losses(engine: Computes, part: Sequence[int], samples: Sequence[Any]) -> list[float]:
    """Computes losses; an error names the record, and not its content, which is in its cause."""
    try:
        return engine.losses_of(samples)
    except ERRORS as error:
        for index in part:
            try:
                engine.losses_of([engine.sample(index)])
            except ERRORS as single:
                raise ValueError(
                    f"record {index + 1}: its loss cannot be computed ({type(single).__name__}; its "
                    "message, the cause of this error, may have content of the record)"
                ) from single
        raise ValueError(
            f"records: their losses cannot be computed together ({type(error).__name__}; see the "
            "cause of this error)"
        ) from error
