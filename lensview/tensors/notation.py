r"""The notation in which the text of a token is shown: everything visible, nothing ambiguous.

=======================  ======================================================================
``·`` ``⏎`` ``⇥`` ``␍``  a space, a newline, a tab, a carriage return
``\u202e``               a character that would be invisible or would rearrange its neighbours:
                         other whitespace, controls, bidi and format characters, variation
                         selectors, unassigned and private ones (``\U000e0001`` beyond four
                         digits)
``‹F0 9F›``              bytes that are no whole character by themselves
``◌́``                    a combining mark with nothing before it to sit on gets a carrier
=======================  ======================================================================

A text that really contains one of these marks shows it as ``\u00b7`` and so on, and a backslash
that would read as such an escape shows as ``\u005c``; so the notation can be read back, and
different texts look different by construction.
"""

from __future__ import annotations

import re
import unicodedata

_SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_MARKS = frozenset("·⏎⇥␍‹›◌")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zs", "Zl", "Zp"})
_COMBINING = frozenset({"Mn", "Mc", "Me"})
# Characters of other categories that a font draws as nothing, and the replacement character,
# which a reader would take for bytes that could not be decoded.
_ESCAPED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffd"
    "\U000e0100-\U000e01ef]"
)
_LIKE_AN_ESCAPE = re.compile(r"\\(?=u[0-9a-f]{4}|U[0-9a-f]{8})")
_BYTE_RUN = re.compile("([\udc80-\udcff]+)")


def render(text: str | bytes) -> str:
    """`text` in the notation of this module; different texts give different results."""
    if isinstance(text, bytes):
        # Bytes that are not UTF-8 become the lone surrogates DC80 to DCFF, and runs of these
        # are shown as bytes.
        runs = _BYTE_RUN.split(text.decode("utf-8", "surrogateescape"))
        return "".join(_bytes_text(r) if n % 2 else _render(r) for n, r in enumerate(runs))
    return _render(text)


def _bytes_text(run: str) -> str:
    return f"‹{' '.join(f'{ord(c) - 0xDC00:02X}' for c in run)}›"


def _render(text: str) -> str:
    text = _LIKE_AN_ESCAPE.sub(r"\\u005c", text)
    if text.isascii() and text.isprintable():
        return text.replace(" ", "·")
    shown: list[str] = []
    bare = True  # nothing before that a combining mark could sit on
    for character in text:
        label = _character(character)
        if label is not character:
            shown.append(label)
            bare = True
        elif unicodedata.category(character) in _COMBINING:
            shown.append("◌" + character if bare else character)
            bare = False
        else:
            shown.append(character)
            bare = False
    return "".join(shown)


def _character(character: str) -> str:
    """The character itself where it can be seen, else its stand-in."""
    if stand_in := _SHOWN.get(character):
        return stand_in
    hidden = unicodedata.category(character) in _HIDDEN_CATEGORIES
    if hidden or character in _MARKS or _ESCAPED.match(character):
        code = ord(character)
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return character
