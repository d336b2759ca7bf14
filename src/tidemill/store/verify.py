"""Checks the audit log: every row's hash, that none is missing, and every seal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from tidemill.store.audit import ACTS, CHAIN_BEGUN
from tidemill.store.chain import Head, digest_of, hash_of, head_message, seal_message
from tidemill.store.sealing import Sealer
from tidemill.store.tables.audit import AUDIT_HEADS, AUDIT_ROWS, AUDIT_SEALS

_PAGE = 5000


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that is wrong with a chain.

    Attributes:
        chain: its name.
        seq: the row; 0: the chain as a whole.
        what: in words.
    """

    chain: str
    seq: int
    what: str

    def __str__(self) -> str:
        place = f"row {self.seq} of chain {self.chain}" if self.seq else f"chain {self.chain}"
        return f"{place}: {self.what}"


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What was found of one chain.

    Attributes:
        rows: that are there and as they were written, up to the fault.
        erased: of them, those without their detail.
        pruned: rows that retention removed before them.
        seals: that were checked.
        fault: None: there is none.
    """

    chain: str
    rows: int
    erased: int
    pruned: int
    seals: int
    fault: Fault | None


def document(reports: Sequence[ChainReport]) -> dict[str, Any]:
    """What was found of all chains, as JSON."""
    chains = [
        {
            "chain": report.chain,
            "rows": report.rows,
            "erased": report.erased,
            "pruned": report.pruned,
            "seals": report.seals,
            "fault": None if report.fault is None else str(report.fault),
        }
        for report in reports
    ]
    return {"valid": all(report.fault is None for report in reports), "chains": chains}


def verify(connection: Connection, sealer: Sealer | None) -> Iterator[ChainReport]:
    """Check every chain, "acts" first.

    Args:
        connection: one transaction, so that servers may go on writing.
        sealer: the key; None: there is none, which is a fault of each chain that is sealed.
    """
    names = _chains(connection)
    begun = {
        row.subject
        for row in connection.execute(
            sa.select(AUDIT_ROWS.c.subject).where(
                AUDIT_ROWS.c.chain == ACTS, AUDIT_ROWS.c.kind == CHAIN_BEGUN
            )
        )
    }
    for name in sorted(names | begun, key=lambda name: (name != ACTS, name)):
        if name not in names:
            yield ChainReport(name, 0, 0, 0, 0, Fault(name, 0, "all of it is missing"))
        else:
            yield _Check(connection, name, sealer).report()
    if names and ACTS not in names:
        yield ChainReport(ACTS, 0, 0, 0, 0, Fault(ACTS, 0, "all of it is missing"))


def fault_until(
    connection: Connection, chain: str, last: int, sealer: Sealer | None
) -> Fault | None:
    """The first fault of a chain's rows up to `last`. Only seals of this key are checked."""
    return _Check(connection, chain, sealer, last).report().fault


def _chains(connection: Connection) -> set[str]:
    found: set[str] = set()
    for table in (AUDIT_HEADS, AUDIT_SEALS):
        found |= set(connection.execute(sa.select(table.c.chain).distinct()).scalars())
    # Rows are many: from one chain's name the next is looked for.
    last = ""
    while True:
        following = sa.select(sa.func.min(AUDIT_ROWS.c.chain)).where(AUDIT_ROWS.c.chain > last)
        last = connection.execute(following).scalar() or ""
        if not last:
            return found
        found.add(last)


class _Check:
    """The check of one chain, or of its rows up to `last`."""

    def __init__(
        self, connection: Connection, chain: str, sealer: Sealer | None, last: int | None = None
    ) -> None:
        self._last = last
        self._connection = connection
        self._chain = chain
        self._sealer = sealer
        self._rows = self._erased = self._seals = self._pruned = 0

    def report(self) -> ChainReport:
        fault = self._fault()
        return ChainReport(self._chain, self._rows, self._erased, self._pruned, self._seals, fault)

    def _fault(self) -> Fault | None:
        heads = AUDIT_HEADS.c
        stored = self._connection.execute(
            sa.select(AUDIT_HEADS).where(heads.chain == self._chain)
        ).first()
        if stored is None:
            return self._bad(0, "its head is missing: its end may have been cut off")
        head = Head(stored.seq, stored.hash, stored.pruned_seq, stored.pruned_hash)
        self._pruned = head.pruned_seq
        message = head_message(self._chain, head)
        wrong = self._seal_fault(stored.key_id, message, stored.seal, "its head")
        seals = self._stored_seals(head.pruned_seq)
        seq, before = head.pruned_seq, head.pruned_hash
        for row in self._all_rows():
            if row.seq != seq + 1:
                more = f", and all to row {row.seq - 1}" if row.seq - 1 > seq + 1 else ""
                return self._bad(seq + 1, f"missing{more}")
            fault = self._row_fault(row, before)
            if fault is not None:
                return fault
            seq, before = row.seq, row.hash
            self._rows += 1
            seal = seals.pop(seq, None)
            if seal is not None:
                message = seal_message(self._chain, seq, before, seal.at)
                said = self._seal_fault(seal.key_id, message, seal.seal, "the seal of this row")
                if said:
                    return self._bad(seq, said)
                self._seals += 1
        if self._last is not None:
            if seq < self._last:
                return self._bad(seq + 1, "missing")
            return self._bad(0, wrong) if wrong else None
        if seals:
            return self._bad(seq + 1, f"missing: the chain was sealed up to row {max(seals)}")
        if seq < head.seq:
            return self._bad(seq + 1, f"missing: the chain's end was row {head.seq}")
        if wrong:
            return self._bad(0, wrong)
        if seq > head.seq or before != head.hash:
            return self._bad(head.seq, "its head does not fit the rows: one of them was changed")
        return None

    def _row_fault(self, row: Any, before: bytes) -> Fault | None:
        if row.detail is None:
            if row.digest is None:
                return self._bad(row.seq, "its detail was removed")
            digest = row.digest
            self._erased += 1
        else:
            digest = digest_of(row.detail)
        hash = hash_of(before, row.seq, row.at, row.kind, row.actor, row.subject, digest)
        if hash != row.hash:
            return self._bad(row.seq, "changed, or not in its place")
        return None

    def _seal_fault(self, key_id: str, message: bytes, seal: bytes, what: str) -> str:
        """What is wrong with a seal; empty: nothing."""
        ours = self._sealer is not None and key_id == self._sealer.key_id
        if self._last is not None and not ours:
            return ""
        if not key_id:
            return f"{what} is not sealed"
        if self._sealer is None:
            return f"{what} is sealed with the key {key_id}, and there is no key here"
        if key_id != self._sealer.key_id:
            return f"{what} is sealed with the key {key_id}; the one here is {self._sealer.key_id}"
        if not self._sealer.matches(message, seal):
            return f"{what} was changed: its seal does not fit"
        return ""

    def _stored_seals(self, after: int) -> dict[int, Any]:
        seals = AUDIT_SEALS.c
        found = self._connection.execute(
            sa.select(AUDIT_SEALS).where(seals.chain == self._chain, seals.seq > after)
        )
        return {row.seq: row for row in found}

    def _all_rows(self) -> Iterator[Any]:
        rows, after = AUDIT_ROWS.c, -1
        within = [rows.chain == self._chain]
        if self._last is not None:
            within.append(rows.seq <= self._last)
        while True:
            page = self._connection.execute(
                sa.select(AUDIT_ROWS)
                .where(*within, rows.seq > after)
                .order_by(rows.seq)
                .limit(_PAGE)
            ).all()
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].seq

    def _bad(self, seq: int, what: str) -> Fault:
        return Fault(self._chain, seq, what)


def export(connection: Connection, since: int = 0) -> Iterator[bytes]:
    """The whole log as JSON lines: rows in the order of their chains, seals, then heads.

    Args:
        since: milliseconds; older rows are left out.
    """
    encode = msgspec.json.encode
    for name in sorted(_chains(connection)):
        for row in _Check(connection, name, None)._all_rows():
            if row.at >= since:
                detail = None if row.detail is None else msgspec.Raw(row.detail.encode())
                values = {**row._mapping, "detail": detail}
                yield encode({"type": "row", **_hexadecimal(values)}) + b"\n"
        for kind, table in (("seal", AUDIT_SEALS), ("head", AUDIT_HEADS)):
            for row in connection.execute(sa.select(table).where(table.c.chain == name)):
                yield encode({"type": kind, **_hexadecimal(dict(row._mapping))}) + b"\n"


def _hexadecimal(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()
    }
