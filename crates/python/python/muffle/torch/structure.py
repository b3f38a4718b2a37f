"""The structure of a module: what is refused, and the description of trainable tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from typing import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from .layers import is_transposed

ROLES = ("hidden", "table", "head", "vector", "left", "right")
"""The roles of tensors, as in the crate `protocol`."""


@dataclasses.dataclass(frozen=True)
class Trainable:
    """Name, shape and role of a trainable tensor."""

    name: str
    """The name, as in `module.named_parameters()`."""
    shape: tuple[int, ...]
    """The shape. A parameter without dimensions has the shape (1,), and a right factor that of its
    transpose."""
    role: str
    """One of "hidden", "table", "head", "vector", "left" and "right".

    "left" and "right" are the factors of a low-rank pair: of PEFT, `lora_B` (outputs x rank) is the
    left one and `lora_A` (rank x inputs) the right one, which is shown transposed.
    """
    partner: int | None = None
    """The index of the other factor of a low-rank pair."""
    transposed: bool = False
    """Whether a weight is stored as inputs x outputs."""
    predicts_labels: bool = False
    """Whether the outputs are predictions of an example's label, and not of tokens."""


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that require gradients by name; tied ones once."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def check_parameters(module: nn.Module) -> None:
    """Refuses modules and parameters that cannot be trained privately.

    Raises ValueError: the message names the module or parameter, and says what to do.
    """
    trained = trained_parameters(module)
    if not trained:
        raise ValueError("no parameter requires gradients: call requires_grad_() on some of them")
    for name, parameter in trained.items():
        if parameter.is_complex():
            raise ValueError(f"{name}: complex parameters are not supported")
        if parameter.dtype != torch.float32:
            raise ValueError(
                f"{name}: expected float32, got {parameter.dtype}; reported norms cover the rounding "
                "of float32 only: call module.float()"
            )
        if parameter.numel() == 0:
            shape = tuple(parameter.shape)
            raise ValueError(f"{name}: expected at least one element, got shape {shape}")
    devices = {parameter.device for parameter in module.parameters()}
    if len(devices) > 1:
        raise ValueError(
            f"parameters are on several devices ({', '.join(sorted(map(str, devices)))}): move the "
            "module to one"
        )
    for name, layer in module.named_modules():
        _check_kind(f"{name or 'module'} ({type(layer).__name__})", layer)


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")


def _check_kind(place: str, layer: nn.Module) -> None:
    """Refuses a layer that wraps another one for several devices, or has unsuitable options."""
    if type(layer).__name__ in _WRAPPERS:
        raise ValueError(f"{place}: wrappers are not supported: pass the wrapped module")
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        if layer.sparse:
            raise ValueError(f"{place}: sparse gradients are not supported: set sparse=False")
        if layer.scale_grad_by_freq:
            raise ValueError(
                f"{place}: scale_grad_by_freq divides gradients by counts over the batch, so one "
                "example changes another's gradient: set it to False"
            )
        if layer.max_norm is not None:
            raise ValueError(
                f"{place}: max_norm changes parameters in the forward pass: set it to None"
            )


def check_modes(module: nn.Module) -> None:
    """Refuses layers whose training mode is random or computes statistics over the batch.

    It is called before each lot, because `module.train()` may be called at any time.
    """
    for name, layer in module.named_modules():
        place = f"{name or 'module'} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.training or layer.running_mean is None:
                raise ValueError(
                    f"{place}: batch statistics mix examples; replace it by GroupNorm, or call "
                    "eval() on it to use its running statistics, which must be public"
                )
        elif isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            if layer.training and layer.track_running_stats:
                raise ValueError(
                    f"{place}: it updates running statistics from records: set "
                    "track_running_stats=False"
                )
        elif isinstance(layer, nn.modules.dropout._DropoutNd):
            if layer.training and layer.p > 0:
                raise ValueError(
                    f"{place}: the gradient of an example would be random; call module.eval(), or "
                    "set p=0"
                )


def modes_of(module: nn.Module) -> dict[str, bool]:
    """Returns whether each layer is in training mode."""
    return {name: layer.training for name, layer in module.named_modules()}


@contextlib.contextmanager
def same_modes(module: nn.Module) -> Iterator[None]:
    """Restores the training mode of each layer after the context."""
    before = modes_of(module)
    try:
        yield
    finally:
        for name, layer in module.named_modules():
            layer.training = before.get(name, layer.training)


def describe(
    module: nn.Module,
    names: Sequence[str],
    overrides: Mapping[str, str],
    head: nn.Module | None,
    head_rows: int | None,
) -> list[Trainable]:
    """Describes trainable tensors.

    `head` is the last linear layer in the order of the forward pass, and `head_rows` the number of
    rows that it computes for an example. `overrides` maps name patterns to roles.
    """
    parameters = dict(module.named_parameters())
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for layer in module.modules():
        for local, parameter in layer.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((layer, local))
    used = set()
    described = []
    for name in names:
        parameter = parameters[name]
        uses = owners.get(id(parameter), [])
        partner = _partner(name, names, parameters)
        role = _role(parameter, uses, head)
        if partner is not None:
            role = "left" if "lora_B" in name else "right"
        for pattern, given in overrides.items():
            if fnmatch.fnmatchcase(name, pattern):
                if given not in ROLES or given in ("left", "right"):
                    raise ValueError(f"roles[{pattern!r}]: expected one of {ROLES[:4]}, got {given!r}")
                role, partner = given, None
                used.add(pattern)
        described.append(
            Trainable(
                name=name,
                shape=tuple(parameter.shape) or (1,),
                role=role,
                partner=partner,
                transposed=any(is_transposed(layer, local) for layer, local in uses),
                predicts_labels=role == "head" and head_rows == 1,
            )
        )
    if unused := set(overrides) - used:
        raise ValueError(f"roles: no trainable parameter matches {sorted(unused)}")
    # A pair of which one role was overridden is no pair.
    for index, tensor in enumerate(described):
        if tensor.partner is not None and described[tensor.partner].partner is None:
            described[index] = dataclasses.replace(tensor, role="hidden", partner=None)
    for index, tensor in enumerate(described):
        if tensor.role == "right":
            described[index] = dataclasses.replace(tensor, shape=tensor.shape[::-1])
    return described


def _role(
    parameter: Tensor, uses: Sequence[tuple[nn.Module, str]], head: nn.Module | None
) -> str:
    """Returns the role that follows from the layers that own a parameter."""
    if parameter.dim() < 2:
        return "vector"
    if any(isinstance(layer, nn.Embedding) for layer, _ in uses):
        return "table"
    return "head" if any(layer is head for layer, _ in uses) else "hidden"


def is_adapter(name: str) -> bool:
    """Whether a name is that of a low-rank factor of PEFT."""
    return "lora_A" in name or "lora_B" in name


def _partner(name: str, names: Sequence[str], parameters: Mapping[str, Tensor]) -> int | None:
    """Returns the index of the other factor of a low-rank pair of PEFT."""
    if not is_adapter(name) or parameters[name].dim() != 2:
        return None
    if "lora_A" in name:
        other = name.replace("lora_A", "lora_B")
    else:
        other = name.replace("lora_B", "lora_A")
    return names.index(other) if other in names else None
