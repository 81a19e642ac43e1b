"""Statistics of a tensor that survive NaN, infinities, odd dtypes and large sizes.

Owns the numbers and their one-line text. Reading odd tensors is `dense`'s part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .dense import components, dtype_text, full_shape, is_magnitude, piece_elements, real, widest

_SAFE_EXPONENT = 50
"""Squares of magnitudes below 2^50, and above 2^-50, are safe in float32 too."""


@dataclass(frozen=True)
class Stats:
    """Statistics over the finite elements of a tensor, and counts of the others.

    Computed in float64 (float32 where the device has none). Of complex numbers, everything is
    about the magnitudes; of bools, True is 1. None where no finite element is.

    Attributes:
        shape: the tensor's shape; of a ragged one, its longest sizes.
        dtype: the tensor's dtype, ``"bfloat16"``.
        count: all elements.
        finite: elements that are neither NaN nor infinite.
        nan: elements that are NaN.
        posinf: elements that are +inf.
        neginf: elements that are -inf.
        zeros: elements that are 0.
        mean: the mean.
        std: the population standard deviation (divided by `finite`, not by one less).
        min: the smallest.
        max: the largest.
        absmax: the largest magnitude.
        rms: the root of the mean square.
        note: ``"magnitudes"`` for complex numbers, else "".
    """

    shape: tuple[int, ...]
    dtype: str
    count: int
    finite: int
    nan: int
    posinf: int
    neginf: int
    zeros: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    absmax: float | None
    rms: float | None
    note: str = ""

    def line(self) -> str:
        """One line for people: ``1x5x576 float32 · mean 0.012 · std 1.3 · min … · max … · 2 NaN``.

        Infinities and NaN are named only where there are any.
        """
        parts = [f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"]
        if self.note:
            parts.append(self.note)
        if not self.count:
            return " · ".join([*parts, "empty"])
        numbers = {"mean": self.mean, "std": self.std, "min": self.min, "max": self.max}
        known = [f"{name} {x:.4g}" for name, x in numbers.items() if x is not None]
        parts += known or ["no finite value"]
        counts = {"NaN": self.nan, "inf": self.posinf, "-inf": self.neginf}
        return " · ".join([*parts, *(f"{n:,} {name}" for name, n in counts.items() if n)])


def stats_of(body: Mapping[str, Any]) -> Stats:
    """`Stats` from what ``dataclasses.asdict`` makes of one, as files and messages hold it.

    Raises:
        TypeError: that is something else.
    """
    given = dict(body)
    shape = given.pop("shape", None)
    numbers = [v for k, v in given.items() if k not in ("dtype", "note")]
    texts = (given.get("dtype"), given.get("note"))
    if not (
        isinstance(shape, (list, tuple))
        and all(isinstance(size, int) for size in shape)
        and all(v is None or isinstance(v, (int, float)) for v in numbers)
        and all(isinstance(text, str) for text in texts)
    ):
        raise TypeError(f"{body!r:.80} is no statistics")
    return Stats(shape=tuple(shape), **given)


def stats(tensor: Tensor) -> Stats:
    """The statistics of a tensor of any dtype, layout and size, empty ones included.

    The work is done on the tensor's device, in pieces, so that the memory it takes is bounded.

    Raises:
        TypeError: a kind of tensor that cannot be read.
    """
    parts = list(components(tensor))
    counts = _Counts()
    for chunk in _chunks(parts):
        counts.add(chunk)
    exponent = _exponent(counts.absmax)
    moments = _Moments(counts.finite == counts.count)
    for chunk in _chunks(parts):
        moments.add(chunk, exponent)
    known = counts.finite > 0
    return Stats(
        shape=full_shape(tensor),
        dtype=dtype_text(tensor),
        count=counts.count,
        finite=counts.finite,
        nan=counts.nan,
        posinf=counts.posinf,
        neginf=counts.neginf,
        zeros=counts.zeros,
        mean=math.ldexp(moments.mean, exponent) if known else None,
        std=math.ldexp(moments.std, exponent) if known else None,
        min=counts.low if known else None,
        max=counts.high if known else None,
        absmax=counts.absmax if known else None,
        rms=math.ldexp(moments.rms, exponent) if known else None,
        note="magnitudes" if any(is_magnitude(p) for p in parts) else "",
    )


def _chunks(parts: list[Tensor]) -> Iterator[Tensor]:
    """Views of bounded size that cover each part once, in float32 or float64."""
    for part in parts:
        if not part.numel():
            continue
        most = piece_elements(part)
        if part.numel() <= most:
            yield real(part)
        elif part.is_contiguous():
            yield from (real(piece) for piece in torch.split(part.view(-1), most))
        else:
            longest = max(range(part.dim()), key=part.size)
            yield from _chunks(list(part.chunk(2, longest)))


@dataclass
class _Counts:
    count: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    low: float = math.inf
    high: float = -math.inf

    @property
    def finite(self) -> int:
        return self.count - self.nan - self.posinf - self.neginf

    @property
    def absmax(self) -> float:
        return max(abs(self.low), abs(self.high)) if self.finite else 0.0

    def add(self, chunk: Tensor) -> None:
        self.count += chunk.numel()
        self.zeros += chunk.numel() - int(chunk.count_nonzero())
        low, high = (x.item() for x in chunk.aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            self.nan += int(chunk.isnan().count_nonzero())
            self.posinf += int(chunk.isposinf().count_nonzero())
            self.neginf += int(chunk.isneginf().count_nonzero())
            finite = chunk.isfinite()
            low = chunk.where(finite, math.inf).amin().item()
            high = chunk.where(finite, -math.inf).amax().item()
        self.low, self.high = min(self.low, low), max(self.high, high)


def _exponent(absmax: float) -> int:
    """The power of two to divide by before squaring: 0 unless a square could overflow."""
    exponent = math.frexp(absmax)[1]
    # Below 2^-1000 the inverse power would overflow.
    return 0 if abs(exponent) <= _SAFE_EXPONENT else max(exponent, -1000)


@dataclass
class _Moments:
    """Mean and spread, chunk after chunk (Chan, Golub, LeVeque: no sum of large squares)."""

    all_finite: bool
    count: int = 0
    mean: float = 0.0
    spread: float = 0.0

    @property
    def std(self) -> float:
        return math.sqrt(self.spread / self.count)

    @property
    def rms(self) -> float:
        return math.sqrt(self.spread / self.count + self.mean**2)

    def add(self, chunk: Tensor, exponent: int) -> None:
        # NaN and infinities make a sum that is neither: most pieces need no look at each element.
        finite = self.all_finite or math.isfinite(chunk.sum().item())
        values = chunk if finite else chunk[chunk.isfinite()]
        count = values.numel()
        if not count:
            return
        values = values.to(widest(values.device))
        if exponent:
            # Two factors, since 2^-1024 alone is not a normal number.
            half = exponent // 2
            values = values * 2.0**-half * 2.0 ** (half - exponent)
        mean = values.mean()
        spread = (values - mean).square_().sum().item()
        apart = mean.item() - self.mean
        total = self.count + count
        self.spread += spread + apart**2 * self.count * count / total
        self.mean += apart * count / total
        self.count = total
