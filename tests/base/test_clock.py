"""Durations and deadlines go by the clock that nobody sets."""

from __future__ import annotations

from pathlib import Path

import tidemill

# What shows people a date, or compares with a file's times.
SHOWN = {
    *("base/clock.py", "server/transport/http.py", "server/context.py"),
    *(
        "server/dialects/openai/chat.py",
        "server/dialects/openai/completions.py",
        "server/dialects/openai/rerank.py",
    ),
    *("engine/spawn.py", "worker/packed_store.py", "worker/packed.py"),
}


def test_the_calendar_is_read_only_where_it_is_shown() -> None:
    root = Path(tidemill.__file__).parent
    readers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in ("wall()", "time.time()", "time.time_ns()"))
    }
    assert readers <= SHOWN
