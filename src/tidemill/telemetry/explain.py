"""The explanation of one request: what is kept of it as a document, made when somebody asks.

It has no content: ids, names, counts and times. All times are seconds; `at` counts from the
request's arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidemill.contract.history import ChoiceHistory, Miss, Preemption
from tidemill.contract.prices import money_text
from tidemill.contract.quotas import QuotaView, Unit
from tidemill.telemetry.facts import ChoiceFacts, Life, SlowGap, StreamFacts
from tidemill.telemetry.phases import Phase
from tidemill.telemetry.reasons import CHUNKS, MISSES, PREEMPTIONS, reasons_of
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.trace import Trace
from tidemill.telemetry.ways import Way

DIGITS = 6
"""Of seconds: microseconds."""

MAX_NEIGHBOURS = 5
"""Prompts of others that are named for one slow gap."""


def summary(story: Story, now: float) -> dict[str, Any]:
    """One line of the list of requests."""
    record, phases = story.record, story.phases(now)
    longest = max(phases, key=lambda phase: phase.seconds, default=None)
    return {
        "id": record.id,
        "answer_id": (story.trace.answer_id if story.trace is not None else "") or None,
        "trace_id": None if story.context is None else story.context.trace_id,
        "at": record.at / 1000,
        "state": "running" if story.running else "ended",
        "route": record.route,
        "operation": record.operation,
        "model": record.model or None,
        "version": record.version or None,
        "key": record.key or None,
        "team": record.team or None,
        "client": record.client or None,
        "status": record.status or None,
        "code": record.code or None,
        "outcome": None if story.running else record.outcome,
        "finish": record.finish or None,
        "streamed": record.streamed,
        "total_seconds": total_of(phases),
        "first_token_seconds": _first_token(story, phases),
        "longest_phase": None if longest is None else longest.name,
        "prompt_tokens": record.prompt,
        "cached_tokens": record.cached,
        "generated_tokens": record.generated,
        "preemptions": sum(len(h.preemptions) for h in _histories(story.trace)),
        "recoveries": sum(bool(life.lost) for life in _lives(story.trace)),
    }


def explanation(
    story: Story, now: float, others: Iterable[Story], *, currency: str = "", whole: bool = True
) -> dict[str, Any]:
    """Everything that is known of a request.

    Args:
        story: of the request.
        now: of the same clock, for one that runs.
        others: further requests, of which those are named that shared its slowest steps.
        currency: of its price.
        whole: its reader may know of others' requests; else nothing in it depends on them.
    """
    record, trace = story.record, story.trace
    phases = story.phases(now)
    clock = _Clock(story, [*others] if whole else [], whole=whole)
    streams = [] if trace is None else trace.streams
    return {
        **summary(story, now),
        "method": record.method,
        "organisation": record.organisation or None,
        "user": record.user or None,
        "phases": [
            {"name": p.name, "seconds": round(p.seconds, DIGITS), "at": round(p.start, DIGITS)}
            for p in phases
        ],
        "targets": [_way(way, story, whole=whole) for way in story.ways],
        "reasons": reasons_of(story, phases, whole=whole),
        "choices": record.choices,
        "adapters": [] if trace is None else list(trace.adapters),
        "reasoning_tokens": record.reasoning,
        "admission": _admission(trace, whole=whole),
        "quota": [] if trace is None else [_quota(view) for view in trace.quota],
        "refusal": story.refusal or None,
        "prompts": [clock.prompt(i, stream) for i, stream in enumerate(streams)],
        "calls": [
            {"model": model, "prompts": [clock.prompt(i, s) for i, s in enumerate(call.streams)]}
            for model, call in ([] if trace is None else trace.calls)
        ],
        "output": [] if trace is None else clock.output(trace),
        "cost": None if record.cost is None else money_text(record.cost),
        "currency": currency if record.cost is not None else None,
        "computed_seconds": None if record.computed is None else record.computed / 1e6,
        **_energy(record),
    }


def _way(way: Way, story: Story, *, whole: bool) -> dict[str, Any]:
    arrival = story.milestones.arrival
    times = {"at": way.given, "first_at": way.first, "ended_at": way.ended}
    return {
        "target": way.target,
        **{n: round(at - arrival, DIGITS) if at else None for n, at in times.items()},
        "why": (way.why if whole else "") or None,
    }


def _energy(record: RequestRecord) -> dict[str, Any]:
    found = record.estimated if record.energy is None else record.energy
    source = "estimated" if record.energy is None else "measured"
    return {
        "energy_joules": None if found is None else found / 1e6,
        "energy_source": None if found is None else source,
        "carbon_grams": None if record.carbon is None else record.carbon / 1e6,
    }


def total_of(phases: Sequence[Phase]) -> float:
    """The sum of what the phases are shown to have."""
    return round(sum(round(phase.seconds, DIGITS) for phase in phases), DIGITS)


def _first_token(story: Story, phases: Sequence[Phase]) -> float | None:
    """Until the first token; None before it, and where nothing was generated."""
    if not story.record.generated:
        return None
    first = "prefill"
    if story.trace is None and story.ways:  # a whole answer of a target does not say when it began
        first = "target" if story.record.streamed else ""
    ends = [phase.end for phase in phases if phase.name == first]
    return round(ends[0], DIGITS) if ends else None


def _histories(trace: Trace | None) -> list[ChoiceHistory]:
    streams = [] if trace is None else trace.streams
    choices = (choice for stream in streams for choice in stream.choices.values())
    return [choice.history for choice in choices if choice.history is not None]


def _lives(trace: Trace | None) -> list[Life]:
    return [] if trace is None else [life for stream in trace.streams for life in stream.lives]


def _admission(trace: Trace | None, *, whole: bool) -> dict[str, Any] | None:
    if trace is None or trace.admission is None:
        return None
    view = trace.admission._asdict()
    if not whole:  # how busy others are
        view = {name: view[name] for name in ("decision", "prompt", "expected")}
    return view


def _quota(view: QuotaView) -> dict[str, Any]:
    found: dict[str, Any] = view._asdict()
    if view.unit == Unit.MONEY:
        found |= {n: money_text(found[n]) for n in ("amount", "reserved", "remaining")}
    return found


def _spans(story: Story, others: Sequence[Story]) -> list[tuple[float, float, str, int]]:
    """Chunks of other requests' prompts to the same model while this one was there: from when to
    when (0: not known), of which request, how many tokens."""
    times, model = story.milestones, story.record.model
    found: list[tuple[float, float, str, int]] = []
    for other in others:
        theirs = other.milestones
        if other is story or other.record.model != model or other.trace is None:
            continue
        if theirs.ended and theirs.ended < times.arrival:
            continue
        if times.ended and theirs.arrival > times.ended:
            continue
        for history in _histories(other.trace):
            ends = [*(chunk.at for chunk in history.chunks[1:]), 0.0]
            found += [
                (chunk.at, end, other.record.id, chunk.tokens)
                for chunk, end in zip(history.chunks, ends, strict=False)
            ]
    return found


class _Clock:
    """Parts of the document, in times since the request's arrival."""

    def __init__(self, story: Story, others: Sequence[Story], *, whole: bool) -> None:
        self._story = story
        self._spans = _spans(story, others)
        self._whole = whole

    def at(self, time: float) -> float:
        """Seconds since the arrival."""
        return round(time - self._story.milestones.arrival, DIGITS)

    def prompt(self, index: int, stream: StreamFacts) -> dict[str, Any]:
        """One prompt: what was cached, recoveries, and its choices."""
        prefix = next(
            (c.history.prefix for c in stream.choices.values() if c.history and c.history.prefix),
            None,
        )
        cache: dict[str, Any] | None = None
        if prefix is not None:
            miss = Miss(prefix.miss)
            if not self._whole and miss in (Miss.OTHER_SALT, Miss.IN_FLIGHT):
                miss = Miss.NEW  # what other tenants have is not theirs to know
            cache = {
                "cached": prefix.cached,
                "miss": miss.value,
                "position": prefix.position,
                "same_tokens": prefix.known,
                "why": MISSES[miss],
            }
        elif stream.cached is not None:
            cache = {"cached": stream.cached, "miss": None, "position": None, "why": None}
        return {
            "prompt": index,
            "cache": cache,
            "recoveries": [self._recovery(life) for life in stream.lives if life.lost],
            "choices": [self._choice(i, c) for i, c in sorted(stream.choices.items())],
        }

    def _recovery(self, life: Life) -> dict[str, Any]:
        return {"at": self.at(life.lost), "cause": life.cause}

    def _choice(self, index: int, choice: ChoiceFacts) -> dict[str, Any]:
        history = choice.history
        found: dict[str, Any] = {
            "choice": index,
            "finish": choice.finish or None,
            "tokens": choice.tokens,
            "first_token_at": self.at(choice.first) if choice.first else None,
            "decode": self._decode(choice),
            "speculation": None,
            "grammar": None,
            "chunks": [],
            "further_chunks": 0,
            "preemptions": [],
        }
        if choice.drafted:
            drafters = () if history is None else history.drafters
            found["speculation"] = {
                "drafted": choice.drafted,
                "accepted": choice.accepted,
                "drafters": [
                    {"name": d.name, "drafted": d.drafted, "accepted": d.accepted} for d in drafters
                ],
            }
        if history is None:
            return found
        if history.ready:
            received = choice.timings.received if choice.timings is not None else history.ready
            found["grammar"] = {
                "compile_seconds": round(max(0.0, history.ready - received), DIGITS),
                "compiled_before": history.grammar_known,
                "mask_seconds": round(history.mask_seconds, DIGITS),
            }
        found["chunks"] = [
            {
                "at": self.at(chunk.at),
                "step": chunk.step,
                "start": chunk.start,
                "tokens": chunk.tokens,
                "limit": chunk.limit,
                "streams": chunk.streams if self._whole else None,
                "step_seconds": round(chunk.step_seconds, DIGITS) or None,
                "layers": chunk.layers or None,
                "why": CHUNKS[chunk.limit],
            }
            for chunk in history.chunks
        ]
        found["further_chunks"] = history.further_chunks
        found["preemptions"] = [self._preemption(p, history) for p in history.preemptions]
        return found

    def _preemption(self, preemption: Preemption, history: ChoiceHistory) -> dict[str, Any]:
        again = next((c for c in history.chunks if c.at > preemption.at), None)
        return {
            "at": self.at(preemption.at),
            "seconds": None if again is None else round(again.at - preemption.at, DIGITS),
            "cause": preemption.cause,
            "computed": preemption.computed,
            "found_again": None if again is None else again.start,
            "brought": preemption.brought,
            "by": (preemption.by or None) if self._whole else None,
            "why": PREEMPTIONS[preemption.cause],
        }

    def _decode(self, choice: ChoiceFacts) -> dict[str, Any] | None:
        gaps = choice.gaps()
        if gaps is None:
            return None
        slowest = sorted(choice.slowest, reverse=True)
        return {
            "gaps": gaps.gaps,
            "p50": round(gaps.p50, DIGITS),
            "p90": round(gaps.p90, DIGITS),
            "p99": round(gaps.p99, DIGITS),
            "longest": round(gaps.longest, DIGITS),
            "slowest": [self._gap(gap, choice) for gap in slowest],
        }

    def _gap(self, gap: SlowGap, choice: ChoiceFacts) -> dict[str, Any]:
        begin = gap.end - gap.seconds
        found = {
            "at": self.at(begin),
            "seconds": round(gap.seconds, DIGITS),
            "token": gap.tokens,
            "steps": gap.steps,
            "step_seconds": round(gap.step_seconds, DIGITS),
            "cause": self._cause(gap, choice),
        }
        if self._whole:
            found["step_rows"], found["step_tokens"] = gap.step_rows, gap.step_tokens
            found["prompts"] = self._neighbours(begin, gap.end)
        return found

    def _cause(self, gap: SlowGap, choice: ChoiceFacts) -> str:
        begin = gap.end - gap.seconds
        if any(begin <= life.lost <= gap.end for life in _lives(self._story.trace)):
            return "recovery"
        history = choice.history
        if history is not None and any(begin <= p.at <= gap.end for p in history.preemptions):
            return "preempted"
        if self._whole and gap.step_tokens > gap.step_rows:
            return "prompts"  # of others were computed in the same step
        if gap.steps > 1:
            return "turns"  # it had no row in each of the steps
        return "step"  # it was as long as the step

    def _neighbours(self, begin: float, end: float) -> list[dict[str, Any]]:
        """Prompts of other requests to the same model that were computed in a gap."""
        shared: list[tuple[float, str, int]] = []
        for start, until, name, tokens in self._spans:
            overlap = min(until or start + (end - begin), end) - max(start, begin)
            if overlap > 0.1 * (end - begin):
                shared.append((overlap, name, tokens))
        shared.sort(reverse=True)
        return [{"id": name, "tokens": tokens} for _, name, tokens in shared[:MAX_NEIGHBOURS]]

    def output(self, trace: Trace) -> list[dict[str, Any]]:
        """The kinds of output, choice by choice."""
        return [
            {
                "choice": choice,
                "segments": [{"kind": s.kind, "at": self.at(s.at)} for s in segments],
            }
            for choice, segments in sorted(trace.outputs.items())
        ]
