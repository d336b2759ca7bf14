"""Notes of gateways to each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "gateway_notes",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(160), nullable=False),
        sa.Column("gateway", sa.String(32), nullable=False),
        sa.Column("text", sa.String(256), nullable=False),
        sa.Column("amount", sa.Float, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "gateway", name="pk_gateway_notes"),
    )
    op.create_index("ix_gateway_notes_at", "gateway_notes", ["at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("gateway_notes")
