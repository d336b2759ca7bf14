"""The audit log: chains of rows, and what they are sealed with."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, LargeBinary, String, Table, Text

from tidemill.store.tables import METADATA

_CHAIN = String(64)
_HASH = LargeBinary(32)
_SEAL = LargeBinary(128)

AUDIT_ROWS = Table(
    "audit_rows",
    METADATA,
    # "acts" for what administrators did, else the id of a server's spool for its requests.
    Column("chain", _CHAIN, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # from 1, without gaps
    Column("at", BigInteger, nullable=False),  # milliseconds
    Column("kind", _CHAIN, nullable=False),  # "request", or the act
    Column("actor", String(128), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("detail", Text, nullable=True),  # JSON; null: it was erased, and `digest` stands for it
    Column("digest", _HASH, nullable=True),
    Column("hash", _HASH, nullable=False),
    sqlite_with_rowid=False,
)

AUDIT_HEADS = Table(
    "audit_heads",
    METADATA,
    Column("chain", _CHAIN, primary_key=True),
    # Of the last row.
    Column("seq", BigInteger, nullable=False),
    Column("hash", _HASH, nullable=False),
    # Rows up to this one have been removed by retention; 0: none.
    Column("pruned_seq", BigInteger, nullable=False),
    Column("pruned_hash", _HASH, nullable=False),
    # Of all that, by whose key; "" and empty: it is not sealed.
    Column("key_id", _CHAIN, nullable=False),
    Column("seal", _SEAL, nullable=False),
)

AUDIT_SEALS = Table(
    "audit_seals",
    METADATA,
    Column("chain", _CHAIN, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("key_id", _CHAIN, nullable=False),
    Column("seal", _SEAL, nullable=False),  # of the chain's hash at `seq`
)
