"""What is sent: sessions of one or more turns, with lengths, shared prefixes and due times.

Equal seeds give equal workloads.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from tidemill.bench.arrivals import arrivals, ramp
from tidemill.bench.dialects import Prompt
from tidemill.bench.lengths import length_pairs
from tidemill.bench.options import BenchOptions
from tidemill.bench.trace_files import TraceRequest, read_trace
from tidemill.bench.words import Segment, Vocabulary

_OWN_KEYS = 1 << 22  # above the groups of prefixes


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request adds to its conversation."""

    segments: tuple[Segment, ...]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation.

    Attributes:
        turns: at least one.
        due: when the first one is due, in seconds from the point's start; closed loops ignore it.
        model: the name that it is sent to; None: that of the run.
    """

    turns: tuple[Turn, ...]
    due: float = 0.0
    model: str | None = None


class _Names:
    """Draws the models that sessions are sent to."""

    def __init__(self, options: BenchOptions) -> None:
        self._names = options.models
        weights = (1 / place**options.model_skew for place in range(1, len(self._names) + 1))
        self._weights = list(accumulate(weights))
        self._rng = random.Random(f"models {options.seed}")

    def draw(self) -> str | None:
        """A name; None: the run's."""
        if not self._names:
            return None
        return self._rng.choices(self._names, cum_weights=self._weights)[0]


class Conversation:
    """The messages of a session so far."""

    def __init__(self, vocabulary: Vocabulary, token_ids: bool) -> None:
        self._vocabulary = vocabulary
        self._token_ids = token_ids
        self._messages: list[dict[str, str]] = []

    def prompt(self, turn: Turn) -> Prompt:
        """The request of the next turn."""
        text = self._vocabulary.text(turn.segments)
        if self._token_ids:
            return Prompt([], text, turn.output_tokens)
        self._messages.append({"role": "user", "content": text})
        return Prompt(list(self._messages), None, turn.output_tokens)

    def answered(self, text: str) -> None:
        """Add the answer to the last turn."""
        self._messages.append({"role": "assistant", "content": text.replace("\0", "")})


class Workload:
    """Sessions for the points of a run; no two share more than the options say.

    Raises:
        TidemillError: CONFIG where a file of the options cannot be read.
    """

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self._rng = random.Random(f"lengths {options.seed}")
        self._vocabulary = Vocabulary(options.seed, options.vocab, options.token_ids)
        self._pairs = length_pairs(
            options.input_tokens, options.output_tokens, options.lengths_file, self._rng
        )
        self._names = _Names(options)
        self._next_key = _OWN_KEYS
        self._points = 0
        self.clipped = 0  # requests whose lengths were cut to max_input or max_output

    @cached_property
    def trace(self) -> list[TraceRequest]:
        """The trace that is replayed."""
        assert self._options.trace is not None
        return read_trace(self._options.trace)

    @property
    def models(self) -> set[str]:
        """The names that sessions are sent to, beside the run's own."""
        named = set(self._options.models)
        if self._options.trace is not None:
            named.update(request.model for request in self.trace if request.model is not None)
        return named

    def conversation(self) -> Conversation:
        """An empty one."""
        return Conversation(self._vocabulary, self._options.token_ids)

    def closed(self, count: int | None) -> Iterator[Session]:
        """Sessions with `count` requests in all; None: endless."""
        left = count
        while left is None or left > 0:
            turns = self._options.turns if left is None else min(self._options.turns, left)
            yield Session(self._turns(turns), model=self._names.draw())
            left = left and left - turns

    def open(self, rate: float, count: int | None) -> Iterator[Session]:
        """Sessions due at a mean rate of requests per second; see `closed`."""
        options = self._options
        due = arrivals(options.arrivals, rate / options.turns, options.burstiness, self._arrivals())
        for session, when in zip(self.closed(count), due, strict=False):
            yield replace(session, due=when)

    def ramp(self) -> Iterator[Session]:
        """Sessions due at a rate that changes linearly."""
        options = self._options
        assert options.ramp is not None and options.duration is not None
        first, last = (rate / options.turns for rate in options.ramp)
        for due in ramp(first, last, options.duration, self._arrivals()):
            yield Session(self._turns(options.turns), due, self._names.draw())

    def replay(self, speed: float) -> Iterator[Session]:
        """The trace's requests, `requests` at most. Blocks with equal hashes are equal within a
        replay and new in the next one, so that no cache knows them."""
        blocks: dict[int, int] = {}
        for request in self.trace[: self._options.requests]:
            given, wanted = self._clip(request.input_tokens, request.output_tokens)
            prefix = [self._block(segment, blocks) for segment in request.prefix]
            segments = _cut(prefix, given)
            if (rest := given - sum(segment.length for segment in segments)) > 0:
                segments += (self._own(rest),)
            model = request.model or self._names.draw()
            yield Session((Turn(segments, given, wanted),), request.due / speed, model)

    def _arrivals(self) -> random.Random:
        self._points += 1
        return random.Random(f"arrivals {self._options.seed} {self._points}")

    def _own(self, length: int) -> Segment:
        self._next_key += 1
        return Segment(self._next_key, length)

    def _block(self, segment: Segment, blocks: dict[int, int]) -> Segment:
        if segment.key not in blocks:
            blocks[segment.key] = self._own(0).key
        return Segment(blocks[segment.key], segment.length)

    def _clip(self, given: int, wanted: int) -> tuple[int, int]:
        options = self._options
        cut = min(given, options.max_input or given), min(wanted, options.max_output or wanted)
        self.clipped += cut != (given, wanted)
        return cut

    def _turns(self, count: int) -> tuple[Turn, ...]:
        options = self._options
        turns, before = [], 0
        for number in range(count):
            given, wanted = self._clip(*next(self._pairs))
            segments = [self._own(given)]
            if number == 0 and options.shared_prefix:
                group = self._rng.randrange(options.prefix_groups)
                shared = min(given, options.shared_prefix)
                segments = [Segment(group + 1, shared), self._own(given - shared)]
            turns.append(Turn(tuple(segments), before + given, wanted))
            before += given + wanted
        return tuple(turns)


def _cut(segments: Iterable[Segment], length: int) -> tuple[Segment, ...]:
    """The first `length` tokens of a prompt."""
    kept: list[Segment] = []
    for segment in segments:
        taken = min(segment.length, length)
        if taken > 0:
            kept.append(Segment(segment.key, taken))
        length -= taken
    return tuple(kept)
