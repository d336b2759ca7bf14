"""Usage, positions of spools, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def _text(name: str, length: int = 64) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)


def upgrade() -> None:
    """Create the tables."""
    owners = ("team_id", "organisation_id", "user_id")
    op.create_table(
        "usage_hours",
        _text("key_id"),
        _number("hour"),
        _text("model", 256),
        _text("version"),
        _text("operation", 16),
        *map(_text, owners),
        *map(_number, ("requests", "cancelled", "failed", "prompt", "cached", "generated")),
        *map(_number, ("reasoning", "inputs", "computed", "cost", "energy")),
        sa.PrimaryKeyConstraint(
            *("key_id", "hour", "model", "version", "operation", *owners), name="pk_usage_hours"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_hours_hour", "usage_hours", ["hour"])
    op.create_index("ix_usage_hours_team_id_hour", "usage_hours", ["team_id", "hour"])
    op.create_table(
        "usage_refusals",
        _text("key_id"),
        _number("hour"),
        _text("code"),
        _text("model", 256),
        _text("version"),
        *map(_text, owners),
        _number("requests"),
        sa.PrimaryKeyConstraint(
            *("key_id", "hour", "code", "model", "version", *owners), name="pk_usage_refusals"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_refusals_hour", "usage_refusals", ["hour"])
    op.create_table(
        "usage_lost",
        *(_text("spool"), _number("hour"), _number("requests")),
        sa.PrimaryKeyConstraint("spool", "hour", name="pk_usage_lost"),
    )
    op.create_table(
        "spool_positions",
        *(_text("spool"), _number("segment"), _number("place"), _number("lost")),
        sa.PrimaryKeyConstraint("spool", name="pk_spool_positions"),
    )
    _create_audit()


def _create_audit() -> None:
    op.create_table(
        "audit_rows",
        *(_text("chain"), _number("seq"), _number("at"), _text("kind")),
        *(_text("actor", 128), _text("subject", 128)),
        sa.Column("detail", sa.Text, nullable=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=True),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("chain", "seq", name="pk_audit_rows"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit_heads",
        *(_text("chain"), _number("seq")),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        _number("pruned_seq"),
        sa.Column("pruned_hash", sa.LargeBinary(32), nullable=False),
        _text("key_id"),
        sa.Column("seal", sa.LargeBinary(128), nullable=False),
        sa.PrimaryKeyConstraint("chain", name="pk_audit_heads"),
    )
    op.create_table(
        "audit_seals",
        *(_text("chain"), _number("seq"), _number("at"), _text("key_id")),
        sa.Column("seal", sa.LargeBinary(128), nullable=False),
        sa.PrimaryKeyConstraint("chain", "seq", name="pk_audit_seals"),
    )


def downgrade() -> None:
    """Drop them."""
    for table in (
        *("audit_seals", "audit_heads", "audit_rows", "spool_positions"),
        *("usage_lost", "usage_refusals", "usage_hours"),
    ):
        op.drop_table(table)
