"""The latest requests, in memory: a ring of stories, from which explanations are made on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemill.base.trace_context import TraceContext
from tidemill.telemetry.phases import Milestones, Phase, phases_of
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.trace import Trace
from tidemill.telemetry.ways import Way


@dataclass(frozen=True, slots=True)
class Story:
    """What is kept of one request.

    Attributes:
        record: its record; of one that runs, as far as it is known.
        milestones: when it came, and what happened to it.
        trace: of what answered it; None: nothing did.
        refusal: what an overloaded server told its client; empty: it was not that.
        context: of its trace; None: nobody traces it.
        ways: of a gateway: the targets that it was given to, in this order.
    """

    record: RequestRecord
    milestones: Milestones
    trace: Trace | None
    refusal: str = ""
    context: TraceContext | None = None
    ways: Sequence[Way] = ()

    def phases(self, now: float) -> list[Phase]:
        """Where its time went; of one that runs, up to `now`."""
        return phases_of(self.milestones, self.trace, now, self.ways)

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self.milestones.ended == 0.0


class Recent:
    """The stories of the latest requests.

    Args:
        size: how many that have ended are kept; 0: none, and `on_end` is told of each.

    Attributes:
        on_end: each is told of every one that has ended; it neither blocks nor raises.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.on_end: list[Callable[[Story], None]] = []
        self._ended: deque[Story] = deque()
        self._by_id: dict[str, list[Story]] = {}
        self._open: dict[int, Callable[[], Story | None]] = {}

    def begin(self, key: int, tell: Callable[[], Story | None]) -> None:
        """A request has come; `tell` makes its story as far as it is known, None where nobody asks
        for requests like it."""
        self._open[key] = tell

    def end(self, key: int, story: Story | None) -> None:
        """It has ended; None: it is not kept."""
        self._open.pop(key, None)
        if story is None:
            return
        self._ended.append(story)
        for told in self.on_end:
            told(story)
        for name in names_of(story):
            self._by_id.setdefault(name, []).append(story)
        if len(self._ended) > self.size:
            self._forget(self._ended.popleft())

    def _forget(self, story: Story) -> None:
        for name in names_of(story):
            kept = [other for other in self._by_id[name] if other is not story]
            if kept:
                self._by_id[name] = kept
            else:
                del self._by_id[name]

    def running(self) -> list[Story]:
        """Requests that have not ended, the latest first."""
        found = [tell() for tell in reversed(list(self._open.values()))]
        return [story for story in found if story is not None]

    def __iter__(self) -> Iterator[Story]:
        """Requests that have ended, the latest first."""
        return reversed(self._ended)

    def find(self, name: str) -> list[Story]:
        """Those with this id, of the request or of its answer, the latest first. Clients may give
        several requests the same id."""
        running = [story for story in self.running() if name in names_of(story)]
        return [*running, *reversed(self._by_id.get(name, ()))]


def names_of(story: Story) -> set[str]:
    """The ids by which it is found: its own, and its answer's where it has one."""
    names = {story.record.id}
    if story.trace is not None and story.trace.answer_id:
        names.add(story.trace.answer_id)
    return names
