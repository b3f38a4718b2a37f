"""Forms of products: linear layers, convolutions and tied tables.

`forms` has the bounds of rounding.
"""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .forms import (
    GRAM_ELEMENTS,
    MAX_ROWS,
    MAX_SIZE,
    SEGMENT,
    Direct,
    Form,
    Lookup,
    Total,
    double,
    gamma,
    gram,
    masked,
    row_squares,
)

FEW_CHANNELS = 8
"""The number of input channels from which on a grouped convolution is faster on a CPU."""

PATCH_ELEMENTS = 1 << 18
"""The largest number of elements of patches in memory at a time, so that caches hold them."""


class Outer(Form):
    """Sums of outer products d_t x_t^T over the rows t of an example.

    x is examples x groups x rows x inputs, and d is examples x groups x rows x outputs. The
    gradient is (groups outputs) x inputs, or inputs x outputs if it is transposed.
    """

    def __init__(
        self, x: Tensor, d: Tensor, shape: Sequence[int], *, transposed: bool = False
    ) -> None:
        """Takes rows of inputs and of output gradients, and the shape of the parameter."""
        self.x, self.d, self.shape, self.transposed = x, d, tuple(shape), transposed
        self.groups = x.shape[1]

    @staticmethod
    def of_rows(x: Tensor, d: Tensor, shape: Sequence[int], *, transposed: bool = False) -> Outer:
        """Takes inputs and output gradients of one group: examples x any dimensions x columns."""
        x = x.reshape(x.shape[0], 1, -1, x.shape[-1])
        d = d.reshape(d.shape[0], 1, -1, d.shape[-1])
        return Outer(x, d, shape, transposed=transposed)

    def tensors(self) -> list[Tensor]:
        """Returns inputs and output gradients."""
        return [self.x, self.d]

    def rows(self, examples: slice) -> tuple[Tensor, Tensor]:
        """Returns the rows x and d of some examples."""
        return self.x[examples], self.d[examples]

    def sizes(self) -> tuple[int, int, int]:
        """Returns the numbers of rows, inputs and outputs of one group of an example."""
        return self.x.shape[2], self.x.shape[3], self.d.shape[3]

    def is_direct(self) -> bool:
        """Whether the gradients take no more memory than the rows from which they are computed.

        Then they also take less time: the product that computes them replaces the one of the
        weighted sum, and there are no Gram matrices of rows x rows.
        """
        rows, inputs, outputs = self.sizes()
        return inputs * outputs <= rows * (inputs + outputs)

    def gradients(self) -> Tensor:
        """Computes the gradient of each example."""
        x, d = self.rows(slice(None))
        left, right = (x, d) if self.transposed else (d, x)
        product = torch.bmm(left.flatten(0, 1).transpose(1, 2), right.flatten(0, 1))
        return product.view(len(x), *self.shape)

    def squares_and_sizes(self) -> tuple[Tensor, Tensor]:
        """Computes squared norms from Gram matrices, and the size S of each example."""
        step = max(1, GRAM_ELEMENTS // max(1, self.scratch()))
        squares, sizes = [], []
        for first in range(0, len(self.d), step):
            x, d = self.rows(slice(first, first + step))
            part = len(x)
            x, d = x.flatten(0, 1), d.flatten(0, 1)
            inputs, gradients = gram(x, x), gram(d, d)
            squares.append((inputs * gradients).view(part, -1).sum(1))
            product = row_squares(x, inputs.diagonal(dim1=1, dim2=2)) * row_squares(
                d, gradients.diagonal(dim1=1, dim2=2)
            )
            sizes.append(product.sqrt().view(part, -1).sum(1))
        return torch.cat(squares), torch.cat(sizes)

    def squared_norms(self) -> Tensor:
        """Computes squared norms from Gram matrices, with the rounding of norm and sum."""
        return self.covered(*self.squares_and_sizes())

    def covered(self, squares: Tensor, sizes: Tensor) -> Tensor:
        """Adds the bounds of rounding to squared norms, given the size S of each example."""
        inner = gamma(SEGMENT + 4)
        share = gamma(MAX_ROWS + 4)
        norms = (squares.clamp(min=0) + (2 + inner) * inner * sizes.square()).sqrt()
        square = (norms + share * sizes).square()
        return torch.where(sizes > MAX_SIZE, torch.full_like(square, math.inf), square)

    def scratch(self) -> int:
        """Returns the number of elements of an example's Gram matrices."""
        return self.groups * self.sizes()[0] ** 2

    def add_weighted(self, total: Total, weights: Tensor) -> None:
        """Adds one product of the weighted rows for at most `MAX_ROWS` rows at a time."""
        rows, inputs, outputs = self.sizes()
        step = max(1, MAX_ROWS // max(1, rows))
        for first in range(0, len(weights), step):
            examples = slice(first, first + step)
            x, d = self.rows(examples)
            factors = weights[examples]
            x, d = masked(x, factors), masked(d, factors)
            factors = factors.view(-1, 1, 1, 1)
            # The factor with fewer columns is multiplied, because that is a copy.
            x, d = (x * factors, d) if inputs <= outputs else (x, d * factors)
            for start in range(0, rows, MAX_ROWS):
                part = slice(start, start + MAX_ROWS)
                left, right = (x, d) if self.transposed else (d, x)
                if self.groups == 1:
                    left = left[:, 0, part].flatten(0, 1)
                    right = right[:, 0, part].flatten(0, 1)
                    product = left.transpose(0, 1) @ right
                else:
                    left = left[:, :, part].transpose(0, 1).flatten(1, 2)
                    right = right[:, :, part].transpose(0, 1).flatten(1, 2)
                    product = torch.bmm(left.transpose(1, 2), right)
                total.add(product)

    @staticmethod
    def joined(uses: Sequence[Outer]) -> Outer:
        """Joins several uses of the same parameter, of the same orientation."""
        x, d = torch.cat([use.x for use in uses], 2), torch.cat([use.d for use in uses], 2)
        return Outer(x, d, uses[0].shape, transposed=uses[0].transposed)


class Convolution(Outer):
    """Sums of outer products over the output positions of a convolution.

    Rows are patches of the input. They are made where they are needed, because they take several
    times the memory of the input.
    """

    def __init__(
        self,
        x: Tensor,
        d: Tensor,
        shape: Sequence[int],
        *,
        groups: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        """Takes input and output gradient as the layer sees them, and its geometry."""
        self.x, self.d, self.shape, self.transposed = x, d, tuple(shape), False
        self.groups, self.stride, self.padding = groups, list(stride), list(padding)
        self.dilation = list(dilation)

    def sizes(self) -> tuple[int, int, int]:
        """Returns the numbers of positions, patch elements and outputs of one group."""
        positions = math.prod(self.d.shape[2:])
        return positions, math.prod(self.shape[1:]), self.shape[0] // self.groups

    def scratch(self) -> int:
        """Returns the number of elements of an example's Gram matrices, or of its patches."""
        positions, inputs, _ = self.sizes()
        return self.groups * positions * max(positions, inputs)

    def rows(self, examples: slice) -> tuple[Tensor, Tensor]:
        """Returns the patches and the output gradients of some examples, by group."""
        x, d = self.x[examples], self.d[examples]
        positions, inputs, outputs = self.sizes()
        if any(self.padding):
            x = functional.pad(x, [side for pad in reversed(self.padding) for side in (pad, pad)])
        # A view in which each position has its patch; it is copied once.
        steps = x.stride()[2:]
        offsets = [step * by for step, by in zip(steps, self.dilation)]
        moves = [step * by for step, by in zip(steps, self.stride)]
        view = x.as_strided(
            (*x.shape[:2], *self.shape[2:], *d.shape[2:]), (*x.stride()[:2], *offsets, *moves)
        )
        patches = view.reshape(len(x), self.groups, inputs, positions).transpose(2, 3)
        return patches, d.reshape(len(x), self.groups, outputs, positions).transpose(2, 3)

    def gradients(self) -> Tensor:
        """Computes the gradient of each example."""
        if self.x.device.type != "cpu" or self.shape[1] < FEW_CHANNELS:
            return self._gradients_from_patches()
        # One convolution in which each example has its own groups.
        examples = len(self.x)
        x = self.x.reshape(1, -1, *self.x.shape[2:])
        d = self.d.reshape(1, -1, *self.d.shape[2:])
        weight = x.new_empty(1).expand(examples * self.shape[0], *self.shape[1:])
        dimensions = len(self.shape) - 2
        _, product, _ = torch.ops.aten.convolution_backward(
            d, x, weight, None, self.stride, self.padding, self.dilation, False,
            [0] * dimensions, examples * self.groups, [False, True, False],
        )  # fmt: skip
        return product.view(examples, *self.shape)

    def _gradients_from_patches(self) -> Tensor:
        """Computes a product for each example, with the patches of a few examples at a time."""
        positions, inputs, _ = self.sizes()
        step = max(1, PATCH_ELEMENTS // max(1, self.groups * positions * inputs))
        gradients = self.d.new_empty(len(self.d), *self.shape)
        for first in range(0, len(self.d), step):
            x, d = self.rows(slice(first, first + step))
            product = torch.bmm(d.flatten(0, 1).transpose(1, 2), x.flatten(0, 1))
            gradients[first : first + step] = product.view(len(x), *self.shape)
        return gradients


class Tied(Form):
    """A table that is also the weight of a linear layer: the sum of both gradients.

    The inner product of both is the sum over s, t of d_s[id_t] (x_s . r_t), with the rows r_t of the
    lookup. Its error is at most gamma S R with R = sum over t of |r_t|, so the bounds of `Outer`
    hold with S + R in place of S.
    """

    def __init__(self, outer: Outer, lookup: Lookup) -> None:
        """Takes both uses; the outer one has outputs as rows, like the table."""
        self.outer, self.lookup, self.shape = outer, lookup, outer.shape

    def tensors(self) -> list[Tensor]:
        """Returns the tensors of both uses."""
        return self.outer.tensors() + self.lookup.tensors()

    def is_direct(self) -> bool:
        """Whether the gradients are small."""
        return self.outer.is_direct()

    def squared_norms(self) -> Tensor:
        """Computes the squared norms of the sums."""
        squares, sizes = self.outer.squares_and_sizes()
        squares = squares + self.lookup.squared_norms() + 2 * self.products()
        return self.outer.covered(squares, sizes + self.lookup.sizes())

    def products(self) -> Tensor:
        """Computes the inner product of both gradients, by example."""
        ids, rows = self.lookup.ids, self.lookup.d
        step = max(1, GRAM_ELEMENTS // max(1, ids.shape[1] * self.outer.d.shape[2]))
        products = []
        for first in range(0, len(ids), step):
            examples = slice(first, first + step)
            x, d = self.outer.rows(examples)
            index = ids[examples, None, :].expand(-1, d.shape[2], -1)
            selected = double(torch.gather(d[:, 0], 2, index))
            products.append((selected * gram(x[:, 0], rows[examples])).flatten(1).sum(1))
        return torch.cat(products)

    def gradients(self) -> Tensor:
        """Computes the gradient of each example."""
        return self.outer.gradients() + self.lookup.gradients()

    def add_weighted(self, total: Total, weights: Tensor) -> None:
        """Adds both uses."""
        self.outer.add_weighted(total, weights)
        self.lookup.add_weighted(total, weights)


def joined(uses: Sequence[Form]) -> Form:
    """Returns the form of the sum of all uses of a parameter."""
    if len(uses) == 1:
        return uses[0]
    outers = [use for use in uses if type(use) is Outer]
    lookups = [use for use in uses if type(use) is Lookup]
    orientations = {(use.transposed, use.groups) for use in outers}
    if len(outers) + len(lookups) == len(uses) and len(orientations) <= 1:
        if not lookups:
            return Outer.joined(outers)
        if not outers:
            return Lookup.joined(lookups)
        if orientations == {(False, 1)}:
            return Tied(Outer.joined(outers), Lookup.joined(lookups))
    gradients = uses[0].gradients()
    for use in uses[1:]:
        gradients = gradients + use.gradients()
    return Direct(gradients)
