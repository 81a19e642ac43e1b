"""Labels over whole vocabularies: never blank, never equal, readable back."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lensview.tensors.labels import MAX_LABEL, token_labels
from lensview.tensors.notation import render

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Demo = tuple[PreTrainedModel, PreTrainedTokenizerBase]

STAND_INS = {"·": " ", "⏎": "\n", "⇥": "\t", "␍": "\r"}


def read_back(label: str) -> bytes:
    """The bytes that a label (without an id) stands for: the notation, read the other way."""
    result = b""
    pattern = r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|‹([0-9A-F ]+)›|(◌)|(.)"
    for short, long, run, carrier, character in re.findall(pattern, label, re.DOTALL):
        if code := short or long:
            result += chr(int(code, 16)).encode("utf-8", "surrogatepass")
        elif run:
            result += bytes.fromhex(run)
        elif not carrier:
            result += STAND_INS.get(character, character).encode()
    return result


def bytes_of_pieces() -> dict[str, int]:
    """The bytes that the characters of byte-level pieces stand for, asked of the library: its
    pre-tokenizer spells UTF-8, and the bytes that UTF-8 never has are left over in order."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known: dict[str, int] = {}
    for code in [*range(0x801), 0x1000, *range(0x2000, 0x110000, 0x1000)]:
        if not 0xD800 <= code < 0xE000:
            piece = spell.pre_tokenize_str(chr(code))[0][0]
            known.update(zip(piece, chr(code).encode(), strict=True))
    return known


def test_the_demo_vocabulary_whole(demo_model: Demo) -> None:
    tokenizer = demo_model[1]
    labels = token_labels(tokenizer, range(len(tokenizer)))
    assert len(labels) == 49152
    assert len({unicodedata.normalize("NFC", x) for x in labels}) == 49152
    for label in labels:
        assert label.strip() and not label.isspace()
        assert "\ufffd" not in label, "not even for the token that is one"
        shown = re.sub("‹[0-9A-F ]+›", "", label)
        assert all(unicodedata.category(c) not in ("Cc", "Cf", "Zs", "Zl", "Zp") for c in shown)
        assert len(label) <= MAX_LABEL + len("…‹#49151›")


def test_the_demo_vocabulary_reads_back(demo_model: Demo) -> None:
    tokenizer = demo_model[1]
    labels = token_labels(tokenizer, range(len(tokenizer)))
    special = tokenizer.added_tokens_decoder
    spelt = bytes_of_pieces()
    cut = 0
    for i, piece in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        if i in special:
            assert labels[i] == piece == special[i].content
        elif "‹#" in labels[i]:
            cut += 1
        else:
            assert read_back(labels[i]) == bytes(spelt[c] for c in piece), (i, piece)
    assert cut < 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The capital of France is", ["The", "·capital", "·of", "·France", "·is"]),
        ("a\n\tb", ["a", "⏎", "⇥", "b"]),
        ("a  b", ["a", "·", "·b"]),
        ("<b>x</b>", None),
        (
            "Hi \U0001f3f3\ufe0f\u200d\U0001f308 there",
            [
                *("Hi", "·‹F0 9F›", "‹8F›", "‹B3›", "\\ufe0f", "‹E2 80›", "‹8D›", "‹F0 9F›"),
                *("‹8C›", "‹88›", "·there"),
            ],
        ),
        ("\u05e9\u05dc\u05d5\u05dd", ["\u05e9", "\u05dc", "\u05d5", "‹D7›", "‹9D›"]),
        ("\u0e2a\u0e27\u0e31", ["‹E0 B8›", "‹AA›", "‹E0 B8›", "‹A7›", "‹E0 B8›", "‹B1›"]),
        ("e\u0301", ["e", "‹CC›", "‹81›"]),
        ("x\u202ey", ["x", "‹E2 80›", "‹AE›", "y"]),
    ],
)
def test_the_odd_strings(demo_model: Demo, text: str, expected: list[str] | None) -> None:
    tokenizer = demo_model[1]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    labels = token_labels(tokenizer, ids)
    assert len(labels) == len(ids)
    assert len(set(labels)) == len(set(ids))
    assert b"".join(map(read_back, labels)) == text.encode()
    if expected is not None:
        assert labels == expected


def test_a_label_depends_on_the_id_alone(demo_model: Demo) -> None:
    tokenizer = demo_model[1]
    together = token_labels(tokenizer, range(1000))
    assert together == [token_labels(tokenizer, [i])[0] for i in range(1000)]
    assert token_labels(tokenizer, []) == []


def test_ids_out_of_the_vocabulary(demo_model: Demo) -> None:
    assert token_labels(demo_model[1], [49152, -100, 10**12]) == ["#49152", "#-100", f"#{10**12}"]
    assert token_labels(None, [0, 7]) == ["#0", "#7"]


# --- the notation ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a\u00b7", "·a\\u00b7"),
        ("\u23ce", "\\u23ce"),
        ("\\u202e", "\\u005cu202e"),
        ("\\u", "\\u"),
        ("\\n", "\\n"),
        ("\u202e", "\\u202e"),
        ("\u200b\u00ad\ufeff\u00a0", "\\u200b\\u00ad\\ufeff\\u00a0"),
        ("\x00\x1b", "\\u0000\\u001b"),
        ("\u0301", "◌\u0301"),
        (" \u0301", "·◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\u25cc", "\\u25cc"),
        ("\U000e0001", "\\U000e0001"),
        ("\u3164\u2800\ufe0f", "\\u3164\\u2800\\ufe0f"),
        ("<a href='x'>&amp;", "<a·href='x'>&amp;"),
        ("‹F0›", "\\u2039F0\\u203a"),
        (b" \xf0\x9fa\xff", "·‹F0 9F›a‹FF›"),
        ("", ""),
    ],
)
def test_the_notation(text: str | bytes, expected: str) -> None:
    assert render(text) == expected
    assert read_back(expected) == (text if isinstance(text, bytes) else text.encode())


def test_every_character_is_visible_and_told_apart() -> None:
    characters = [chr(c) for c in range(0x12000) if not 0xD800 <= c < 0xE000]
    labels = [render(c) for c in characters]
    assert len(set(labels)) == len(labels)
    for character, label in zip(characters[:0x3000], labels[:0x3000], strict=True):
        assert read_back(label) == character.encode()
        assert label.isprintable() and not label.isspace()


# --- other kinds of tokenizers ---------------------------------------------------------------


def fast(tokenizer: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_word_pieces() -> None:
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2, "#7": 3, "#2": 4, "##": 5}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    expected = ["[UNK]", "play", "##ing", "#7‹#3›", "#2", "##", "#6", "#7"]
    assert token_labels(raw, range(8)) == expected
    assert token_labels(fast(raw), range(8)) == expected


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ],
)
def test_sentence_pieces_with_byte_tokens(decoder: Any) -> None:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0), ("the", -3.5), (" the", -4.0)]
    pieces += [("\n", -5.0), ("·", -5.0)] + [(f"<0x{b:02X}>", -9.0) for b in range(256)]
    raw = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    raw.decoder = decoder
    for tokenizer in (raw, fast(raw)):
        labels = token_labels(tokenizer, range(len(pieces)))
        assert labels[:7] == ["<unk>", "·", "·the", "the", "·the‹#4›", "⏎", "\\u00b7"]
        assert labels[7 + 0x0A] == "‹0A›" and labels[7 + 0xF0] == "‹F0›"
        assert len(set(labels)) == len(pieces)


def test_the_special_token_keeps_the_plain_label() -> None:
    alphabet = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE({**alphabet, "ĠĠ": 256, "<s>": 257}, [("Ġ", "Ġ")]))
    raw.decoder = decoders.ByteLevel()
    tokenizer = fast(raw)
    tokenizer.add_special_tokens({"bos_token": "<end>"})
    tokenizer.add_tokens(["  ", "\u202e<b>"])
    assert token_labels(tokenizer, [256, 257, 258, 259, 260, 261]) == [
        "··‹#256›",
        "<s>",
        "<end>",
        "··",
        "\\u202e<b>",
        "#261",
    ]


def test_tokens_added_later_are_labelled() -> None:
    raw = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer = fast(raw)
    assert token_labels(tokenizer, [1, 2]) == ["a", "#2"]
    tokenizer.add_tokens(["new"])
    assert token_labels(tokenizer, [1, 2]) == ["a", "new"]


def test_two_spellings_of_one_letter_are_told_apart() -> None:
    raw = Tokenizer(models.WordLevel({"é": 0, "e\u0301": 1, "Å": 2, "\u212b": 3}, unk_token="é"))
    labels = token_labels(raw, range(4))
    assert labels == ["é", "e\u0301‹#1›", "Å", "\u212b‹#3›"]


def test_long_and_empty_tokens() -> None:
    words = {"": 0, "x" * 3000: 1, "x" * 3001: 2, "y" * MAX_LABEL: 3}
    labels = token_labels(Tokenizer(models.WordLevel(words, unk_token="")), range(4))
    assert labels[0] == "#0"
    assert labels[1:3] == ["x" * MAX_LABEL + "…‹#1›", "x" * MAX_LABEL + "…‹#2›"]
    assert labels[3] == "y" * MAX_LABEL


class Decoder:
    """The least that a tokenizer can be."""

    texts = ("a", "a", "", " \ufffd", "<b>", "z" * 500)

    def decode(self, ids: list[int]) -> str:
        return "".join(self.texts[i] for i in ids)


def test_a_tokenizer_that_can_only_decode() -> None:
    labels = token_labels(Decoder(), range(7))
    assert labels[:5] == ["a‹#0›", "a‹#1›", "#2", "·\\ufffd‹#3›", "<b>‹#4›"]
    assert labels[5] == "z" * MAX_LABEL + "…‹#5›"
    assert labels[6] == "#6"


class Listing(Decoder):
    """One that lists its vocabulary too, as bytes, and cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def get_vocab(self) -> dict[bytes, int]:
        return {b"a": 0, b" b": 1, b"\xf0\x9f": 2}


def test_vocabularies_of_bytes() -> None:
    assert token_labels(Listing(), range(4)) == ["a", "·b", "‹F0 9F›", "#3"]


def test_a_tokenizer_is_not_kept_alive() -> None:
    import gc
    import weakref

    tokenizer = fast(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    token_labels(tokenizer, [0])
    watched = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert watched() is None
