"""Returns: whether a module's forward returns a tuple, read from its text.

Owns that one question, asked where nobody runs the forward (`lv.skip`): a bare tensor in the place
of a tuple would be unpacked along its batch without a word.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

from torch import nn


def tuple_returned(module: nn.Module) -> bool:
    """Whether the class's own forward returns a tuple, as far as its text tells.

    A tuple written in the return itself, or bound to the name that is returned, is one; another
    name or an object made there is none; another call could be either and does not count. Where no
    return is a tuple, an annotation of tuples alone decides.
    """
    function = inspect.unwrap(type(module).forward)
    try:
        parsed: ast.AST = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        parsed = ast.Pass()
    found = [part.value for part in _own(parsed) if isinstance(part, ast.Return) and part.value]
    names = {name for part in _own(parsed) for name in _bound_to_tuples(part)}
    sure = [_is_tuple(value, names) for value in found if not _unknown(value)]
    if any(sure):
        return all(sure)
    return _says_tuple(getattr(function, "__annotations__", {}).get("return", ""))


def _unknown(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).rpartition(".")[2]
    return not name[:1].isupper()  # what is made of a class is an output object


def _says_tuple(annotation: object) -> bool:
    text = str(annotation)
    while (outer := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = outer  # what stands in brackets is what the tuple holds
    kinds = {kind.strip().rpartition(".")[2].lower() for kind in text.split("|")}
    return bool(kinds & {"tuple", "<class 'tuple'>"}) and len(kinds - {"none"}) == 1


def _own(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes defined inside it."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from _own(child)


def _bound_to_tuples(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign) and _is_tuple(node.value, set()):
        yield from (t.id for t in node.targets if isinstance(t, ast.Name))


def _is_tuple(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_tuple(value.left, names) or _is_tuple(value.right, names)
    if isinstance(value, ast.IfExp):
        return _is_tuple(value.body, names) and _is_tuple(value.orelse, names)
    return isinstance(value, ast.Tuple) or (isinstance(value, ast.Name) and value.id in names)
