"""Changes of a base model's tensors, from the names and shapes of an adapter's modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import READ_TYPES, Float32, OneTensor
from tidemill.loading.selected import Recent, select
from tidemill.models import tensors as names
from tidemill.models.adapters import MAX_RANK, LoraTensor, adaptable_tensors
from tidemill.models.multimodal import text_tensors
from tidemill.models.naming import STACKED_EXPERTS, Rules, canonical_names, views_of
from tidemill.models.sources import Conventions, Source
from tidemill.models.spec import DecoderSpec

_EXPERT = re.compile(r"(?<=\.experts\.)\d+")


@dataclass(frozen=True, slots=True)
class LowRank:
    """One module's pair of matrices as [rank, in] and [out, rank], or with an axis of experts in
    front.

    Attributes:
        tensor: name of the matrix in the adapter's terms, for messages and rules.
        a, b, scale, magnitude, norm_axis: as in `LoraTensor`, in the file's row order.
    """

    tensor: str
    a: Float32
    b: Float32
    scale: float
    magnitude: Float32 | None = None
    norm_axis: int = 1


@dataclass(slots=True)
class Changes:
    """Collects an adapter's changes of one base model; every tensor is checked against the spec.

    Args:
        spec: the base.
        rules, conventions: names and row orders of the files that the adapter was trained with.
        recurrent: whether recurrent layers are in the base file's order (see `source.py`).
    """

    spec: DecoderSpec
    rules: Rules
    conventions: Conventions
    recurrent: bool = True
    tensors: dict[str, LoraTensor] = field(default_factory=dict)
    replaced: dict[str, Float32] = field(default_factory=dict)
    added: dict[str, Float32] = field(default_factory=dict)

    @property
    def _rules(self) -> Rules:
        # transformers has all experts in one tensor also where checkpoints have one each.
        return (*self.rules, *STACKED_EXPERTS)

    def low_rank(self, change: LowRank) -> None:
        """Take a pair of matrices.

        Raises:
            TidemillError: MODEL_FILE or UNSUPPORTED naming the tensor.
        """
        name, a, b = change.tensor, change.a, change.b
        if a.ndim != b.ndim or a.ndim not in (2, 3) or a.shape[:-2] != b.shape[:-2]:
            raise _wrong(name, f"its matrices have shapes {list(a.shape)} and {list(b.shape)}")
        rank = a.shape[-2]
        if b.shape[-1] != rank or not 1 <= rank <= MAX_RANK:
            raise _wrong(
                name, f"its ranks are {rank} and {b.shape[-1]}, equal and 1 to {MAX_RANK} are read"
            )
        shape = (*b.shape[:-1], a.shape[-1])
        magnitude = change.magnitude
        wide = (shape[-2 if change.norm_axis else -1],)
        if magnitude is not None and (a.ndim != 2 or magnitude.shape != wide):
            raise _wrong(name, f"its magnitude has shape {list(magnitude.shape)}, not {list(wide)}")
        for canonical, source in self._views(name, shape, as_linear=True):
            if canonical in self.tensors:
                raise _wrong(name, "another module of the adapter is the same")
            self.tensors[canonical] = _seen(change, canonical, source)

    def fits(self, change: LowRank) -> bool:
        """Whether a stack of pairs has the shapes of all experts of a tensor of the base."""
        shape = (*change.b.shape[:-1], change.a.shape[-1])
        try:
            found = dict(self._views(change.tensor, shape, as_linear=True))
        except TidemillError:
            return False
        stacks = {_EXPERT.sub("{e}", name) for name in found}
        all_experts = [_EXPERT.sub("{e}", name) for name in adaptable_tensors(self.spec)]
        return len(found) == sum(name in stacks for name in all_experts)

    def replace(self, name: str, stored: StoredTensor) -> None:
        """Take a whole tensor in the base's place; see `low_rank`."""
        place, recent = _place(stored), Recent()
        values_of(stored)  # refuses NaN and infinity
        for canonical, source in self._views(name, stored.shape):
            if canonical in self.replaced:
                raise _wrong(name, "another tensor of the adapter is the same")
            self.replaced[canonical] = select(place, source, recent).values()

    def add(self, name: str, vector: Float32) -> None:
        """Take a vector that is added to a bias; see `low_rank`."""
        for canonical, source in self._views(name, vector.shape):
            rows = slice(None) if source.rows is None else source.rows
            self.added[canonical] = np.ascontiguousarray(vector[rows])

    def _views(
        self, name: str, shape: tuple[int, ...], *, as_linear: bool = False
    ) -> Iterator[tuple[str, Source]]:
        expected = adaptable_tensors(self.spec)
        for known in _names(self._rules, name):
            found = views_of(
                self.spec,
                self._rules,
                known,
                shape,
                self.conventions,
                expected,
                as_linear=as_linear,
            )
            if found:
                break
        else:
            raise model_file_error(
                f"the base model ({self.spec.family}) has no tensor {name[:200]!r}: the adapter "
                "belongs to another model",
                param=name[:200],
            )
        if not self.recurrent and any(".rec." in canonical for canonical in found):
            raise unsupported(
                name,
                f"{name}: adapters of recurrent layers are read for the format that they were "
                "trained with alone; give the base as that format",
            )
        yield from found.items()


def _names(rules: Rules, name: str) -> list[str]:
    """A tensor by its possible names: in the causal model, in a model with a vision part, and
    in one without the output layer."""
    first = next((p for p, canonical in rules if canonical == names.EMBED), "")
    prefix, dot, _ = first.partition(".")
    found = [name, *text_tensors({name: None}), *([prefix + dot + name] if dot else [])]
    return [n for n in dict.fromkeys(found) if canonical_names(rules, n)[0]]


def _seen(change: LowRank, canonical: str, source: Source) -> LoraTensor:
    """The change of one canonical tensor: its rows of B, in its order."""
    a, b, magnitude = change.a, change.b, change.magnitude
    if source.expert is not None:
        a, b = a[source.expert], b[source.expert]
    if source.rows is not None:
        b = b[source.rows]
        if magnitude is not None:
            if change.norm_axis == 0:
                raise unsupported(change.tensor, f"{change.tensor}: DoRA of some rows of a table")
            magnitude = magnitude[source.rows]
    axis = change.norm_axis
    if source.turned:
        a, b, axis = b.T, a.T, 1 - axis
    return LoraTensor(
        canonical, np.ascontiguousarray(a), np.ascontiguousarray(b), change.scale, magnitude, axis
    )


def values_of(stored: StoredTensor) -> Float32:
    """An adapter's tensor as float32.

    Raises:
        TidemillError: UNSUPPORTED for a type that is not read, MODEL_FILE for NaN or infinity.
    """
    values = _place(stored).values()
    if not np.isfinite(values).all():
        raise model_file_error(
            f"tensor {stored.name[:200]!r} holds NaN or infinity", param=stored.name[:200]
        )
    return values


def _place(stored: StoredTensor) -> OneTensor:
    if stored.dtype not in READ_TYPES:
        name = stored.name[:200]
        raise unsupported(name, f"tensor {name!r} has type {stored.dtype}, which is not read")
    return OneTensor(stored)


def _wrong(name: str, fault: str) -> TidemillError:
    return model_file_error(f"{name[:200]}: {fault}", param=name[:200])
