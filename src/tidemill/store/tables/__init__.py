"""The tables: one module per concern, all of one MetaData.

Times are whole seconds since the epoch, UTC; ids are text. A change here needs a revision in
`store/migrations/versions/`; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import MetaData

METADATA = MetaData(
    # Constraints have the same names on both databases, so that revisions can change them.
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
