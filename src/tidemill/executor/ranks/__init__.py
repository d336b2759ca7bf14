"""Tensor parallelism: a model computed by several processes (ranks) of one machine.

The engine's process is rank 0. It starts the others, each of which loads its part of the model
(`backends/native/shards.py`) and is told every step over a socket; what they compute for each other
passes through shared memory (csrc/runtime/group.h).
"""

from __future__ import annotations
