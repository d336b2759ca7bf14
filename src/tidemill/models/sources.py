"""Location of a model tensor in a file, and the conversion of the stored values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Conventions:
    """How a family's files differ from the order and meaning that our names imply.

    Attributes:
        norms_less_one: norm weights are stored minus one (Gemma), except a recurrent mixer's.
        paired_rope: rope rotates neighbouring values (GPT-J), so the rows of Q and K are stored in
            pairs. They are reordered to rotate-half, which changes no score.
        tiled_values: the value heads of recurrent mixers that share key heads are interleaved: the
            first of each key head, then the second. They keep this order: see `Recurrent`.
        decays: a_log of recurrent mixers is stored as -exp(a_log).
        position_offset: row of the first position's vector (OPT).
        draft_layers: layers after the last one draft tokens (models/mtp.py); they are no part of
            the model.
        left_out: name prefixes of further tensors that are not loaded.
    """

    norms_less_one: bool = False
    paired_rope: bool = False
    decays: bool = False
    tiled_values: bool = False
    position_offset: int = 0
    draft_layers: bool = False
    left_out: tuple[str, ...] = ()


AS_NAMED = Conventions()


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One of the model's tensors as a view of a stored one.

    Attributes:
        stored: name of the stored tensor.
        expert: index into its first axis; None for the whole tensor.
        transposed: its last two axes are exchanged, after `expert` and before `rows`.
        rows: indices of the rows, in order; None for all.
        plus: added to every value.
        decay: the stored values are -exp of ours.
        flat: a stored tensor of more axes is read as a vector, before `rows` (Cohere's norms of
            heads).
        turned: its two axes are exchanged, after `rows`.
    """

    stored: str
    expert: int | None = None
    transposed: bool = False
    rows: Rows | None = None
    plus: float = 0.0
    decay: bool = False
    flat: bool = False
    turned: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is the unchanged stored tensor."""
        changed = self.expert is not None or self.flat or self.computed
        return not (changed or self.transposed or self.turned) and self.rows is None

    @property
    def computed(self) -> bool:
        """Whether its values differ from the stored ones."""
        return self.plus != 0.0 or self.decay

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The view's shape; `stored` must have the number of axes that the view needs."""
        shape = stored if self.expert is None else stored[1:]
        if self.transposed:
            shape = shape[::-1]
        if self.flat:
            shape = (math.prod(shape),)
        if self.rows is not None:
            shape = (selected(shape[0], self.rows), *shape[1:])
        return shape[::-1] if self.turned else shape


def selected(count: int, rows: Rows) -> int:
    """Number of selected rows out of `count`."""
    return len(range(count)[rows]) if isinstance(rows, slice) else len(rows)


def pick(rows: Rows | None, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows `order` of the view that `rows` describes."""
    if rows is None:
        return order
    if isinstance(rows, slice):
        return (rows.start or 0) + order * (rows.step or 1)
    return rows[order]


def paired_order(heads: int, head_dim: int, dim: int, first: int = 0) -> NDArray[np.int64]:
    """Where rotate-half rows are in paired order; in each head the `dim` rows from `first` on."""
    head = np.arange(head_dim)
    head[first : first + dim] = first + np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2)])
    return (np.arange(heads)[:, None] * head_dim + head).reshape(-1)
