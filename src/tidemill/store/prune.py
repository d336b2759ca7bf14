"""Removes the audit log's oldest rows of requests: those that are as they were written, so that
nobody removes with them what shows that one was changed."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from tidemill.store.audit import ACTS, locked_head, record, sealer, write_head
from tidemill.store.tables.audit import AUDIT_HEADS, AUDIT_ROWS, AUDIT_SEALS
from tidemill.store.verify import Fault, fault_until

PRUNED_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one transaction did.

    Attributes:
        removed: rows.
        faults: of chains that are broken.
    """

    removed: int
    faults: tuple[Fault, ...] = ()


def prune(
    connection: Connection,
    chain: str,
    before: int,
    most: int = PRUNED_AT_ONCE,
    force: bool = False,
) -> Pruned:
    """Remove a chain's oldest rows, as far as they are all older than `before` (milliseconds); at
    most `most` of them, so that no transaction is long.

    The chain's head says where the rest begins. Where one of the rows was changed or is missing,
    all stay unless `force` is set. Who calls this notes it with `record`.
    """
    head = locked_head(connection, chain)
    rows = AUDIT_ROWS.c
    young = sa.select(rows.seq).where(rows.chain == chain, rows.at >= before)
    first_young = connection.execute(young.order_by(rows.seq).limit(1)).scalar()
    last_old = head.seq if first_young is None else first_young - 1
    last_old = min(last_old, head.pruned_seq + most)
    if last_old <= head.pruned_seq:
        return Pruned(0)
    fault = fault_until(connection, chain, last_old, sealer())
    faults = () if fault is None else (fault,)
    if faults and not force:
        return Pruned(0, faults)
    old = sa.select(rows.seq, rows.hash).where(
        rows.chain == chain, rows.seq > head.pruned_seq, rows.seq <= last_old
    )
    last = connection.execute(old.order_by(rows.seq.desc()).limit(1)).first()
    if last is None:
        return Pruned(0, faults)
    for table in (AUDIT_ROWS, AUDIT_SEALS):
        gone = table.delete().where(table.c.chain == chain, table.c.seq <= last.seq)
        connection.execute(gone)
    write_head(connection, chain, head._replace(pruned_seq=last.seq, pruned_hash=last.hash))
    return Pruned(last.seq - head.pruned_seq, faults)


def prune_requests(connection: Connection, actor: str, before: int, force: bool = False) -> Pruned:
    """Prune the chains of all servers, and note it, with the faults of those that were broken; see
    `prune`. Done when it has removed nothing."""
    chains = connection.execute(sa.select(AUDIT_HEADS.c.chain).order_by(AUDIT_HEADS.c.chain))
    done = {
        chain: prune(connection, chain, before, force=force)
        for chain in chains.scalars().all()
        if chain != ACTS
    }
    removed = {chain: one.removed for chain, one in done.items() if one.removed}
    faults = tuple(fault for one in done.values() for fault in one.faults)
    if removed:
        detail = {"before": before, "removed": removed}
        forced = [str(fault) for fault in faults if fault.chain in removed]
        record(
            connection,
            actor,
            "audit.prune",
            "",
            {**detail, **({"faults": forced} if forced else {})},
        )
    return Pruned(sum(removed.values()), faults)
