"""Explanations of requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "explanations",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("answer_id", sa.String(128), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_explanations"),
    )
    for column in ("request_id", "answer_id", "at"):
        op.create_index(f"ix_explanations_{column}", "explanations", [column])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("explanations")
