"""Notes of gateways to each other: sessions, targets that are down or busy, what was spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, select

from tidemill.store.tables.gateways import GATEWAY_NOTES
from tidemill.store.upsert import upsert

MOST = 20_000
"""Notes that are read at once; the latest."""


@dataclass(frozen=True, slots=True)
class Note:
    """What one gateway says of something; a later one replaces it.

    Attributes:
        kind, name: of what.
        text, amount: what, by its kind.
        at: when it was said, in milliseconds; 0: now.
        gateway: that says it; empty: whoever writes it.
    """

    kind: str
    name: str
    text: str = ""
    amount: float = 0.0
    at: int = 0
    gateway: str = ""


def write(connection: Connection, gateway: str, now: int, notes: Sequence[Note]) -> None:
    """Keep notes of a gateway. No two of the same thing."""
    rows = [{**asdict(note), "gateway": gateway, "at": now} for note in notes]
    upsert(connection, GATEWAY_NOTES, rows, set_=("text", "amount", "at"))


def of_others(connection: Connection, gateway: str, since: int) -> list[Note]:
    """Notes of other gateways that were said at `since` or later, in their order."""
    table = GATEWAY_NOTES.c
    found = connection.execute(
        select(GATEWAY_NOTES)
        .where(table.gateway != gateway, table.at >= since)
        .order_by(table.at.desc())
        .limit(MOST)
    )
    return [Note(**row) for row in found.mappings()][::-1]


def prune(connection: Connection, before: int) -> None:
    """Remove what was said before."""
    connection.execute(delete(GATEWAY_NOTES).where(GATEWAY_NOTES.c.at < before))
