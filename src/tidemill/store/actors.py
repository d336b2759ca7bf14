"""Who carries an administrative act out, and what it may."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.base.errors import ErrorKind, TidemillError

ROLES = ("admin", "manager", "user", "metrics", "auditor")
MANAGED_ROLES = ("manager", "user")
"""Roles that a manager may give."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts.

    Attributes:
        name: for the audit trail: ``key:NAME``, ``user:NAME`` or ``cli:LOGIN``.
        role: see `ROLES`.
        team: id of the team that a manager manages; empty: none.
        key: id of the key of the database that it acts with; empty: it needs none.
    """

    name: str
    role: str = "admin"
    team: str = ""
    key: str = ""

    @property
    def everywhere(self) -> bool:
        """Whether it sees all teams."""
        return self.role in ("admin", "auditor")

    def sees(self, team: str) -> bool:
        """Whether it sees what belongs to a team."""
        return self.everywhere or (self.role == "manager" and bool(team) and team == self.team)

    def check_admin(self, what: str) -> None:
        """Raise FORBIDDEN unless it administers everything."""
        if self.role != "admin":
            raise forbidden(f"{what} takes the role admin; {self.name} has {self.role}")

    def check_team(self, team: str, what: str) -> None:
        """Raise FORBIDDEN unless it may change what belongs to a team."""
        managed = self.role == "manager" and bool(team) and team == self.team
        if self.role != "admin" and not managed:
            raise forbidden(
                f"{what} takes the role admin, or manager of that team; {self.name} has "
                + (f"{self.role} of another" if self.role == "manager" else self.role)
            )

    def check_role(self, role: str) -> None:
        """Raise FORBIDDEN unless it may give the role."""
        if self.role != "admin" and role not in MANAGED_ROLES:
            raise forbidden(f"the role {role} is given by administrators; {self.name} is a manager")


def forbidden(message: str) -> TidemillError:
    """An act that the actor may not carry out."""
    return TidemillError(ErrorKind.FORBIDDEN, message)
