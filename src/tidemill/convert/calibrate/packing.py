"""4-bit matrices in the layouts of GPTQ and AWQ checkpoints; see `loading/schemes/`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.convert.calibrate.rounding import Rounded

Arrays = dict[str, NDArray[Any]]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _words(fields: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Eight fields per word from rows [rows, m], the first field lowest."""
    pairs = fields[:, ::2] | (fields[:, 1::2] << 4)
    return np.ascontiguousarray(pairs).view("<i4")


def gptq_tensors(rounded: Rounded) -> Arrays:
    """The tensors by name suffix. Zero points are stored minus one."""
    k, groups = rounded.codes.shape[1], rounded.scales.shape[1]
    zeros = np.ascontiguousarray((rounded.zeros.T - 1) & 15)
    return {
        ".qweight": np.ascontiguousarray(_words(rounded.codes).T),
        ".qzeros": _words(zeros),
        ".scales": np.ascontiguousarray(rounded.scales.T).astype(np.float16),
        ".g_idx": (np.arange(k) // (k // groups)).astype(np.int32),
    }


def awq_tensors(rounded: Rounded) -> Arrays:
    """The tensors by name suffix."""

    def ordered(columns: NDArray[np.uint8]) -> NDArray[np.int32]:
        by_eight = columns.reshape(len(columns), -1, 8)[:, :, _AWQ_ORDER]
        return _words(np.ascontiguousarray(by_eight).reshape(len(columns), -1))

    return {
        ".qweight": ordered(np.ascontiguousarray(rounded.codes.T)),
        ".qzeros": ordered(np.ascontiguousarray(rounded.zeros.T)),
        ".scales": np.ascontiguousarray(rounded.scales.T).astype(np.float16),
    }
