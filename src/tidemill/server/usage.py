"""Reports of usage, as far as their reader may see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.errors import reject

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidemill.store.usage import Query

T = TypeVar("T")

READERS = frozenset({Role.ADMIN, Role.AUDITOR, Role.MANAGER, Role.USER})
"""Who may read usage: administrators and auditors all, managers their team's, users their key's."""


def check_sees_all(principal: Principal) -> None:
    """Raise a 403 unless the client may see everybody's usage."""
    if principal.role not in (Role.ADMIN, Role.AUDITOR):
        raise reject(403, f"{principal.name!r} may not see this usage")


def narrowed(query: Query, principal: Principal) -> Query:
    """What of a query a client may see.

    Raises:
        Rejection: 403, it asks for others' usage.
    """
    if principal.role in (Role.ADMIN, Role.AUDITOR):
        return query
    if principal.role is Role.MANAGER:
        own = principal.team
        if query.teams is not None and query.teams != (own,):
            raise reject(403, f"{principal.name!r} may see the usage of its own team alone")
        return msgspec.structs.replace(query, teams=(own,))
    own = principal.key_id or principal.client_id
    if query.keys is not None and query.keys != (own,):
        raise reject(403, f"{principal.name!r} may see its own usage alone")
    return msgspec.structs.replace(query, keys=(own,))


async def read(context: ServerContext, work: Callable[[Connection], T]) -> T:
    """Read from the database what has been recorded up to now.

    Raises:
        Rejection: 501, the server has no database.
        DatabaseUnavailable: it does not answer.
    """
    if context.storage is None:
        raise reject(
            501,
            "usage and audit are kept in a database, and this server has none; start it without "
            "--database none",
            code="no_database",
        )
    database = await context.storage.opened()
    if context.recorder is not None:
        await context.recorder.flush()
    return await database.read(work)
