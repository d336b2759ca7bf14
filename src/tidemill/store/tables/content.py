"""Responses and conversations: one row an item or a turn, its text encrypted (`store.cipher`)."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, String, Table

from tidemill.store.tables import METADATA

ID = String(64)
OWNER = String(160)

LINKS = Table(
    "content_links",
    METADATA,
    # Items that were added at once, behind those of another link.
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("before", ID, nullable=True),
    Column("created", BigInteger, nullable=False),
    Column("items", LargeBinary, nullable=False),
    Index(None, "owner"),
    Index(None, "before"),
)

RESPONSES = Table(
    "content_responses",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("team", ID, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("given", ID, ForeignKey("content_links.id"), nullable=False),
    Column("output", ID, ForeignKey("content_links.id"), nullable=False),
    Column("response", LargeBinary, nullable=False),
    Index(None, "owner"),
    Index(None, "team", "created"),
    Index(None, "given"),
    Index(None, "output"),
)

CONVERSATIONS = Table(
    "content_conversations",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("team", ID, nullable=False),
    Column("created", BigInteger, nullable=False),
    # The latest change: retention counts from it.
    Column("changed", BigInteger, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Index(None, "owner"),
    Index(None, "team", "changed"),
)

ITEMS = Table(
    "content_items",
    METADATA,
    Column(
        "conversation_id",
        ID,
        ForeignKey("content_conversations.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("item_id", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("item", LargeBinary, nullable=False),
    Index(None, "conversation_id", "number"),
)

RETENTION = Table(
    "content_retention",
    METADATA,
    # A team's id; "" for all that have no row.
    Column("team", ID, primary_key=True),
    Column("seconds", BigInteger, nullable=False),
)
