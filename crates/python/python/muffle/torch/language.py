"""Losses and batches of causal language models of `transformers`."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100
"""The target of a token after which nothing is predicted."""


@dataclasses.dataclass(frozen=True)
class CausalLanguageModel:
    """Loss, batches, validation and probe records of a causal language model.

    A record is a text, a list of tokens, or a pair of either with the number of tokens, or the text,
    that come before the target and have no loss. The loss of an example is the mean of the negative
    log-likelihoods of its own target tokens; it is 0 if there is none.

    Batches are padded on the right. A causal model computes no token from later ones, so padding
    changes nothing, and no attention mask is passed. The engine checks this.

    >>> texts = CausalLanguageModel(vocabulary=50257, max_length=64)        # doctest: +SKIP
    >>> Engine(model, texts.loss, collate=texts.collate, validate=texts.validate,
    ...        probe_records=texts.probe_records())                         # doctest: +SKIP
    """

    vocabulary: int
    """The number of tokens that the model knows."""
    max_length: int
    """The largest number of tokens of a record. Longer texts are cut; longer lists are refused."""
    tokenizer: Any = None
    """Encodes texts, if records are texts: a tokenizer of `transformers`."""
    end: int | None = None
    """The token that is appended to texts; by default that of the tokenizer, and to targets only."""

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any = None, max_length: int | None = None
    ) -> CausalLanguageModel:
        """Reads the sizes from a model of `transformers`; `max_length` is at most 1024 by default."""
        positions = getattr(model.config, "max_position_embeddings", 1024)
        length = min(1024, positions) if max_length is None else max_length
        if not 1 < length <= positions:
            raise ValueError(f"max_length: expected 2 to {positions}, got {length}")
        table = model.get_input_embeddings()
        return cls(vocabulary=table.num_embeddings, max_length=length, tokenizer=tokenizer)

    def tokens(self, record: Any) -> tuple[list[int], int]:
        """Returns the tokens of a record, and the index of the first one that is predicted."""
        if isinstance(record, tuple):
            before, target = record
            if isinstance(before, str):
                prefix = self._encode(before)
                tokens, first = prefix + self._encode(target) + self._end(), len(prefix)
            else:
                tokens, first = list(before), int(target)
        elif isinstance(record, str):
            end = [] if self.end is None else [self.end]
            tokens, first = self._encode(record) + end, 0
        else:
            tokens, first = [int(token) for token in record], 0
        is_text = isinstance(record, str) or isinstance(record, tuple) and isinstance(record[0], str)
        return tokens[: self.max_length] if is_text else tokens, first

    def collate(self, records: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Makes a batch: tokens and targets, examples x the largest number of tokens."""
        rows = [self.tokens(record) for record in records]
        length = max(len(tokens) for tokens, _ in rows)
        inputs = torch.zeros(len(rows), length, dtype=torch.int64)
        targets = torch.full((len(rows), length), IGNORED, dtype=torch.int64)
        for row, (tokens, first) in enumerate(rows):
            values = torch.tensor(tokens, dtype=torch.int64)
            inputs[row, : len(tokens)] = values
            start = max(first, 1)
            if start < len(tokens):
                targets[row, start - 1 : len(tokens) - 1] = values[start:]
        return inputs, targets

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Computes the mean negative log-likelihood of each example's target tokens."""
        inputs, targets = batch
        logits = module(input_ids=inputs, use_cache=False).logits
        each = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
        )
        counts = (targets != IGNORED).sum(1).clamp(min=1)
        return each.view(targets.shape).sum(1) / counts

    def validate(self, record: Any) -> None:
        """Refuses tokens that the model does not know, and lists that are too long."""
        tokens, first = self.tokens(record)
        if not 0 < len(tokens) <= self.max_length:
            raise ValueError(f"expected 1 to {self.max_length} tokens, got {len(tokens)}")
        if not all(0 <= token < self.vocabulary for token in tokens):
            raise ValueError(f"expected tokens below {self.vocabulary}")
        if first < 0:
            raise ValueError(f"expected the index of the first target, got {first}")

    def probe_records(self) -> list[Any]:
        """Returns lists of random tokens: a long, a middle and a short one, and the longest.

        Of the last one, only the loss is computed: some models use other position encodings for
        all examples of a batch if one is long.
        """
        generator = torch.Generator().manual_seed(0)
        lengths = [max(2, min(64, self.max_length) >> shift) for shift in range(3)]
        lengths.append(self.max_length)
        return [
            torch.randint(self.vocabulary, (length,), generator=generator).tolist()
            for length in lengths
        ]

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise ValueError("records are texts: pass a tokenizer")
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end(self) -> list[int]:
        end = self.end if self.end is not None else getattr(self.tokenizer, "eos_token_id", None)
        return [] if end is None else [int(end)]
