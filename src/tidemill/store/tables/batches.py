"""Files that clients upload, batches of requests, and their lines."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
)

from tidemill.store.tables import METADATA

ID = String(64)
OWNER = String(160)

FILES = Table(
    "files",
    METADATA,
    Column("id", ID, primary_key=True),
    # `client_id` of its principal.
    Column("owner", OWNER, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("filename", String(255), nullable=False),
    Column("status", String(16), nullable=False),
    # Of uploads; what a batch writes is counted when asked.
    Column("bytes", BigInteger, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=True),
    # Output and error files have no content of their own: it is the batch's lines.
    Column("batch_id", ID, nullable=True),
    Index(None, "owner", "created"),
)

FILE_CHUNKS = Table(
    "file_chunks",
    METADATA,
    Column("file_id", ID, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

BATCHES = Table(
    "batches",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    # Who asked, as far as it must be known to ask again (`server.batches.owners`).
    Column("principal", JSON, nullable=False),
    Column("dialect", String(16), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("input_file_id", ID, nullable=True),
    Column("output_file_id", ID, nullable=True),
    Column("error_file_id", ID, nullable=True),
    Column("window_seconds", BigInteger, nullable=False),
    Column("metadata", JSON, nullable=True),
    Column("errors", JSON, nullable=True),
    # Seconds since 1970 at which it reached each state: {"created": ..., "in_progress": ...}.
    Column("times", JSON, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    # For so long its output files are kept; None: for ever.
    Column("output_seconds", BigInteger, nullable=True),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    # The server that works on it, and until when it does so without saying so again.
    Column("server", ID, nullable=True),
    Column("lease_ends", BigInteger, nullable=False),
    Index(None, "owner", "created"),
    Index(None, "status"),
)

BATCH_LINES = Table(
    "batch_lines",
    METADATA,
    Column("batch_id", ID, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", String(512), nullable=False),
    Column("outcome", Integer, nullable=False),
    # The request until it is answered.
    Column("body", LargeBinary, nullable=True),
    Column("status", Integer, nullable=True),
    Column("request_id", String(128), nullable=True),
    Column("answer", LargeBinary, nullable=True),
    Index(None, "batch_id", "outcome", "number"),
)
