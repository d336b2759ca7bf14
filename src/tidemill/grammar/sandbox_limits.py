"""Limits of trying one grammar; see `sandbox`."""

from __future__ import annotations

CPU_SECONDS = 2.0
"""CPU time; the slowest accepted grammar takes about a tenth."""

MEMORY_BYTES = 256 * 2**20
"""In addition to the sandbox's own memory; the largest accepted grammars take up to 30 MiB."""

STACK_BYTES = 2**20
"""Accepted grammars need less than half. The engine's threads that compile grammars and compute
masks have at least 2 MiB."""

WALL_SECONDS = 30.0
"""Timeout of a reply, after which the sandbox (stopped, for example) is replaced."""
