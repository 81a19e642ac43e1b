"""What is read of transformers' own plans, without ranks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import transformers
from torch import nn

from lensview.errors import CaptureUnsupportedError
from lensview.parallel.styles import GATHERING, PLAIN, is_sharded, sharding, splits
from tests.ranks.tp_models import Case, make, planned

REFUSED = {"sequence_parallel", "ep_router", "megamoe_experts", "megamoe_router"}
"""The last three are gone from 5.23 on. A router gives each rank other scores under `ep_router`."""


def test_every_style_of_transformers_is_known_or_refused() -> None:
    from transformers.distributed import tensor_parallel

    registry: Any = vars(tensor_parallel)["ALL_PARALLEL_STYLES"]
    known = PLAIN | GATHERING | REFUSED
    assert {name for name in registry if name not in known} == set()


def test_no_plan_of_transformers_has_an_unknown_style() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plans = [CONFIG_MAPPING[kind].base_model_tp_plan or {} for kind in planned()]
    used = {style for plan in plans for style in plan.values()}
    assert used and used <= PLAIN | GATHERING


def test_a_plain_model_is_not_sharded() -> None:
    model = make(Case("llama"))
    assert not is_sharded(model) and not is_sharded(nn.Linear(2, 2))
    assert all(splits(module) == {} for module in model.modules())


def test_a_model_that_says_it_is_split_and_is_not_is_an_error_with_the_version() -> None:
    model = make(Case("llama"))
    model._tp_size = 2  # type: ignore[assignment]
    with pytest.raises(CaptureUnsupportedError, match=transformers.__version__):
        sharding(model)


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(Case("llama"))
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.18.1")
    with pytest.raises(CaptureUnsupportedError, match=r"5\.19 or newer; this is 5\.18\.1"):
        sharding(model)
