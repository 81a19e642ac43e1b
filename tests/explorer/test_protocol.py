"""protocol.py and its mirror in TypeScript."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from lensview.explorer import bodies, protocol
from lensview.explorer.handlers import Handlers
from lensview.explorer.jobs import Jobs
from lensview.explorer.replies import strict

MIRROR = Path(__file__).parents[2] / "js" / "src" / "protocol.ts"
BODIES = [
    "Request",
    "Ok",
    "Failed",
    "Cancelled",
    "Progress",
    "Event",
    "NextToken",
    "InterventionRow",
    "State",
    "Hello",
    "TreePage",
    "OutputsPage",
    "SizesPage",
    "Strip",
    "StripsReply",
    "TileParams",
    "TileReply",
    "ViewReason",
    "ViewsReply",
    "DistributionReply",
    "NormsReply",
    "AttentionReply",
    "LensReply",
    "SourceRow",
    "SourceReply",
    "RunRow",
    "Divergence",
    "Check",
    "Limits",
    "EffectReply",
    "NamedValue",
    "NamesReply",
    "CostChoice",
    "CostReply",
    "SavedReply",
    "RankRow",
    "RanksReply",
]


def mirrored(name: str) -> dict[str, str]:
    """The fields of an interface in the mirror, in order."""
    texts = MIRROR.read_text() + MIRROR.with_name("bodies.ts").read_text()
    match = re.search(rf"export interface {name} {{\n(.*?)\n}}", texts, re.DOTALL)
    assert match, f"protocol.ts and bodies.ts have no interface {name}"
    return dict(re.findall(r"^  (\w+): (.+);$", match[1], re.MULTILINE))


def in_typescript(kind: Any, where: str) -> str:
    """How a Python annotation is written there."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    plain: dict[Any, str] = {str: "string", int: "number", bool: "boolean", float: "Float"}
    if kind in plain:
        return plain[kind]
    if dataclasses.is_dataclass(kind):
        return typing.cast(type, kind).__name__
    if origin is list:
        if where == "TreePage.rows":
            return "TreeRow[]"
        inner = in_typescript(inside[0], where)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if origin is dict:
        return "State" if where == "Event.state" else "Record<string, unknown>"
    if origin is typing.Literal:
        return "Which"
    if origin is types.UnionType:
        return " | ".join("null" if i is type(None) else in_typescript(i, where) for i in inside)
    raise AssertionError(f"{where}: {kind}")


@pytest.mark.parametrize("name", BODIES)
def test_fields_and_kinds(name: str) -> None:
    body = getattr(bodies, name, None) or getattr(protocol, name)
    hints = typing.get_type_hints(body)
    ours = {
        f.name: in_typescript(hints[f.name], f"{name}.{f.name}") for f in dataclasses.fields(body)
    }
    if name == "Request":
        ours["method"] = "Method"
    assert mirrored(name) == ours


def test_every_dataclass_is_compared() -> None:
    here = {
        n
        for module in (protocol, bodies)
        for n, v in vars(module).items()
        if isinstance(v, type) and dataclasses.is_dataclass(v)
    }
    assert here == set(BODIES)


def test_version_methods_and_kinds() -> None:
    text = MIRROR.read_text()
    assert f"PROTOCOL_VERSION = {protocol.PROTOCOL_VERSION};" in text
    methods = re.search(r"type Method =\n(.*?);", text, re.DOTALL)
    assert methods is not None
    assert tuple(re.findall(r'"(\w+)"', methods[1])) == typing.get_args(protocol.Method)
    kinds = {getattr(protocol, n).kind for n in BODIES[:6]}
    assert kinds == set(re.findall(r'kind: "(\w+)"', text))


def test_the_handlers_know_exactly_the_methods() -> None:
    jobs = Jobs(lambda reply, buffers: None)
    handlers = Handlers(None, jobs, lambda: None)  # type: ignore[arg-type]
    assert tuple(handlers._methods) == typing.get_args(protocol.Method)
    jobs.close()


def test_strict_json() -> None:
    nan, inf = float("nan"), float("inf")
    body = protocol.message(protocol.Ok("a", {"p": [nan, inf, -inf, 0.5], "s": "a\udc80"}))
    text = json.dumps(strict(body), allow_nan=False)
    assert json.loads(text)["result"]["p"] == ["nan", "inf", "-inf", 0.5]
    text.encode("utf-8")
