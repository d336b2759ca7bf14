"""The audit log: rows are appended to chains, within the transaction of what they tell of.

What administrators do is in the chain "acts", whoever does it. Requests are in a chain per server,
which it alone appends to. The first row of each such chain is told of in "acts", so that a chain
that is gone as a whole is missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tidemill.base.clock import wall
from tidemill.store.chain import Head, Row, detail_text, digest_of, hash_of, head_message
from tidemill.store.chain import seal_message as _seal_message
from tidemill.store.sealing import Sealer
from tidemill.store.settings import get, put
from tidemill.store.tables.audit import AUDIT_HEADS, AUDIT_ROWS, AUDIT_SEALS
from tidemill.store.upsert import upsert

ACTS = "acts"
"""The chain of administrative acts."""

CHAIN_BEGUN = "chain.begin"

SEAL_ROWS = 1000
"""Rows of a chain between two seals that stay; its head is sealed with every transaction."""

_RETENTION = "audit.retention"
_MOST_KIND = 64
_MOST_TEXT = 128
_sealer: Sealer | None = None


def seal_with(sealer: Sealer | None) -> None:
    """The key of this process's rows; None: their heads stay without a seal."""
    global _sealer
    _sealer = sealer


def sealer() -> Sealer | None:
    """The key of this process."""
    return _sealer


@contextmanager
def sealed_with(sealer: Sealer | None) -> Iterator[None]:
    """`seal_with` for a while."""
    before = _sealer
    seal_with(sealer)
    try:
        yield
    finally:
        seal_with(before)


def record(
    connection: Connection, actor: str, act: str, subject: str, detail: Mapping[str, Any]
) -> None:
    """Note one administrative act in the transaction of `connection`: both are kept, or neither.

    Args:
        connection: in the transaction that carries the act out.
        actor: who: ``key:NAME``, ``user:NAME``, or ``cli:LOGIN``.
        act: what: ``key.create``, ``team.change``, ...
        subject: the id of what it was done to.
        detail: further facts; never a secret or content.
    """
    append(connection, ACTS, [Row(_now(), act, actor, subject, detail_text(detail))])


def append(connection: Connection, chain: str, rows: Sequence[Row]) -> None:
    """Add rows to a chain, in their order.

    Args:
        connection: in a transaction that writes.
        chain: "acts", or a server's.
        rows: at least one.
    """
    if not rows:
        return
    head = locked_head(connection, chain)
    seq, before = head.seq, head.hash
    values = []
    for at, kind, actor, subject, detail in rows:
        seq += 1
        kind, actor, subject = _text(kind, _MOST_KIND), _text(actor), _text(subject)
        before = hash_of(before, seq, at, kind, actor, subject, digest_of(detail))
        values.append((chain, seq, at, kind, actor, subject, detail, before))
    connection.exec_driver_sql(_insertion(connection.dialect.name), values)
    write_head(connection, chain, head._replace(seq=seq, hash=before))
    if _sealer is not None and seq // SEAL_ROWS > head.seq // SEAL_ROWS:
        seal(connection, chain)
    if not head.seq and chain != ACTS:
        record(connection, f"server:{chain}", CHAIN_BEGUN, chain, {})


@cache
def _insertion(dialect: str) -> str:
    """Written out: SQLAlchemy's way of naming parameters takes longer than all else of a row."""
    columns = ("chain", "seq", "at", "kind", "actor", "subject", "detail", "hash")
    places = (
        ["?"] * len(columns) if dialect == "sqlite" else [f"${i + 1}" for i in range(len(columns))]
    )
    return f"INSERT INTO audit_rows ({', '.join(columns)}) VALUES ({', '.join(places)})"


def seal(connection: Connection, chain: str) -> None:
    """Seal a chain as it is, by a seal that stays."""
    head = find_head(connection, chain)
    if _sealer is None or head is None:
        return
    at = _now()
    message = _seal_message(chain, head.seq, head.hash, at)
    row = {"chain": chain, "seq": head.seq, "at": at, "key_id": _sealer.key_id}
    upsert(connection, AUDIT_SEALS, [{**row, "seal": _sealer.seal(message)}])


def find_head(connection: Connection, chain: str) -> Head | None:
    """A chain's head; None: there is no such chain."""
    found = connection.execute(_head_of(chain)).first()
    return None if found is None else Head(*found[:4])


def locked_head(connection: Connection, chain: str) -> Head:
    """A chain's head, which no other transaction changes until this one ends."""
    statement = _head_of(chain).with_for_update()
    found = connection.execute(statement).first()
    if found is None:
        # Of two that begin a chain, one waits here for the other.
        upsert(connection, AUDIT_HEADS, [_head_row(chain, Head())])
        found = connection.execute(statement).one()
    return Head(*found[:4])


def write_head(connection: Connection, chain: str, head: Head) -> None:
    """Replace a chain's head, sealed."""
    row = _head_row(chain, head)
    del row["chain"]
    connection.execute(AUDIT_HEADS.update().where(AUDIT_HEADS.c.chain == chain).values(row))


def retention(connection: Connection) -> int | None:
    """Seconds for which rows of requests are kept; None: for ever."""
    found = get(connection, _RETENTION)
    return int(found) if found else None


def set_retention(connection: Connection, actor: str, seconds: int | None) -> None:
    """Set it, and note it."""
    put(connection, _RETENTION, "" if seconds is None else str(seconds))
    record(connection, actor, "audit.retention", "", {"seconds": seconds})


def erase(connection: Connection, condition: sa.ColumnElement[bool]) -> int:
    """Erase the details of rows, of which the digest stays; the chains stay valid.

    Returns how many there were; who calls this notes it with `record`.
    """
    rows = AUDIT_ROWS.c
    statement = sa.select(rows.chain, rows.seq, rows.detail).where(
        condition, rows.detail.is_not(None)
    )
    found = connection.execute(statement).all()
    changed = AUDIT_ROWS.update().where(
        rows.chain == sa.bindparam("of"), rows.seq == sa.bindparam("number")
    )
    values = [
        {"of": chain, "number": seq, "detail": None, "digest": digest_of(detail)}
        for chain, seq, detail in found
    ]
    if values:
        connection.execute(
            changed.values(detail=sa.bindparam("detail"), digest=sa.bindparam("digest")), values
        )
    return len(values)


def _head_of(chain: str) -> sa.Select[Any]:
    heads = AUDIT_HEADS.c
    return sa.select(heads.seq, heads.hash, heads.pruned_seq, heads.pruned_hash).where(
        heads.chain == chain
    )


def _head_row(chain: str, head: Head) -> dict[str, Any]:
    sealed = _sealer is not None and head.seq > 0
    return {
        "chain": chain,
        **head._asdict(),
        "key_id": _sealer.key_id if _sealer is not None and sealed else "",
        "seal": _sealer.seal(head_message(chain, head)) if _sealer is not None and sealed else b"",
    }


def _text(text: str, most: int = _MOST_TEXT) -> str:
    if len(text) > most or "\0" in text:
        return text[:most].replace("\0", " ")
    return text


def _now() -> int:
    return int(wall() * 1000)
