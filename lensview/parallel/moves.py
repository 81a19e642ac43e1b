"""Moves: what `Ranks` does with a gradient.

Owns the autograd functions of gathering, slicing and editing on the first rank. `group.py` has the
collectives; how a value is cut is `placements.py`'s.

The functions here communicate in their backward too, so each rank must run that backward: a loss
that every rank computes alike, or a part of it on each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import InterventionError
from .guard import OneRankAlone
from .pack import as_bytes
from .placements import Packed, Placement, Scaled, Shard, Whole, join, piece, piece_shape

if TYPE_CHECKING:
    from .group import Grads, Ranks

NOTE = 1024
"""Bytes of an error's text, and of its length before it, that travel with an edited value."""
DREW = "\x01"
"""Before an error's text, or alone: the function drew random numbers."""
Fn = Callable[[Tensor], Tensor]


def gathered(ranks: Ranks, tensor: Tensor, placement: Placement, grads: Grads) -> Tensor:
    """The whole on every rank."""
    whole = _apply(_Gathered, tensor, ranks, placement, grads)
    return whole


def sliced(ranks: Ranks, whole: Tensor, placement: Placement, grads: Grads) -> Tensor:
    """This rank's piece of a whole."""
    own = _apply(_Sliced, whole, ranks, placement, grads)
    return own


def edited(ranks: Ranks, tensor: Tensor, placement: Placement, fn: Fn) -> tuple[Tensor, str | None]:
    """This rank's piece of `fn(whole)`, or its own piece as it was and the text of an error.

    On the other ranks an empty tensor stands for the whole, so that all have one graph.
    """
    whole = _apply(_ToFirst, tensor, ranks, placement)
    out, rows, error, stop = whole, None, "", None
    drew = False
    if ranks.rank == 0:
        before = random_state(ranks.device)
        try:
            with OneRankAlone():  # type: ignore[no-untyped-call]
                out = _checked(fn(whole), tuple(whole.shape), whole.dtype).to(tensor.device)
                rows = _rows(ranks, out, placement)
        except BaseException as raised:
            # The other ranks wait for this one's answer, whatever it is.
            error = f"{type(raised).__name__}: {raised}".strip()
            out = whole.detach()
            stop = None if isinstance(raised, Exception) else raised
        drew = not torch.equal(before, random_state(ranks.device))
    told: list[str] = []
    note = DREW * drew + error
    own = _apply(_FromFirst, out, whole, ranks, placement, tensor.detach(), rows, note, told)
    if told and told[0].startswith(DREW):
        _share_random_state(ranks)
        told = [text] if (text := told[0][1:]) else []
    if stop is not None:
        raise stop
    return (tensor, told[0]) if told else (own, None)


def random_state(device: torch.device) -> Tensor:
    """The state of this process's random numbers, of the CPU's and of `device`'s, as bytes."""
    own = torch.get_rng_state()
    if device.type == "cpu":
        return own
    return torch.cat([own, torch.get_device_module(device).get_rng_state(device).cpu()])


def _share_random_state(ranks: Ranks) -> None:
    """Let all ranks draw what the first rank would draw next, as in one process: dropout further
    on, or the next token's sampling."""
    mine = random_state(ranks.device)
    payload = mine.to(ranks.device) if ranks.rank == 0 else None
    state = ranks.broadcast(payload, mine.numel()).cpu()
    if not ranks.rank:
        return
    length = torch.get_rng_state().numel()
    torch.set_rng_state(state[:length])
    if ranks.device.type != "cpu":
        torch.get_device_module(ranks.device).set_rng_state(state[length:], ranks.device)


def _apply(function: Any, *args: Any) -> Tensor:
    out: Tensor = function.apply(*args)
    return out


def _checked(out: object, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not isinstance(out, Tensor):
        raise InterventionError(f"The function returned a {type(out).__name__}, not a tensor.")
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise InterventionError(
            f"The function returned {out.dtype} {tuple(out.shape)}; the value is {dtype} {shape}, "
            "and stays so."
        )
    return out


def _rows(ranks: Ranks, whole: Tensor, placement: Placement) -> list[Tensor]:
    """What the first rank sends: a row per rank, or one for all."""
    whole = whole.detach()
    if not isinstance(placement, (Shard, Packed)):
        return [as_bytes(piece(whole, placement, ranks.size, 0))]
    return [as_bytes(piece(whole, placement, ranks.size, r)) for r in range(ranks.size)]


def _receive(
    ranks: Ranks, rows: list[Tensor] | None, like: Tensor, placement: Placement, note: bytes | None
) -> tuple[Tensor, str]:
    """Send `rows` from the first rank, and take this rank's piece, shaped as `like`, of them.

    Args:
        note: None for a message that has no place for one, on all ranks.
    """
    parcel = ranks.parcel([(like, placement)])
    room = parcel.length + (NOTE if note is not None else 0)
    full = None
    if ranks.rank == 0:
        count = len(rows) if rows else 1
        full = [torch.zeros(room, dtype=torch.uint8, device=ranks.device) for _ in range(count)]
        for row, data in zip(full, rows or [], strict=False):
            row[: data.numel()].copy_(data)
        if note:
            text = bytearray(len(note).to_bytes(2, "big") + note)
            for row in full:
                row[parcel.length :][: len(text)].copy_(torch.frombuffer(text, dtype=torch.uint8))
    if isinstance(placement, (Shard, Packed)):
        if full is not None and len(full) != ranks.size:
            full = full * ranks.size
        got = ranks.scatter(full, room)
    else:
        got = ranks.broadcast(full[0] if full else None, room)
    told = bytes(got[parcel.length :].tolist()) if note is not None else b""
    text_bytes = told[2 : 2 + int.from_bytes(told[:2], "big")]
    own = parcel.unpack(got[: parcel.length], ranks.rank)[0]
    return own.clone().to(like.device), text_bytes.decode("utf-8", "ignore")


def _of_gradient(placement: Placement) -> Placement:
    """How the gradient lies of a value with this placement: what is the sum of the ranks' values
    has one gradient, the same for each."""
    return Whole() if isinstance(placement, Scaled) else placement


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, ranks: Ranks, placement: Placement, grads: Grads
    ) -> Tensor:
        ctx.how = ranks, _of_gradient(placement), grads
        return ranks.to_all([(tensor, placement)])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, placement, grads = ctx.how
        if grads == "sum":
            grad = ranks.sum(grad)
        return piece(grad, placement, ranks.size, ranks.rank), None, None, None


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, ranks: Ranks, placement: Placement, grads: Grads
    ) -> Tensor:
        ctx.how = ranks, placement, grads
        return piece(whole, placement, ranks.size, ranks.rank)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, placement, grads = ctx.how
        if grads == "same":
            return ranks.to_all([(grad, _of_gradient(placement))])[0], None, None, None
        if isinstance(placement, Scaled):
            return grad / ranks.size, None, None, None
        # This rank's piece among zeros.
        shapes = [piece_shape(placement, grad.shape, ranks.size, r) for r in range(ranks.size)]
        pieces = [grad if r == ranks.rank else grad.new_zeros(s) for r, s in enumerate(shapes)]
        return join(pieces, placement), None, None, None


class _ToFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks, placement: Placement) -> Tensor:
        ctx.how = ranks, _of_gradient(placement)
        ctx.like = tensor.new_empty(()).expand(tensor.shape)
        wholes = ranks.to_first([(tensor, placement)])
        return wholes[0] if wholes is not None else tensor.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, placement = ctx.how
        rows = _rows(ranks, grad, placement) if ranks.rank == 0 else None
        return _receive(ranks, rows, ctx.like, placement, None)[0], None, None


class _FromFirst(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        whole: Tensor,
        ranks: Ranks,
        placement: Placement,
        like: Tensor,
        rows: list[Tensor] | None,
        error: str,
        told: list[str],
    ) -> Tensor:
        ctx.how = ranks, _of_gradient(placement)
        own, text = _receive(ranks, rows, like, placement, error.encode()[: NOTE - 2])
        if text:
            told.append(text)
        return own

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ranks, placement = ctx.how
        wholes = ranks.to_first([(grad, placement)])
        of_out = wholes[0] if wholes is not None else grad.new_zeros(0)
        # A gradient for the whole as well, of zeros: a function that lets none through would end
        # the backward on the first rank, while the others wait for it.
        return of_out, torch.zeros_like(of_out), *[None] * 6
