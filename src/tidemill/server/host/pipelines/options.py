"""Settings of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """One pipeline to serve.

    Attributes:
        name: the name that answers carry.
        file: absolute path of the Python file.
        timeout: seconds that one answer may take; infinite: no bound.
        memory: bytes of private memory that its process may have.
        options: what its code reads.
    """

    name: str
    file: str
    timeout: float = 300.0
    memory: int = 2**30
    options: Mapping[str, Any] = field(default_factory=dict)
