"""Limits of subjects, and what is used of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "limits",
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("measure", sa.String(32), nullable=False),
        sa.Column("soft", sa.Boolean, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("level", "subject", "measure", "soft", name="pk_limits"),
    )
    op.create_table(
        "quota_balances",
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("measure", sa.String(32), nullable=False),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("taken", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("level", "subject", "measure", "period", name="pk_quota_balances"),
    )
    op.create_table(
        "quota_places",
        sa.Column("server", sa.String(64), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("held", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("server", "level", "subject", name="pk_quota_places"),
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("quota_places", "quota_balances", "limits"):
        op.drop_table(table)
