"""Items: what a dataset is made of, one by one, from whatever a caller has.

Owns the forms in which items may come and what an item *is*: a text, or tensors by name. Turning
items into the arguments of a forward is `batches.py`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from ..errors import InputError
from ..parallel.pack import as_bytes

Id = str | int | None
MASK = "attention_mask"
TOKEN_FIELDS = ("input_ids", "inputs_embeds")
"""What holds one entry for each token, and so tells how many there are."""


@dataclass(frozen=True, eq=False)
class Item:
    """One item: a text, or the tensors of one row by the name of the model's argument.

    Attributes:
        text: what the tokenizer reads; None for an item of tensors.
        fields: tensors without a batch dim; an attention mask has been applied and is gone.
        id: what the caller calls it; None where it has no name. It is no part of the content.
    """

    text: str | None
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    id: Id = None

    @property
    def size(self) -> int:
        """How long it is, as far as is known without a tokenizer: characters, or tokens."""
        if self.text is not None:
            return len(self.text)
        return next((len(self.fields[n]) for n in TOKEN_FIELDS if n in self.fields), 0)

    def content(self) -> bytes:
        """16 bytes of BLAKE2b over what the item is: its text, or names, dtypes, shapes, values."""
        hasher = hashlib.blake2b(digest_size=16)
        if self.text is not None:
            hasher.update(b"text\0" + self.text.encode("utf-8", "surrogatepass"))
            return hasher.digest()
        for name in sorted(self.fields):
            tensor = self.fields[name]
            hasher.update(f"{name}\0{tensor.dtype}{tuple(tensor.shape)}".encode())
            hasher.update(as_bytes(tensor.cpu()).numpy().data)
        return hasher.digest()


def read_items(items: Any, text_key: str, argument: str) -> Iterator[Item]:
    """The items in their order.

    Args:
        items: texts, dicts, rows of token ids or other tensors, in any iterable: a list, a
            ``datasets.Dataset``, a ``Dataset`` or ``DataLoader`` of torch.
        text_key: which member of a dict is its text.
        argument: the name of the model's first argument, which a lone tensor is.

    Raises:
        InputError, TypeError: something is no item; says which one and what it can be.
    """
    check_items(items)
    for position, sample in enumerate(samples(items)):
        yield read_item(sample, position, text_key, argument)


def check_items(items: Any) -> None:
    """Refuse what is no collection of items, and what gives another order each time.

    Raises:
        InputError: a DataLoader that shuffles, or that gives each rank a part.
        TypeError: not a collection.
    """
    if isinstance(items, (str, Mapping, bytes)) or not (
        isinstance(items, Iterable) or hasattr(items, "__getitem__")
    ):
        raise TypeError(
            f"items is a {type(items).__name__}; it can be a list of texts or dicts, a "
            "datasets.Dataset, or a Dataset or DataLoader of torch."
        )
    if isinstance(items, DataLoader):
        kind = type(items.sampler).__name__
        if kind in ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler"):
            raise InputError(
                f"This DataLoader shuffles ({kind}), so that no two passes have one order, and "
                "row i could not be told. Give one with shuffle=False."
            )
        if kind == "DistributedSampler":
            raise InputError(
                "This DataLoader gives each rank a part of the items (DistributedSampler). "
                "extract_dataset takes each process's share itself: give all items on every rank."
            )


def repeatable(items: Any) -> bool:
    """Whether the items can be gone through again: not those of a generator."""
    return not isinstance(items, Iterator)


def length_of(items: Any) -> int | None:
    """How many items there are, where that is known without reading them."""
    try:
        if isinstance(items, DataLoader) and items.batch_size is not None:
            items = items.dataset
        return len(items)
    except (TypeError, NotImplementedError):
        return None


def samples(items: Any) -> Iterator[Any]:
    """The samples as they come; a DataLoader's batches taken apart."""
    if isinstance(items, DataLoader) and (
        items.batch_size is not None or items.batch_sampler is not None
    ):
        for batch in items:
            if items.collate_fn is default_collate and _tuples(batch):
                raise TypeError(
                    "The DataLoader's samples are tuples; a sample is a text, a dict of the "
                    "model's arguments or a tensor. Give a Dataset of dicts, with names."
                )
            yield from _rows(batch)
    elif isinstance(items, Iterable):
        yield from items
    else:  # a map-style Dataset of torch has no __iter__, and may end by no IndexError
        length = length_of(items)
        if length is None:
            raise TypeError(f"items is a {type(items).__name__} without a length or an iterator.")
        yield from (items[i] for i in range(length))


def _tuples(batch: Any) -> bool:
    """Whether a batch is one of columns without names."""
    return isinstance(batch, (list, tuple)) and not all(isinstance(one, str) for one in batch)


def _rows(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Tensor):
        yield from batch
    elif isinstance(batch, Mapping):
        columns = dict(batch)
        lengths = {len(v) for v in columns.values()}
        if len(lengths) != 1:
            raise InputError(
                f"A batch of the DataLoader has members of {sorted(lengths)} rows: they are no "
                "batch. Give the Dataset itself, or a collate_fn that returns the list of items."
            )
        for row in range(lengths.pop()):
            yield {name: values[row] for name, values in columns.items()}
    elif isinstance(batch, (list, tuple)):
        yield from batch
    else:
        raise TypeError(
            f"The DataLoader gives a {type(batch).__name__}; a batch is a list of items, a mapping "
            "of columns or a tensor. Give the Dataset itself."
        )


def read_item(sample: Any, position: int, text_key: str, argument: str) -> Item:
    """One item from what a collection gave.

    Raises:
        InputError, TypeError: it is none.
    """
    if isinstance(sample, str):
        return Item(sample)
    if isinstance(sample, Mapping):
        return _mapping(sample, position, text_key)
    tensor = _tensor(sample)
    if tensor is None:
        raise TypeError(
            f"Item {position} is a {type(sample).__name__}: an item is a text, a dict of the "
            "model's arguments, or a tensor. A tuple goes in as a dict, with names."
        )
    if tensor.dim() == 2 and len(tensor) == 1 and not tensor.is_floating_point():
        tensor = tensor[0]
    return Item(None, {argument: tensor})


def _mapping(sample: Mapping[Any, Any], position: int, text_key: str) -> Item:
    name = sample.get("id")
    if isinstance(name, Tensor):
        name = name.item()
    if name is not None and not isinstance(name, (str, int)):
        raise InputError(f"Item {position}: its id is a {type(name).__name__}, not a text or int.")
    if isinstance(sample.get(text_key), str):
        return Item(sample[text_key], id=name)
    fields = {}
    for key, value in sample.items():
        if key == "id" or value is None:
            continue
        tensor = _tensor(value)
        if tensor is None:
            raise InputError(
                f"Item {position}: {key!r} is {value!r:.60}, no tensor. A dict is either the "
                f"model's arguments, or has its text under {text_key!r} (text_key=… says where)."
            )
        fields[str(key)] = tensor
    if not fields:
        raise InputError(f"Item {position} is an empty dict.")
    return Item(None, _real(fields, position), name)


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value)
    numeric = hasattr(value, "__array_interface__")
    if numeric or (isinstance(value, Sequence) and not isinstance(value, (str, bytes))):
        try:
            return torch.as_tensor(value if numeric or len(value) else [], dtype=_ints(value))
        except (TypeError, ValueError, RuntimeError):
            return None
    return None


def _ints(value: Any) -> torch.dtype | None:
    """An empty list of token ids would be of floats."""
    return torch.int64 if isinstance(value, Sequence) and not len(value) else None


def _real(fields: dict[str, Tensor], position: int) -> dict[str, Tensor]:
    """The fields at real tokens, by the item's own mask; without one all are real."""
    mask = fields.pop(MASK, None)
    tokens = next((n for n in TOKEN_FIELDS if n in fields), None)
    if tokens is None or mask is None:
        return fields if mask is None else {**fields, MASK: mask}
    if mask.dim() != 1 or len(mask) != len(fields[tokens]):
        raise InputError(
            f"Item {position}: its mask has shape {tuple(mask.shape)} beside {tokens} of shape "
            f"{tuple(fields[tokens].shape)}; an item is one row, without a batch dim."
        )
    places = mask.nonzero().flatten()
    if not len(places):
        return {n: _cut(n, t, len(mask), 0, 0) for n, t in fields.items()}
    first, end = int(places[0]), int(places[-1]) + 1
    if end - first != len(places):
        raise InputError(
            f"Item {position}: its mask hides tokens between real ones. A dataset is over real "
            "tokens in a row; give the item without them."
        )
    return {n: _cut(n, t, len(mask), first, end) for n, t in fields.items()}


def per_token(name: str, tensor: Tensor, tokens: int) -> bool:
    """Whether a field of an item of so many tokens has an entry for each of them."""
    named = name in TOKEN_FIELDS or name.endswith(("_ids", "_mask")) or name == "labels"
    mine = named and not name.startswith("decoder_")
    return mine and tensor.dim() > 0 and len(tensor) == tokens


def _cut(name: str, tensor: Tensor, tokens: int, first: int, end: int) -> Tensor:
    return tensor[first:end] if per_token(name, tensor, tokens) else tensor
