"""Python side of the C++ executor: it describes a model to the core and moves arrays.

The core computes a whole step in one call with the GIL released: see csrc/ and `backend.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.backends.base import Backend, BackendOptions, HeldTensor, PackedWeights
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import TensorHeader, TensorMap

# Larger than any core's private caches, so that reads are served by memory or a shared cache.
_BANDWIDTH_BYTES = 256 << 20


def load(
    spec: DecoderSpec,
    tensors: TensorMap,
    options: BackendOptions,
    packed: PackedWeights | None = None,
) -> Backend:
    """Load a model into a new native backend. Weights packed at an earlier start are mapped;
    otherwise the tensors are checked and a thread starts to repack them in memory
    (`Backend.when_loaded`).

    Raises TidemillError: UNSUPPORTED for a spec this backend does not run, MODEL_FILE for tensors
    that contradict the spec, CONFIG for an instruction set this machine lacks, RESOURCE when memory
    is insufficient.
    """
    from tidemill.backends.native.backend import NativeBackend

    return NativeBackend(spec, tensors, options, packed)


def held_tensors(
    spec: DecoderSpec, tensors: Mapping[str, TensorHeader], options: BackendOptions
) -> dict[str, HeldTensor]:
    """See backends.base.HeldTensors: exact, matrices as they are packed."""
    from tidemill.backends.native import layout

    return layout.held_tensors(spec, tensors, options)


def group_bytes() -> int:
    """Bytes of the memory that the processes of a model share (`backends.base.Shard`)."""
    from tidemill.backends.native import _core

    return _core.GROUP_BYTES


def available_isas() -> list[str]:
    """Instruction sets of this build that this machine can run, best first."""
    from tidemill.backends.native import _core

    return _core.available_isas()


def read_bandwidth(threads: int) -> float:
    """Read bandwidth of memory with `threads` threads, in bytes per second (takes about 0.3 s)."""
    from tidemill.backends.native import _core

    return _core.read_bandwidth(threads, _BANDWIDTH_BYTES, 3)
