"""Picture: a tile as a PNG, for pages without scripts.

Owns the palettes (the page's own, `js/src/colors.ts`) and the few bytes of PNG that it takes;
knows nothing of traces or HTML.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from functools import cache

import numpy as np

from ..tensors.tiles import Tile

_CENTRE = 126
_NAN = 2 * _CENTRE + 1
_INF = _NAN + 1
_LIGHT = (0.985, 0.37, 0.17, 258.0, 27.0)
_DARK = (0.235, 0.83, 0.15, 245.0, 45.0)
"""Lightness at 0 and at the limit, chroma, the hues of negative and positive values."""
_NAN_COLOUR = (214, 0, 190)
_INF_COLOUR = (0, 0, 0)
_INF_ON_DARK = (255, 255, 255)


def data_url(tile: Tile) -> str:
    """The tile as a PNG in a ``data:`` URL: one pixel per cell, diverging, centred at 0."""
    cells = np.frombuffer(tile.data, dtype="<f4").reshape(tile.rows, tile.columns)
    png = _png(_indices(cells, limit_of(tile)))
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def limit_of(tile: Tile) -> float:
    """The value of the strongest colour: the plane's largest finite magnitude."""
    if tile.low is None or tile.high is None:
        return 0.0
    return max(abs(tile.low), abs(tile.high))


def css_colour(share: float) -> str:
    """The colour of a value at `share` (-1 to 1) of the limit."""
    red, green, blue = _palette()[_CENTRE + round(share * _CENTRE)]
    return f"#{red:02x}{green:02x}{blue:02x}"


def _indices(cells: np.ndarray, limit: float) -> np.ndarray:
    wide = cells.astype(np.float64)
    finite = np.isfinite(wide)
    shares = np.clip(np.where(finite, wide, 0) / (limit or 1.0), -1, 1)
    indices = _CENTRE + np.rint(shares * _CENTRE)
    indices[np.isnan(wide)] = _NAN
    indices[np.isinf(wide)] = _INF
    return indices.astype(np.uint8)


def _png(indices: np.ndarray) -> bytes:
    """An 8-bit palette PNG."""
    height, width = indices.shape
    palette = b"".join(bytes(c) for c in _palette())
    scanlines = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(scanlines, 9))]
    body = b"".join(_chunk(kind, data) for kind, data in [*chunks, (b"IEND", b"")])
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def palette_hex(*, dark: bool) -> str:
    """The colours as one text, six hex digits each: -limit to limit, then NaN, then infinities."""
    return "".join(f"{red:02x}{green:02x}{blue:02x}" for red, green, blue in _palette(dark))


@cache
def _palette(dark: bool = False) -> list[tuple[int, int, int]]:
    bright, strong, most, cold, warm = _DARK if dark else _LIGHT
    shades = []
    for i in range(2 * _CENTRE + 1):
        strength = abs(i - _CENTRE) / _CENTRE
        light = bright + (strong - bright) * strength
        chroma = most * min(1.0, 1.9 * strength**0.85)
        shades.append(_in_gamut(light, chroma, cold if i < _CENTRE else warm))
    return [*shades, _NAN_COLOUR, _INF_ON_DARK if dark else _INF_COLOUR]


def _in_gamut(light: float, chroma: float, hue: float) -> tuple[int, int, int]:
    """The colour of that lightness and hue with as much of the chroma as sRGB has."""
    tolerance = 0.0005
    for _ in range(40):
        if all(-tolerance <= part <= 1 + tolerance for part in _oklch(light, chroma, hue)):
            break
        chroma *= 0.95
    red, green, blue = (_encode(part) for part in _oklch(light, chroma, hue))
    return red, green, blue


def _oklch(light: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """OKLCH to linear sRGB (Ottosson's matrices)."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l3 = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m3 = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s3 = (light - 0.0894841775 * a - 1.291485548 * b) ** 3
    return (
        4.0767416621 * l3 - 3.3077115913 * m3 + 0.2309699292 * s3,
        -1.2684380046 * l3 + 2.6097574011 * m3 - 0.3413193965 * s3,
        -0.0041960863 * l3 - 0.7034186147 * m3 + 1.707614701 * s3,
    )


def _encode(linear: float) -> int:
    part = min(1.0, max(0.0, linear))
    linear_below, exponent = 0.0031308, 1 / 2.4
    gamma = 12.92 * part if part <= linear_below else 1.055 * part**exponent - 0.055
    return round(gamma * 255)
