"""Where in a file a tensor of the model is, and what must be done to what is stored there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Conventions:
    """How a family's files differ from the order and meaning our names imply.

    Attributes:
        norms_less_one: norm weights are stored less one (Gemma); never those of a recurrent mixer.
        paired_rope: rope rotates neighbours (GPT-J), so that Q's and K's rows are stored in pairs;
            they are put into rotate-half order, which changes no score.
        tiled_values: value heads of recurrent mixers that share key heads are stored in turns: the
            first one of each key head, then the second. They are left so: see `Recurrent`.
        decays: a_log of recurrent mixers is stored as -exp(a_log).
        position_offset: row of the first position's vector (OPT).
        draft_layers: layers behind the last one draft tokens (multi-token prediction); they are
            left out.
        left_out: what names of tensors that are left out as well begin with.
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
        rows: which rows, in which order; None for all.
        plus: is added to every value.
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
        """Whether it is the stored tensor as it is."""
        changed = self.expert is not None or self.flat or self.computed
        return not (changed or self.transposed or self.turned) and self.rows is None

    @property
    def computed(self) -> bool:
        """Whether its values are other numbers than the stored ones."""
        return self.plus != 0.0 or self.decay

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The view's shape; `stored` has as many axes as the view needs."""
        shape = stored if self.expert is None else stored[1:]
        if self.transposed:
            shape = shape[::-1]
        if self.flat:
            shape = (math.prod(shape),)
        if self.rows is not None:
            shape = (selected(shape[0], self.rows), *shape[1:])
        return shape[::-1] if self.turned else shape


def selected(count: int, rows: Rows) -> int:
    """How many of `count` rows are taken."""
    return len(range(count)[rows]) if isinstance(rows, slice) else len(rows)


def pick(rows: Rows | None, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows `order` of the view that `rows` is."""
    if rows is None:
        return order
    if isinstance(rows, slice):
        return (rows.start or 0) + order * (rows.step or 1)
    return rows[order]


def paired_order(heads: int, head_dim: int, dim: int, first: int = 0) -> NDArray[np.int64]:
    """Where the rows of rotate-half order are when the `dim` from `first` on of each head are in
    pairs."""
    head = np.arange(head_dim)
    head[first : first + dim] = first + np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2)])
    return (np.arange(heads)[:, None] * head_dim + head).reshape(-1)
