"""After every test here no function mode is left on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .toys import modes


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    assert modes() == []
    yield
    assert modes() == []
