"""Rounds matrices to 4 bits so that their output on a calibration text changes least.

The output of a matrix W on inputs X changes by ||(Q - W) X||^2 = tr(D H D^T) with D = Q - W and
H = X X^T, so H is all that is kept of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
_TOP = 15
_HALF = 8
# Fractions of a group's range that are tried for its scale.
_SHRINKS = tuple(1 - 0.05 * i for i in range(9))
# Fraction of the mean diagonal added to H's diagonal (Frantar et al. 2023, section 4).
_DAMPING = 0.01
_BLOCK = 128
_WIDE = 6144  # from this many columns on, H is factored in float32


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [n, k] in 4 bits: value = scale * (code - zero) by groups of columns.

    Attributes:
        codes: uint8 [n, k], 0 .. 15.
        zeros: uint8 [n, groups].
        scales: float32 [n, groups], that float16 holds.
    """

    codes: NDArray[np.uint8]
    zeros: NDArray[np.uint8]
    scales: Float32

    def values(self) -> Float32:
        """Dequantized values, float32 [n, k]."""
        n, k = self.codes.shape
        groups = self.scales.shape[1]
        signed = self.codes.reshape(n, groups, -1).astype(np.float32) - self.zeros[:, :, None]
        found: Float32 = (signed * self.scales[:, :, None]).reshape(n, k)
        return found


def change(delta: Float32, hessian: Float32) -> float:
    """tr(D H D^T)."""
    return float(np.einsum("nk,nk->", delta @ hessian, delta, dtype=np.float64))


def _grid(w: Float32, shrink: float, sym: bool) -> tuple[Float32, Float32]:
    """(scales, zeros) [n] of a group of columns with a reduced range."""
    low = np.minimum(w.min(1), 0) * np.float32(shrink)
    high = np.maximum(w.max(1), 0) * np.float32(shrink)
    if sym:
        high = np.maximum(-low, high)
        low = -high
    scales = ((high - low) / _TOP).astype(np.float16).astype(np.float32)
    scales[scales == 0] = 1
    zeros = np.full(len(w), _HALF, np.float32) if sym else np.rint(-low / scales).clip(0, _TOP)
    return scales, zeros.astype(np.float32)


def _codes(w: Float32, scales: Float32, zeros: Float32) -> Float32:
    found: Float32 = (np.rint(w / scales[:, None]) + zeros[:, None]).clip(0, _TOP)
    return found


def group_grid(w: Float32, hessian: Float32 | None, sym: bool) -> tuple[Float32, Float32]:
    """(scales, zeros) [n] of a group of columns: of the tried ranges, the one that changes the
    output least.

    Args:
        w: float32 [n, group].
        hessian: H of these columns; None for the whole range.
        sym: the zero point is the middle.
    """
    if hessian is None:
        return _grid(w, 1.0, sym)
    best = np.full(len(w), np.inf)
    scales, zeros = np.ones(len(w), np.float32), np.zeros(len(w), np.float32)
    for shrink in _SHRINKS:
        s, z = _grid(w, shrink, sym)
        delta = (_codes(w, s, z) - z[:, None]) * s[:, None] - w
        cost = np.einsum("nk,nk->n", delta @ hessian, delta)
        better = cost < best
        best = np.where(better, cost, best)
        scales, zeros = np.where(better, s, scales), np.where(better, z, zeros)
    return scales, zeros


def nearest(w: Float32, group: int, sym: bool, hessian: Float32 | None = None) -> Rounded:
    """Round to nearest; with `hessian` it selects the range of each group."""
    codes = np.empty(w.shape, np.uint8)
    scales, zeros = [], []
    for start in range(0, w.shape[1], group):
        part = w[:, start : start + group]
        block = None if hessian is None else hessian[start : start + group, start : start + group]
        s, z = group_grid(part, block, sym)
        codes[:, start : start + group] = _codes(part, s, z)
        scales.append(s)
        zeros.append(z)
    return Rounded(codes, np.stack(zeros, 1).astype(np.uint8), np.stack(scales, 1))


def gptq(w: Float32, group: int, hessian: Float32, *, act_order: bool = False) -> Rounded:
    """GPTQ (Frantar et al. 2023): columns are rounded one after another, and the following columns
    compensate the error.

    Args:
        w: float32 [n, k].
        group: columns that share a scale; divides 128 and k.
        hessian: float32 [k, k].
        act_order: columns with the largest inputs first. Groups remain adjacent columns, because
            their scales are chosen beforehand. The file therefore does not record the order.
    """
    n, k = w.shape
    h: NDArray[Any] = hessian.astype(np.float32 if k > _WIDE else np.float64)
    diagonal = np.diagonal(h).copy()
    dead = diagonal == 0
    work = w.astype(np.float32)
    work[:, dead] = 0
    h[dead, dead] = 1
    h += np.eye(k, dtype=h.dtype) * (_DAMPING * float(diagonal.mean()) or 1.0)
    order = np.argsort(-diagonal, kind="stable") if act_order else np.arange(k)
    fixed = nearest(work, group, True, hessian) if act_order else None
    inverse: NDArray[Any] = np.linalg.inv(h[np.ix_(order, order)])
    # The upper factor: row i holds the effect of rounding column i on the columns after it.
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
    del h, inverse
    work = work[:, order]
    codes = np.empty((n, k), np.uint8)
    scales = np.ones((n, k // group), np.float32)
    for start in range(0, k, _BLOCK):
        end = min(start + _BLOCK, k)
        errors = np.zeros((n, end - start), np.float32)
        for i in range(start, end):
            g = int(order[i]) // group
            if fixed is not None:
                scales[:, g] = fixed.scales[:, g]
            elif i % group == 0:
                # _BLOCK is a multiple of the group, so its columns are up to date.
                part = hessian[i : i + group, i : i + group]
                scales[:, g], _ = group_grid(work[:, i : i + group], part, True)
            column, s = work[:, i], scales[:, g]
            code = (np.rint(column / s) + _HALF).clip(0, _TOP)
            codes[:, i] = code
            error = (column - (code - _HALF) * s) / upper[i, i]
            work[:, i + 1 : end] -= np.outer(error, upper[i, i + 1 : end])
            errors[:, i - start] = error
        work[:, end:] -= errors @ upper[start:end, end:]
    back = np.argsort(order)
    return Rounded(codes[:, back], np.full(scales.shape, _HALF, np.uint8), scales)
