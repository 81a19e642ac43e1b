"""``%lens``: the explorer as an IPython magic.

Owns the reading of its line: which model, which tokenizer, which prompt. The widget is
`explorer/`'s.
"""

# IPython's decorators carry no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-call"

from __future__ import annotations

import ast
import difflib
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display
from torch import nn

from .errors import LensError
from .explorer import Explorer, explore
from .explorer.cells import cells

if TYPE_CHECKING:
    from .bridge.session import RankSession

DEMO = "demo"
DEMO_PROMPT = "The capital of France is"
RESULT = "_lens"
"""The name in the user's namespace under which the latest explorer is left."""
FLAGS = ("--prompt", "--sites", "--tokenizer", "--tp", "--attach")
TOKENIZER_NAMES = ("tokenizer", "tok")


@magics_class
class LensMagics(Magics):
    """Holds ``%lens`` and ``%%lens``."""

    _launched: tuple[tuple[str, int], RankSession] | None = None

    # The texts below are what `%lens?` shows.
    @magic_arguments("%lens")
    @argument("--prompt", default=None, help="run the model on this text at once")
    @argument(
        "--sites",
        action="append",
        default=None,
        help="what a run records: a site or glob, quoted, such as '**.mlp'; may be given several "
        "times. Default: every module's output.",
    )
    @argument(
        "--tokenizer",
        default=None,
        help="the variable that holds the tokenizer. Default: a variable named tokenizer or tok, "
        "else the model's own.",
    )
    @argument(
        "--tp",
        type=int,
        default=None,
        help="split the model over so many processes, started for it: the model is then a path or "
        "an id that transformers loads, or a 'module:function' of yours that returns it.",
    )
    @argument(
        "--attach",
        metavar="FILE",
        default=None,
        help="explore the model of a job that a scheduler started, by the connection file that it "
        "wrote: torchrun … -m lensview.bridge.worker --connection FILE --path MODEL.",
    )
    @argument(
        "model",
        nargs="?",
        default=None,
        help="a model or a session: a name or an expression, quoted if it has spaces. "
        "'demo' is a small real language model.",
    )
    @line_cell_magic
    def lens(self, line: str, cell: str | None = None) -> Explorer | None:
        """Explore the inside of a PyTorch model: module tree, heatmaps, interventions.

        %lens demo
            a small language model with a prompt, to look around
        %lens model --prompt "The capital of France is"
            your model
        explorer = %lens model
            the same, and the explorer by name: explorer.trace, explorer.selected,
            explorer.interventions. Without a name it is _lens.
        %%lens model
            the cell's text is the prompt
        %lens --tp 2 path/to/model
            a model over two processes. Running the cell again uses them again; another path or
            number ends them. _lens.session.stop() ends them too.

        %lens --attach FILE
            a model that a job holds, on one machine or several. Running the cell again stays
            attached; another file detaches, as _lens.session.stop() does. The job goes on.

        Running the cell again closes the explorer that it made before.
        """
        arguments = _arguments(type(self).lens, line)
        if cell is not None and arguments.prompt is not None:
            raise UsageError("The prompt is given twice: by --prompt and by the cell's text.")
        try:
            explorer = self._explorer(arguments, cell)
        except (LensError, TypeError) as error:
            raise UsageError(f"%lens: {error}") from error
        self._names[RESULT] = explorer
        display(explorer)
        return explorer if _is_assigned(sys._getframe()) else None

    @property
    def _names(self) -> dict[str, Any]:
        assert self.shell is not None  # IPython makes magics with their shell
        names: dict[str, Any] = self.shell.user_ns
        return names

    def _explorer(self, arguments: Any, cell: str | None) -> Explorer:
        names = self._names
        prompt = arguments.prompt if cell is None else cell.strip("\n")
        if arguments.tp is not None or arguments.attach is not None:
            return explore(self._ranks(arguments), None, prompt, arguments.sites)
        model, tokenizer = self._model(arguments, names)
        if model is None:
            from .demo_model import demo

            model, tokenizer = demo()
            prompt = DEMO_PROMPT if prompt is None else prompt
        elif isinstance(model, nn.Module):
            tokenizer = self._tokenizer(arguments.tokenizer, model, names, prompt is not None)
        return explore(model, tokenizer, prompt, arguments.sites)

    def _ranks(self, arguments: Any) -> RankSession:
        """The session over ranks that the line names: that of an earlier cell, or a new one."""
        if arguments.tokenizer is not None:
            raise UsageError("Over ranks the tokenizer is the one that lies beside the model.")
        text, tp = arguments.model, arguments.tp
        if arguments.attach is not None:
            if text is not None or tp is not None:
                raise UsageError("%lens --attach FILE takes no model: the job has one.")
            text, tp = arguments.attach, 0
        elif text is None:
            raise UsageError("%lens --tp N takes a path or an id: %lens --tp 2 path/to/model.")
        given = self._names.get(text)
        path = fspath(given if isinstance(given, (str, PathLike)) else text)
        if self._launched is not None:
            key, session = self._launched
            if key == (path, tp) and session.ready:
                return session
            session.stop()
            self._launched = None
        session = _over_ranks(path, tp)
        self._launched = ((path, tp), session)
        return session

    def _model(self, arguments: Any, names: Mapping[str, Any]) -> tuple[Any, Any]:
        """The model that the line names; None for the demo."""
        text = arguments.model
        if text is None:
            raise UsageError(
                f"%lens takes a model: %lens NAME, or %lens demo.{_models_here(names)} "
                "%lens? tells more."
            )
        if text == DEMO and not _explorable(names.get(DEMO)):
            return None, None
        value = self._value(text, names)
        if _explorable(value):
            return value, None
        raise UsageError(
            f"`{text}` is {_a(value)}, not a model (a torch nn.Module) or a session."
            f"{_hint(value)}{_models_here(names)}"
        )

    def _value(self, text: str, names: Mapping[str, Any]) -> Any:
        assert self.shell is not None
        try:
            return self.shell.ev(text)
        except NameError as error:
            missing = error.name or text
            raise UsageError(
                f"`{missing}` is not defined.{_near(missing, names)}{_models_here(names)}"
            ) from error
        except SyntaxError as error:
            raise UsageError(
                f"`{text}` is neither a name nor an expression ({error.msg})."
            ) from error
        except Exception as error:
            raise UsageError(f"`{text}` failed: {type(error).__name__}: {error}") from error

    def _tokenizer(
        self, name: str | None, model: nn.Module, names: Mapping[str, Any], needed: bool
    ) -> Any:
        if name is not None:
            value = self._value(name, names)
            if not _is_tokenizer(value):
                raise UsageError(
                    f"`{name}` is {_a(value)}, not a tokenizer (it must be callable and decode)."
                )
            return value
        for candidate in TOKENIZER_NAMES:
            if _is_tokenizer(names.get(candidate)):
                _say(f"using your variable `{candidate}` as the tokenizer (--tokenizer chooses).")
                return names[candidate]
        own = getattr(model, "tokenizer", None)
        if _is_tokenizer(own):
            _say("using the model's own tokenizer.")
            return own
        if not needed:
            _say(
                "no tokenizer found, so prompts cannot be typed. Give one with --tokenizer NAME, "
                f"or run tensors: {RESULT}.run(inputs)."
            )
        return None


def _over_ranks(path: str, tp: int) -> RankSession:
    """A session over `tp` new ranks, or (0) over those of the job that wrote the file `path`."""
    if tp:
        from .bridge.launch import launch

        return launch(path, tp=tp)
    from .bridge.attach import attach

    return attach(path)


def _say(text: str) -> None:
    print(f"lens: {text}")


# --- the line --------------------------------------------------------------------------------


_WORD = re.compile(
    r"""(?: "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | \[[^\]]*\] | \([^)]*\) | [^\s"'] )+""",
    re.VERBOSE,
)
"""A word of the line: quotes and brackets hold spaces together."""
_QUOTED = re.compile(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1""")


def _arguments(method: Any, line: str) -> Any:
    """The line's arguments. Quotes around a whole word go; those inside an expression stay."""
    words: list[str] = []
    for word in _words(line):
        if words and words[-1] in FLAGS:
            # Joined, so that argparse takes no text for a flag.
            words[-1] += f"={_unquoted(word)}"
        else:
            flag, equals, value = word.partition("=")
            joined = f"{flag}={_unquoted(value)}" if equals and flag in FLAGS else _unquoted(word)
            words.append(joined)
    return method.parser.parse_args(words)


def _words(line: str) -> Iterator[str]:
    rest = line.strip()
    while rest and not rest.startswith("#"):
        match = _WORD.match(rest)
        if match is None:
            raise UsageError(f"%lens: a quote is not closed in `{line.strip()}`.")
        yield match[0]
        after = rest[match.end() :]
        if after and not after[0].isspace():
            raise UsageError(f"%lens: a quote is not closed in `{line.strip()}`.")
        rest = after.lstrip()


def _unquoted(word: str) -> str:
    match = _QUOTED.fullmatch(word)
    return word if match is None else re.sub(r"\\([\\\"'])", r"\1", match[2])


def _a(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _hint(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, nn.Module):
        return " Make an instance of it first."
    if isinstance(value, str):
        return " Load the model first, and give its variable."
    if isinstance(value, Explorer):
        return " Display it by naming it in a cell."
    return ""


def _explorable(value: Any) -> bool:
    # Looked up on the type: this is asked of everything in the user's namespace, where a look at
    # an instance's attributes can cost or do anything.
    methods = ("trace", "tree", "difference_tile", "check")
    return isinstance(value, nn.Module) or all(hasattr(type(value), name) for name in methods)


def _is_tokenizer(value: Any) -> bool:
    kind = type(value)
    return (
        not isinstance(value, (type, nn.Module))
        and hasattr(kind, "__call__")  # noqa: B004 - of the type, not the value: as above
        and hasattr(kind, "decode")
    )


def _model_names(names: Mapping[str, Any]) -> list[str]:
    return [n for n, v in list(names.items()) if not n.startswith("_") and _explorable(v)]


def _models_here(names: Mapping[str, Any]) -> str:
    found = [f"`{n}`" for n in _model_names(names)][:6]
    return f" Models here: {', '.join(found)}." if found else ""


def _near(name: str, names: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, _model_names(names), n=3)
    return f" Did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else ""


# --- assigned or not -------------------------------------------------------------------------


def _is_assigned(frame: FrameType | None) -> bool:
    """Whether the user's statement takes the magic's value (``ex = %lens model``).

    A value that nobody takes is not given: IPython would display it a second time when it is the
    last of its cell, and keep it in ``Out``.
    """
    while frame is not None and frame.f_code.co_name not in ("run_line_magic", "run_cell_magic"):
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    if caller is None:
        return False
    source = "".join(linecache.getlines(caller.f_code.co_filename))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    line = caller.f_lineno
    statements = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and _spans(n, line)]
    innermost = max(statements, key=lambda n: n.lineno, default=None)
    return innermost is not None and not isinstance(innermost, ast.Expr)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


# --- completion, loading ---------------------------------------------------------------------


def _complete(shell: Any, event: Any) -> list[str]:
    return list(_completions(shell.user_ns, event.line, event.symbol))


def _completions(names: Mapping[str, Any], line: str, symbol: str) -> Iterator[str]:
    words = line.split()
    if words and words[-1] == symbol:
        words = words[:-1]
    if words and words[-1] == "--tokenizer":
        yield from (n for n, v in names.items() if not n.startswith("_") and _is_tokenizer(v))
    elif words and words[-1] in FLAGS:
        return
    elif symbol.startswith("-"):
        yield from FLAGS
    else:
        yield from (*_model_names(names), DEMO, *FLAGS)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext lensview``: register ``%lens`` and its completion."""
    cells()
    ipython.register_magics(LensMagics)
    for key in ("%lens", "%%lens"):
        ipython.set_hook("complete_command", _complete, str_key=key)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext lensview``: take ``%lens`` away. Explorers that are shown stay."""
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("lens", None)
    for key in ("%lens", "%%lens"):
        ipython.strdispatchers["complete_command"].strs.pop(key, None)
