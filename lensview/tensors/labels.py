"""Token labels: one short plain text per token id, for axes, tables and hover texts.

Owns the promise: a label depends on the tokenizer and the id alone, is never blank, and no two
ids of a tokenizer share one. A label is text, never markup; whoever shows it sets it as text. The
characters of a token are written in the notation of `notation.py`; beyond it stand

===============  ==============================================================================
``‹0A›``         a byte token of SentencePiece
``…‹#123›``      a long token, cut; the id tells it from others
``the‹#123›``    a token whose text another token has too
``#123``         an id with no text: no tokenizer, not in the vocabulary, an empty token
===============  ==============================================================================
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from .notation import render

MAX_LABEL = 64
"""Longer labels are cut: `MAX_LABEL` characters, then ``…‹#id›``."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LIKE_AN_ID = re.compile(r"#(-?\d+)")
_SENTENCE_PIECE_SPACE = "\u2581"


def token_labels(tokenizer: object | None, ids: Iterable[int]) -> list[str]:
    """One label per id.

    Args:
        tokenizer: one of transformers or tokenizers, or any object with ``decode(list_of_ids)``.
            Where it has no ``get_vocab`` its other labels cannot be compared, so each label
            carries its id. None labels every token ``#id``.
        ids: token ids, in the vocabulary or not.
    """
    wanted = [int(i) for i in ids]
    if tokenizer is None:
        return [f"#{i}" for i in wanted]
    table = _table(tokenizer)
    if table is None:
        return [_decoded_label(tokenizer, i) for i in wanted]
    return [table.get(i) or f"#{i}" for i in wanted]


# --- the table of a tokenizer ----------------------------------------------------------------

_tables: WeakKeyDictionary[Any, tuple[int, dict[int, str]]] = WeakKeyDictionary()


def _table(tokenizer: Any) -> dict[int, str] | None:
    """The labels of a whole vocabulary, or None where the tokenizer does not list one.

    Computed once per tokenizer, and again when tokens were added to it.
    """
    if not callable(getattr(tokenizer, "get_vocab", None)):
        return None
    try:
        size = _size(tokenizer)
    except NotImplementedError:  # a base class's get_vocab
        return None
    try:
        held = _tables.get(tokenizer)
    except TypeError:  # neither hashable nor weakly referable: not cached
        return _labels(tokenizer)
    if held is None or held[0] != size:
        held = _tables[tokenizer] = (size, _labels(tokenizer))
    return held[1]


def _size(tokenizer: Any) -> int:
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size())
    return len(tokenizer) if hasattr(tokenizer, "__len__") else len(tokenizer.get_vocab())


def _labels(tokenizer: Any) -> dict[int, str]:
    pieces = {int(i): piece for piece, i in tokenizer.get_vocab().items()}
    added = _added_tokens(tokenizer)
    spelling = _Spelling(tokenizer)
    # Added tokens go first: where two ids have one text, the special one keeps the plain label.
    order = sorted(pieces, key=lambda i: (i not in added, i))
    labels: dict[int, str] = {}
    taken: set[str] = set()
    for i in order:
        label = render(added[i]) if i in added else spelling.label(pieces[i])
        like_an_id = _LIKE_AN_ID.fullmatch(label)
        if len(label) > MAX_LABEL:
            label = f"{label[:MAX_LABEL]}…‹#{i}›"
        elif not label:
            label = f"#{i}"
        # Two spellings of one accented letter look the same: compare what is seen.
        elif _seen(label) in taken or (like_an_id and int(like_an_id[1]) not in pieces):
            label = f"{label}‹#{i}›"
        taken.add(_seen(label))
        labels[i] = label
    return labels


def _seen(label: str) -> str:
    return label if label.isascii() else unicodedata.normalize("NFC", label)


def _added_tokens(tokenizer: Any) -> dict[int, str]:
    """Tokens that are matched as literal text, outside the tokenizer's spelling: id to text."""
    read = getattr(tokenizer, "get_added_tokens_decoder", None)
    added = read() if callable(read) else getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, Mapping):
        return {}
    return {int(i): str(getattr(token, "content", token)) for i, token in added.items()}


def _decoded_label(tokenizer: Any, token_id: int) -> str:
    try:
        text = str(tokenizer.decode([token_id]))
    except (LookupError, ValueError, OverflowError):
        return f"#{token_id}"  # not in the vocabulary
    label = render(text)
    if len(label) > MAX_LABEL:
        label = f"{label[:MAX_LABEL]}…"
    return f"{label}‹#{token_id}›" if label else f"#{token_id}"


# --- how a tokenizer spells text in its vocabulary -------------------------------------------


class _Spelling:
    """What a vocabulary's strings mean: GPT-2's byte alphabet, SentencePiece's marks, or text."""

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        decoder = getattr(backend, "decoder", None)
        described = repr(decoder) if decoder is not None else ""
        self.byte_level = "ByteLevel" in described or hasattr(tokenizer, "byte_decoder")
        self.sentence_piece = _SENTENCE_PIECE_SPACE in described or hasattr(tokenizer, "sp_model")

    def label(self, piece: str | bytes) -> str:
        if isinstance(piece, bytes):
            return render(piece)
        if self.byte_level:
            if piece.isascii() and piece.isalnum():
                return piece
            spelled = [_BYTES.get(c) for c in piece]
            known = [b for b in spelled if b is not None]
            return render(bytes(known)) if len(known) == len(spelled) else render(piece)
        if byte := _BYTE_TOKEN.fullmatch(piece):
            return f"‹{byte[1].upper()}›"
        if self.sentence_piece:
            piece = piece.replace(_SENTENCE_PIECE_SPACE, " ")
        return render(piece)


def _byte_alphabet() -> dict[str, int]:
    """The characters in which byte-level vocabularies spell the 256 bytes (GPT-2's encoder)."""
    itself = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in itself)
    return {chr(b): b for b in itself} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTES = _byte_alphabet()
