"""Files, batches and their lines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(160), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=True),
        sa.Column("batch_id", sa.String(64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_owner_created", "files", ["owner", "created"])
    op.create_table(
        "file_chunks",
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("file_id", "number", name="pk_file_chunks"),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name="fk_file_chunks_file_id", ondelete="CASCADE"
        ),
    )
    _create_batches()


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(160), nullable=False),
        sa.Column("principal", sa.JSON, nullable=False),
        sa.Column("dialect", sa.String(16), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=True),
        sa.Column("output_file_id", sa.String(64), nullable=True),
        sa.Column("error_file_id", sa.String(64), nullable=True),
        sa.Column("window_seconds", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=True),
        sa.Column("errors", sa.JSON, nullable=True),
        sa.Column("times", sa.JSON, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("output_seconds", sa.BigInteger, nullable=True),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("server", sa.String(64), nullable=True),
        sa.Column("lease_ends", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_owner_created", "batches", ["owner", "created"])
    op.create_index("ix_batches_status", "batches", ["status"])
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("custom_id", sa.String(512), nullable=False),
        sa.Column("outcome", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=True),
        sa.Column("status", sa.Integer, nullable=True),
        sa.Column("request_id", sa.String(128), nullable=True),
        sa.Column("answer", sa.LargeBinary, nullable=True),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_lines"),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name="fk_batch_lines_batch_id", ondelete="CASCADE"
        ),
    )
    op.create_index(
        "ix_batch_lines_batch_id_outcome_number", "batch_lines", ["batch_id", "outcome", "number"]
    )


def downgrade() -> None:
    """Drop them, what refers to others first."""
    for table in ("batch_lines", "batches", "file_chunks", "files"):
        op.drop_table(table)
