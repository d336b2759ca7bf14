"""Durations and deadlines go by the clock that nobody sets."""

from __future__ import annotations

from pathlib import Path

import tidemill

# What shows people a date, or compares with a file's times.
SHOWN = {
    "engine/spawn.py",
    *("library/catalog.py", "library/http.py"),
    *("server/transport/http.py", "server/host/slot.py", "server/host/rollout/machine.py"),
    *(f"server/dialects/ollama/{name}.py" for name in ("answer_format", "answers", "models")),
    *(
        f"server/dialects/openai/{name}.py"
        for name in ("assemble", "rerank", "responses/conversations", "responses/document")
    ),
    *("worker/packed_store.py", "worker/packed.py"),
}


def test_the_calendar_is_read_only_where_it_is_shown() -> None:
    root = Path(tidemill.__file__).parent
    readers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in ("wall()", "time.time()", "time.time_ns()"))
    }
    assert readers == SHOWN
