"""When an engine that has ended is replaced, and when the server gives up."""

from __future__ import annotations


class RestartPolicy:
    """When a dead engine is replaced: at once, then later and later, and at some point not at all.

    Two bounds end it: deaths per time, and deaths in a row without progress between. The second one
    counts time on a clock that only runs while there is an engine, so that deaths weeks apart are
    not in a row, and starts that take minutes and fail still are.

    Args:
        most: deaths and failed starts within `window` seconds that are put up with.
        window: seconds.
        fruitless: deaths and failed starts in a row, without progress and less than `window`
            seconds of an engine's life apart, that are put up with.
    """

    def __init__(self, most: int = 30, window: float = 600.0, fruitless: int = 10) -> None:
        self._most = most
        self._window = window
        self._fruitless = fruitless
        self._times: list[float] = []
        self._in_vain: list[float] = []  # when, on the clock of engines' lives
        self._lived = 0.0
        self._since: float | None = None  # when the engine that lives was there

    def started(self, now: float) -> None:
        """An engine is there, at a time of the clock that `delay` is given."""
        self._since = now

    def progressed(self) -> None:
        """Somebody was brought a token, a vector or an end, or a culprit was found."""
        self._in_vain.clear()

    def explained(self, deaths: int) -> None:
        """The latest deaths had a culprit, who is gone: they count no more."""
        self._in_vain.clear()
        del self._times[max(0, len(self._times) - deaths) :]

    def delay(self, now: float) -> float | None:
        """Seconds to wait before the next start; None: no more starts.

        Args:
            now: of a clock that does not jump.
        """
        if self._since is not None:
            self._lived += now - self._since
            self._since = None
        self._times = [t for t in self._times if t > now - self._window] + [now]
        begin = self._lived - self._window
        self._in_vain = [t for t in self._in_vain if t > begin] + [self._lived]
        count = len(self._in_vain)
        if len(self._times) > self._most or count > self._fruitless:
            return None
        return 0.0 if count <= 2 else float(min(30.0, 0.25 * 2 ** (count - 3)))

    @property
    def bound(self) -> str:
        """The bound in words."""
        return (
            f"{self._most} times within {self._window / 60:g} minutes, or {self._fruitless} times "
            "in a row without an answer or a part of one between"
        )
