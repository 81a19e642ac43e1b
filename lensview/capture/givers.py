"""Givers: the values of modules that a run skips.

Owns the check before the run that a value can stand in for what the module returns, and making it
from the module's own input. Where it is put in is `taps/skips.py`'s.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..errors import InterventionError
from ..interventions import Intervention
from ..portable import Foreign
from ..returns import tuple_returned
from ..sites import Site
from ..sources import Given, PatchSource
from ..values import main_in


def check_skip(skip: Intervention, site: Site, module: nn.Module) -> None:
    """Refuse a skip that cannot mean anything at `module`.

    Raises:
        InterventionError: it has an index, its value did not survive being saved, or it is a bare
            tensor where the module returns a tuple, which the caller would unpack.
    """
    value = skip.args["value"]
    why = ""
    if skip.index is not None:
        why = "a module is skipped as a whole, so a skip takes no index."
    elif isinstance(value, Foreign):
        why = f"the value {value} was not portable when it was saved. Make the skip again."
    elif _bare(value) and tuple_returned(module):
        why = (
            f"{type(module).__name__} returns a tuple, and the value is one tensor, which its "
            "caller would take apart. Give the whole tuple, for example "
            f"lv.skip({str(site)!r}, (tensor, None)); 'input' can stand in it as well."
        )
    if why:
        raise InterventionError(f"skip at {site}: {why}")


def _bare(value: Any) -> bool:
    return isinstance(value, PatchSource) or isinstance(value.value, (Tensor, str))


def given_value(
    skip: Intervention, site: Site, arguments: dict[str, Any], own: set[int] | None = None
) -> Any:
    """What the skipped module returns, made anew for each call so that nobody writes to a source.

    Args:
        arguments: of the call, by name.
        own: gets the ids of the tensors that were made from the module's own input.

    Raises:
        InterventionError: "input" where the module has no tensor as its input.
    """
    main = main_in(arguments, ())[1]

    def made(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return _following(leaf, main)
        if leaf is None:
            return None
        if main is None:
            raise InterventionError(f"skip at {site}: the module was called without a tensor.")
        copied = main.clone()
        if own is not None:
            own.add(id(copied))
        return copied

    value: Given | PatchSource = skip.args["value"]
    return made(value.at(site)) if isinstance(value, PatchSource) else value.built(made)


def _following(tensor: Tensor, main: Tensor | None) -> Tensor:
    if main is None:
        return tensor.clone()
    both = tensor.is_floating_point() and main.is_floating_point()
    return tensor.to(main.device, main.dtype if both else tensor.dtype, copy=True)


def elements(value: Any) -> int:
    """How many elements the main tensor of a given value has."""
    main = main_in(value, ())[1]
    return 0 if main is None else main.numel()
