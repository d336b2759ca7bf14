"""RestartPolicy: the backoff between engine restarts, and when the server gives up."""

from __future__ import annotations


class RestartPolicy:
    """Restarts a dead engine at once, then with exponential backoff, and finally not at all.

    Two limits end it: the number of deaths within a time window, and the number of consecutive
    deaths without progress. The second limit measures time only while an engine runs. So deaths
    weeks apart are not consecutive, while starts that fail after minutes are.

    Args:
        most: tolerated deaths and failed starts within `window` seconds.
        window: seconds.
        fruitless: tolerated consecutive deaths and failed starts without progress, each within
            `window` seconds of engine uptime of the previous one.
    """

    def __init__(self, most: int = 30, window: float = 600.0, fruitless: int = 10) -> None:
        self._most = most
        self._window = window
        self._fruitless = fruitless
        self._times: list[float] = []
        self._fruitless_deaths: list[float] = []  # when, on the clock of engines' lives
        self._lived = 0.0
        self._since: float | None = None  # when the engine that lives was there

    def started(self, now: float) -> None:
        """Record that an engine is up; `now` is of the same clock as in `delay`."""
        self._since = now

    def progressed(self) -> None:
        """Record progress: a client received a token, a vector or a final output."""
        self._fruitless_deaths.clear()

    def explained(self, deaths: int) -> None:
        """Discount the latest deaths, whose cause was found and quarantined."""
        self._fruitless_deaths.clear()
        del self._times[max(0, len(self._times) - deaths) :]

    def delay(self, now: float) -> float | None:
        """Count a death or a failed start; returns the seconds to wait before the next start, or
        None for no more starts.

        Args:
            now: monotonic seconds.
        """
        if self._since is not None:
            self._lived += now - self._since
            self._since = None
        self._times = [t for t in self._times if t > now - self._window] + [now]
        begin = self._lived - self._window
        self._fruitless_deaths = [t for t in self._fruitless_deaths if t > begin] + [self._lived]
        count = len(self._fruitless_deaths)
        if len(self._times) > self._most or count > self._fruitless:
            return None
        return 0.0 if count <= 2 else float(min(30.0, 0.25 * 2 ** (count - 3)))

    @property
    def bound(self) -> str:
        """The limits in words."""
        return (
            f"{self._most} times within {self._window / 60:g} minutes, or {self._fruitless} times "
            "in a row without an answer or a part of one between"
        )
