"""Durations and deadlines go by the clock that nobody sets."""

from __future__ import annotations

from pathlib import Path

import tidemill

# What shows people a date, keeps one, or compares with a file's times.
SHOWN = {
    "engine/spawn.py",
    *("base/ids.py", "server/host/position.py"),  # when an answer was begun
    *("library/catalog.py", "library/http.py"),
    *("server/transport/http.py", "server/host/slot.py", "server/host/rollout/machine.py"),
    *(f"server/dialects/ollama/{name}.py" for name in ("answer_format", "answers", "models")),
    *(
        f"server/dialects/openai/{name}.py"
        for name in ("rerank", "responses/conversations", "responses/document")
    ),
    "gateway/translate/chat_to_messages.py",
    *("gateway/targets.py", "gateway/shared.py"),  # budgets of a day; notes to others
    "gateway/examine.py",  # clocks compared
    "cluster/controller.py",  # names of engines: unique over controllers and machines
    *("worker/packed_store.py", "worker/packed.py", "worker/tiers/disk.py"),
    # Dates that are kept: of keys, files, batches, usage, audit; days and months of budgets.
    *(f"store/{name}.py" for name in ("audit", "count", "database", "limit_acts", "report")),
    *("store/spool.py", "store/teams.py", "cli/keys.py"),
    *("server/access/oidc.py", "server/access/stored.py"),
    *("server/quotas/bank.py", "server/quotas/quotas.py"),
    *("server/recording.py", "server/records.py", "server/retention.py"),
    "server/batches/openai/files.py",
    *(f"server/dialects/openai/{name}.py" for name in ("responses/archive", "responses/compact")),
    "server/dialects/openai/usage.py",
    *("server/explanations.py", "server/admin/chats.py"),
    "telemetry/otel.py",  # times of spans
    "server/host/adapters.py",  # `created` of a model
}


def test_the_calendar_is_read_only_where_it_is_shown() -> None:
    root = Path(tidemill.__file__).parent
    readers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in ("wall()", "time.time()", "time.time_ns()"))
    }
    assert readers == SHOWN
