"""Responses and conversations, and for how long they are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "content_links",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(160), nullable=False),
        sa.Column("before", sa.String(64), nullable=True),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("items", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_content_links"),
    )
    op.create_index("ix_content_links_owner", "content_links", ["owner"])
    op.create_index("ix_content_links_before", "content_links", ["before"])
    op.create_table(
        "content_responses",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(160), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("given", sa.String(64), nullable=False),
        sa.Column("output", sa.String(64), nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_content_responses"),
        sa.ForeignKeyConstraint(["given"], ["content_links.id"], name="fk_content_responses_given"),
        sa.ForeignKeyConstraint(
            ["output"], ["content_links.id"], name="fk_content_responses_output"
        ),
    )
    for columns in (["owner"], ["team", "created"], ["given"], ["output"]):
        name = f"ix_content_responses_{'_'.join(columns)}"
        op.create_index(name, "content_responses", columns)
    _create_conversations()


def _create_conversations() -> None:
    op.create_table(
        "content_conversations",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(160), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_content_conversations"),
    )
    op.create_index("ix_content_conversations_owner", "content_conversations", ["owner"])
    op.create_index(
        "ix_content_conversations_team_changed", "content_conversations", ["team", "changed"]
    )
    op.create_table(
        "content_items",
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(128), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("item", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "item_id", name="pk_content_items"),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["content_conversations.id"],
            name="fk_content_items_conversation_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_content_items_conversation_id_number", "content_items", ["conversation_id", "number"]
    )
    op.create_table(
        "content_retention",
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("seconds", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("team", name="pk_content_retention"),
    )


def downgrade() -> None:
    """Drop them, what refers to others first."""
    for table in ("retention", "items", "conversations", "responses", "links"):
        op.drop_table(f"content_{table}")
