"""Extras: packages that only some of lensview needs, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import MissingExtraError


def needed(module: str, extra: str) -> Any:
    """The module, which `extra` of the package installs.

    Raises:
        MissingExtraError: it is not installed; says how to.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"This needs {module}, which is not installed: pip install 'lensview[{extra}]'."
        ) from error
