"""Reports of usage as documents: JSON, CSV, and rows of a table. Imports no database."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidemill.base.clock import wall
from tidemill.base.durations import duration_seconds
from tidemill.base.errors import bad_request
from tidemill.contract.prices import NANO

if TYPE_CHECKING:
    from tidemill.store.usage import Query, UsageRow

NUMBERS = (
    *("requests", "prompt_tokens", "cached_tokens", "generated_tokens", "reasoning_tokens"),
    *("inputs", "cancelled", "failed", "refused", "cost"),
)
"""Columns of a CSV file and of a table, after the dimensions."""

NAMED = ("key", "team", "organisation", "user")
"""Dimensions whose values are ids: each has its name in a column beside it."""

_DAY = 86400
_DATE = "%Y-%m-%d"
_HOUR = "%Y-%m-%dT%H:00:00Z"


def time_of(text: str, field: str) -> int:
    """Seconds since the epoch of a time as people write it.

    Args:
        text: a date (``2026-11-26``, ``2026-11-26T10:00Z``; UTC where it says nothing), seconds
            since the epoch, or how long ago (``90m``, ``24h``, ``7d``).
        field: for the error.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and 9 <= len(text) <= 11:
        return int(text)
    try:
        if text.endswith("d") and text[:-1].isdigit() and len(text) < 7:
            return int(wall()) - int(text[:-1]) * _DAY
        if text[-1:] in ("h", "m", "s"):
            return int(wall() - duration_seconds(text))
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise bad_request(
            field,
            f"{field} must be a date such as 2026-11-26 or 2026-11-26T10:00Z, seconds since 1970, "
            f"or how long ago: 24h, 7d; not {text[:64]!r}",
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())


def shown_time(kind: str, second: int) -> str:
    """An hour or a day for people, in UTC."""
    # Not fromtimestamp, which fails for far years.
    moment = datetime(1970, 1, 1) + timedelta(seconds=second)
    return moment.strftime(_DATE if kind == "day" else _HOUR)


def row_document(row: UsageRow) -> dict[str, Any]:
    """A row as a JSON object: its group, then its numbers. What is measured nowhere is null, as is
    the name of what has none: a request without a key, a team that is gone."""
    found: dict[str, Any] = {}
    for kind, value in row.group.items():
        found[kind] = shown_time(kind, value) if kind in ("hour", "day") else value
        if kind in NAMED:
            found[f"{kind}_name"] = row.names.get(kind)
    return {
        **found,
        "requests": row.requests,
        "cancelled": row.cancelled,
        "failed": row.failed,
        "refused": sum(row.refused.values()),
        "refusals": dict(sorted(row.refused.items())),
        "prompt_tokens": row.prompt,
        "cached_tokens": row.cached,
        "generated_tokens": row.generated,
        "reasoning_tokens": row.reasoning,
        "inputs": row.inputs,
        "cost": row.cost / NANO,
        "computed_seconds": row.computed / 1e6 if row.computed else None,
        "energy_joules": row.energy / 1e6 if row.energy else None,
    }


def document(
    query: Query, rows: Sequence[UsageRow], total: UsageRow, lost: int, currency: str
) -> dict[str, Any]:
    """A whole report."""
    return {
        "object": "usage",
        "since": query.since or None,
        "until": min(query.until, int(wall())),
        "by": list(query.by),
        "currency": currency,
        "rows": [row_document(row) for row in rows],
        "total": row_document(total),
        "lost_requests": lost,
    }


def csv_text(by: Sequence[str], rows: Sequence[UsageRow]) -> str:
    """Rows as CSV, with a head."""
    out = io.StringIO()
    head = [column for kind in by for column in (kind, *([f"{kind}_name"] * (kind in NAMED)))]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*head, *NUMBERS))
    for row in rows:
        values = row_document(row)
        writer.writerow([_cell(values, name) for name in (*head, *NUMBERS)])
    return out.getvalue()


def _cell(values: Mapping[str, Any], name: str) -> Any:
    value = values[name]
    if value is None:
        return ""
    if name == "cost":
        return f"{value:.9f}".rstrip("0").rstrip(".")
    # A spreadsheet would take these for formulas.
    risky = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if risky else value
