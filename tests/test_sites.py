"""The grammar of sites: one canonical text each, and globs that match what they say."""

from __future__ import annotations

import pytest

from lensview.errors import SiteError
from lensview.sites import Site, escape, glob_pattern, join, split_path


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("model.layers.0.mlp", "model.layers.0.mlp"),
        ("a:output", "a"),
        ("a:input", "a:input"),
        ("", ":output"),
        (":output", ":output"),
        (":input[attention_mask]", ":input[attention_mask]"),
        ("a[1]", "a:output[1]"),
        ("a:output[1][0]@2", "a:output[1][0]@2"),
        ("act@0", "act@0"),
        ("a/softmax", "a/softmax"),
        ("a/matmul.0", "a/matmul"),
        ("a/matmul.1:input", "a/matmul.1:input"),
        ("a/*:output", "a/*"),
        ("/add_[0]@1", "/add_:output[0]@1"),
        (r"odd\.name.b", r"odd\.name.b"),
        ("schicht.größe", "schicht.größe"),
    ],
)
def test_every_spelling_has_one_canonical_text(text: str, canonical: str) -> None:
    site = Site.parse(text)
    assert str(site) == canonical
    assert Site.parse(str(site)) == site


@pytest.mark.parametrize(
    "text", ["a[", "a:left", "a@", "a@-1", "a..b", ".a", "a.", "a:input:output", "a/*.1", "a/1x"]
)
def test_what_is_no_site_is_refused(text: str) -> None:
    with pytest.raises(SiteError):
        Site.parse(text)


def test_leaf_keys_keep_their_kind() -> None:
    number, word = Site("a", leaf=(1,)), Site("a", leaf=("1",))
    assert str(number) != str(word)
    assert Site.parse(str(number)) == number
    assert Site.parse(str(word)) == word
    assert Site.parse(str(Site("a", leaf=("x]y[", "b.c")))).leaf == ("x]y[", "b.c")


@pytest.mark.parametrize("name", ["a.b", "x@1", "q:k", "[0]", "*", "a\\b", "?", "plain"])
def test_reserved_characters_in_a_name_survive(name: str) -> None:
    path = join("model", name)
    assert split_path(path) == ["model", name]
    assert Site.parse(path).path == path
    assert not Site.parse(path).is_glob
    assert glob_pattern(path).fullmatch(path)
    assert escape("plain") == "plain"


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("**", "", True),
        ("**", "a.b", True),
        ("*", "", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("**.mlp", "mlp", True),
        ("**.mlp", "a.b.mlp", True),
        ("**.mlp", "a.xmlp", False),
        ("model.layers.*.mlp", "model.layers.10.mlp", True),
        ("model.layers.*.mlp", "model.layers.1.x.mlp", False),
        ("model.layers.1?", "model.layers.10", True),
        ("model.layers.1?", "model.layers.1", False),
        ("a.**", "a", True),
        ("a.**", "a.b.c", True),
        ("a.**", "ab", False),
        ("a.**.c", "a.c", True),
        ("a.**.c", "a.b.b.c", True),
        ("*_proj", "q_proj", True),
        (r"*.b", r"a\.x.b", True),
    ],
)
def test_globs(glob: str, path: str, matches: bool) -> None:
    assert bool(glob_pattern(glob).fullmatch(path)) is matches


@pytest.mark.parametrize(
    ("text", "name", "k", "takes"),
    [
        ("a", None, 0, True),
        ("a", "add", 0, False),
        ("a/add", None, 0, False),
        ("a/add", "add", 0, True),
        ("a/add", "add", 1, False),
        ("a/add.1", "add", 1, True),
        ("a/*", "add", 3, True),
        ("a/*", None, 0, False),
        ("a/mat?ul", "matmul", 2, True),
        ("a/add*", "add_", 0, True),
        ("a/add*", "mul", 0, False),
    ],
)
def test_which_ops_a_site_means(text: str, name: str | None, k: int, takes: bool) -> None:
    site = Site.parse(text)
    assert site.takes_op(name, k) is takes
    if name is not None:
        assert str(site.at_op(name, k)) == f"a/{name}" + (f".{k}" if k else "")
