"""Layer kinds of the fast path: for each parameter of a layer, the form of its gradient.

A rule is a function of the layer, its input and the gradient of the loss with respect to its output.
The first dimension of input and gradient is the example. It returns a `Form`. All rules are checked
against automatic differentiation before an engine uses them (`structure.py`), so a layer whose rule
does not apply takes the generic path.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from .forms import Direct, Form, Lookup
from .outer import Convolution, Outer

Rule = Callable[[Any, Tensor, Tensor], Form]
"""Returns the form of a parameter's gradient from layer, input and output gradient."""

_RULES: dict[type[nn.Module], Mapping[str, Rule]] = {}


def register_layer(kind: type[nn.Module], **rules: Rule) -> None:
    """Registers the rules of a layer kind, one for each parameter by its name in the layer.

    Subclasses use the same rules unless they override `forward`. A later registration replaces an
    earlier one.

    >>> class Scale(nn.Module):
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.gain = nn.Parameter(torch.ones(width))
    ...     def forward(self, x):
    ...         return x * self.gain
    >>> register_layer(Scale, gain=lambda layer, x, d: Direct((x * d).flatten(1, -2).sum(1)))
    """
    _RULES[kind] = dict(rules)


def rules_of(layer: nn.Module) -> Mapping[str, Rule]:
    """Returns the rules of a layer by parameter name; none if its kind is not registered."""
    for kind in type(layer).__mro__:
        if kind in _RULES:
            return _RULES[kind] if type(layer).forward is kind.forward else {}
    name = type(layer).__name__
    if name == "Conv1D" and hasattr(layer, "nf"):
        return {"weight": _transposed_weight, "bias": _sum_of_rows}
    if name.endswith("RMSNorm") or hasattr(layer, "variance_epsilon"):
        return {"weight": _rms_gain}
    return {}


def is_transposed(layer: nn.Module, name: str) -> bool:
    """Whether a weight of a layer is stored as inputs x outputs."""
    transposing = nn.modules.conv._ConvTransposeNd
    is_conv1d = type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
    return name == "weight" and (is_conv1d or isinstance(layer, transposing))


def _sum_of_rows(layer: nn.Module, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of a bias on the last dimension."""
    return Direct(d.reshape(d.shape[0], -1, d.shape[-1]).sum(1))


def _sum_of_positions(layer: nn.Module, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of a bias on the channels."""
    return Direct(d.flatten(2).sum(2))


def _weight(layer: nn.Linear, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of a weight that is stored as outputs x inputs."""
    return Outer.of_rows(x, d, layer.weight.shape)


def _transposed_weight(layer: Any, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of a weight that is stored as inputs x outputs."""
    return Outer.of_rows(x, d, layer.weight.shape, transposed=True)


def _table(layer: nn.Embedding, ids: Tensor, d: Tensor) -> Form:
    """Returns the gradient of an embedding table. The row of `padding_idx` has none."""
    ids, d = ids.reshape(ids.shape[0], -1), d.reshape(d.shape[0], -1, d.shape[-1])
    if layer.padding_idx is not None:
        d = d.masked_fill((ids == layer.padding_idx)[..., None], 0.0)
    return Lookup(ids, d, layer.weight.shape)


def _reduced(product: Tensor, shape: torch.Size) -> Form:
    """Sums over all dimensions between the example and the shape of the parameter."""
    return Direct(product.reshape(product.shape[0], -1, *shape).sum(1))


def _layer_norm_gain(layer: nn.LayerNorm, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of the gain of a layer norm."""
    normal = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    return _reduced(normal.mul_(d), layer.weight.shape)


def _layer_norm_bias(layer: nn.LayerNorm, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of the bias of a layer norm."""
    return _reduced(d, layer.weight.shape)


def _rms_gain(layer: Any, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of the gain of an RMS norm, or of one plus it, as in Gemma."""
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    normal = functional.rms_norm(x, tuple(layer.weight.shape), eps=eps)
    return _reduced(normal.mul_(d), layer.weight.shape)


def _group_norm_gain(layer: nn.GroupNorm, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of the gain of a group norm."""
    normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
    return Direct(normal.mul_(d).flatten(2).sum(2))


def _kernel(layer: Any, x: Tensor, d: Tensor) -> Form:
    """Returns the gradient of the kernel of a convolution."""
    if x.dim() != layer.weight.dim():
        raise ValueError(f"expected an input of {layer.weight.dim()} dimensions, got {x.dim()}")
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
        padding = [0] * len(layer.kernel_size)
    return Convolution(
        x,
        d,
        layer.weight.shape,
        groups=layer.groups,
        stride=layer.stride,
        padding=padding,
        dilation=layer.dilation,
    )


register_layer(nn.Linear, weight=_weight, bias=_sum_of_rows)
register_layer(nn.Embedding, weight=_table)
register_layer(nn.LayerNorm, weight=_layer_norm_gain, bias=_layer_norm_bias)
register_layer(nn.RMSNorm, weight=_rms_gain)
register_layer(nn.GroupNorm, weight=_group_norm_gain, bias=_sum_of_positions)
for _convolution in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_layer(_convolution, weight=_kernel, bias=_sum_of_positions)
