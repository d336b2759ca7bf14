"""What administrators did, for the audit trail: called within the transaction that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection


def record(
    connection: Connection, actor: str, act: str, subject: str, detail: Mapping[str, Any]
) -> None:
    """Note one administrative act in the transaction of `connection`: both are kept, or neither.

    Args:
        connection: in the transaction that carries the act out.
        actor: who: ``key:NAME``, ``user:NAME``, or ``cli:LOGIN``.
        act: what: ``key.create``, ``team.change``, ...
        subject: the id of what it was done to.
        detail: further facts; never a secret or content.
    """
