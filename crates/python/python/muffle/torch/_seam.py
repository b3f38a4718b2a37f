"""The engine as the curator in Rust calls it: indices and bytes instead of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from . import records as fields
from .engine import Engine
from .forms import double
from .geometry import Affine, Frame, Geometry, Tangent


class Seam:
    """Converts the calls of the curator. Parameters and sums cross one tensor at a time.

    `identity` names the records of a run, so that a resumed run has the same ones. Without it, a
    digest of their content is computed while they are validated. Before the first step, the losses of
    `limit` records, or of all, are checked in batches of `examples`.
    """

    def __init__(
        self,
        engine: Engine,
        identity: str | None = None,
        *,
        examples: int = 16,
        limit: int | None = None,
    ) -> None:
        """Takes an engine that has its records."""
        self._engine, self._examples, self._limit = engine, examples, limit
        self._identity = identity
        self._digest = hashlib.sha256()
        self._geometry: Geometry | None = None

    def trainable(self) -> list[tuple[str, list[int], str, int | None, bool, bool]]:
        """Describes the trainable tensors."""
        return [
            (one.name, list(one.shape), one.role, one.partner, one.transposed, one.predicts_labels)
            for one in self._engine.trainable()
        ]

    def inputs(self, examples: int | None) -> tuple[str, int]:
        """Returns the identity of the records, and a fingerprint of what is not trained.

        The curator asks when it has validated all records, with the size of its micro-batches, if it is
        given.
        """
        self._engine.check_records(examples or self._examples, self._limit)
        records = self._digest.hexdigest() if self._identity is None else self._identity
        return f"{records} ({self._engine.record_count()} records)", int.from_bytes(self._engine.frozen_digest()[:8], "little")

    def read_parameter(self, index: int, into: bytearray) -> None:
        """Copies a parameter into bytes, as float32."""
        values = torch.frombuffer(into, dtype=torch.float32)
        values.copy_(self._engine.parameter(index).flatten())

    def write_parameter(self, index: int, values: bytearray) -> None:
        """Sets a parameter from bytes, as float32."""
        self._engine.set_parameter(index, _floats(values))

    def loaded(self) -> None:
        """Starts to compute at the parameters that were set."""
        self._engine.begin()

    def unload(self) -> None:
        """Discards the sum and the micro-batch."""
        self._engine.unload()

    def validate(self, index: int) -> None:
        """Refuses a record that does not fit the module."""
        try:
            self._engine.check_record(index)
        except ValueError:
            raise
        except Exception as error:
            # Its message may have content of the record.
            raise ValueError(f"it cannot be read ({type(error).__name__})") from error
        if self._identity is None and index >= 0:
            _update(self._digest, self._engine.record(index))

    def losses(self, indices: Sequence[int]) -> list[float]:
        """Computes the loss of each example."""
        with _memory_errors():
            return self._engine.losses(indices)

    def use_identity(self) -> None:
        """Norms are those of gradients."""
        self._geometry = None

    def use_affine(self, tensors: Sequence[tuple[bytearray, bytearray]]) -> None:
        """Norms are those of (g - center) / scale, given as float32 by tensor."""
        pairs = [
            [self._values(self._engine.stored(index, _floats(values))) for values in pair]
            for index, pair in enumerate(tensors)
        ]
        self._geometry = Affine([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def use_tangent(
        self, frames: Sequence[tuple[int, int, bytearray, bytearray, bytearray]]
    ) -> None:
        """Norms are those in the tangent spaces of pairs.

        Given are the indices of the left and right factor, the basis of the right one, and the inverses
        of the left and right triangle.
        """
        self._geometry = Tangent([
            Frame(left, right, *(self._matrix(values, left) for values in matrices))
            for left, right, *matrices in frames
        ])

    def _matrix(self, values: bytearray, left: int) -> Tensor:
        """Returns a matrix of as many columns as a pair has ranks."""
        return self._values(_floats(values).view(-1, self._engine.trainable()[left].shape[1]))

    def _values(self, tensor: Tensor) -> Tensor:
        """Returns a tensor in float64, where gradients are."""
        return double(tensor.to(self._engine.parameter(0).device))

    def start_sum(self) -> None:
        """Starts a new sum at zero."""
        self._engine.start_sum()

    def observe(
        self, indices: Sequence[int], blocks: Sequence[Sequence[int]]
    ) -> tuple[list[float], list[float]]:
        """Computes losses, and squared norms by example and then by block."""
        with _memory_errors():
            if self._geometry is None:
                return self._engine.observe(indices, blocks)
            return self._engine.observe(indices, blocks, self._geometry)

    def accumulate(self, weights: Sequence[Sequence[float]]) -> None:
        """Adds the weighted gradients of the observed examples to the sum."""
        with _memory_errors():
            self._engine.accumulate(weights)

    def read_sum(self, index: int, into: bytearray) -> None:
        """Copies the sum of a tensor into bytes, as float64."""
        torch.frombuffer(into, dtype=torch.float64).copy_(self._engine.sum_of(index).flatten())

    def end_sum(self) -> None:
        """Ends the sum."""
        self._engine.end_sum()


def _floats(values: bytearray) -> Tensor:
    """Returns bytes as float32."""
    return torch.frombuffer(values, dtype=torch.float32)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Raises MemoryError if the device has not enough memory: the curator tries fewer examples."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.cuda.OutOfMemoryError) or "not enough memory" in text:
            raise MemoryError(text) from error
        raise


def _update(digest: "hashlib._Hash", record: object) -> None:
    """Adds the content of a record to a digest."""
    for path, value in fields.walk(record):
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            digest.update(f"{path}:{value.dtype}:{tuple(value.shape)}:".encode())
            digest.update(fields.content_of(value))
        else:
            digest.update(f"{path}:{type(value).__name__}:{value!r};".encode())
