"""One forward and one backward pass of a micro-batch, with the gradients of layers recorded.

Automatic differentiation computes the gradients with respect to activations only: parameters do not
require gradients during a pass. Hooks record the input of each layer, and the gradient with respect
to its output when it arrives. From both, a layer's rule makes the form of its parameters' gradients.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from typing import Any, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from .forms import Form, Total, double
from .geometry import Geometry
from .layers import Rule
from .outer import joined


class Layout(enum.Enum):
    """Where the examples of a micro-batch are in a layer's input and output."""

    BATCHED = "batched"
    """The first dimension is the example."""
    FLATTENED = "flattened"
    """The first dimension holds the rows of all examples, one example after the other."""
    SHARED = "shared"
    """There is no dimension of examples, as in embeddings of positions."""
    SHARED_ONE = "shared-one"
    """The first dimension has size 1 for all examples."""


@dataclasses.dataclass(frozen=True)
class RecordedLayer:
    """A layer of the fast path, with the rules of its trainable parameters by tensor index."""

    name: str
    module: nn.Module
    layout: Layout
    rules: Mapping[int, Rule]


class _Root(torch.autograd.Function):
    """Makes an output require gradients that depends on no tensor that does, without a copy.

    The output is not a leaf, so that a layer after it may change it in place.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        """Returns the output itself."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        """Returns no gradients."""
        return None, None


def first_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Returns the first tensor among the arguments of a layer."""
    values = (*args, *kwargs.values())
    return next((value for value in values if isinstance(value, Tensor)), None)


def holds_batch(rows: Tensor, examples: int) -> bool:
    """Whether rows are a view of a whole tensor whose first dimension is the example.

    Then each example has the same number of consecutive rows. A selection of rows is a copy.
    """
    base = rows._base
    return (
        base is not None
        and base.dim() > 1
        and base.shape[0] == examples
        and base.is_contiguous()
        and rows.is_contiguous()
        and base.data_ptr() == rows.data_ptr()
        and base.numel() == rows.numel()
    )


class RowsError(RuntimeError):
    """A layer whose rows are not those of the examples of a batch, as an expert of a mixture."""

    def __init__(self, layer: RecordedLayer, message: str) -> None:
        """Takes the layer."""
        super().__init__(message)
        self.tensors = set(layer.rules)


class Pass:
    """The recorded gradients of one micro-batch.

    With `tolerant`, rules that fail are recorded in `failed` instead of raised. `direct` has, by
    tensor, whether gradients are computed or only their norms. The first pass decides it, for all: the
    rounding that a norm covers depends on it, and must not depend on the batch. With `geometry`, norms
    are those of encoded gradients, and all gradients are computed.
    """

    def __init__(
        self,
        layers: Sequence[RecordedLayer],
        examples: int,
        direct: dict[int, bool],
        *,
        geometry: Geometry | None = None,
        tolerant: bool = False,
    ) -> None:
        """Creates a pass without gradients."""
        self.examples = examples
        self.forms: dict[int, Form] = {}
        self.squares: dict[int, Tensor] = {}
        self.failed: set[int] = set()
        self._layers = layers
        self._direct, self._tolerant = direct, tolerant
        self._geometry = geometry
        self._calls: dict[int, int] = {}
        self._uses: dict[int, list[Form]] = {}
        self._versions: list[tuple[str, Tensor, int]] = []
        self._is_backward = False

    def forward(self, handles: contextlib.ExitStack) -> None:
        """Adds hooks to the layers, which the stack removes."""
        for layer in self._layers:
            self._add_hooks(layer, handles)

    def backward(self, losses: Tensor, factors: Tensor | None = None) -> None:
        """Computes the gradients of the losses, and the norms of all tensors.

        `factors` multiplies the loss of each example; if absent, with 1.
        """
        self._is_backward = True
        if losses.requires_grad:
            losses.backward(torch.ones_like(losses) if factors is None else factors.to(losses))
        # Uses whose output has no effect on a loss get no gradient.
        for index in list(self._uses):
            self._finish(index)

    def add_form(self, index: int, form: Form) -> None:
        """Sets the form of a tensor's gradients and computes its norms."""
        if self._geometry is None:
            self.squares[index] = form.squared_norms()
        else:
            self.squares[index] = self._geometry.squared_norms(index, form.gradients())
        self.forms[index] = form

    def norms(self) -> Tensor:
        """Returns the squared norms of all recorded tensors: examples x tensors, on the CPU."""
        squares = [double(values.cpu()) for values in self.squares.values()]
        return torch.stack(squares, 1) if squares else torch.zeros(self.examples, 0)

    def add_absent(self, index: int, like: Tensor) -> None:
        """Computes the norms of a tensor that has no effect on any loss: its gradients are zero."""
        if self._geometry is not None and index not in self.squares:
            zeros = like.new_zeros(1, *like.shape)
            self.squares[index] = self._geometry.squared_norms(index, zeros).expand(self.examples)

    def add_weighted(self, totals: Sequence[Total], weights: Sequence[Tensor]) -> None:
        """Adds the weighted gradients to sums; both are given by tensor."""
        self._check_versions()
        for index, form in self.forms.items():
            form.add_weighted(totals[index], weights[index])

    def _add_hooks(self, layer: RecordedLayer, handles: contextlib.ExitStack) -> None:
        shared = layer.layout in (Layout.SHARED, Layout.SHARED_ONE)

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            x = first_input(args, kwargs)
            if x is None:
                return None
            each = x if layer.layout is Layout.SHARED_ONE else x[None]
            each = each.expand(self.examples, *each.shape[1:])
            return (
                tuple(each if value is x else value for value in args),
                {key: each if value is x else value for key, value in kwargs.items()},
            )

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            return self._record(layer, first_input(args, kwargs), output)

        if shared:
            handle = layer.module.register_forward_pre_hook(before, with_kwargs=True)
            handles.callback(handle.remove)
        handle = layer.module.register_forward_hook(after, with_kwargs=True)
        handles.callback(handle.remove)

    def _record(self, layer: RecordedLayer, x: Tensor | None, output: Any) -> Any:
        """Records a call of a layer, and returns its output."""
        if self._is_backward:
            raise RuntimeError(
                f"{layer.name}: called during the backward pass; activation checkpointing is not "
                "supported: disable it"
            )
        if x is None or not isinstance(output, Tensor):
            raise RuntimeError(f"{layer.name}: expected one tensor as input and output")
        for tensor in (x, output):
            if tensor.is_floating_point() and tensor.dtype != torch.float32:
                raise RuntimeError(
                    f"{layer.name}: expected activations in float32, got {tensor.dtype}; the bound "
                    "of rounding holds for float32 only: disable autocast"
                )
        if layer.layout is Layout.FLATTENED and not holds_batch(x, self.examples):
            raise RuntimeError(
                f"{layer.name}: its input is no view of a batch, as it was for the probe records, so "
                "the rows of an example are not known"
            )
        if not output.requires_grad:
            anchor = torch.zeros((), device=output.device, requires_grad=True)
            output = _Root.apply(output, anchor)
        for index in layer.rules:
            self._calls[index] = self._calls.get(index, 0) + 1
        x = x.detach()
        self._versions.append((layer.name, x, x._version))
        version = len(self._versions) - 1

        def arrived(gradient: Tensor) -> None:
            self._check_version(version)
            self._arrived(layer, x, gradient.detach())

        output.register_hook(arrived)
        return output

    def _arrived(self, layer: RecordedLayer, x: Tensor, gradient: Tensor) -> None:
        """Makes the forms of a layer's tensors; computes norms if no other use is expected."""
        x, d = (self._by_example(layer, tensor) for tensor in (x, gradient))
        for index, rule in layer.rules.items():
            try:
                self._uses.setdefault(index, []).append(rule(layer.module, x, d))
                if len(self._uses[index]) == self._calls[index]:
                    self._finish(index)
            except (ValueError, RuntimeError, IndexError, TypeError, AttributeError):
                if not self._tolerant:
                    raise
                self._uses.pop(index, None)
                self.failed.add(index)

    def _by_example(self, layer: RecordedLayer, tensor: Tensor) -> Tensor:
        """Returns a tensor whose first dimension is the example."""
        count = tensor.shape[0] if tensor.dim() else 0
        if layer.layout is Layout.FLATTENED and count % self.examples == 0:
            return tensor.reshape(self.examples, count // self.examples, *tensor.shape[1:])
        if count != self.examples:
            raise RowsError(
                layer,
                f"{layer.name}: expected {self.examples} examples in the first dimension, as for "
                f"the probe records, got shape {tuple(tensor.shape)}"
            )
        return tensor

    def _finish(self, index: int) -> None:
        """Computes the norms of a tensor from all its uses."""
        form = joined(self._uses.pop(index))
        if self._geometry is not None or self._direct.setdefault(index, form.is_direct()):
            form = form.direct()
        self.add_form(index, form)
        self._versions += [("gradient", tensor, tensor._version) for tensor in form.tensors()]

    def _check_version(self, position: int) -> None:
        name, tensor, version = self._versions[position]
        if tensor._version != version:
            raise RuntimeError(
                f"{name}: its input or output gradient was changed in place after it was used; "
                "replace the in-place operation, for example x += y by x = x + y"
            )

    def _check_versions(self) -> None:
        for position in range(len(self._versions)):
            self._check_version(position)


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Makes all parameters not require gradients, for the duration of the context."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disables TF32, bfloat16 products and autocast, for the duration of the context.

    With them, the unit roundoff of products is not that of float32.
    """
    backends: Any = torch.backends
    owners: list[tuple[Any, str, Any]] = []
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        paths = [
            (backends.cuda, "matmul"),
            (backends.cudnn, "conv"),
            (backends.cudnn, "rnn"),
            (backends.mkldnn, "matmul"),
            (backends.mkldnn, "conv"),
            (backends.mkldnn, "rnn"),
        ]
        owners = [
            (getattr(owner, name), "fp32_precision", "ieee")
            for owner, name in paths
            if hasattr(owner, name)
        ]
    else:
        owners = [
            (backends.cuda.matmul, "allow_tf32", False),
            (backends.cudnn, "allow_tf32", False),
        ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in owners]
    try:
        for owner, name, value in owners:
            setattr(owner, name, value)
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
