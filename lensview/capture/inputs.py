"""Inputs: from what a caller writes to the arguments of a forward.

Owns the forms that inputs may have, the checks before a run, and the tokens that a run is labelled
with. Reading prompts is `strings.py`'s. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..modules import index
from ..tensors.labels import token_labels
from ..traces.tokens import Tokens
from .strings import tokenized


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one forward, and the tokens in them (None where there are none)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tokens: Tokens | None


class Args:
    """The arguments of a call as a caller would write them: ``Args(x, scale=2)``, for inputs that
    are positional and keyword at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


def prepare(
    model: nn.Module,
    inputs: Any,
    tokenizer: Any = None,
    *,
    chat: bool = False,
    left: bool = False,
    labelled: bool = True,
) -> Call:
    """Make a call from a string, a list of strings, a tensor, a mapping, a tuple of arguments, or
    `Args`.

    Strings are padded on the right with a mask, which is exact for causal and recurrent models;
    with `left` on the left, for generation. With `chat` each string is a user's message, put into
    the tokenizer's chat template with the prompt for an answer.
    Tensors that lie elsewhere are moved to where the model takes its inputs. Without `labelled` the
    tokens have no labels, which take longer than a small model's forward.

    Raises:
        InputError: strings without a tokenizer, nothing to run, longer than the context, ids that
            the model has no embedding for.
        TypeError: something that cannot be an input.
    """
    if tokenizer is not None and (isinstance(tokenizer, type) or not callable(tokenizer)):
        kind = tokenizer.__name__ if isinstance(tokenizer, type) else type(tokenizer).__name__
        raise InputError(
            f"tokenizer is {'the class ' if isinstance(tokenizer, type) else 'a '}{kind}; give a "
            "tokenizer that was loaded, for example AutoTokenizer.from_pretrained(…)."
        )
    device = input_device(model)
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(i, str) for i in inputs):
        kwargs = tokenized(model, list(inputs), tokenizer, chat, left)
        call = Call((), {k: v.to(device) for k, v in kwargs.items()}, None)
    elif chat:
        raise InputError(
            f"chat=True puts strings into the tokenizer's template; inputs is a "
            f"{type(inputs).__name__}. Give strings, or leave chat out."
        )
    elif isinstance(inputs, Tensor):
        call = Call((_moved(inputs, device),), {}, None)
    elif isinstance(inputs, Mapping):
        call = Call((), _keywords(inputs, device), None)
    elif isinstance(inputs, Args):
        args = tuple(_moved(v, device) for v in inputs.args)
        call = Call(args, _keywords(inputs.kwargs, device), None)
    elif isinstance(inputs, tuple):
        call = Call(tuple(_moved(v, device) for v in inputs), {}, None)
    else:
        raise _wrong_kind(inputs)
    tokens = _tokens(model, call, tokenizer, labelled)
    return Call(call.args, call.kwargs, tokens)


def input_device(model: nn.Module) -> torch.device:
    """Where the model takes its inputs: an offloading hook's word, else its first weight's."""
    hook = getattr(model, "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    if place is not None:
        return torch.device(place)
    embedding = embedding_of(model)
    first = next((embedding or model).parameters(), None)
    if first is None or first.device.type == "meta":
        first = next((p for p in model.parameters() if p.device.type != "meta"), None)
    return torch.device("cpu") if first is None else first.device


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) and value.device != device else value


_MATRICES = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""What a tokenizer gives as lists where nobody asked it for tensors."""


def _keywords(inputs: Mapping[Any, Any], device: torch.device) -> dict[str, Any]:
    return {str(k): _moved(_matrix(str(k), v), device) for k, v in inputs.items()}


def _matrix(name: str, value: Any) -> Any:
    """A tokenizer's list, or list of lists, as a matrix; anything else as it is."""
    if name not in _MATRICES or not isinstance(value, list):
        return value
    rows = value if value and isinstance(value[0], list) else [value]
    if len({len(row) for row in rows}) > 1:
        raise InputError(
            f"{name} has rows of {', '.join(str(len(row)) for row in rows[:5])} tokens, which make "
            "no tensor: give the strings themselves, or tokenizer(…, padding=True, "
            'return_tensors="pt").'
        )
    return torch.tensor(rows, dtype=torch.int64)


def _wrong_kind(inputs: Any) -> Exception:
    if inputs is None or (isinstance(inputs, (list, tuple)) and not inputs):
        return InputError("There is nothing to run: give a string, a tensor, a mapping or a tuple.")
    hint = ""
    if isinstance(inputs, list):
        hint = (
            " A list is a batch of strings; token ids go in as torch.tensor([ids]), and a list "
            "that is itself an argument as ([...],)."
        )
    return TypeError(
        f"inputs is a {type(inputs).__name__}; it can be a string, a list of strings, a tensor, a "
        f"mapping of keyword arguments, or a tuple of arguments.{hint}"
    )


def embedding_of(model: nn.Module) -> nn.Module | None:
    """The embedding of a model's tokens; None where it has none."""
    get = getattr(model, "get_input_embeddings", None)
    if not callable(get):
        return None
    try:
        found = get()
    except (NotImplementedError, AttributeError):  # a vision or audio model has none
        return None
    return found if isinstance(found, nn.Module) else None


def _tokens(model: nn.Module, call: Call, tokenizer: Any, labelled: bool) -> Tokens | None:
    """The tokens in a call: ``input_ids`` by name, or a lone integer matrix for a model of text."""
    embedding = embedding_of(model)
    ids = call.kwargs.get("input_ids")
    if ids is None and call.args and embedding is not None:
        ids = call.args[0]
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        return None
    if ids.dim() == 1 and embedding is not None:
        raise InputError(
            f"Token ids are a matrix of (batch, tokens), not of shape {tuple(ids.shape)}: for one "
            "row write ids[None]."
        )
    if ids.dim() != 2:
        return None
    if ids.numel() == 0:
        raise InputError(f"The inputs hold no tokens: input_ids has shape {tuple(ids.shape)}.")
    ids = ids.detach().cpu().long()
    _in_vocabulary(ids, embedding)
    mask = call.kwargs.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool)
    # Beside a cache the mask covers the tokens in it too; ours are the last ones.
    if isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == len(ids):
        ours = mask.detach().cpu()[:, -ids.shape[1] :]
        real = ours != 0 if ours.shape == ids.shape else real
    rows = [row[keep].tolist() for row, keep in zip(ids, real, strict=True)] if labelled else []
    return Tokens(ids, real, [token_labels(tokenizer, row) for row in rows], _scope(model))


def _scope(model: nn.Module) -> str:
    """The site path of the encoder, where the model has a decoder that reads other tokens."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return ""
    get: Any = getattr(model, "get_encoder", None)
    encoder = get() if callable(get) else None
    return next((path for path, module in index(model).items() if path and module is encoder), "")


def _in_vocabulary(ids: Tensor, embedding: nn.Module | None) -> None:
    size = getattr(embedding, "num_embeddings", None)
    if size is None:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        raise InputError(
            f"Token id {low if low < 0 else high} is outside the model's {size} embeddings: does "
            "the tokenizer belong to this model?"
        )
