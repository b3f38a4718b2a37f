"""The generic path: per-example gradients of any parameter, by `torch.func` or by a loop.

It serves parameters that belong to no registered layer, for example one that a container uses in its
own forward pass. It is correct for all of them, and slower than the fast path.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

Loss = Callable[[Any, Any], Tensor]
"""Returns the loss of each example from a module and a batch."""


class _LossModule(nn.Module):
    """A module whose forward pass is the loss of one example, for `functional_call`."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        """Takes a module and its loss."""
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, batch: Any) -> Tensor:
        """Computes the loss of the only example."""
        return self.loss(self.module, batch)[0]


def batch_dimensions(two: Any, three: Any) -> list[int | None] | None:
    """Returns which leaves of a batch have a dimension of examples, given two and three examples.

    That is 0 or `None` for each leaf; the result is `None` if a leaf has another form.
    """
    leaves, others = pytree.tree_leaves(two), pytree.tree_leaves(three)
    if len(leaves) != len(others):
        return None
    dimensions: list[int | None] = []
    for a, b in zip(leaves, others):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            return None
        if a.dim() and a.shape[0] == 2 and b.shape[0] == 3:
            dimensions.append(0)
        elif a.shape == b.shape:
            dimensions.append(None)
        else:
            return None
    return dimensions


def by_vmap(
    module: nn.Module,
    loss: Loss,
    parameters: Mapping[str, Tensor],
    batch: Any,
    dimensions: Sequence[int | None],
    chunk: int,
) -> list[Tensor]:
    """Computes the gradients of each example, `chunk` examples at a time."""
    wrapped = _LossModule(module, loss)
    leaves, structure = pytree.tree_flatten(batch)

    def of_one(values: dict[str, Tensor], *leaves: Tensor) -> Tensor:
        each = [
            leaf if dimension is None else leaf[None]
            for leaf, dimension in zip(leaves, dimensions)
        ]
        return functional_call(wrapped, values, (pytree.tree_unflatten(each, structure),))

    values = {f"module.{name}": value.detach() for name, value in parameters.items()}
    gradients = vmap(grad(of_one), in_dims=(None, *dimensions), chunk_size=chunk)(values, *leaves)
    return [gradients[f"module.{name}"].detach() for name in parameters]


def by_loop(
    module: nn.Module, loss: Loss, parameters: Sequence[Tensor], batches: Sequence[Any]
) -> list[Tensor]:
    """Computes the gradients of each example, given as a batch of its own."""
    rows = [single_gradients(loss(module, batch), parameters) for batch in batches]
    return [torch.stack(column) for column in zip(*rows)]


def single_gradients(losses: Tensor, parameters: Sequence[Tensor], example: int = 0) -> list[Tensor]:
    """Computes the gradient of one example's loss; zeros for parameters without effect."""
    gradients: Sequence[Tensor | None] = [None] * len(parameters)
    if losses.requires_grad:
        gradients = torch.autograd.grad(losses[example], parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient.detach()
        for parameter, gradient in zip(parameters, gradients)
    ]
