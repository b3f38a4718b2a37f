"""Tests a module with probe records, and decides which path computes each parameter.

The gradients of every path are compared with those of automatic differentiation, for each probe
record alone. So a layer whose rule does not apply, or whose parameter is also used elsewhere (tied by
a functional call, for example), takes the generic path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor, nn

from . import generic
from .forms import Total
from .geometry import Geometry
from .interaction import (
    MIXED,
    SHARE,
    TOLERANCE,
    LossModel,
    check_extremes,
    check_forward,
    losses_of,
    norm_of,
    reference_of,
    scales_keep_norms,
)
from .layers import rules_of
from .passes import Layout, Pass, RecordedLayer, first_input, frozen, holds_batch
from .structure import is_adapter

AGAIN = 10 * TOLERANCE
"""The tolerance of the tests that are repeated: a run is not ended by rounding."""


@dataclasses.dataclass
class Plan:
    """How the gradients of a module are computed."""

    layers: list[RecordedLayer]
    """The layers of the fast path."""
    generic: list[int]
    """The tensors of the generic path."""
    dimensions: list[int | None] | None
    """For `generic.by_vmap`; if absent, the generic path is a loop."""
    head: nn.Module | None
    """The last linear layer in the order of the forward pass."""
    head_rows: int | None
    """The number of rows that it computes for an example."""
    direct: dict[int, bool] = dataclasses.field(default_factory=dict)
    """Whether gradients are computed, by tensor; decided for all probe records together."""


def trace(model: LossModel, samples: Sequence[Any]) -> Plan:
    """Tests a module and returns how its gradients are computed.

    Of more than three samples, only the losses are computed.

    Raises ValueError if examples interact, the loss is random, or buffers change.
    """
    longer, samples = list(samples[3:]), list(samples[:3])
    check_forward(model, samples, longer)
    with _perturbed(model):
        plan = _plan(model, samples)
        references = [reference_of(model, samples, i) for i in range(len(samples))]
        check_extremes(model, samples)
        shared = [layer for layer in plan.layers if layer.layout.value.startswith("shared")]
        if shared and not _keeps_losses(model, plan, samples):
            plan = _without(plan, {index for layer in shared for index in layer.rules})
        wrong = _wrong_tensors(model, plan, samples, references)
        plan = _without(plan, wrong)
        if wrong:
            # A layer without its rules has no hooks, which may change how others are recorded.
            if remaining := _wrong_tensors(model, plan, samples, references):
                names = [list(model.parameters)[index] for index in sorted(remaining)]
                raise ValueError(f"{', '.join(names)}: wrong gradients; call register_layer")
        _check_scales(model, plan, samples)
        if plan.generic and not _vmap_works(model, plan, samples, references):
            plan.dimensions = None
    return plan


def check_again(model: LossModel, plan: Plan, samples: Sequence[Any]) -> None:
    """Repeats the tests of the gradients with probe records at the current parameters.

    A module may mix examples only after training, by a router that is zero at the start, for example.
    Parameters and probe records are public, so nothing is charged.

    Raises ValueError if examples interact.
    """
    samples = list(samples[:3])
    references = [reference_of(model, samples, i) for i in range(len(samples))]
    if not all(math.isfinite(norm_of(reference)) for reference in references):
        return
    wrong = _wrong_tensors(model, plan, samples, references, AGAIN)
    if plan.generic and not _right_generic(model, plan, samples, references, AGAIN):
        wrong |= set(plan.generic)
    if wrong:
        names = [list(model.parameters)[index] for index in sorted(wrong)]
        raise ValueError(f"{', '.join(names)}: after training, {MIXED}")
    _check_scales(model, plan, samples)


def _check_scales(model: LossModel, plan: Plan, samples: Sequence[Any]) -> None:
    """Refuses a module in which large or zero gradients of examples change those of others."""
    batch = model.batch_of(samples)

    def norms_of(factors: Tensor) -> Tensor:
        _, recorded = run(model, plan, batch, len(samples), factors=factors)
        return recorded.norms()

    for example in range(len(samples)):
        chosen = torch.ones(len(samples), dtype=torch.bool)
        chosen[example] = False
        if not scales_keep_norms(norms_of, chosen):
            raise ValueError(f"gradients: {MIXED}")


def moved(model: LossModel, plan: Plan, indices: set[int], samples: Sequence[Any]) -> Plan:
    """Moves tensors to the generic path, after the tests of the module."""
    samples = list(samples[:3])
    plan = _without(plan, indices)
    with _perturbed(model):
        references = [reference_of(model, samples, i) for i in range(len(samples))]
        if not _vmap_works(model, plan, samples, references):
            plan.dimensions = None
    return plan


@contextlib.contextmanager
def _perturbed(model: LossModel) -> Iterator[None]:
    """Adds public noise to the parameters, for the duration of the context.

    At initial values, gradients can be zero that are not later: those of low-rank factors, for
    example, of which one is zero.
    """
    generator = torch.Generator().manual_seed(1)
    saved = [parameter.detach().clone() for parameter in model.parameters.values()]
    try:
        with torch.no_grad():
            for parameter in model.parameters.values():
                noise = torch.randn(parameter.shape, generator=generator).mul_(0.02)
                parameter.add_(noise.to(parameter.device))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(model.parameters.values(), saved):
                parameter.copy_(value)


def _plan(model: LossModel, samples: Sequence[Any]) -> Plan:
    """Finds the layers of the fast path from the shapes of two forward passes."""
    two = model.batch_of(samples[:2])
    # The same lengths, so that only the number of examples differs.
    three = model.batch_of([*samples[:2], samples[0]])
    few, order = _shapes(model, two, 2)
    many, _ = _shapes(model, three, 3)
    alone = [_shapes(model, model.batch_of([sample]), 1)[0] for sample in samples]
    index = {id(parameter): k for k, parameter in enumerate(model.parameters.values())}
    layers: list[RecordedLayer] = []
    for name, layer in model.module.named_modules():
        owned = {
            local: index[id(parameter)]
            for local, parameter in layer.named_parameters(recurse=False)
            if id(parameter) in index
        }
        rules = rules_of(layer) if owned else {}
        chosen = {k: rules[local] for local, k in owned.items() if local in rules}
        layout = _layout(few.get(layer, []), many.get(layer, []))
        if layout is Layout.BATCHED and not all(_is_row(one, few, layer) for one in alone):
            layout = None
        if chosen and layout is not None:
            layers.append(RecordedLayer(name, layer, layout, chosen))
    head = order[-1] if order else None
    rows = few[head][-1][0][:-1].numel() if head is not None else 0
    plan = Plan(
        layers=layers,
        generic=[],
        dimensions=generic.batch_dimensions(two, three),
        head=head,
        head_rows=rows // 2 if rows and rows % 2 == 0 else None,
    )
    return _without(plan, _without_rule(model, layers))


def _without_rule(model: LossModel, layers: Sequence[RecordedLayer]) -> set[int]:
    """Returns the tensors for which an owner has no rule."""
    fast = {id(layer.module) for layer in layers}
    index = {id(parameter): k for k, parameter in enumerate(model.parameters.values())}
    missing = set(range(len(index))) - {k for layer in layers for k in layer.rules}
    for layer in model.module.modules():
        for _, parameter in layer.named_parameters(recurse=False):
            if id(parameter) in index and id(layer) not in fast:
                missing.add(index[id(parameter)])
    return missing


Call = tuple[torch.Size, torch.Size, bool]
"""The shapes of a layer's input and output, and whether the input is a view of a batch."""

Shapes = dict[nn.Module, list[Call]]


def _shapes(model: LossModel, batch: Any, examples: int) -> tuple[Shapes, list[nn.Module]]:
    """Returns the shapes of input and output of each call, and the linear layers in order."""
    shapes: Shapes = {}
    order: list[nn.Module] = []

    def record(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = first_input(args, kwargs)
        if x is not None and isinstance(output, Tensor):
            shapes.setdefault(layer, []).append((x.shape, output.shape, holds_batch(x, examples)))
            if isinstance(layer, nn.Linear) and layer not in adapters:
                order.append(layer)
        else:
            shapes.setdefault(layer, []).append((torch.Size(), torch.Size(), False))

    adapters = {layer for name, layer in model.module.named_modules() if is_adapter(name)}
    with contextlib.ExitStack() as handles, torch.no_grad():
        for layer in model.module.modules():
            handle = layer.register_forward_hook(record, with_kwargs=True)
            handles.callback(handle.remove)
        losses_of(model.loss, model.module, batch, examples)
    return shapes, order


def _layout(few: Sequence[Call], many: Sequence[Call]) -> Layout | None:
    """Returns the layout of a layer, given its calls for two and for three examples."""
    if not few or len(few) != len(many):
        return None
    layouts = {_layout_of_call(a, b) for a, b in zip(few, many)}
    return layouts.pop() if len(layouts) == 1 else None


def _is_row(alone: Shapes, few: Shapes, layer: nn.Module) -> bool:
    """Whether a layer has one row for an example alone; an expert of a mixture may have none."""
    calls = alone.get(layer, [])
    return len(calls) == len(few[layer]) and all(
        x[:1] == (1,) and output[:1] == (1,) for x, output, _ in calls
    )


def _layout_of_call(few: Call, many: Call) -> Layout | None:
    """Returns the layout of a call, given its shapes for two and for three examples.

    Rows that are no view of a batch may be a selection, whose number differs between examples.
    """
    *few_shapes, few_is_view = few
    *many_shapes, many_is_view = many
    if not all(few_shapes) or not all(many_shapes):
        return None
    x, output = few_shapes
    if few_shapes == many_shapes:
        return Layout.SHARED_ONE if x[0] == 1 and len(x) > 1 else Layout.SHARED
    for a, b in zip(few_shapes, many_shapes):
        if a[1:] != b[1:] or 3 * a[0] != 2 * b[0]:
            return None
    if x[0] == 2 and output[0] == 2:
        return Layout.BATCHED
    return Layout.FLATTENED if few_is_view and many_is_view else None


def run(
    model: LossModel,
    plan: Plan,
    batch: Any,
    examples: int,
    *,
    factors: Tensor | None = None,
    geometry: Geometry | None = None,
    tolerant: bool = False,
) -> tuple[Tensor, Pass]:
    """Runs the fast path on a batch; returns losses and recorded gradients."""
    recorded = Pass(plan.layers, examples, plan.direct, geometry=geometry, tolerant=tolerant)
    with contextlib.ExitStack() as handles, frozen(model.module):
        recorded.forward(handles)
        losses = losses_of(model.loss, model.module, batch, examples)
        recorded.backward(losses, factors)
    return losses.detach(), recorded


def _keeps_losses(model: LossModel, plan: Plan, samples: Sequence[Any]) -> bool:
    """Whether losses are the same if layers without a dimension of examples get one."""
    batch = model.batch_of(samples)
    with torch.no_grad():
        expected = losses_of(model.loss, model.module, batch, len(samples))
    try:
        losses, _ = run(model, plan, batch, len(samples), tolerant=True)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return bool(torch.allclose(losses, expected, rtol=1e-4, atol=1e-6))


def _wrong_tensors(
    model: LossModel,
    plan: Plan,
    samples: Sequence[Any],
    references: Sequence[Sequence[Tensor]],
    tolerance: float = TOLERANCE,
) -> set[int]:
    """Returns the tensors of which the fast path computes other gradients than the references.

    With the loss of one example only, the others must have norms of exactly zero.
    """
    wrong: set[int] = set()
    batch = model.batch_of(samples)
    parameters = list(model.parameters.values())
    for example, reference in enumerate(references):
        factors = torch.zeros(len(samples), device=parameters[0].device)
        factors[example] = 1.0
        _, recorded = run(model, plan, batch, len(samples), factors=factors, tolerant=True)
        wrong |= recorded.failed
        whole = norm_of(reference)
        for layer in plan.layers:
            for index in layer.rules:
                gradient = reference[index].cpu().double()
                slack = tolerance * float(gradient.norm()) + SHARE * whole
                form = recorded.forms.get(index)
                if form is None:
                    if float(gradient.norm()) > slack:
                        wrong.add(index)
                    continue
                norms = recorded.squares[index].cpu().clamp(min=0).sqrt()
                total = Total(gradient.shape, factors.device)
                try:
                    form.add_weighted(total, torch.ones_like(factors))
                except RuntimeError:
                    wrong.add(index)
                    continue
                others = torch.cat([norms[:example], norms[example + 1 :]])
                is_right = (
                    float((total.values().cpu() - gradient).norm()) <= slack
                    and float(norms[example]) >= float(gradient.norm()) - slack
                    and not bool(others.any())
                )
                if not is_right:
                    wrong.add(index)
    return wrong


def _without(plan: Plan, indices: set[int]) -> Plan:
    """Moves tensors from the fast path to the generic path."""
    layers = []
    for layer in plan.layers:
        rules = {index: rule for index, rule in layer.rules.items() if index not in indices}
        if rules:
            layers.append(dataclasses.replace(layer, rules=rules))
    moved = sorted(set(plan.generic) | indices)
    return dataclasses.replace(plan, layers=layers, generic=moved)


def generic_gradients(
    model: LossModel, plan: Plan, batch: Any, samples: Sequence[Any]
) -> list[Tensor]:
    """Computes the per-example gradients of the tensors of the generic path."""
    items = list(model.parameters.items())
    chosen = dict(items[index] for index in plan.generic)
    if plan.dimensions is not None:
        with frozen(model.module):
            return generic.by_vmap(
                model.module, model.loss, chosen, batch, plan.dimensions, model.chunk
            )
    with frozen(model.module):
        for parameter in chosen.values():
            parameter.requires_grad_(True)
        batches = [model.batch_of([sample]) for sample in samples]
        return generic.by_loop(model.module, model.loss, list(chosen.values()), batches)


def _vmap_works(
    model: LossModel, plan: Plan, samples: Sequence[Any], references: Sequence[Sequence[Tensor]]
) -> bool:
    """Whether `vmap` computes the gradients of the generic path."""
    if plan.dimensions is None:
        return False
    try:
        return _right_generic(model, plan, samples, references)
    except Exception:  # noqa: BLE001 - vmap fails in many ways; the loop takes its place
        return False


def _right_generic(
    model: LossModel,
    plan: Plan,
    samples: Sequence[Any],
    references: Sequence[Sequence[Tensor]],
    tolerance: float = TOLERANCE,
) -> bool:
    """Whether the generic path computes the gradients of each probe record alone."""
    gradients = generic_gradients(model, plan, model.batch_of(samples), samples)
    for example, reference in enumerate(references):
        whole = norm_of(reference)
        for index, gradient in zip(plan.generic, gradients):
            expected = reference[index]
            slack = tolerance * float(expected.norm()) + SHARE * whole
            if not float((gradient[example] - expected).norm()) <= slack:
                return False
    return True
