"""Rows of the side-by-side table: what was reached beside what was wanted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Target:
    """A bound on the figure that a row reaches.

    Attributes:
        bound: the figure.
        unit: ``x``, ``%`` (figures are shares) or a unit of time.
        at_most: whether smaller is better.
    """

    bound: float
    unit: str
    at_most: bool = False

    def met(self, reached: float) -> bool:
        return reached <= self.bound if self.at_most else reached >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {figure(self.bound, self.unit)}"


def figure(value: float, unit: str) -> str:
    """A figure as the table shows it."""
    if math.isnan(value):
        return "none"
    if unit == "%":
        return f"{100 * value:.3g} %"
    return f"{value:.2f}{unit}" if unit == "x" else f"{value:.3g} {unit}".strip()


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        key: names the row in the table of reasons.
        work: what was done.
        ours, peer: both sides' figures as text.
        reached: the figure that the target bounds, or NaN where there is none.
        target: what was wanted; None: reported only.
        read: bytes per second read beside it; 0: not of interest.
    """

    key: str
    work: str
    ours: str
    peer: str = ""
    reached: float = math.nan
    target: Target | None = None
    unit: str = ""
    read: float = 0.0

    @property
    def met(self) -> bool | None:
        """None for a row without a target."""
        if self.target is None:
            return None
        return not math.isnan(self.reached) and self.target.met(self.reached)

    def cells(self) -> list[str]:
        unit = self.target.unit if self.target else self.unit
        reached = "" if math.isnan(self.reached) and not self.target else figure(self.reached, unit)
        verdict = {None: "", True: "yes", False: "**no**"}[self.met]
        read = f"{self.read / 1e9:.1f}" if self.read else ""
        target = str(self.target) if self.target else ""
        return [self.work, self.ours, self.peer, reached, target, verdict, read]


@dataclass
class Outcome:
    """What a cell gave: its rows, and everything measured for the JSON."""

    rows: list[Row] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"rows": [asdict(r) for r in self.rows], "measured": self.measured}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        rows = []
        for row in data["rows"]:
            target = Target(**row["target"]) if row["target"] else None
            rows.append(Row(**{**row, "target": target}))
        return cls(rows, data["measured"])


HEADER = ("work", "Tidemill", "peer", "reached", "target", "met", "read GB/s beside")


def markdown(rows: list[Row], reasons: dict[str, str]) -> str:
    """The table, and under it why what was missed was missed."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    missed: dict[str, list[str]] = {}
    for row in rows:
        if row.met is False:
            found = [why for key, why in reasons.items() if row.key.startswith(key)]
            missed.setdefault(found[-1] if found else "not yet found.", []).append(row.work)
    if missed:
        lines += ["", "Missed, and why:", ""]
        lines += [f"- {'; '.join(works)}: {why}" for why, works in missed.items()]
    return "\n".join(lines)
