"""Coordinates in which gradients are clipped, other than those of the parameters.

An optimizer such as DP-MacAdam or PRISM clips encoded gradients (`protocol::Geometry`). The engine
sums plain gradients, because the curator encodes their sum; it computes the norms of the encoded ones.
For that, the gradients of all examples of a micro-batch are computed: forms have norms in plain
coordinates only.

Rounding
--------
The sum over B examples is a float32 product, whose error is at most gamma(B + 4) |c g| for each element
of the gradient g of an example with weight c, as in `forms`. Encoded, that has a norm of at most c
gamma(B + 4) times the norm of the encoded |g|, with the absolute values of all factors. It is added to
the norm. Projections do not increase norms. Encoding is computed in float64.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Mapping, Sequence

import torch
from torch import Tensor

from .forms import double, gamma

ELEMENTS = 1 << 21
"""The largest number of elements that are encoded at a time."""

ENCODING = 1e-6
"""The relative margin for float64, and for projections by bases in float32."""


class Geometry:
    """An encoding of gradients."""

    def encoded(self, index: int, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Encodes gradients of a tensor in float64: examples x shape.

        Returns encoded gradients, and those of absolute values with the absolute values of all factors;
        both as examples x elements.
        """
        raise NotImplementedError

    def squared_norms(self, index: int, gradients: Tensor) -> Tensor:
        """Computes the squared norms of encoded gradients, with the rounding of the weighted sum."""
        count, elements = len(gradients), max(1, gradients[0].numel())
        step = max(1, ELEMENTS // elements)
        underflow = count * math.sqrt(elements) * 2.0**-126
        squares = []
        for first in range(0, count, step):
            part = double(gradients[first : first + step])
            encoded, sizes = self.encoded(index, part)
            rounding = gamma(count + 4) * torch.linalg.vector_norm(sizes, dim=1)
            norms = torch.linalg.vector_norm(encoded, dim=1) * (1 + ENCODING)
            squares.append((norms + rounding * (1 + ENCODING) + underflow).square())
        return torch.cat(squares)


class Affine(Geometry):
    """x = (g - center) / scale, element by element."""

    def __init__(self, centers: Sequence[Tensor], scales: Sequence[Tensor]) -> None:
        """Takes center and scale of each tensor, in float64, with the shape of the parameter."""
        self._centers, self._scales = centers, scales

    def encoded(self, index: int, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Subtracts and divides."""
        center, scale = self._centers[index], self._scales[index]
        encoded = (gradients - center) / scale
        return encoded.flatten(1), (gradients.abs() / scale).flatten(1)


@dataclasses.dataclass(frozen=True)
class Frame:
    """The tangent space of a low-rank pair: see `protocol::Frame`."""

    left: int
    right: int
    right_basis: Tensor
    """Inputs x rank."""
    left_inverse: Tensor
    """Rank x rank."""
    right_inverse: Tensor
    """Rank x rank."""


class Tangent(Geometry):
    """Coordinates of low-rank pairs in the tangent space of their product.

    The left factor is stored as outputs x rank, and the right one as rank x inputs.
    """

    def __init__(self, frames: Sequence[Frame]) -> None:
        """Takes the frame of each pair, with tensors in float64."""
        self._left: Mapping[int, Frame] = {frame.left: frame for frame in frames}
        self._right: Mapping[int, Frame] = {frame.right: frame for frame in frames}

    def encoded(self, index: int, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Multiplies by the inverse of the other factor, and projects for the right one."""
        if index in self._left:
            inverse = self._left[index].right_inverse
            encoded = gradients @ inverse
            sizes = gradients.abs() @ inverse.abs()
        elif index in self._right:
            frame = self._right[index]
            gradients = gradients.transpose(1, 2)
            encoded = gradients @ frame.left_inverse
            basis = frame.right_basis
            encoded = encoded - basis @ (basis.T @ encoded)
            sizes = gradients.abs() @ frame.left_inverse.abs()
        else:
            encoded, sizes = gradients, gradients
        return encoded.flatten(1), sizes.flatten(1)
