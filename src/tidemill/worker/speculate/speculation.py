"""Speculation in the worker: which drafters a sequence has, and when they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import NOT_REACHED, StepOutputs
from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.plan import Drafting, DraftsWanted, Row, StepPlan
from tidemill.contract.speculation import LOOKUP
from tidemill.worker.hidden import last_states, request_last, request_layers, spans
from tidemill.worker.inputs import PreparedStep
from tidemill.worker.sequences import SequenceSlots
from tidemill.worker.speculate.drafter import (
    FINAL,
    NOTHING,
    Drafted,
    Drafter,
    Int32,
    LayerReader,
    Proposal,
    Wanted,
)
from tidemill.worker.speculate.lookup import LookupDrafter

_log = get_logger(__name__)

_QUIET = ("", NOTHING._replace(quiet=True))

DRAFTERS: dict[str, Callable[[], Drafter]] = {LOOKUP: LookupDrafter}
"""Those that need nothing but the tokens."""


class Speculation:
    """The drafters of one worker, made when a sequence first has them.

    A drafter that fails ends its drafting for the sequences it was called for, and nothing else.

    Args:
        sequences: the worker's.
        made_by: makes the drafter of each name.
    """

    def __init__(
        self, sequences: SequenceSlots, made_by: Mapping[str, Callable[[], Drafter]] = DRAFTERS
    ) -> None:
        self._sequences = sequences
        self._made_by = made_by
        self._drafters: dict[str, Drafter] = {}
        self._of: dict[int, tuple[str, ...]] = {}
        self._read_hidden: set[str] = set()
        self._readers: dict[str, LayerReader] = {}

    def begin(self, plan: StepPlan) -> None:
        """Forget the sequences that have ended, and learn the plan's new ones."""
        for seq_id in plan.finished:
            self._forget(seq_id)
        starts = {row.seq_id: row.start for row in plan.rows} if plan.new else {}
        for new in plan.new:
            if new.drafters:
                self._forget(new.seq_id)
                self._of[new.seq_id] = new.drafters
                for name in new.drafters:
                    if name not in self._drafters:
                        self._make(name)
                    self._drafters[name].add(new, starts.get(new.seq_id, 0))

    def _make(self, name: str) -> None:
        self._drafters[name] = made = self._made_by[name]()
        if made.reads_hidden:
            self._read_hidden.add(name)
        if isinstance(made, LayerReader):
            self._readers[name] = made

    def request(self, step: PreparedStep) -> None:
        """Have a step return the hidden states that drafters will read."""
        if self._read_hidden:
            rows = enumerate(step.rows)
            asked = [i for i, row in rows if self._reads_hidden(row)]
            if asked:
                request_last(step.inputs, asked)
        if self._readers:
            self._request_layers(step)

    def _request_layers(self, step: PreparedStep) -> None:
        """Of rows whose sequences have a drafter that reads layers. A step that computes some of
        the layers returns none; readers go on without its tokens."""
        rows = [i for i, row in enumerate(step.rows) if self._reader_names(row.seq_id)]
        if rows and step.inputs.slice is None:
            layers = {layer for reader in self._readers.values() for layer in reader.layers}
            request_layers(step.inputs, rows, layers - {FINAL})

    def _reader_names(self, seq_id: int) -> list[str]:
        return [name for name in self._of.get(seq_id, ()) if name in self._readers]

    def _learn(self, step: PreparedStep, outputs: StepOutputs) -> None:
        """Give drafters the hidden states of the tokens that stay."""
        inputs = step.inputs
        if not self._readers or inputs.hidden_layers is None or outputs.layer_hidden is None:
            return
        layers = inputs.hidden_layers.tolist()
        found = dict(zip(layers, outputs.layer_hidden, strict=True))
        if outputs.hidden is not None:
            found[FINAL] = outputs.hidden
        reached = np.bincount(
            step.sampling[outputs.sampled != NOT_REACHED], minlength=len(step.rows)
        ).tolist()
        for i, (row, span) in enumerate(zip(step.rows, spans(inputs), strict=True)):
            for name in self._reader_names(row.seq_id):
                reader = self._readers[name]
                if not {*reader.layers} <= found.keys():
                    continue
                drafted = len(row.draft_token_ids)
                stop = span.stop - (drafted + 1 - reached[i] if drafted else 0)
                streams = np.stack([found[n][span.start : stop] for n in reader.layers])
                start = int(inputs.context_len[i])
                try:
                    reader.learn(row.seq_id, start, self._tokens(row.seq_id), streams)
                except Exception:
                    self._give_up(name, [row.seq_id])

    def _reads_hidden(self, row: Row) -> bool:
        return any(one.drafter in self._read_hidden for one in row.drafts_wanted)

    def _hidden(self, step: PreparedStep, outputs: StepOutputs) -> dict[int, NDArray[np.float32]]:
        """By sequence, the state that its last token was sampled from."""
        if not self._read_hidden or step.inputs.hidden is None:
            return {}
        good = step.sampling[outputs.sampled >= 0]
        counts = np.bincount(good, minlength=len(step.rows)).tolist()
        asked = {i: counts[i] for i, row in enumerate(step.rows) if self._reads_hidden(row)}
        states = last_states(step.inputs, outputs, asked)
        return {step.rows[i].seq_id: state for i, state in states.items()}

    def forget_new(self, plan: StepPlan) -> None:
        """Forget the sequences that a failed plan introduced; a later one introduces them again."""
        for new in plan.new:
            self._forget(new.seq_id)

    def read(self, plan: StepPlan) -> None:
        """Have drafters read, while the step computes, what is known of the sequences that may
        want drafts."""
        for row in plan.rows:
            for name in self._of.get(row.seq_id, ()):
                try:
                    self._drafters[name].read(row.seq_id, self._tokens(row.seq_id))
                except Exception:
                    self._give_up(name, [row.seq_id])

    def propose(self, step: PreparedStep, outputs: StepOutputs) -> Drafted:
        """After the step's tokens are known: the drafts of each sequence that wants some.

        Those whom a sequence asks are called in its order until one proposes something. A sequence
        is quiet if all of them are.
        """
        self._learn(step, outputs)
        plan, hidden = step.plan, self._hidden(step, outputs)
        found: dict[int, tuple[str, Proposal]] = {}
        drafting: list[Drafting] = []
        left = [(row.seq_id, row.drafts_wanted) for row in plan.rows if row.drafts_wanted]
        rows = {row.seq_id: row for row in plan.rows if row.drafts_wanted}
        while left:
            calls: dict[str, list[Wanted]] = {}
            for seq_id, (first, *_) in left:
                if first.drafter in self._of.get(seq_id, ()):
                    one = _wanted(rows[seq_id], first, self._tokens(seq_id))
                    if first.drafter in self._read_hidden:
                        one = one._replace(hidden=hidden.get(seq_id))
                    calls.setdefault(first.drafter, []).append(one)
            for name, wanted in calls.items():
                begun = monotonic()
                for one, proposal in zip(wanted, self._call(name, wanted), strict=True):
                    quiet = proposal.quiet and found.get(one.seq_id, _QUIET)[1].quiet
                    by = name if proposal.token_ids else ""
                    found[one.seq_id] = by, proposal._replace(quiet=quiet)
                longest = max(len(found[one.seq_id][1].token_ids) for one in wanted)
                drafting.append(Drafting(name, monotonic() - begun, len(wanted), longest))
            left = [
                (seq_id, asked[1:])
                for seq_id, asked in left
                if len(asked) > 1 and not found.get(seq_id, _QUIET)[1].token_ids
            ]
        return Drafted(found, tuple(drafting))

    def _call(self, name: str, wanted: list[Wanted]) -> list[Proposal]:
        try:
            proposals = self._drafters[name].propose(wanted)
            if len(proposals) == len(wanted):
                return proposals
            raise ValueError(f"{len(proposals)} proposals for {len(wanted)} sequences")
        except Exception:
            self._give_up(name, [one.seq_id for one in wanted])
            return [NOTHING._replace(quiet=True)] * len(wanted)

    def _tokens(self, seq_id: int) -> Int32:
        sequences = self._sequences
        slot = sequences.slot(seq_id)
        return sequences.tokens[slot, : sequences.length[slot]]

    def _give_up(self, name: str, seq_ids: Iterable[int]) -> None:
        ids = list(seq_ids)
        _log.exception("the drafter %s failed; %d sequences go on without it", name, len(ids))
        for seq_id in ids:
            self._of[seq_id] = tuple(n for n in self._of[seq_id] if n != name)
            self._drafters[name].forget(seq_id)

    def _forget(self, seq_id: int) -> None:
        for name in self._of.pop(seq_id, ()):
            self._drafters[name].forget(seq_id)


def _wanted(row: Row, asked: DraftsWanted, tokens: Int32) -> Wanted:
    end = row.start + row.count + len(row.draft_token_ids)
    return Wanted(row.seq_id, tokens, asked.most, asked.least, row.adapter_slot, end)
