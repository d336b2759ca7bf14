"""The dialects that are served. To add one: its package, and a row here."""

from __future__ import annotations

from tidemill.server.dialects.dialect import Dialect
from tidemill.server.dialects.openai.routes import OPENAI

DIALECTS: tuple[Dialect, ...] = (OPENAI,)
"""The first one's error shape is used where a path belongs to none."""
