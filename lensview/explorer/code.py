"""Code: the lensview lines that reproduce what an explorer shows.

Owns the text. Names of the user's variables are used where they hold the very objects; what has
neither a name nor a literal gets a line that says what to put there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..indices import At, index_text
from ..interventions import Intervention
from ..session import Session
from ..wrappers.unwrap import unwrap
from .origins import RUN_TEXT
from .rows import Entry
from .runs import Runs
from .timeline import KeptRun

_ARGUMENTS = {
    "scale": ("by",),
    "add": ("vector",),
    "put": ("value",),
    "clamp": ("low", "high"),
    "noise": ("std", "seed"),
    "project_out": ("direction",),
    "patch": ("source",),
    "mean": ("reference",),
    "skip": ("value",),
    "call": ("fn",),
}


def code_of(runs: Runs, names: Mapping[str, Any]) -> str:
    """Python that runs what the latest run ran, and prints its next tokens.

    Args:
        names: the user's variables, to be called by their names.
    """
    with runs.lock:
        inputs = runs.wanted.inputs
        entries = list(runs.wanted.entries)
        sites = list(runs.wanted.sites)
    return _Writer(runs, names).text(inputs, entries, sites)


class _Writer:
    def __init__(self, runs: Runs, names: Mapping[str, Any]) -> None:
        self._runs = runs
        self._names = names
        self._head: list[str] = ["import lensview as lv", ""]
        self._patched: dict[str, str] = {}
        self._model = self._named_model()
        self._options = self._tokenizer()

    def text(self, inputs: Any, entries: list[Entry], sites: list[str]) -> str:
        edits = self._edits(entries)
        prompt = self._inputs(inputs)
        asked = _literal(sites[0]) if len(sites) == 1 else _literal(sites)
        first = f"{self._model}, {prompt}, sites={asked}"
        lines = [f"baseline = lv.trace({first}{self._options})"]
        if edits:
            lines += ["interventions = [", *(f"    {e}," for e in edits), "]"]
            lines += [f"trace = lv.trace({first}, interventions=interventions{self._options})"]
        else:
            lines += ["trace = baseline"]
        if self._runs.latest.top_baseline:
            lines += ["print(trace.top(5))"]
        return "\n".join([*self._head, *lines]) + "\n"

    # -- what the lines call by name

    def _named_model(self) -> str:
        root = self._runs.session.root
        for name, value in self._own_names():
            if isinstance(value, nn.Module) and (value is root or _unwraps_to(value, root)):
                return name
        if not isinstance(root, nn.Module):
            self._head.append("# session: what lv.launch gave; its trace() runs over the ranks.")
        self._head.append(f"model = …  # the {_title(self._runs.session)} that was explored")
        return "model"

    def _tokenizer(self) -> str:
        tokenizer = self._runs.session.tokenizer
        if tokenizer is None:
            return ""
        found = next((n for n, v in self._own_names() if v is tokenizer), None)
        if found is None:
            self._head.append("tokenizer = …  # the one that reads its prompts")
        return f", tokenizer={found or 'tokenizer'}"

    def _own_names(self) -> list[tuple[str, Any]]:
        names = [(n, v) for n, v in list(self._names.items()) if isinstance(n, str)]
        return [(n, v) for n, v in names if not n.startswith("_")]

    def _name_of(self, value: Any) -> str | None:
        return next((n for n, v in self._own_names() if v is value), None)

    def _inputs(self, inputs: Any) -> str:
        if inputs is None:
            return '"…"'
        if isinstance(inputs, str) or _all_text(inputs):
            return _literal(inputs)
        name = self._name_of(inputs)
        if name is None:
            self._head.append(f"inputs = …  # the {type(inputs).__name__} that was run")
        return name or "inputs"

    # -- interventions

    def _edits(self, entries: list[Entry]) -> list[str]:
        return [self._edit(e) for e in entries if e.row.enabled and e.intervention is not None]

    def _edit(self, entry: Entry) -> str:
        edit = entry.intervention
        assert edit is not None
        values = [self._value(entry, edit, name) for name in _ARGUMENTS.get(edit.op, ())]
        index = _index(edit)
        arguments = [_literal(edit.site), *values, *([f"index={index}"] if index else [])]
        return f"lv.{edit.op}({', '.join(arguments)})"

    def _value(self, entry: Entry, edit: Intervention, name: str) -> str:
        value = edit.args[name]
        if value is None or isinstance(value, (int, float)):
            return _number(value)
        if isinstance(value, str):
            return _literal(value)
        text = entry.row.value.strip()
        if entry.origin is not None and text.isidentifier():
            return text
        if (run := RUN_TEXT.fullmatch(text)) and entry.base is None:
            return self._run(int(run[1]), bool(run[2]), edit.site)
        found = self._name_of(value) or self._name_of(getattr(value, "whole", value))
        if found is None:
            found = f"value_{len(self._head)}"
            self._head.append(f"{found} = …  # {_described(value)}, given in code")
        return found

    def _run(self, number: int, baseline: bool, site: str) -> str:
        """A name for the trace of an earlier run, which is run anew above."""
        name = f"run_{number}{'_baseline' if baseline else ''}"
        kept: KeptRun = self._runs.timeline.find(number)
        edits = [] if baseline else self._edits(list(kept.entries))
        more = f", interventions=[{', '.join(edits)}]" if edits else ""
        key = f"{name} {site}"
        if key in self._patched:
            return self._patched[key]
        if name in self._patched.values():
            name = f"{name}_{len(self._patched)}"
        self._patched[key] = name
        prompt = self._inputs(kept.inputs)
        call = f"lv.trace({self._model}, {prompt}, sites={_literal(site)}{more}{self._options})"
        self._head.append(f"{name} = {call}")
        return name


def _literal(value: Any) -> str:
    """A text, or a list of texts, as Python on one line."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(list(value))


def _all_text(inputs: Any) -> bool:
    return isinstance(inputs, (list, tuple)) and all(isinstance(i, str) for i in inputs)


def _number(value: float | int | None) -> str:
    text = repr(value)
    return f'float("{text}")' if re.fullmatch(r"-?(inf|nan)", text) else text


def _index(edit: Intervention) -> str:
    """The index as Python, "" for everything."""
    if edit.index is None:
        return ""
    if isinstance(edit.index, At):
        given = [(n, getattr(edit.index, n)) for n in ("batch", "token", "head", "feature")]
        return f"lv.at({', '.join(f'{n}={_item(i)}' for n, i in given if i is not None)})"
    items = edit.index if isinstance(edit.index, tuple) else (edit.index,)
    inside = ", ".join(_item(i) for i in items)
    return f"({inside},)" if len(items) == 1 else f"({inside})"


def _item(item: Any) -> str:
    if isinstance(item, slice):
        step = "" if item.step is None else f", {item.step}"
        return f"slice({item.start}, {item.stop}{step})"
    return index_text(item) if item is Ellipsis or not isinstance(item, tuple) else repr(list(item))


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"the tensor of shape {tuple(value.shape)}"
    return f"the {type(value).__name__}"


def _unwraps_to(model: nn.Module, root: object) -> bool:
    return getattr(model, "module", None) is root or (
        hasattr(model, "_orig_mod") and unwrap(model) is root
    )


def _title(session: Session) -> str:
    return session.title
