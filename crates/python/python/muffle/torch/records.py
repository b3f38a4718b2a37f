"""Probe records, and the validation of records against them."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor, nn

COUNT = 3
"""The number of probe records that are needed."""

LENGTHS = (8, 5, 2)
"""The lengths of lists of numbers in probe records, the longest first."""


@dataclasses.dataclass(frozen=True)
class Field:
    """Kind and shape of one field of a record. `None` in a shape is any length."""

    kind: str
    shape: tuple[int | None, ...]


def _is_numbers(value: Any) -> bool:
    """Whether a value is a list or tuple of numbers, of any length."""
    return (
        isinstance(value, (list, tuple))
        and not hasattr(value, "_fields")
        and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in value)
    )


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Iterates over the fields of a record: tensors, numbers, lists of numbers and texts."""
    if hasattr(value, "__array__") and not isinstance(value, Tensor):
        value = torch.as_tensor(value)
    if isinstance(value, dict):
        for key in value:
            yield from walk(value[key], f"{path}[{key!r}]")
    elif isinstance(value, list) and _is_numbers(value):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from walk(item, f"{path}[{position}]")
    else:
        yield path, value


def field_of(value: Any) -> Field:
    """Describes a field by kind and shape only."""
    if isinstance(value, Tensor):
        return Field(str(value.dtype), tuple(value.shape))
    if isinstance(value, list):
        is_float = any(isinstance(item, float) for item in value)
        return Field("list of float" if is_float else "list of int", (None,))
    return Field(type(value).__name__, ())


def fields_of(sample: Any) -> dict[str, Field]:
    """Describes the fields of a record by path."""
    return {path: field_of(value) for path, value in walk(sample)}


def merged(descriptions: Sequence[dict[str, Field]]) -> dict[str, Field]:
    """Describes what probe records have in common; dimensions that differ may have any length."""
    first = dict(descriptions[0])
    for other in descriptions[1:]:
        if other.keys() != first.keys():
            raise ValueError(
                f"probe records: expected the fields {list(first)} in each, got {list(other)}"
            )
        for path, field in other.items():
            known = first[path]
            if known.kind != field.kind or len(known.shape) != len(field.shape):
                raise ValueError(f"probe records: field {path}: expected {known}, got {field}")
            shape = tuple(a if a == b else None for a, b in zip(known.shape, field.shape))
            first[path] = Field(known.kind, shape)
    return first


def check(sample: Any, expected: dict[str, Field]) -> None:
    """Refuses a record of another structure than the probe records, or that is not finite."""
    fields = dict(walk(sample))
    if fields.keys() != expected.keys():
        raise ValueError(f"expected the fields {list(expected)}, got {list(fields)}")
    for path, value in fields.items():
        known, field = expected[path], field_of(value)
        place = f"field {path}: " if path else ""
        if field.kind != known.kind:
            raise ValueError(f"{place}expected {known.kind}, got {field.kind}")
        fits = len(field.shape) == len(known.shape) and all(
            b is None or a == b for a, b in zip(field.shape, known.shape)
        )
        if not fits:
            raise ValueError(f"{place}expected shape {_text(known)}, got {_text(field)}")
        if 0 in field.shape or isinstance(value, list) and not value:
            raise ValueError(f"{place}expected at least one element, got none")
        if not _is_finite(value):
            raise ValueError(f"{place}expected finite numbers, got one that is not")


def _text(field: Field) -> str:
    return "(" + ", ".join("any" if n is None else str(n) for n in field.shape) + ")"


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        floating = value.is_floating_point() or value.is_complex()
        return not floating or bool(torch.isfinite(value).all())
    if isinstance(value, list):
        return all(math.isfinite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def synthetic(sample: Any, module: nn.Module) -> list[Any]:
    """Creates probe records with the structure of a record, and random content.

    Only structure, shapes and dtypes of the record are read. Integers are below the size of every
    embedding table and the number of outputs of the last linear layer (without one, of the last
    convolution), so each is a valid index.
    """
    generator = torch.Generator().manual_seed(0)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    outputs = [m.out_features for m in module.modules() if isinstance(m, nn.Linear)][-1:]
    if not outputs:
        kernels = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        outputs = [m.out_channels for m in module.modules() if isinstance(m, kernels)][-1:]
    limit = min(tables + outputs, default=0)

    def unknown(path: str, reason: str) -> ValueError:
        return ValueError(
            f"{'field ' + path if path else 'records'}: {reason}; call set_probe_records with three "
            "synthetic records"
        )

    def integers(path: str, shape: Sequence[int]) -> Tensor:
        if limit < 1 or "mask" in path.lower():
            raise unknown(path, "the range of its integers is not known")
        return torch.randint(limit, tuple(shape), generator=generator)

    def booleans(path: str, shape: Sequence[int]) -> Tensor:
        if "mask" in path.lower():
            raise unknown(path, "which masks are valid is not known")
        return torch.rand(tuple(shape), generator=generator) < 0.5

    def similar(value: Any, path: str, length: int) -> Any:
        if hasattr(value, "__array__") and not isinstance(value, Tensor):
            made = similar(torch.as_tensor(value), path, length)
            return made.numpy()
        if isinstance(value, Tensor):
            if value.is_floating_point():
                return torch.randn(value.shape, generator=generator).to(value.dtype)
            if value.dtype == torch.bool:
                return booleans(path, value.shape)
            if value.dtype == torch.uint8:
                return torch.randint(256, value.shape, generator=generator).to(torch.uint8)
            if value.is_complex():
                raise unknown(path, "no synthetic complex numbers can be made")
            return integers(path, value.shape).to(value.dtype)
        if value is None:
            return None
        if isinstance(value, bool):
            return bool(booleans(path, ()))
        if isinstance(value, int):
            return int(integers(path, ()))
        if isinstance(value, float):
            return float(torch.randn((), generator=generator))
        if isinstance(value, dict):
            return {key: similar(item, f"{path}[{key!r}]", length) for key, item in value.items()}
        if isinstance(value, list) and _is_numbers(value):
            # The number of elements is private content: a fixed number takes its place.
            if any(isinstance(item, float) for item in value):
                return torch.randn(length, generator=generator).tolist()
            return integers(path, (length,)).tolist()
        if isinstance(value, (list, tuple)):
            items = [similar(item, f"{path}[{i}]", length) for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        raise unknown(path, f"no synthetic {type(value).__name__} can be made")

    return [similar(sample, "", length) for length in LENGTHS]


def altered(sample: Any, other: Any) -> Any:
    """Returns a record of the shape of one record with other content, that of another.

    Integers and truth values are those of the other record, repeated, so that all are valid; numbers
    are transformed. Masks and texts stay.
    """
    contents = dict(walk(other))

    def similar(value: Any, path: str) -> Any:
        if hasattr(value, "__array__") and not isinstance(value, Tensor):
            return similar(torch.as_tensor(value), path).numpy()
        source = contents.get(path)
        if "mask" in path.lower():
            return value
        if isinstance(value, Tensor):
            if value.is_floating_point():
                return 1.0 - 3.0 * value
            if not isinstance(source, Tensor) or value.is_complex() or not source.numel():
                return value
            repeats = -(-value.numel() // source.numel())
            return source.flatten().repeat(repeats)[: value.numel()].view(value.shape)
        if isinstance(value, dict):
            return {key: similar(item, f"{path}[{key!r}]") for key, item in value.items()}
        if isinstance(value, list) and _is_numbers(value):
            if any(isinstance(item, float) for item in value):
                return [1.0 - 3.0 * item for item in value]
            if not isinstance(source, list) or not source:
                return value
            return [source[i % len(source)] for i in range(len(value))]
        if isinstance(value, (list, tuple)):
            items = [similar(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, float):
            return 1.0 - 3.0 * value
        if isinstance(value, int) and isinstance(source, int):
            return source
        return value

    return similar(sample, "")


def scaled(sample: Any, factor: float) -> Any:
    """Returns a record whose floating-point numbers are multiplied by a factor."""

    def similar(value: Any) -> Any:
        if hasattr(value, "__array__") and not isinstance(value, Tensor):
            return similar(torch.as_tensor(value)).numpy()
        if isinstance(value, Tensor):
            return value * factor if value.is_floating_point() else value
        if isinstance(value, dict):
            return {key: similar(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [similar(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value * factor if isinstance(value, float) else value

    return similar(sample)


def content_of(tensor: Tensor) -> bytes:
    """Returns the bytes of a contiguous tensor on the CPU, without numpy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
