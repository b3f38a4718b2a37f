"""Losses of batches of inputs and targets."""

from __future__ import annotations

from typing import Any, Callable

from torch import Tensor, nn

from .generic import Loss


def supervised(criterion: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Returns the loss of batches (inputs, targets) from a function of outputs and targets.

    The function must not reduce over the batch. Its values are averaged over all dimensions except
    the first.

    >>> loss = supervised(nn.CrossEntropyLoss(reduction="none"))
    """
    reduction = getattr(criterion, "reduction", "none")
    if reduction != "none":
        raise ValueError(
            f'loss: expected reduction="none", got {reduction!r}: a loss over the batch mixes examples'
        )

    def loss(module: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        values = criterion(module(inputs), targets)
        return values.flatten(1).mean(1) if values.dim() > 1 else values

    return loss
