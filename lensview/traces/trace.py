"""Trace: what one run saw.

Owns the mapping from sites to recorded tensors and what belongs to them: tokens, logits, output,
reports of interventions, and why a site is missing. It does not run, compare or store anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import NotRecordedError, SiteError, near
from ..interventions import Intervention
from ..sites import Site, glob_pattern, without_wrappers
from ..tensors.stats import Stats, stats
from .checks import FINITE, Check, finite, line
from .compare import Diff
from .late import dtype_of, shape_of, size_of
from .parts import Parts, Record
from .plain import Plain, said
from .storage import write
from .tokens import Rows, Token, likeliest

if TYPE_CHECKING:
    import numpy as np


class Trace(Mapping[str, Tensor]):
    """What one run saw: a mapping from site to tensor, in the order in which values passed.

    ``trace["model.layers.0.mlp"]`` is the tensor recorded there, in the activation's own dtype
    and device; any spelling that means the site works.

    Attributes:
        sites: canonical texts of the records held.
        missed: sites that were asked for and not recorded, each with the reason.
        plain: sites asked for by name where something else than a tensor passed, each with what
            `value` gives.
        statistics: sites of which statistics were kept and nothing else (``keep="statistics"``).
        aliases: for each record of a module that has several names, the same site's other names.
        tokens: ids, mask and labels of the batch, or None where the inputs were no token ids.
        logits: (B, V), the model's logits at the last real token of each row, in the model's
            dtype; None where the model has none.
        output: the model's whole output with ``keep_output=True`` or ``grad=True``, else None.
        reports: one `InterventionReport` per intervention, in order.
        plan: what was asked for.
        meta: JSON: model class, config, dtype, device, seed, versions, time.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.plan = parts.plan
        self.sites: tuple[str, ...] = tuple(parts.records)
        self.missed: dict[str, str] = dict(parts.missed)
        self.plain: dict[str, Plain] = dict(parts.plain)
        self.statistics: dict[str, Stats] = dict(parts.statistics)
        self.aliases: dict[str, tuple[str, ...]] = dict(parts.aliases)
        self.tokens = parts.tokens
        self.logits = parts.logits
        self.output = parts.output
        self.reports = parts.reports
        self._finite: Check | None = None
        self.meta: dict[str, Any] = dict(parts.meta)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """The interventions of the run, in the order applied."""
        return self.plan.interventions

    @property
    def checks(self) -> tuple[Check, ...]:
        """Whether the run can be believed: a `Check` for each thing that was looked at, green or
        amber, with its reason.

        "output" (equal to a plain call's; compared with ``check=True``), "modules" (compiled,
        fused, bypassed, hooked by others), "padding" (and positions), "mode", "random", "ranks",
        and "finite", for which the records are read when this is first asked for.
        """
        known = self._parts.checks
        if any(check.name == FINITE for check in known):
            return known
        if self._finite is None:
            self._finite = finite(self, self.statistics)
        return (*known, self._finite)

    # --- a mapping ---------------------------------------------------------------------------

    def __getitem__(self, text: str) -> Tensor:
        return self.record(text).tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __contains__(self, text: object) -> bool:
        try:
            return isinstance(text, str) and self.record(text) is not None
        except (SiteError, NotRecordedError):
            return False

    def __repr__(self) -> str:
        size = sum(map(size_of, self._parts.records.values()))
        rows = [
            f"Trace of {self.meta.get('model', 'a model')}: {len(self.sites)} sites, "
            f"{size / 2**20:.1f} MiB, {len(self.interventions)} interventions"
        ]
        if self.statistics:
            rows.append(f"  statistics only of {len(self.statistics)}: see trace.statistics")
        if self.missed:
            rows.append(f"  missed {len(self.missed)}: see trace.missed")
        if self._parts.checks:
            rows.append(f"  checks {line(self._parts.checks)}: see trace.checks")
        return "\n".join(rows)

    def record(self, text: str) -> Record:
        """The record at a site.

        Raises:
            SiteError: the text is no site, or names a module of several calls without ``@call``.
            NotRecordedError: the trace does not hold it; says why and what is close.
        """
        site = Site.parse(text)
        records = self._parts.records
        found = records.get(str(site)) or self._same_site(site)
        if found is None and (plain := without_wrappers(site.path)) != site.path:
            return self.record(str(site.at_path(plain)))
        if found is not None:
            return found
        calls = self._parts.calls.get(str(site.at_call(None)), 0)
        if site.call is None and calls > 1:
            raise SiteError(
                f"{site} was called {calls} times in this run: write {site}@0 … {site}@{calls - 1}."
            )
        raise NotRecordedError(self._why_not(site, calls))

    def value(self, text: str) -> Plain:
        """What passed at a site that was asked for by name and is no tensor, as it was then.

        None, a bool, a number or a string is itself; a cache is a `CacheSummary` of its lengths at
        the call; of any other object an `ObjectSummary` keeps the class's name.

        Raises:
            SiteError: as `record`.
            NotRecordedError: the trace holds a tensor there, or nothing.
        """
        site = Site.parse(text)
        for at in (site, site.at_path(without_wrappers(site.path))):
            if (found := self._plain_text(at)) is not None:
                return self.plain[found]
        self.record(text)
        raise NotRecordedError(f"{site} is a tensor: read it by trace[{text!r}].")

    def _plain_text(self, site: Site) -> str | None:
        """The text under which `plain` has a site, in any of its spellings."""
        once = site.call == 0 and self._parts.calls.get(str(site.at_call(None))) == 1
        text = str(site.at_call(None) if once else site)
        return text if text in self.plain else None

    def _same_site(self, site: Site) -> Record | None:
        """The record under another spelling: call 0 of one, the main leaf by its own path."""
        records = self._parts.records
        if site.call == 0 and self._parts.calls.get(str(site.at_call(None))) == 1:
            return records.get(str(site.at_call(None)))
        if site.leaf:
            whole = records.get(str(replace(site, leaf=())))
            if whole is not None and whole.leaf == site.leaf:
                return whole
        return None

    def _why_not(self, site: Site, calls: int) -> str:
        if site.is_glob:
            return f"{site} is a glob; trace.select({str(site)!r}) gives the records it matches."
        if (held := self._plain_text(site)) is not None:
            return (
                f"{site} is no tensor, but {said(self.plain[held])}: trace.value({str(site)!r}) "
                "gives what was kept of it."
            )
        for known, others in self.aliases.items():
            if str(site) in others:
                return f"{site} is another name of {known!r}, under which its record stands."
        if str(site) in self.statistics:
            return (
                f"{site} was kept as statistics only: trace.stats({str(site)!r}) gives them. Run "
                "again without keep='statistics' for its values."
            )
        reason = self.missed.get(str(site)) or self.missed.get(str(site.at_call(None)))
        if reason:
            return f"{site} was not recorded: {reason}"
        if calls and site.call is not None:
            return f"{site}: the module was called {calls} times in this run, counted from 0."
        return (
            f"{site} was not asked for in this run, which holds {len(self.sites)} sites."
            f"{near(str(site), self.sites)} Run again with sites=[{str(site)!r}, …]."
        )

    def _text_of(self, text: str) -> str:
        found = self.record(text)
        return next(s for s, r in self._parts.records.items() if r is found)

    def chosen(self, sites: str | Iterable[str] | None) -> list[str]:
        """The canonical texts of the records that sites or globs mean; all of them for None.

        Raises:
            SiteError, NotRecordedError: a text that is no site, or matches no record.
        """
        if sites is None:
            return list(self.sites)
        found: dict[str, None] = {}
        for text in (sites,) if isinstance(sites, str) else sites:
            found.update(dict.fromkeys([*self.select(text)] or [self._text_of(text)]))
        return list(found)

    def select(self, glob: str) -> dict[str, Tensor]:
        """The records that a site or glob matches, by canonical text; empty where none does."""
        wanted = Site.parse(glob)
        pattern = glob_pattern(wanted.path)
        return {
            text: r.tensor
            for text, r in self._parts.records.items()
            if pattern.fullmatch(r.site.path)
            and wanted.takes_op(r.site.op, r.site.op_index)
            and (r.site.side, r.site.leaf) == (wanted.side, wanted.leaf)
            and wanted.call in (None, r.site.call)
        }

    def grad(self, text: str) -> Tensor:
        """The gradient at a site, after the caller's ``backward`` on a loss of `output`.

        Of the loss with respect to the tensor that passed, through all of its uses, in its shape
        (cut as the record is by ``keep=``) and dtype. As ``.grad`` does, it adds up over backwards.

        Raises:
            SiteError, NotRecordedError: there is no record at `text`, the run was without
                ``grad=True``, or no gradient came by; says which.
        """
        record = self.record(text)
        if record.gradient is None:
            raise NotRecordedError(
                f"{record.site} has no gradient: this trace was recorded without grad=True, or "
                "was read from a file, which holds none."
            )
        if record.gradient.why_not:
            raise NotRecordedError(f"{record.site} has no gradient: {record.gradient.why_not}")
        if record.gradient.value is None:
            raise NotRecordedError(
                f"{record.site} has no gradient yet: call backward() on a loss made from "
                "trace.output. If you did, that loss does not depend on this value."
            )
        return record.gradient.value

    def stats(self, text: str) -> Stats:
        """Statistics of the value at a site: those that were kept, or of its record.

        Raises:
            SiteError, NotRecordedError: there is neither at `text`.
            TypeError: a kind of tensor that cannot be read.
        """
        found = self.statistics.get(str(Site.parse(text)))
        return stats(self[text]) if found is None else found

    def placement(self, text: str) -> str:
        """How the record's value lay over the ranks, in words; "" for a model in one process.

        The record is the whole all the same, unless this says "rank-local", and why.

        Raises:
            SiteError, NotRecordedError: there is no record at `text`.
        """
        return self.record(text).placement

    def placement_note(self, text: str) -> str:
        """`placement` where a reader of the numbers should see it: not for what every rank had."""
        said = self.placement(text)
        return "" if said.startswith("whole over") and "do not" not in said else said

    def shape(self, text: str) -> tuple[int, ...]:
        """The shape of a record; of a ragged one, its longest sizes. Where the record is in another
        process, it stays there.

        Raises:
            SiteError, NotRecordedError: there is no record at `text`.
        """
        return shape_of(self.record(text))

    def dtype(self, text: str) -> torch.dtype:
        """The dtype of a record; otherwise as `shape`."""
        return dtype_of(self.record(text))

    def calls(self, text: str) -> int | None:
        """How often the module at a site was called in this run, recorded or not; None where the
        run did not watch it."""
        return self._parts.calls.get(str(Site.parse(text).at_call(None)))

    # --- tokens and predictions --------------------------------------------------------------

    def aligned(self, text: str) -> bool:
        """Whether the record's dims 0 and 1 are the batch and the tokens of this run, by their
        sizes; not where dim 2 could be the tokens too (attention by heads)."""
        return self.rows(text) == "tokens"

    def rows(self, text: str) -> Rows:
        """What the record's rows are to the tokens of this run: "tokens" where it is `aligned`,
        "flattened tokens" (batch times tokens, in order, padding included), "no token order"
        (inside a mixture of experts, which sorts them), or "" for anything else."""
        record = self.record(text)
        if self.tokens is None or not record.aligned:
            return ""
        return self.tokens.rows(record.site, self.shape(text))

    def top(self, k: int = 5, row: int = 0) -> list[Token]:
        """The `k` most probable next tokens of batch row `row`, after its last real token.

        Probabilities are a softmax of `logits` in float32.

        Raises:
            ValueError: the model predicts no next token, `row` is out of range, or `k` is less
                than 1.
        """
        logits = self._predictions(row)
        if k < 1:
            raise ValueError(f"top takes k of 1 or more, not {k}.")
        return likeliest(logits, k, self.spelling)

    def probability(self, token: int, row: int = 0) -> float:
        """The probability of a token id as the next token of batch row `row`; see `top`."""
        logits = self._predictions(row)
        if not 0 <= token < len(logits):
            raise ValueError(f"Token id {token} is out of range: there are {len(logits)}.")
        return float(torch.softmax(logits.float(), -1)[token])

    @property
    def predicts(self) -> bool:
        """Whether `logits` are those of a next token: the model is one that generates text."""
        return self.logits is not None and bool(self.meta.get("generates", True))

    def _predictions(self, row: int) -> Tensor:
        if self.logits is None or not self.predicts:
            model = self.meta.get("model", "the model")
            raise ValueError(
                f"This run has no next tokens: {model} does not generate text."
                if self.logits is not None
                else f"This run has no next tokens: the output of {model} has no logits (B, T, V) "
                "over token inputs."
            )
        if not -len(self.logits) <= row < len(self.logits):
            raise ValueError(f"Row {row} is out of range: the batch has {len(self.logits)} rows.")
        return self.logits[row]

    def spelling(self, token: int) -> str:
        """The text of a token id as its tokenizer decodes it; ``#id`` where nobody knows it."""
        return f"#{token}" if self._parts.spell is None else self._parts.spell(token)

    # --- elsewhere ---------------------------------------------------------------------------

    def asked(self, text: str) -> tuple[str, ...]:
        """The canonical sites that one of the plan's texts was found to mean."""
        return self._parts.asked.get(text, ())

    def diff(self, other: Trace) -> Diff:
        """What changed between this trace and `other`, site by site (see `Diff`).

        Raises:
            TypeError: `other` is not a trace.
        """
        if not isinstance(other, Trace):
            raise TypeError(f"diff compares with another Trace, not with a {type(other).__name__}.")
        return Diff.of(self._parts, other._parts)

    def to_numpy(self, text: str) -> np.ndarray:
        """The record at a site as a numpy array of its own.

        numpy has no bfloat16 and no float8: these become float32, which holds each of their values
        exactly. Other dtypes stay. ``trace[site].view(torch.uint16).numpy()`` has bfloat16's bits.

        Raises:
            SiteError, NotRecordedError: there is no record at `text`.
            TypeError: it is nested, or of a dtype that cannot be read.
        """
        from .convert import as_numpy

        return as_numpy(self[text], text)[0]

    def to_xarray(self, sites: str | Iterable[str] | None = None) -> Any:
        """The records as an ``xarray.Dataset``: one variable per site, by its text.

        Dims are named (batch, token, head, feature; see `dims.dims_of`), with token ids, labels
        and which are real as coordinates of (batch, token). One name has one size: features of
        another size than the first are "feature_1536". Each variable's attributes have its dtype
        and, where it is so, "bfloat16 widened to float32, exactly", its placement and its part.

        Args:
            sites: which, by site or glob; None takes all.

        Raises:
            MissingExtraError: xarray is not installed.
            SiteError, NotRecordedError: `sites` match no record.
            TypeError: a record is nested.
        """
        from .convert import to_xarray

        return to_xarray(self, sites)

    def to_pandas(self, sites: str | Iterable[str] | None = None) -> Any:
        """Statistics of the records (see `tensors.stats.Stats`), a row per site.

        Raises:
            MissingExtraError: pandas is not installed.
            SiteError, NotRecordedError: `sites` match no record.
        """
        from .convert import to_pandas

        return to_pandas(self, sites)

    def to_arrow(self, sites: str | Iterable[str] | None = None) -> Any:
        """The table of `to_pandas` as a ``pyarrow.Table``; errors alike."""
        from .convert import to_arrow

        return to_arrow(self, sites)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace as one safetensors file, complete or not at all (see `storage`).

        Over several ranks the first one writes; on the others, which may run the same line, nothing
        happens.
        """
        if self.meta.get("records") != "elsewhere":
            write(replace(self._parts, checks=self.checks, meta=self.meta), path)
