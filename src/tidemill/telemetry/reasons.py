"""Explanations in words: why tokens were not cached, why a chunk ended, what was slow."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.contract.history import ChunkLimit, Miss, PreemptionCause
from tidemill.telemetry.phases import Phase, histories_of
from tidemill.telemetry.recent import Story
from tidemill.telemetry.ways import target_of

MISSES: dict[str, str] = {
    Miss.NONE: "all of it was cached but the end, which is always computed",
    Miss.OFF: "the server has no prefix cache",
    Miss.EVERY_POSITION: "the request needs a result of every position, so all were computed",
    Miss.SHORT: "the rest is shorter than a block",
    Miss.EVICTED: "it was cached, and evicted since to make room",
    Miss.IN_FLIGHT: "another request was computing the same tokens at that moment",
    Miss.PARTED: "the prompt goes on differently there than what is cached",
    Miss.LONGER: "the prompt is longer than what was computed before",
    Miss.OTHER_SALT: "the same beginning is cached for another tenant, which is not shared",
    Miss.OTHER_ADAPTER: "the same beginning is cached for another adapter",
    Miss.STATE: "no state of the model was kept at that position",
    Miss.NO_ROOM: "no block was free to copy the one that begins alike",
    Miss.NEW: "nothing that begins like it is cached",
}

CHUNKS: dict[str, str] = {
    ChunkLimit.PROMPT: "the rest of the prompt",
    ChunkLimit.TOKENS: "the step had no more tokens",
    ChunkLimit.TIME: "more would have made the step too long for the streams beside it",
    ChunkLimit.LEAST: "the step's time was used up; this is the least that is computed",
    ChunkLimit.LAYERS: "some layers at a time, because streams waited for the step",
}

PREEMPTIONS: dict[str, str] = {
    PreemptionCause.GROWTH: "an older request, or one of a tenant with less, needed its memory",
    PreemptionCause.TENANT: "a tenant below its share had no request running",
    PreemptionCause.FOREGROUND: "it runs in the background, and another request came",
    PreemptionCause.OUT_OF_MEMORY: "a step did not fit into the machine's memory",
}

NOTABLE = 0.2
"""Part of the time from which a phase is a reason."""


def reasons_of(story: Story, phases: Sequence[Phase], *, whole: bool = True) -> list[str]:
    """Sentences about what took long and why, the most important first.

    Args:
        story, phases: of the request.
        whole: its reader may know of others' requests.
    """
    total = sum(phase.seconds for phase in phases)
    found: list[str] = []
    if story.refusal:
        found.append(f"It was refused: {story.refusal}")
    notable = [phase for phase in phases if total and phase.seconds >= NOTABLE * total]
    notable.sort(key=lambda phase: -phase.seconds)
    found += [_phase(story, phase, whole=whole) for phase in notable]
    trace = story.trace
    for history in [] if trace is None else histories_of(trace.streams):
        for cause in dict.fromkeys(p.cause for p in history.preemptions):
            count = sum(p.cause == cause for p in history.preemptions)
            found.append(f"It was preempted{_times(count)}: {PREEMPTIONS[cause]}.")
    for way in story.ways:
        if way.why and whole:
            how = "was lost within its answer" if way.first else "did not answer"
            found.append(f"The target {way.target} {how}: {way.why}.")
    if trace is None and any(way.first for way in story.ways):
        found.append(
            f"What the target {target_of(story.ways)} did, it explains itself under the same id."
        )
    lives = [] if trace is None else [life for s in trace.streams for life in s.lives]
    for cause in dict.fromkeys(life.cause for life in lives if life.lost):
        word = "stalled" if cause == "stall" else "ended"
        found.append(f"Its engine process {word}, and it was replayed in the next one.")
    return list(dict.fromkeys(found))


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def _phase(story: Story, phase: Phase, *, whole: bool) -> str:
    shown = f"{phase.seconds:.3f} s"
    record, trace = story.record, story.trace
    if phase.name == "queue":
        view = None if trace is None else trace.admission
        ahead = f"; {view.ahead} tokens of others came first" if view and view.ahead else ""
        return f"It waited {shown} in the queue{ahead if whole else ''}."
    if phase.name == "prefill":
        computed = record.prompt - record.cached
        of = f"{computed} of {record.prompt} prompt tokens"
        return f"{of} were computed in {shown}{_miss(story, whole=whole)}."
    if phase.name == "decode":
        rate = record.generated / phase.seconds if phase.seconds else 0.0
        return f"{record.generated} tokens were generated in {shown} ({rate:.1f} tokens/s)."
    return {
        "read": f"Its body took {shown} to come.",
        "model": f"Its model was being loaded for {shown}.",
        "prepare": f"Its prompt took {shown} to be made.",
        "quota": f"Its limits took {shown} to be reserved.",
        "grammar": f"What its output must obey took {shown} to be compiled.",
        "adapter": f"Its adapters took {shown} to be read.",
        "preempted": f"It was preempted for {shown}.",
        "recovery": f"Its engine was replaced, which took {shown}.",
        "lost": f"{shown} of work were lost with an engine.",
        "route": f"It took {shown} to choose a target, or until one could be asked.",
        "failed": f"{shown} went by with targets that did not begin to answer.",
        "target": f"The target took {shown} until the first part of its answer.",
        "relay": f"The rest of the target's answer came within {shown}.",
        "deliver": f"Its answer took {shown} to be written.",
    }.get(phase.name, f"{phase.name} took {shown}.")


def _miss(story: Story, *, whole: bool) -> str:
    trace = story.trace
    prefixes = [
        h.prefix for h in ([] if trace is None else histories_of(trace.streams)) if h.prefix
    ]
    if len(prefixes) != 1 or prefixes[0].miss == Miss.NONE:
        return ""
    miss = prefixes[0].miss
    if not whole and miss in (Miss.OTHER_SALT, Miss.IN_FLIGHT):
        return ""
    return f"; from token {prefixes[0].position} on: {MISSES[miss]}"
