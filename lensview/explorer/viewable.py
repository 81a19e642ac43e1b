"""Viewable: which views besides the heatmap a site has, and why it has not the others.

Owns the search for the attention module that a site belongs to, and the reasons. Whether a pattern
or a lens is right is proved where it is made.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ..capture.lens import lens_sites
from ..capture.unembed import head_of
from ..errors import LensError, SiteError
from ..modules import index, only_holds
from ..session import Session
from ..sites import Site
from .bodies import ViewReason, ViewsReply
from .runs import Latest

VIEWS = ("distribution", "norms", "attention", "lens", "source")
ELSEWHERE = "The model lies in other processes, where {} is not made yet."


def views_of(session: Session, latest: Latest, site: str) -> ViewsReply:
    """Each view's reason not to apply to `site`; "" where it does."""
    reasons = {
        "distribution": _of_a_record(site),
        "norms": _of_a_record(site),
        "attention": _reason(attention_path, session, site),
        "lens": _reason(_lens, session, latest),
        "source": _reason(source_path, session, site),
    }
    return ViewsReply(site, [ViewReason(view, reasons[view]) for view in VIEWS])


def _of_a_record(site: str) -> str:
    return "" if site else "Select a site in the tree first."


def _reason(check: Callable[..., object], *given: object) -> str:
    try:
        check(*given)
    except LensError as error:
        return str(error)
    return ""


def attention_path(session: Session, site: str) -> str:
    """The attention module that a site belongs to: the nearest around it, or the only one inside.

    Raises:
        SiteError: there is none, or several.
    """
    if not site:
        raise SiteError("Select an attention module in the tree first.")
    path = Site.parse(site).path
    found = [p for p in _attentions(session) if path == p or path.startswith(f"{p}.")]
    if found:
        return max(found, key=len)
    prefix = f"{path}." if path else ""
    inside = [p for p in _attentions(session) if p.startswith(prefix)]
    if len(inside) == 1:
        return inside[0]
    if not inside:
        raise SiteError(
            f"{path or 'The model'} is no attention module and has none inside: select one, or a "
            "layer."
        )
    raise SiteError(
        f"{path or 'The model'} has {len(inside)} attention modules inside: select one of them, "
        f"{inside[0]} for example."
    )


def _attentions(session: Session) -> list[str]:
    """The paths of modules that are attentions by their class's name: the innermost of each."""
    root = session.root
    if isinstance(root, nn.Module):
        kinds = {path: type(module).__name__ for path, module in index(root).items()}
    else:
        kinds = {row.path: row.class_name for row in session.tree()}
    said = {path: kind.lower() for path, kind in kinds.items()}
    named = [p for p, kind in said.items() if "attention" in kind or kind.endswith("attn")]
    # In definition order what is inside of a module follows it.
    following = [*named[1:], ""]
    return [p for p, q in zip(named, following, strict=False) if not q.startswith(f"{p}.")]


def source_path(session: Session, site: str) -> str:
    """The module whose forward is shown for a site.

    Raises:
        SiteError: it has no forward of its own.
    """
    root = session.root
    if not isinstance(root, nn.Module):
        raise SiteError(ELSEWHERE.format("the source"))
    path = Site.parse(site).path if site else ""
    module = index(root).get(path)
    if module is None:
        raise SiteError(f"There is no module {path!r}.")
    if only_holds(module):
        raise SiteError(
            f"{path} is a {type(module).__name__}: it only holds other modules and has no forward."
        )
    return path


def _lens(session: Session, latest: Latest) -> None:
    root = session.root
    if not isinstance(root, nn.Module):
        raise SiteError(ELSEWHERE.format("the logit lens"))
    lens_sites(root)
    head_of(root)
    if latest.trace is not None and not latest.trace.predicts:
        raise SiteError(
            f"{type(root).__name__} gave no next-token logits in this run, so nothing turns a "
            "residual stream into tokens."
        )
