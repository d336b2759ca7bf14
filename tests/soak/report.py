"""The report of a run: what was promised, what was seen, in a table."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Rows of (what, seen, required, kept).

    Attributes:
        minutes: asked for.
        seconds: that it ran.
        interrupted: it was ended before its time.
    """

    minutes: float
    seconds: float = 0.0
    interrupted: bool = False
    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def require(self, what: str, seen: object, required: str, kept: bool) -> None:
        """Add a row that must be kept."""
        self.rows.append((what, str(seen), required, kept))

    def note(self, what: str, seen: object) -> None:
        """Add a row that tells something."""
        self.rows.append((what, str(seen), "", True))

    @property
    def kept(self) -> bool:
        """Everything required was seen."""
        return not self.wrong and all(row[3] for row in self.rows)

    def text(self) -> str:
        """Markdown."""
        ended = " (interrupted)" if self.interrupted else ""
        lines = [
            "# Soak: an engine killed and stopped under load",
            "",
            "Written by `make soak` (`tests/soak/`); see docs/operations.md for what it shows.",
            f"{self.seconds / 60:.1f} minutes{ended} on {platform.machine()}, Python "
            f"{platform.python_version()}: **{'kept' if self.kept else 'NOT KEPT'}**.",
            "",
            "| what | seen | required | kept |",
            "|---|---|---|---|",
        ]
        for what, seen, required, kept in self.rows:
            mark = "" if not required else ("yes" if kept else "**no**")
            lines.append(f"| {what} | {seen} | {required} | {mark} |")
        if self.notes:
            lines += ["", *self.notes]
        if self.wrong:
            lines += ["", "What was wrong:", "", *(f"- {one}" for one in self.wrong[:50])]
        return "\n".join(lines) + "\n"
