"""All tables, and the revision that they are."""

from __future__ import annotations

from sqlalchemy import MetaData

from tidemill.store.tables import (
    METADATA,
    audit,
    batches,
    content,
    explanations,
    gateways,
    identity,
    quotas,
    settings,
    usage,
)

HEAD = "0007"
"""The newest revision in `migrations/versions/`: what a database must be at."""

VERSION_TABLE = "schema_version"

# Each module adds its tables to the one MetaData when it is imported.
_CONCERNS = (settings, identity, batches, quotas, usage, audit, content, explanations, gateways)


def metadata() -> MetaData:
    """The MetaData of all tables."""
    assert _CONCERNS
    return METADATA
