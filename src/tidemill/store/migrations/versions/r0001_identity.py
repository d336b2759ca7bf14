"""Settings, organisations, teams, users and keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "settings",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.String(1024), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_settings"),
    )
    op.create_table(
        "changes",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_changes"),
    )
    op.create_table(
        "organisations",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_organisations"),
        sa.UniqueConstraint("name", name="uq_organisations_name"),
    )
    op.create_table(
        "teams",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("organisation_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_teams"),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name="fk_teams_organisation_id"
        ),
        sa.UniqueConstraint("name", name="uq_teams_name"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=True),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_users_team_id"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )
    op.create_index("ix_users_team_id", "users", ["team_id"])
    _create_keys()


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("team_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(64), nullable=True),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=True),
        sa.Column("revoked", sa.BigInteger, nullable=True),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("models", sa.JSON, nullable=True),
        sa.Column("routes", sa.JSON, nullable=True),
        sa.Column("addresses", sa.JSON, nullable=True),
        sa.Column("max_tokens", sa.Integer, nullable=True),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("residency", sa.String(64), nullable=True),
        sa.Column("no_content", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_keys_team_id"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_keys_user_id"),
    )
    op.create_index("ix_keys_team_id", "keys", ["team_id"])
    op.create_index(
        "uq_keys_name_active",
        "keys",
        ["name"],
        unique=True,
        sqlite_where=sa.text("revoked IS NULL"),
        postgresql_where=sa.text("revoked IS NULL"),
    )
    op.create_table(
        "key_secrets",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_key_secrets"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_key_secrets_key_id"),
    )
    op.create_index("ix_key_secrets_key_id", "key_secrets", ["key_id"])


def downgrade() -> None:
    """Drop them, what refers to others first."""
    for table in ("key_secrets", "keys", "users", "teams", "organisations", "changes", "settings"):
        op.drop_table(table)
