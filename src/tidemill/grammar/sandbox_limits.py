"""What trying one grammar may take; see `sandbox`."""

from __future__ import annotations

CPU_SECONDS = 2.0
"""Of processor time; the slowest grammar that is accepted takes about a tenth."""

MEMORY_BYTES = 256 * 2**20
"""Beyond what the sandbox takes itself; grammars of the largest size take up to 30 MiB."""

STACK_BYTES = 2**20
"""What is accepted needs less than half; the engine's threads that compile grammars and compute
masks have 2 MiB at least."""

WALL_SECONDS = 30.0
"""After which a sandbox that says nothing (it is stopped, say) is replaced."""
