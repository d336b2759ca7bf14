"""What happens to a request in the API process, noted by what answers it, for its explanation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.contract.quotas import QuotaView
from tidemill.telemetry.facts import StreamFacts

MAX_SEGMENTS = 64
"""Changes between thinking, text and tool calls that are kept of one choice."""


MAX_CALLS = 64
"""Calls that are kept of one run of a pipeline."""


class AdmissionView(NamedTuple):
    """What admission control knew when it decided.

    Attributes:
        decision: ``admitted``, or the bound that kept the request out: ``queue``, ``objective``,
            ``choices`` or ``answers``.
        prompt: tokens that its prompts were counted as.
        shared: tokens of them that it shares with requests in flight, which count once.
        expected: tokens that its answers were expected to have.
        waiting: tokens that waited already.
        bound: tokens that may wait.
        free: tokens of KV cache that running requests left free.
        ahead: tokens of others that fair scheduling computes first.
    """

    decision: str
    prompt: int
    shared: int
    expected: int
    waiting: int
    bound: int
    free: int
    ahead: int


class Segment(NamedTuple):
    """A part of an output of one kind: ``thinking``, ``text`` or ``tools``; it begins at `at`."""

    kind: str
    at: float


@dataclass(slots=True)
class Trace:
    """Times of `base.clock.monotonic`; 0: it did not happen.

    Attributes:
        answer_id: of the answer; engine request ids are derived from it.
        adapters: names of those that it is computed with.
        began: it was prepared.
        reserved: its quotas had room.
        admitted: by admission control.
        submitted: from then on its prompts were sent to the engine.
        admission, quota: what was decided.
        streams: one per prompt or input.
        outputs: by choice over all prompts, the kinds of its output.
        calls: of a pipeline: the model and the trace of each of its calls.
    """

    answer_id: str = ""
    adapters: tuple[str, ...] = ()
    began: float = 0.0
    reserved: float = 0.0
    admitted: float = 0.0
    submitted: float = 0.0
    admission: AdmissionView | None = None
    quota: tuple[QuotaView, ...] = ()
    streams: list[StreamFacts] = field(default_factory=list)
    outputs: dict[int, list[Segment]] = field(default_factory=dict)
    calls: list[tuple[str, Trace]] = field(default_factory=list)

    def follow(self, stream: object) -> None:
        """A stream was opened; one of another engine than ours tells nothing."""
        facts = getattr(stream, "facts", None)
        if facts is not None:
            self.streams.append(facts)

    def called(self, model: str, trace: Trace) -> None:
        """A pipeline called a model."""
        if len(self.calls) < MAX_CALLS:
            self.calls.append((model, trace))

    def output(self, choice: int, kind: str, now: float) -> None:
        """Output of a kind comes now."""
        segments = self.outputs.setdefault(choice, [])
        if len(segments) < MAX_SEGMENTS:
            segments.append(Segment(kind, now))
