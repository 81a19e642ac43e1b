"""Site: the address of a value in a model, as one string.

Owns the grammar ``path[/op[.k]][:input|:output][[leaf]…][@call]`` and globs, both ways. Finding
the modules that a site means is `resolve.py`'s; taking the value is `taps/`'s.

Reserved characters in a module's own name (``\\ . / : [ ] @ *`` and ``?``) are escaped by a
backslash. The root module's path is empty: its sites are written ``:output`` and ``:input``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from .errors import SiteError

Side = Literal["input", "output"]
Leaf = str | int

RESERVED = "\\./:[]@*?"
_ESCAPE = re.compile(r"([\\./:\[\]@*?])")
_PATH = r"(?P<path>(?:\\.|[^\\/:\[\]@])*)"
_OP = r"(?:/(?P<op>[A-Za-z_*?][\w*?]*)(?:\.(?P<k>\d+))?)?"
_SIDE = r"(?::(?P<side>[A-Za-z]+))?"
_LEAF = r"\[((?:\\.|[^\\\[\]])*)\]"
_SITE = re.compile(rf"{_PATH}{_OP}{_SIDE}(?P<leaves>(?:{_LEAF})*)(?:@(?P<call>\d+))?")
_GLOB = re.compile(r"(?<!\\)(?:\\\\)*[*?]")


@dataclass(frozen=True)
class Site:
    """One address. `str(site)` is its canonical text and ``Site.parse(str(site)) == site``.

    Attributes:
        path: the module's dotted path as written in a site (reserved characters escaped); "" is
            the root.
        op: the name of an op inside that module's own forward, or None; a glob (``*``) means every
            occurrence of every op that it matches.
        op_index: which occurrence of the op, from 0 within one call.
        side: "output" or "input".
        leaf: keys into a nested value; empty means its main tensor.
        call: which call of the module within one forward; None means the only one.
    """

    path: str
    op: str | None = None
    op_index: int = 0
    side: Side = "output"
    leaf: tuple[Leaf, ...] = ()
    call: int | None = None

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read a site from its text.

        Raises:
            SiteError: the text is not a site; the message says what was expected.
        """
        if not isinstance(text, str):
            raise SiteError(
                f"A site is a text such as 'model.layers.0.mlp', not a {type(text).__name__}."
            )
        match = _SITE.fullmatch(text)
        if match is None:
            raise SiteError(
                f"{text!r} is not a site. A site is written path[/op[.k]][:input|:output][[leaf]]"
                "[@call], for example 'model.layers.0.mlp', 'model.layers.0.mlp:input', "
                "'model.layers.0.self_attn/softmax' or 'act@1'; "
                f"reserved characters in a name ({RESERVED}) are escaped by a backslash."
            )
        side = match["side"] or "output"
        if side not in ("input", "output"):
            raise SiteError(f"{text!r}: a side is ':input' or ':output', not ':{side}'.")
        if match["k"] is not None and _GLOB.search(match["op"]):
            raise SiteError(f"{text!r}: a glob of ops means all occurrences and takes no .k.")
        leaves = tuple(_read_leaf(t) for t in re.findall(_LEAF, match["leaves"] or ""))
        call = int(match["call"]) if match["call"] is not None else None
        return cls(
            _canonical_path(match["path"]),
            match["op"],
            int(match["k"] or 0),
            "input" if side == "input" else "output",
            leaves,
            call,
        )

    def __str__(self) -> str:
        op = "" if self.op is None else f"/{self.op}" + (f".{self.op_index}" * (self.op_index > 0))
        root = self.path == "" and self.op is None
        side = f":{self.side}" if self.side == "input" or root else ""
        leaf = "".join(f"[{_write_leaf(k)}]" for k in self.leaf)
        if leaf and not side:
            side = ":output"
        call = "" if self.call is None else f"@{self.call}"
        return f"{self.path}{op}{side}{leaf}{call}"

    @property
    def is_glob(self) -> bool:
        """Whether the path or the op has wildcards."""
        return self.path_is_glob or self.op_is_glob

    @property
    def path_is_glob(self) -> bool:
        """Whether the path has wildcards: ``*`` and ``?`` within a name, ``**`` across dots."""
        return _GLOB.search(self.path) is not None

    @property
    def op_is_glob(self) -> bool:
        """Whether the op has wildcards."""
        return self.op is not None and _GLOB.search(self.op) is not None

    def takes_op(self, name: str | None, k: int) -> bool:
        """Whether the k-th op of a name, or with None a module's own value, is at this address."""
        if self.op is None or name is None:
            return self.op is name
        if self.op_is_glob:
            return fnmatchcase(name, self.op)
        return (name, k) == (self.op, self.op_index)

    def at_op(self, name: str, k: int) -> Site:
        """The same module, side, leaf and call at one op."""
        return Site(self.path, name, k, self.side, self.leaf, self.call)

    def at_call(self, call: int | None) -> Site:
        """The same address at another call."""
        if call == self.call:
            return self
        return Site(self.path, self.op, self.op_index, self.side, self.leaf, call)

    def at_path(self, path: str) -> Site:
        """The same side, leaf and call at another module."""
        if path == self.path:
            return self
        return Site(path, self.op, self.op_index, self.side, self.leaf, self.call)


def escape(name: str) -> str:
    """A module's own name as it is written in a site: reserved characters get a backslash."""
    return name if name.isidentifier() or name.isdigit() else _ESCAPE.sub(r"\\\1", name)


def join(parent: str, name: str) -> str:
    """The site path of the child `name` (its real name) of the module at site path `parent`."""
    return f"{parent}.{escape(name)}" if parent else escape(name)


def split_path(path: str) -> list[str]:
    """The real names along a site path, unescaped: the inverse of `join` over the segments."""
    if not path:
        return []
    return [re.sub(r"\\(.)", r"\1", s) for s in _segments(path)]


def without_wrappers(path: str) -> str:
    """`path` without the names that DataParallel, DDP and ``torch.compile`` put into it."""
    return ".".join(s for s in _segments(path) if s not in ("module", "_orig_mod"))


def glob_pattern(path: str) -> re.Pattern[str]:
    """A pattern over whole site paths: ``*`` and ``?`` stay within a segment, ``**`` crosses.

    ``**.mlp`` matches ``mlp`` and ``a.b.mlp``; ``**`` matches every path, the root's too.
    """
    segments = _segments(path)
    out = ""
    for i, segment in enumerate(segments):
        last = i == len(segments) - 1
        if segment == "**":
            out += r".*" if last else r"(?:(?:\\.|[^\\])+\.)?"
            continue
        out += _segment_pattern(segment)
        if not last:
            # 'a.**' takes in 'a' itself, as '**' alone takes in the root.
            out += r"(?:\.|$)" if segments[i + 1 :] == ["**"] else r"\."
    return re.compile(out)


def _segment_pattern(segment: str) -> str:
    one = r"(?:\\.|[^\\.])"
    if set(segment) == {"*"}:
        return f"{one}+"
    pieces = re.findall(r"\\.|\*+|\?|[^\\*?]+", segment)
    return "".join(
        f"{one}*" if p.startswith("*") else one if p == "?" else re.escape(p) for p in pieces
    )


def _segments(path: str) -> list[str]:
    return re.findall(r"(?:\\.|[^\\.])+", path)


def _canonical_path(path: str) -> str:
    if path.endswith(".") or path.startswith(".") or ".." in path.replace("\\.", ""):
        raise SiteError(f"{path!r} has an empty name between its dots.")
    return path


def _read_leaf(text: str) -> Leaf:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return re.sub(r"\\(.)", r"\1", text)


def _write_leaf(key: Leaf) -> str:
    if isinstance(key, int):
        return str(key)
    text = _ESCAPE.sub(lambda m: m[0] if m[0] in "./:@*?" else f"\\{m[0]}", key)
    # A string key that looks like a number keeps its kind.
    return f"\\{text}" if re.fullmatch(r"-?\d+", text) else text
