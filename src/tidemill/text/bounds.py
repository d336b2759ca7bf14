"""Limits of template rendering: time, sizes of values, and checks before large allocations."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2.utils import Namespace

from tidemill.base.clock import monotonic, thread_cpu

# CPU time. Gemma 4's template takes time quadratic in the number of messages: 3 s for 720.
MAX_RENDER_SECONDS = 4.0
MAX_PROBE_SECONDS = 10.0
MAX_VALUE_CHARS = 2**24
MAX_TOTAL_CHARS = 2**27
MAX_SCAN = 2**30
MAX_WEIGHT = 2**20
MAX_INT_BITS = 1024
MAX_WIDTH = 4096


class BudgetExceeded(Exception):
    """A template exceeded its limits in time or size."""


class TimeExceeded(BudgetExceeded):
    """A template took too long."""


class Budget:
    """Limits of one rendering: CPU seconds, and the size of the values it builds.

    Only this thread's CPU time counts. A template that renders on an idle machine therefore also
    renders on a busy one.
    """

    def __init__(self, seconds: float = MAX_RENDER_SECONDS) -> None:
        self._seconds = seconds
        self._began = thread_cpu()
        self._look_at = monotonic() + seconds  # the budget cannot be exhausted earlier
        self._chars = 0
        # id -> (value, weight); holding the value prevents reuse of its id
        self._weights: dict[int, tuple[Any, int]] = {}

    def tick(self) -> None:
        """Raise BudgetExceeded once the time is used up."""
        if monotonic() > self._look_at:
            left = self._began + self._seconds - thread_cpu()
            if left <= 0:
                raise TimeExceeded(f"it took longer than {self._seconds:g} s")
            self._look_at = monotonic() + left

    def allocate(self, chars: int) -> None:
        """Account for a text or list before it is allocated."""
        self._chars += chars
        if chars > MAX_VALUE_CHARS:
            raise BudgetExceeded(f"a text or list grew beyond {MAX_VALUE_CHARS} characters")
        if self._chars > MAX_TOTAL_CHARS:
            raise BudgetExceeded(f"its texts together grew beyond {MAX_TOTAL_CHARS} characters")

    def weigh(self, value: Any) -> int:
        """Number of nodes of a value as a tree; shared parts count once per occurrence."""
        if isinstance(value, Namespace):
            value = value._Namespace__attrs
            return self._measure(value)  # mutable: its weight is not cached
        if not isinstance(value, list | tuple | Mapping):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        weight = self._measure(value)
        self._weights[id(value)] = (value, weight)
        return weight

    def _measure(self, value: Any) -> int:
        self.tick()
        children: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        weight = 1
        for child in children:
            weight += self.weigh(child)
            if weight > MAX_WEIGHT:
                raise BudgetExceeded(f"a value has more than {MAX_WEIGHT} parts")
        return weight


_active = threading.local()


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Charge this thread's template work inside the block to `budget`."""
    _active.budget = budget
    try:
        yield
    finally:
        _active.budget = None


def current_budget() -> Budget:
    """The budget of the thread's running template."""
    budget: Budget = _active.budget
    return budget


def allocate(size: int) -> None:
    """Account for a text or list of `size` characters or items before it is allocated."""
    current_budget().allocate(size)


def to_text(value: Any) -> str:
    """`str(value)`, after a check of its size."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | Mapping | Namespace):
        current_budget().weigh(value)
        allocate(text_size(value))
    return str(value)


def text_size(value: Any) -> int:
    """Upper bound of a weighed value's text, in characters (strings and punctuation)."""
    if isinstance(value, str):
        return len(value) + 4
    # A namespace in a list may have grown since the list was weighed, so the walk is bounded too.
    current_budget().tick()
    if isinstance(value, Namespace):
        return text_size(value._Namespace__attrs) + 16
    if isinstance(value, Mapping):
        return sum(text_size(k) + text_size(v) + 4 for k, v in value.items()) + 4
    if isinstance(value, list | tuple):
        return sum(text_size(v) + 2 for v in value) + 4
    return 32


def concat(parts: Iterable[Any]) -> str:
    """Join the output pieces of a block or template."""
    pieces: list[str] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_VALUE_CHARS:
            allocate(size)
        pieces.append(part)
    allocate(size)
    return "".join(pieces)


class Ticking:
    """An iterable that charges each step to the budget; it has a length if the wrapped one has."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        tick = current_budget().tick
        for item in self._inner:
            tick()
            yield item


def check_width(name: str, value: Any, limit: int = MAX_WIDTH) -> None:
    """Check a number that determines how many characters are allocated."""
    if isinstance(value, int) and abs(value) > limit:
        raise BudgetExceeded(f"{name} by {value} is more than {limit}")


def check_replace(text: str, args: tuple[Any, ...]) -> None:
    """`str.replace`: the result may grow at every occurrence."""
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        allocate(len(text) + text.count(args[0]) * len(args[1]))


def check_join(text: str, args: tuple[Any, ...]) -> None:
    """`str.join` of a list."""
    if args and isinstance(args[0], list):
        allocate(sum(len(x) + len(text) for x in args[0] if isinstance(x, str)))


def check_pad(text: str, args: tuple[Any, ...]) -> None:
    """`str.center` and similar methods."""
    if args:
        check_width("padding", args[0])
        allocate(len(text) + MAX_WIDTH)


def check_scan(text: str, args: tuple[Any, ...]) -> None:
    """Methods that compare every position of a text with every character of their argument."""
    if args and isinstance(args[0], str) and len(text) * len(args[0]) > MAX_SCAN:
        raise BudgetExceeded("a search in a text takes too long")


def check_split(text: str, args: tuple[Any, ...]) -> None:
    """Splitting: each part becomes an object."""
    check_scan(text, args)
    separator = args[0] if args else None
    parts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 4
    if parts > MAX_WEIGHT:
        raise BudgetExceeded(f"a text is split into more than {MAX_WEIGHT} parts")


_WIDE = re.compile(
    r"%(\([^)]*\))?[^a-zA-Z%]*([0-9]{4}|\*)"  # %10000d, %.*f, %(name)10000d
    r"|\{[^{}]*(\{|:[^{}]*[0-9]{4})"  # {:10000}, {:{width}}
)


def check_format(text: str, args: Any) -> None:
    """A format string: its widths, literal or from an argument, and the values it repeats."""
    values = list(args.values()) if isinstance(args, Mapping) else list(args)
    if _WIDE.search(text.replace("{{", "").replace("}}", "")):
        raise BudgetExceeded("a format string has a width that is too large or not constant")
    largest = max((len(to_text(value)) for value in values), default=0)
    allocate(len(text) + (text.count("{") + text.count("%")) * (largest + 1000))
