"""Forms of per-example gradients: their norms and weighted sums, mostly without the gradients.

The gradient of each use of a parameter has one of these forms:

| form          | an example's gradient          | parameters                                  |
|---------------|--------------------------------|---------------------------------------------|
| `Direct`      | computed                       | vectors, small matrices, the generic path   |
| `Outer`       | sum over t of d_t x_t^T        | weights of linear layers                    |
| `Convolution` | the same, x_t is a patch       | kernels of convolutions                     |
| `Lookup`      | sum over t of e(id_t) d_t^T    | embedding tables                            |
| `Tied`        | `Outer` plus `Lookup`          | a table that is also the output layer       |

A parameter that is used several times has the sum of all these gradients (`joined`), and its norm
is that of the sum.

Rounding
--------
A reported norm covers the rounding of the sum: the contribution of an example with weight c has an
L2 norm of at most c times its norm. Let u = 2^-24 and gamma(n) = n u / (1 - n u). In any order of
summation, the error of a float32 sum of n products is at most gamma(n) times the sum of their
absolute values (Higham 2002, 3.1). No assumption is made about how errors cancel.

- *Sums.* A product over the rows of a micro-batch has at most `MAX_ROWS` rows in float32; products
  are added in float64. So its error is at most gamma(MAX_ROWS + 4) times the sum over examples of
  c_i S_i, where S = sum over t of |x_t| |d_t|. The share of example i is gamma(MAX_ROWS + 4) c_i S_i,
  which is added to its norm. It does not depend on the other examples, as norms must not.
- *Norms from Gram matrices.* |sum over t of d_t x_t^T|^2 = sum over s, t of (x_s . x_t)(d_s . d_t).
  Inner products are computed in float32 for `SEGMENT` columns at a time, and added in float64. The
  error of x_s . x_t is at most gamma(SEGMENT + 1) |x_s| |x_t|, and likewise for d. So the error of
  the square is at most (2 gamma + gamma^2) S^2, which is added to it.
- *Direct gradients.* The norm is computed from the same float32 numbers that are summed; how these
  were rounded does not matter. Squares are added in float32 by segments of `SEGMENT`, and then in
  float64. They are positive, so the norm is off by at most gamma(SEGMENT + 4) of itself, and by
  2^-126 for each square that is flushed to zero. The weighted sum over B examples is rounded by
  gamma(B + 4) of each term.
- *Underflow.* A product of numbers can lose up to 2^-126 if subnormal numbers are flushed to zero.
  `UNDERFLOW` is added to the squared norms of rows, in the bounds above, unless a row is zero.
- *Overflow.* If S exceeds `MAX_SIZE`, the norm is infinite, and the curator sets the weight to 0.
"""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch import Tensor

UNIT = 2.0**-24 * (1 + 2.0**-10)
"""The unit roundoff of float32, with a margin for terms of higher order."""

MAX_ROWS = 1024
"""The largest number of rows of one float32 product in a weighted sum."""

SEGMENT = 256
"""The largest number of terms of one float32 inner product in a Gram matrix."""

UNDERFLOW = 1e-27
"""Added to the squared norm of a nonzero row, to cover underflow."""

MAX_SIZE = 1e30
"""The largest S of an example with nonzero weight."""

GRAM_ELEMENTS = 1 << 22
"""The largest number of elements of Gram matrices in memory at a time."""


def gamma(operations: int) -> float:
    """Returns the bound of the relative error of this many float32 operations in a chain."""
    share = operations * UNIT
    return share / (1 - share) if share < 0.5 else math.inf


def double(tensor: Tensor) -> Tensor:
    """Converts to float64, on the CPU if the device does not support it."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def masked(tensor: Tensor, weights: Tensor) -> Tensor:
    """Sets the elements of examples of weight 0 to zero, even if they are not finite."""
    if bool((weights != 0).all()):
        return tensor
    keep = (weights != 0).to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))
    return torch.where(keep, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))


def gram(left: Tensor, right: Tensor) -> Tensor:
    """Computes the inner products of the rows of N x S x n and N x T x n, in float64."""
    products = None
    for first in range(0, left.shape[2], SEGMENT):
        columns = slice(first, first + SEGMENT)
        product = torch.bmm(left[:, :, columns], right[:, :, columns].transpose(1, 2))
        products = double(product) if products is None else products.add_(product.to(products.device))
    if products is None:
        products = double(left.new_zeros(left.shape[0], left.shape[1], right.shape[1]))
    return products


def row_squares(rows: Tensor, squares: Tensor) -> Tensor:
    """Adds `UNDERFLOW` to the squared norms of rows that are not exactly zero."""
    zero = squares == 0
    if bool(zero.any()):
        suspects = rows[zero.to(rows.device)]
        zero = zero.masked_scatter(zero, (suspects == 0).all(-1).to(zero.device))
    return torch.where(zero, torch.zeros_like(squares), squares + UNDERFLOW)


def sum_of_squares(rows: Tensor) -> Tensor:
    """Computes the squared L2 norm of each row: by segments in float32, then in float64."""
    segments = rows.shape[1] // SEGMENT
    whole = segments * SEGMENT
    norms = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (segments, SEGMENT)), dim=2)
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
    squares = double(torch.cat([norms, rest], 1)).square().sum(1)
    zero = squares == 0
    if bool(zero.any()):
        # Squares of tiny numbers are zero in float32.
        exact = double(rows[zero.to(rows.device)]).square().sum(1)
        squares = squares.masked_scatter(zero, exact)
    return torch.where(zero, squares, squares + rows.shape[1] * 2.0**-126)


class Total:
    """A sum of tensors in float64. The first one that is added takes the place of zeros."""

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        """Creates a sum of zero on a device, or on the CPU if it does not support float64."""
        self._shape = tuple(shape)
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._sum: Tensor | None = None

    def add(self, term: Tensor) -> None:
        """Adds a float32 tensor with the same number of elements."""
        term = term.view(self._shape)
        if self._sum is None:
            self._sum = double(term).to(self._device)
        else:
            self._sum.add_(term.to(self._device))

    def values(self) -> Tensor:
        """Returns the sum itself, which may be changed in place."""
        if self._sum is None:
            self._sum = torch.zeros(self._shape, dtype=torch.float64, device=self._device)
        return self._sum


class Form:
    """The gradients of one parameter, for all examples of a micro-batch.

    `shape` is the shape of the parameter. The first dimension of all tensors is the example.
    """

    shape: tuple[int, ...]

    def tensors(self) -> list[Tensor]:
        """Returns the tensors that the form keeps for the weighted sum."""
        raise NotImplementedError

    def is_direct(self) -> bool:
        """Whether it is cheaper to compute the gradients than to use this form."""
        return False

    def direct(self) -> Form:
        """Returns the same gradients, computed."""
        return Direct(self.gradients())

    def squared_norms(self) -> Tensor:
        """Computes the squared norm of each example's gradient, in float64, covering rounding."""
        raise NotImplementedError

    def gradients(self) -> Tensor:
        """Computes the gradient of each example: examples x shape, in float32."""
        raise NotImplementedError

    def add_weighted(self, total: Total, weights: Tensor) -> None:
        """Adds the weighted gradients of all examples to a float64 sum.

        Examples of weight 0 contribute nothing, even if their gradient is not finite.
        """
        raise NotImplementedError


class Direct(Form):
    """Gradients that were computed for each example."""

    def __init__(self, gradients: Tensor) -> None:
        """Takes the gradients: examples x shape of the parameter."""
        self._gradients = gradients
        self.shape = tuple(gradients.shape[1:])

    def tensors(self) -> list[Tensor]:
        """Returns the gradients."""
        return [self._gradients]

    def squared_norms(self) -> Tensor:
        """Computes the squared norms, with the rounding of norms and of the weighted sum."""
        rows = self._gradients.flatten(1)
        share = gamma(len(rows) + 4) + gamma(SEGMENT + 4)
        return (sum_of_squares(rows).sqrt() * (1 + share)).square()

    def gradients(self) -> Tensor:
        """Returns the gradients."""
        return self._gradients

    def add_weighted(self, total: Total, weights: Tensor) -> None:
        """Adds the weighted gradients."""
        rows = masked(self._gradients.flatten(1), weights)
        total.add(weights @ rows)


class Lookup(Form):
    """Sums of table rows: row id_t gets d_t.

    Rows of the same index are added in float64, for the norm as for the sum.
    """

    def __init__(self, ids: Tensor, d: Tensor, shape: Sequence[int]) -> None:
        """Takes indices, examples x rows, and gradients, examples x rows x columns."""
        self.ids, self.d, self.shape = ids, d, tuple(shape)
        self._compact: tuple[Tensor, Tensor, Tensor] | None = None

    def tensors(self) -> list[Tensor]:
        """Returns the indices and gradients."""
        return [self.ids, self.d]

    def compact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns example, table row and summed gradient, for each row that an example uses."""
        if self._compact is None:
            d = double(self.d).flatten(0, 1)
            ids = self.ids.to(d.device)
            owners = torch.arange(len(ids), device=d.device)
            keys = (owners[:, None] * self.shape[0] + ids).flatten()
            keys, index = torch.unique(keys, return_inverse=True)
            rows = add_rows(d.new_zeros(len(keys), d.shape[1]), index, d)
            self._compact = keys // self.shape[0], keys % self.shape[0], rows
        return self._compact

    def squared_norms(self) -> Tensor:
        """Computes the squared norms by table row."""
        owners, _, rows = self.compact()
        squares = add_rows(rows.new_zeros(len(self.ids)), owners, rows.square().sum(1))
        return squares * (1 + gamma(4))

    def sizes(self) -> Tensor:
        """Computes the sum of the norms of an example's gradient rows."""
        return double(torch.linalg.vector_norm(self.d, dim=2)).sum(1) * (1 + gamma(self.d.shape[2]))

    def gradients(self) -> Tensor:
        """Computes the gradient of each example."""
        owners, ids, rows = self.compact()
        gradients = rows.new_zeros(len(self.ids), *self.shape)
        gradients[owners, ids] = rows
        return gradients.to(self.d)

    def add_weighted(self, total: Total, weights: Tensor) -> None:
        """Adds the weighted rows."""
        owners, ids, rows = self.compact()
        factors = double(weights)[owners]
        rows = masked(rows, factors) * factors[:, None]
        values = total.values()
        add_rows(values, ids.to(values.device), rows.to(values.device))

    @staticmethod
    def joined(uses: Sequence[Lookup]) -> Lookup:
        """Joins several uses of the same table."""
        ids, d = torch.cat([use.ids for use in uses], 1), torch.cat([use.d for use in uses], 1)
        return Lookup(ids, d, uses[0].shape)


def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Adds rows at indices, in a fixed order on every device; returns the sum."""
    if total.device.type == "cpu":
        return total.index_add_(0, index, rows)
    # Sorts on CUDA, where `index_add_` adds in any order.
    return total.index_put_((index,), rows, accumulate=True)
