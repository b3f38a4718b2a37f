"""The engine: per-example losses, gradient norms and weighted sums of a PyTorch module."""

from __future__ import annotations

import hashlib
import io
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from . import checking, tracing
from . import records as probes
from .forms import MAX_ROWS, Direct, Total, double, gamma
from .generic import Loss
from .geometry import Geometry
from .interaction import LossModel, losses_of
from .losses import supervised
from .passes import Pass, RowsError, full_precision
from .structure import Trainable, check_modes, check_parameters, describe, modes_of, trained_parameters


ISOLATION = "up-to-rounding"
"""How far examples are isolated from each other, as the crate `engine` calls it.

The shapes of a batch decide how PyTorch rounds, so examples change each other by rounding.
"""


FEW_ELEMENTS = 1 << 20
"""The number of elements that are not trained up to which they are compared before every query."""

RETEST = 50
"""The number of queries after which the module is tested again, at the latest."""


class Engine:
    """Computes per-example losses, squared gradient norms and weighted sums for a module.

    One query on a lot is `load`, `start_sum`, then for each micro-batch `observe` and `accumulate`,
    then `take_sum` and `unload`. Examples are named by their index in the records; negative ones are
    probe records.

    Losses, norms and sums are as private as the records: they are for the curator, which clips, adds
    noise and charges. Use `fit` to train.

    Before the first query, the module is tested with probe records (`tracing.trace`): examples must
    not interact, and all gradients must be those of automatic differentiation.

    `loss(module, batch)` returns one loss for each example. A loss of `torch.nn` with
    `reduction="none"` stands for batches (inputs, targets), see `supervised`. `collate` makes a batch
    from a list of records (default: `torch.utils.data.default_collate`); `roles` maps patterns of
    parameter names to roles; `validate` refuses a record by raising ValueError; `structured` also
    compares each record with the structure of the probe records; `chunk` is the number of examples
    that the generic path computes at a time.
    """

    isolation = ISOLATION

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | nn.Module,
        *,
        device: torch.device | str | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        records: Sequence[Any] | None = None,
        probe_records: Sequence[Any] | None = None,
        roles: Mapping[str, str] | None = None,
        validate: Callable[[Any], None] | None = None,
        structured: bool = True,
        chunk: int = 16,
    ) -> None:
        """Takes a module and its loss, and moves the module to a device.

        Raises ValueError if the module cannot be trained privately.
        """
        check_parameters(module)
        if device is not None:
            module.to(device)
        if chunk < 1:
            raise ValueError(f"chunk: expected at least 1, got {chunk}")
        if isinstance(loss, nn.modules.loss._Loss):
            loss = supervised(loss)
        self._module = module
        self._device = next(module.parameters()).device
        self._collate = collate
        self._roles = dict(roles or {})
        self._validate = validate
        self._structured = structured
        self._model = LossModel(
            module=module,
            loss=loss,
            parameters=trained_parameters(module),
            batch_of=self._batch_of,
            chunk=chunk,
        )
        self._records: Sequence[Any] | None = None
        self._probe_records: list[Any] | None = None
        self._plan: tracing.Plan | None = None
        self._described: list[Trainable] = []
        # As they were when the module was tested.
        self._modes: dict[str, bool] = {}
        self._versions: list[tuple[int, int]] = []
        self._frozen = b""
        self._fields: dict[str, probes.Field] | None = None
        self._pass: Pass | None = None
        self._begun = 0
        self._tensor_blocks: list[int] = []
        self._totals: list[Total] | None = None
        if probe_records is not None:
            self.set_probe_records(probe_records)
        if records is not None:
            self.set_records(records)

    # Description

    def trainable(self) -> list[Trainable]:
        """Describes the trainable tensors, in the order of all lists of tensors.

        Roles follow from a forward pass, so records or probe records must have been set.
        """
        self._prepared()
        return list(self._described)

    def parameters(self) -> list[Tensor]:
        """Returns copies of the current values of the trainable tensors, on the CPU."""
        return [
            self.parameter(index).to("cpu", torch.float32, copy=True)
            for index in range(len(self._model.parameters))
        ]

    def rounding(self) -> float:
        """Returns the bound of the rounding error of an example's contribution, relative to c S.

        c is the weight of the example and S = sum over t of |x_t| |d_t| for its rows. A contribution
        is part of a float32 product over at most `MAX_ROWS` rows, after the multiplication by its
        weight: gamma(MAX_ROWS + 4), with gamma(n) = n u / (1 - n u) and u = 2^-24, for any order of
        summation. Reported norms include it (`forms.py`).
        """
        return gamma(MAX_ROWS + 4)

    def generic_parameters(self) -> list[str]:
        """Returns the names of the parameters that take the slower generic path."""
        names = list(self._model.parameters)
        return [names[index] for index in self._prepared().generic]

    # Records

    def set_records(self, records: Sequence[Any]) -> None:
        """Sets the records. Each is a sample that `collate` accepts."""
        self._records = records
        self._forget()

    def set_probe_records(self, records: Sequence[Any]) -> None:
        """Sets at least three synthetic records for tests of the module.

        They must not depend on the data. If records have different lengths, these have, too: the
        longest first, and the third is short.
        """
        if len(records) < probes.COUNT:
            raise ValueError(f"probe records: expected at least {probes.COUNT}, got {len(records)}")
        self._probe_records = [records[index] for index in range(len(records))]
        self._plan = self._fields = None
        self._forget()

    def probe_records(self) -> list[Any]:
        """Returns the probe records. If none were set, they are made from the first record.

        Only the structure, shapes and dtypes of the record are read.
        """
        if self._probe_records is None:
            if self._records is None or not len(self._records):
                raise RuntimeError("no records: call set_records or set_probe_records first")
            self._probe_records = probes.synthetic(self._records[0], self._module)
        return self._probe_records

    def record_count(self) -> int:
        """Returns the number of records."""
        return 0 if self._records is None else len(self._records)

    def record(self, index: int) -> Any:
        """Returns a record by its index."""
        if self._records is None:
            raise RuntimeError("no records: call set_records first")
        return self._records[index]

    def frozen_digest(self) -> bytes:
        """Computes a digest of what is not trained: parameters, buffers, and extra state."""
        digest = hashlib.sha256()
        trained = set(self._model.parameters)
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        for name, tensor in named:
            if name not in trained:
                value = tensor.detach().cpu().contiguous()
                digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}:".encode())
                digest.update(probes.content_of(value))
        for name, layer in self._module.named_modules():
            if type(layer).get_extra_state is not nn.Module.get_extra_state:
                into = io.BytesIO()
                torch.save(layer.get_extra_state(), into)
                digest.update(f"{name}:".encode() + into.getvalue())
        return digest.digest()

    def validate(self, index: int) -> None:
        """Refuses a record that does not fit the module.

        Raises ValueError if its structure, shapes or dtypes are not those of the probe records, or
        a number is not finite. Dimensions in which probe records differ may have any length.
        """
        try:
            self.check_record(index)
        except ValueError as error:
            raise ValueError(f"record {index + 1}: {error}") from error

    def check_record(self, index: int) -> None:
        """As `validate`, with a message that does not name the record."""
        self._prepared()
        sample = self._sample(index)
        if self._structured:
            if self._fields is None:
                described = [probes.fields_of(one) for one in self.probe_records()]
                self._fields = probes.merged(described)
            probes.check(sample, self._fields)
        if self._validate is not None:
            self._validate(sample)

    def check_records(self, examples: int, limit: int | None = None) -> None:
        """Computes the losses of all records, or of `limit`, in batches of `examples`.

        Raises ValueError if that of a record cannot be computed, or records interact.
        """
        # At most once for each tensor: with real records, other rows may be selected.
        for _ in range(1 + len(self._model.parameters)):
            plan = self._prepared()
            try:
                checking.check_records(self, self.record_count(), examples, limit)
                break
            except RowsError as error:
                with full_precision(self._device), torch.enable_grad():
                    samples = self.probe_records()
                    self._plan = tracing.moved(self._model, plan, error.tensors, samples)
        self.check_unchanged(thorough=True)

    def sample(self, index: int) -> Any:
        """Reads a record, or a probe record, whose index is negative."""
        return self._sample(index)

    def losses_of(self, samples: Sequence[Any]) -> list[float]:
        """Computes the loss of each sample, in one batch."""
        batch = self._batch_of(samples)
        with full_precision(self._device), torch.no_grad():
            losses = losses_of(self._model.loss, self._module, batch, len(samples))
            return [float(loss) for loss in losses.cpu()]

    def scaled_norms(self, samples: Sequence[Any], factors: Tensor) -> Tensor:
        """Returns the squared norms of each example's gradients, with its loss times its factor.

        They are examples x tensors. Gradients of the generic path are computed for each example alone
        and are not part of it.
        """
        batch, plan = self._batch_of(samples), self._prepared()
        with full_precision(self._device), torch.enable_grad():
            _, recorded = tracing.run(self._model, plan, batch, len(samples), factors=factors)
        return recorded.norms()

    def check_unchanged(self, *, thorough: bool = False) -> None:
        """Refuses parameters that are not trained, buffers and modes that changed since the tests.

        They would hold values of records without noise, or let examples interact. Contents are compared
        if they are few, or PyTorch knows of a change; with `thorough`, always.
        """
        if self._plan is None:
            return
        trained = trained_parameters(self._module)
        if trained.keys() != self._model.parameters.keys() or any(
            parameter is not self._model.parameters[name] for name, parameter in trained.items()
        ):
            raise ValueError(
                "module: a trained parameter was replaced by another tensor after the module was "
                "tested; copy values into it instead, for example parameter.copy_(values)"
            )
        if modes_of(self._module) != self._modes:
            raise ValueError(
                "module: train() or eval() was called after the module was tested; restore the mode "
                "of each layer"
            )
        versions = self._frozen_versions()
        if thorough or versions != self._versions or self._frozen_elements() <= FEW_ELEMENTS:
            if self.frozen_digest() != self._frozen:
                raise ValueError(
                    "module: a buffer, or a parameter that is not trained, or extra state has changed; "
                    "it would hold values of records without noise"
                )
            self._versions = versions

    def _trained_versions(self) -> list[int]:
        """Returns a number for each trained tensor that PyTorch increases with every change."""
        return [parameter._version for parameter in self._model.parameters.values()]

    def _frozen_elements(self) -> int:
        """Returns the number of elements that are not trained."""
        trained = set(self._model.parameters)
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        return sum(tensor.numel() for name, tensor in named if name not in trained)

    def _frozen_versions(self) -> list[tuple[int, int]]:
        """Returns an address and a version of each tensor that must not change."""
        trained = set(self._model.parameters)
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        return [
            (tensor.data_ptr(), tensor._version) for name, tensor in named if name not in trained
        ]

    # Queries

    def load(self, values: Sequence[Tensor]) -> None:
        """Copies values into the trainable tensors."""
        parameters = self._model.parameters
        if len(values) != len(parameters):
            raise ValueError(f"expected {len(parameters)} tensors, got {len(values)}")
        for tensor, value in zip(self.trainable(), values):
            if tuple(value.shape) != tensor.shape:
                raise ValueError(
                    f"{tensor.name}: expected shape {tensor.shape}, got {tuple(value.shape)}"
                )
        for index, value in enumerate(values):
            self.set_parameter(index, value)
        self.begin()

    def parameter(self, index: int) -> Tensor:
        """Returns a trainable tensor, detached, in the shape that `trainable` states."""
        return self._shown(index, list(self._model.parameters.values())[index].detach())

    def set_parameter(self, index: int, value: Tensor) -> None:
        """Copies values into a trainable tensor."""
        parameter = list(self._model.parameters.values())[index]
        with torch.no_grad():
            parameter.copy_(self.stored(index, value))

    def stored(self, index: int, value: Tensor) -> Tensor:
        """Returns values, given for the stated shape of a tensor, in the shape of the parameter."""
        tensor = self.trainable()[index]
        value = value.reshape(tensor.shape)
        parameter = list(self._model.parameters.values())[index]
        return value.T if tensor.role == "right" else value.reshape(parameter.shape)

    def begin(self) -> None:
        """Starts to compute at the current parameters; `load` and the curator call it."""
        check_modes(self._module)
        self.check_unchanged()
        self._pass = None
        self._begun += 1
        # At the first queries, then less often.
        if self._begun & (self._begun - 1) == 0 or self._begun % RETEST == 0:
            with full_precision(self._device), torch.enable_grad():
                tracing.check_again(self._model, self._prepared(), self.probe_records())

    def unload(self) -> None:
        """Discards the sum and the activations and gradients of a micro-batch."""
        self._forget()
        self._totals = None

    def losses(self, indices: Sequence[int]) -> list[float]:
        """Computes the loss of each example."""
        self._prepared()
        self._pass = None
        if not indices:
            return []
        return self.losses_of([self._sample(index) for index in indices])

    def observe(
        self,
        indices: Sequence[int],
        blocks: Sequence[Sequence[int]],
        geometry: Geometry | None = None,
    ) -> tuple[list[float], list[float]]:
        """Computes losses, and squared gradient norms by example and then by block.

        `blocks` lists the tensors of each clip block. Norms cover the rounding of the sum; with
        `geometry` they are those of encoded gradients.
        """
        plan = self._prepared()
        self._pass = None
        self._tensor_blocks = self._check_blocks(blocks)
        if not indices:
            self._pass = Pass([], 0, {})
            return [], []
        samples = [self._sample(index) for index in indices]
        batch = self._batch_of(samples)
        versions = self._trained_versions()
        with full_precision(self._device):
            losses, recorded = tracing.run(
                self._model, plan, batch, len(samples), geometry=geometry
            )
            if plan.generic:
                gradients = tracing.generic_gradients(self._model, plan, batch, samples)
                with torch.no_grad():
                    for index, gradient in zip(plan.generic, gradients):
                        recorded.add_form(index, Direct(gradient))
            for index, parameter in enumerate(self._model.parameters.values()):
                recorded.add_absent(index, parameter.detach())
            squares = double(torch.zeros(len(samples), len(blocks), device=self._device))
            for index, values in recorded.squares.items():
                squares[:, self._tensor_blocks[index]] += values
        if self._trained_versions() != versions:
            raise ValueError(
                "module: the forward pass changes a trained parameter in place, so records change it "
                "without noise"
            )
        self._pass = recorded
        return double(losses).tolist(), squares.flatten().tolist()

    def start_sum(self) -> None:
        """Starts a new sum at zero and discards the previous one."""
        self._totals = [
            Total(parameter.shape, self._device) for parameter in self._model.parameters.values()
        ]

    def accumulate(self, weights: Sequence[Sequence[float]]) -> None:
        """Adds the weighted gradients of the observed examples to the sum.

        Weights are given by block, then by example. An example of weight 0 contributes nothing, even
        if its gradient is not finite.
        """
        if self._pass is None:
            raise RuntimeError("no micro-batch was observed: call observe first")
        if self._totals is None:
            raise RuntimeError("no sum was started: call start_sum first")
        recorded, self._pass = self._pass, None
        blocks = max(self._tensor_blocks, default=-1) + 1
        if len(weights) != blocks or any(len(row) != recorded.examples for row in weights):
            raise ValueError(
                f"expected weights of {blocks} blocks and {recorded.examples} examples each"
            )
        if not recorded.examples:
            return
        factors = torch.tensor(weights, dtype=torch.float32, device=self._device)
        if not bool(torch.isfinite(factors).all()):
            raise ValueError("weights: expected finite numbers")
        rows = [factors[block] for block in self._tensor_blocks]
        with full_precision(self._device), torch.no_grad():
            recorded.add_weighted(self._totals, rows)

    def take_sum(self) -> list[Tensor]:
        """Returns the sum of each tensor in float64, on the CPU, and ends it."""
        if self._totals is None:
            raise RuntimeError("no sum was started: call start_sum first")
        totals = [self.sum_of(index).contiguous() for index in range(len(self._totals))]
        self.end_sum()
        return totals

    def sum_of(self, index: int) -> Tensor:
        """Returns the sum of one tensor in float64, on the CPU."""
        if self._totals is None:
            raise RuntimeError("no sum was started: call start_sum first")
        return self._shown(index, self._totals[index].values()).cpu()

    def end_sum(self) -> None:
        """Discards the sum."""
        self._totals = None

    # Internals

    def _prepared(self) -> tracing.Plan:
        """Tests the module with probe records, once, and returns how gradients are computed."""
        if self._plan is None:
            check_modes(self._module)
            samples = self.probe_records()
            with full_precision(self._device), torch.enable_grad():
                plan = tracing.trace(self._model, samples)
            names = list(self._model.parameters)
            self._described = describe(
                self._module, names, self._roles, plan.head, plan.head_rows
            )
            self._plan = plan
            self._modes = modes_of(self._module)
            self._versions, self._frozen = self._frozen_versions(), self.frozen_digest()
        return self._plan

    def _sample(self, index: int) -> Any:
        """Returns a record, or a probe record.

        Index -1 - (3 s + c) stands for the content of the probe record c in the shape of record s.
        """
        if index >= 0:
            return self.record(index)
        shape, content = divmod(-1 - index, probes.COUNT)
        samples = self.probe_records()
        if shape == content:
            return samples[shape]
        return probes.altered(samples[shape], samples[content])

    def _batch_of(self, samples: Sequence[Any]) -> Any:
        """Makes a batch on the device of the module."""
        batch = self._collate(list(samples))
        if self._device.type == "cpu":
            return batch
        if hasattr(batch, "to") and not isinstance(batch, Tensor):
            return batch.to(self._device)
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self._device), batch)

    def _check_blocks(self, blocks: Sequence[Sequence[int]]) -> list[int]:
        """Returns the block of each tensor. Each tensor must be in one block."""
        owners: dict[int, int] = {}
        for block, tensors in enumerate(blocks):
            for index in tensors:
                if index in owners or not 0 <= index < len(self._model.parameters):
                    raise ValueError(f"blocks: tensor {index} is unknown or in two blocks")
                owners[index] = block
        count = len(self._model.parameters)
        if len(owners) != count or any(len(tensors) == 0 for tensors in blocks):
            raise ValueError(f"blocks: expected a partition of {count} tensors without empty blocks")
        return [owners[index] for index in range(count)]

    def _shown(self, index: int, tensor: Tensor) -> Tensor:
        """Returns a tensor of the parameter's shape in the shape that `Trainable` states."""
        if self.trainable()[index].role == "right":
            return tensor.T
        return tensor.reshape(1) if tensor.dim() == 0 else tensor

    def _forget(self) -> None:
        """Discards the activations and gradients of a micro-batch."""
        self._pass = None
