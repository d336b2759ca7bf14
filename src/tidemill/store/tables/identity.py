"""Organisations, teams, users and keys."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    text,
)

from tidemill.store.tables import METADATA

NAME = String(64)
ID = String(64)

ORGANISATIONS = Table(
    "organisations",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("created", BigInteger, nullable=False),
)

TEAMS = Table(
    "teams",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("organisation_id", ID, ForeignKey("organisations.id"), nullable=False),
    # Unique in the whole database: requests and reports name a team alone.
    Column("name", NAME, nullable=False, unique=True),
    Column("created", BigInteger, nullable=False),
    Column("disabled", Boolean, nullable=False),
)

USERS = Table(
    "users",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    # A manager's is the one that is managed.
    Column("team_id", ID, ForeignKey("teams.id"), nullable=True),
    Column("created", BigInteger, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Index(None, "team_id"),
)

KEYS = Table(
    "keys",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("role", String(16), nullable=False),
    Column("team_id", ID, ForeignKey("teams.id"), nullable=False),
    Column("user_id", ID, ForeignKey("users.id"), nullable=True),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=True),
    Column("revoked", BigInteger, nullable=True),
    Column("disabled", Boolean, nullable=False),
    Column("models", JSON, nullable=True),
    Column("routes", JSON, nullable=True),
    Column("addresses", JSON, nullable=True),
    Column("max_tokens", Integer, nullable=True),
    Column("priority", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    Column("residency", String(64), nullable=True),
    Column("no_content", Boolean, nullable=False),
    Index(None, "team_id"),
    # A revoked key stays for reports; its name may be given again.
    Index(
        "uq_keys_name_active",
        "name",
        unique=True,
        sqlite_where=text("revoked IS NULL"),
        postgresql_where=text("revoked IS NULL"),
    ),
)

# A key has several while it is rotated.
KEY_SECRETS = Table(
    "key_secrets",
    METADATA,
    # HMAC of the secret's SHA-256; see `store.secret`.
    Column("digest", LargeBinary(32), primary_key=True),
    Column("key_id", ID, ForeignKey("keys.id"), nullable=False),
    # The beginning of the secret, for recognition; "" where only a digest was imported.
    Column("prefix", String(16), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=True),
    Index(None, "key_id"),
)
