"""Pieces: an intervention on a value that lies over several ranks.

Owns the three ways to apply one: by each rank to its own piece, by each rank to the whole, and for
a caller's function by the first rank alone, to the whole, for all. What an operation does is
`operations.py`'s; how values move is `parallel/group.py`'s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InterventionError
from ..interventions import LOCAL, Intervention
from ..operations import apply, overflowed
from ..parallel.mesh import as_before, held
from ..parallel.placements import Local, Placement, Scaled, Whole
from ..regions import Frame
from ..sites import Site
from .spread import Spread, in_pieces, past

Counted = tuple[Tensor, Tensor, Tensor]
"""The new value, and how many elements changed and overflowed, as this rank counts them: the ranks'
counts add up to the whole's."""


def applied(
    spread: Spread,
    placement: Placement,
    intervention: Intervention,
    tensor: Tensor,
    site: Site,
    frame: Frame,
) -> Counted:
    """This rank's part of the changed value, a DTensor where it was one; see `_changed`."""
    own = held(tensor)
    new, changed, over = _changed(spread, placement, intervention, own, site, frame)
    return as_before(new, tensor), changed, over


def _changed(
    spread: Spread,
    placement: Placement,
    intervention: Intervention,
    tensor: Tensor,
    site: Site,
    frame: Frame,
) -> Counted:
    """This rank's part of the changed value.

    Every rank does the same here, in the same order. An error of a caller's function is kept in
    ``spread.failures`` and the value stays as it was, so that no rank waits for another.

    Raises:
        InterventionError: besides what `apply` raises, nobody knows what the rank's value is of the
            whole.
    """
    own = intervention.op == "call" and intervention.args["fn"].on_all
    if own:
        return _counted(intervention, tensor, site, frame, its_own(placement) or spread.first)
    if isinstance(placement, Local):
        raise InterventionError(
            f"{intervention.op} at {site}: the model is split over {spread.ranks.size} ranks, and "
            f"here each holds something of its own. {placement.reason} Edit the module's output, "
            "or a site around it."
        )
    if intervention.op == "call":
        return _by_first(spread, placement, intervention, tensor, site, frame)
    if alone(intervention, placement):
        return _counted(intervention, tensor, site, frame, its_own(placement) or spread.first)
    whole = spread.ranks.whole(tensor, placement, grads="same")
    new, changed, over = _counted(intervention, whole, site, frame, spread.first)
    return spread.ranks.own(new, placement, grads="same"), changed, over


def alone(intervention: Intervention, placement: Placement) -> bool:
    """Whether each rank can change what it has without the others': element by element, by numbers,
    at an index that does not count along the split dim."""
    if isinstance(placement, Whole):
        return True
    if isinstance(placement, Scaled) or intervention.op not in LOCAL:
        return False
    numbers = all(
        value is None
        or isinstance(value, (int, float))
        or (isinstance(value, Tensor) and value.dim() == 0)
        for value in intervention.args.values()
    )
    return numbers and past(intervention.index, getattr(placement, "dim", 0))


def its_own(placement: Placement) -> bool:
    """Whether what a rank holds is no other's, so that the ranks' counts add up."""
    return in_pieces(placement) or isinstance(placement, Local)


def _counted(
    intervention: Intervention, tensor: Tensor, site: Site, frame: Frame, counts: bool
) -> Counted:
    new, changed = apply(intervention, tensor, site, frame)
    over = overflowed(tensor, new)
    return (new, changed, over) if counts else (new, changed * 0, over * 0)


def _by_first(
    spread: Spread,
    placement: Placement,
    intervention: Intervention,
    tensor: Tensor,
    site: Site,
    frame: Frame,
) -> Counted:
    counts: list[Tensor] = []

    def edit(whole: Tensor) -> Tensor:
        new, changed, over = _counted(intervention, whole, site, frame, True)
        counts.extend((changed, over))
        return new

    new, error = spread.ranks.on_first(tensor, placement, edit)
    none = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if error is not None and spread.first:
        spread.failures.append(error)
    changed, over = counts if counts and error is None else (none, none)
    return new, changed, over
