"""Batches: which items go through the model together, and as what arguments.

Owns the cut of the stream into batches, which follows from the items and their order alone, so that
it is the same for any number of workers and after any interruption; reading texts; padding on the
right, so that every row equals its own single run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.inputs import embedding_of, input_device
from ..capture.strings import context_length, padding_id, read_one
from ..errors import InputError
from .items import MASK, TOKEN_FIELDS, Item, per_token

WINDOW = 64
"""Batches are cut from so many of them at a time, sorted by length: what is held in memory."""


@dataclass(frozen=True, eq=False)
class Entry:
    """An item on its way: its place in the input, and its key."""

    position: int
    key: bytes
    item: Item


@dataclass(frozen=True, eq=False)
class Row:
    """An item as the model reads it.

    Attributes:
        fields: by argument, without a batch dim.
        tokens: how many real tokens it has; 0 where the model reads none.
        length: how many it had before it was cut to the context.
        token_field: which field its tokens are in; None where the model reads none of it.
    """

    entry: Entry
    fields: dict[str, Tensor]
    tokens: int
    length: int
    token_field: str | None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to run."""
        return self.token_field is not None and not self.tokens

    @property
    def ids(self) -> Tensor | None:
        """Its token ids, where it has such."""
        found = None if self.token_field is None else self.fields[self.token_field]
        return None if found is None or found.is_floating_point() else found

    def per_token(self, name: str) -> bool:
        """Whether a field has an entry for each token."""
        if not self.tokens:
            return False
        return name == self.token_field or per_token(name, self.fields[name], self.tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that go through the model together.

    Attributes:
        arguments: of the forward, with a batch dim, on the model's device.
        tokens: how many real tokens each row has.
        padded: to how many tokens the rows were brought; 0 where the model reads none.
    """

    rows: list[Row]
    arguments: dict[str, Tensor]
    padded: int

    @property
    def tokens(self) -> list[int]:
        return [row.tokens for row in self.rows]


def cut(entries: Iterable[Entry], size: int) -> Iterator[list[Entry]]:
    """All batches in their order: of each window of the input, the longest items first."""
    window: list[Entry] = []
    for entry in entries:
        window.append(entry)
        if len(window) == WINDOW * size:
            yield from _cut(window, size)
            window = []
    yield from _cut(window, size)


def _cut(window: list[Entry], size: int) -> Iterator[list[Entry]]:
    ready = sorted(window, key=lambda e: (-e.item.size, e.position))
    for start in range(0, len(ready), size):
        yield ready[start : start + size]


class Reader:
    """Reads items for one model.

    Args:
        module: the model, without wrappers.
        tokenizer, chat: read texts, as `lensview.trace` takes them.
        max_tokens: longer items are cut to this many, and to the model's context in any case.

    Attributes:
        argument: the name of the model's first argument.
        limit: beyond how many tokens an item is cut; None where nothing limits it.
    """

    def __init__(
        self, module: nn.Module, tokenizer: Any, chat: bool, max_tokens: int | None
    ) -> None:
        parameters = list(inspect.signature(module.forward).parameters.values())
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.argument = named[0] if named else "input_ids"
        self._masks = MASK in named
        self._tokenizer = tokenizer
        self._chat = chat
        limits = [n for n in (context_length(module), max_tokens) if n is not None]
        self.limit = min(limits, default=None)
        self._device = input_device(module)
        self._vocabulary = _vocabulary(module)
        pad = padding_id(tokenizer) if tokenizer is not None else _config_pad(module)
        self._pads = {"input_ids": pad if 0 <= pad < (self._vocabulary or pad + 1) else 0}
        self._pads["labels"] = -100

    def row(self, entry: Entry) -> Row:
        """One item as the model reads it: a text as token ids, cut to the limit.

        Raises:
            InputError: a text without a tokenizer; ids that the model has no embedding for.
        """
        if entry.item.text is None:
            fields = dict(entry.item.fields)
            name = self._token_field(fields)
            length = 0 if name is None else len(fields[name])
        else:
            fields, length, name = *self._read(entry.item.text), "input_ids"
        if name is not None and self.limit is not None:
            long = Row(entry, fields, len(fields[name]), length, name)
            cut = {n: t[: self.limit] if long.per_token(n) else t for n, t in fields.items()}
            fields = cut
        self._check(entry, fields)
        return Row(entry, fields, 0 if name is None else len(fields[name]), length, name)

    def _read(self, text: str) -> tuple[dict[str, Tensor], int]:
        if self._tokenizer is None:
            raise InputError(
                f"{text!r:.60} is a text, and there is no tokenizer to read it: pass tokenizer=…, "
                "or give token ids as dicts or tensors."
            )
        read = read_one(self._tokenizer, text, self._chat)
        length = len(read["input_ids"])
        if self.limit is not None and length > self.limit:
            read = self._shorter(text, self.limit) or read
        return {
            name: torch.tensor(cells, dtype=torch.int64)
            for name, cells in read.items()
            if name != MASK and len(cells) == len(read["input_ids"])
        }, length

    def _shorter(self, text: str, limit: int) -> Mapping[str, Sequence[int]] | None:
        """The text cut by the tokenizer, which keeps the special tokens of the end; None where it
        cannot, and the first tokens are to be kept."""
        try:
            read = read_one(self._tokenizer, text, self._chat, truncation=True, max_length=limit)
        except TypeError:
            return None
        return read if len(read["input_ids"]) <= limit else None

    def _token_field(self, fields: Mapping[str, Tensor]) -> str | None:
        for name in TOKEN_FIELDS:
            if name in fields:
                return name
        alone = fields.get(self.argument)
        ids = alone is not None and not alone.is_floating_point() and alone.dim() == 1
        return self.argument if ids else None

    def _check(self, entry: Entry, fields: Mapping[str, Tensor]) -> None:
        ids = fields.get("input_ids")
        if ids is None or not ids.numel() or self._vocabulary is None:
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._vocabulary:
            raise InputError(
                f"Item {entry.position}: token id {low if low < 0 else high} is outside the "
                f"model's {self._vocabulary} embeddings: does the tokenizer belong to this model?"
            )

    def batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """The rows as forwards: one, unless their shapes differ in what padding cannot bring
        together, or the model takes no mask that would tell it what is padding."""
        groups: dict[Any, list[Row]] = {}
        for row in rows:
            groups.setdefault(self._kind(row), []).append(row)
        for group in groups.values():
            yield self._batch(group)

    def probes(self, row: Row) -> tuple[Batch, Batch]:
        """One row and two rows of other lengths made of the same tokens: what tells how a site's
        values hold batch and tokens."""
        few = min(row.tokens, 8)
        fits = self.limit is None or few + 2 <= self.limit
        many = few and (few + 2 if fits else max(few - 1, 1))
        return self._batch([_resized(row, few)]), self._batch([_resized(row, many)] * 2)

    def _kind(self, row: Row) -> Any:
        shapes = []
        for name, tensor in sorted(row.fields.items()):
            free = self._masks and row.per_token(name)
            shapes.append((name, tensor.dtype, tuple(tensor.shape[1:] if free else tensor.shape)))
        return tuple(shapes), row.token_field

    def _batch(self, rows: list[Row]) -> Batch:
        longest = max(row.tokens for row in rows)
        arguments = {}
        for name in rows[0].fields:
            per_token = rows[0].per_token(name)
            fields = [
                self._padded(row, name, longest) if per_token else row.fields[name] for row in rows
            ]
            arguments[name] = torch.stack(fields)
        if longest and self._masks:
            counts = [row.tokens for row in rows]
            arguments[MASK] = torch.tensor([[1] * n + [0] * (longest - n) for n in counts])
        return Batch(rows, {n: t.to(self._device) for n, t in arguments.items()}, longest)

    def _padded(self, row: Row, name: str, longest: int) -> Tensor:
        tensor, missing = row.fields[name], longest - row.tokens
        if not missing:
            return tensor
        padding = tensor.new_full((missing, *tensor.shape[1:]), self._pads.get(name, 0))
        return torch.cat([tensor, padding])


def _resized(row: Row, tokens: int) -> Row:
    """A row with so many tokens, the same ones again and again."""
    places = torch.arange(tokens) % max(row.tokens, 1)
    fields = {n: t[places.to(t.device)] if row.per_token(n) else t for n, t in row.fields.items()}
    return Row(row.entry, fields, tokens, tokens, row.token_field)


def _vocabulary(module: nn.Module) -> int | None:
    size = getattr(embedding_of(module), "num_embeddings", None)
    return size if isinstance(size, int) else None


def _config_pad(module: nn.Module) -> int:
    pad = getattr(getattr(module, "config", None), "pad_token_id", None)
    return pad if isinstance(pad, int) else 0
