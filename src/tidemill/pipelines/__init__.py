"""Pipelines: Python files with ``async def answer(request, models)``, served under a name of their
own. What a file may import from here is in `__all__` (docs/pipelines.md)."""

from __future__ import annotations

from tidemill.pipelines.api import (
    Answer,
    BadRequest,
    Model,
    ModelError,
    Models,
    Ranked,
    Request,
    TextStream,
    Usage,
)

__all__ = [
    "Answer",
    "BadRequest",
    "Model",
    "ModelError",
    "Models",
    "Ranked",
    "Request",
    "TextStream",
    "Usage",
]
