"""The MTP layer of a checkpoint (models/mtp.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Place
from tidemill.loading.schemes import checked_place
from tidemill.loading.selected import Recent, select
from tidemill.models import tensors as names
from tidemill.models.mtp import Mtp
from tidemill.models.naming import Rules, match_tensors
from tidemill.models.sources import Conventions, Source
from tidemill.models.spec import DecoderSpec

_SAMPLES, _SAMPLE = 16, 256  # pieces of a tensor that are compared, and their bytes


@dataclasses.dataclass(frozen=True, slots=True)
class MtpFiles:
    """An MTP layer; no values are read.

    Attributes:
        spec: its decoder layer as a model of one layer, with the norm behind it.
        tensors: of that model. The row of its embedding is never used.
        embedding_norm, hidden_norm: [hidden_size].
        join: [hidden_size, 2 * hidden_size].
    """

    spec: DecoderSpec
    tensors: LazyTensors
    embedding_norm: Place
    hidden_norm: Place
    join: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint is read as.

    Attributes:
        read: its family's reading of a config.
        config: the model's.
        spec: the model.
        rules, stored: names and conventions of its format.
    """

    read: Callable[[Mapping[str, Any]], DecoderSpec]
    config: Mapping[str, Any]
    spec: DecoderSpec
    rules: Rules
    stored: Conventions


@dataclasses.dataclass(frozen=True, slots=True)
class MtpTensors:
    """The stored tensors of a checkpoint's MTP layer.

    Attributes:
        checkpoint: what it is read as.
        mtp: the layout.
        stored: all weights of the checkpoint.
        embedding, output: names of the model's embedding and output matrix among them.
    """

    checkpoint: Checkpoint
    mtp: Mtp
    stored: Mapping[str, StoredTensor | Place]
    embedding: str
    output: str

    @property
    def prefix(self) -> str:
        """Of the tensors' names."""
        return self.mtp.names.prefix.format(n=len(self.checkpoint.spec.layers))

    def open(self) -> MtpFiles:
        """The layer, its tensors' names and shapes checked.

        Raises:
            TidemillError: MODEL_FILE naming a tensor that is missing or of another shape,
                UNSUPPORTED for one that cannot be used.
        """
        layout, prefix = self.mtp.names, self.prefix
        read, config = self.checkpoint.read, self.checkpoint.config
        spec = self.mtp.spec(read, config)
        width = spec.hidden_size
        own = {n.removeprefix(prefix): t for n, t in self.stored.items() if n.startswith(prefix)}
        plus = 1.0 if self.checkpoint.stored.norms_less_one else 0.0
        recent = Recent()

        def taken(name: str, shape: tuple[int, ...], add: float = 0.0) -> Place:
            if name not in own:
                raise model_file_error(f"the MTP layer lacks {prefix}{name}", param=prefix + name)
            tensor = own.pop(name)
            if tensor.shape != shape:
                raise model_file_error(
                    f"tensor {prefix + name!r} has shape {list(tensor.shape)}, the model needs "
                    f"{list(shape)}",
                    param=prefix + name,
                )
            return select(checked_place(tensor), Source(prefix + name, plus=add), recent)

        norms = [taken(n, (width,), plus) for n in (layout.embedding_norm, layout.hidden_norm)]
        join = taken(layout.join, (width, 2 * width))
        last = taken(layout.norm, (width,), plus)
        for name, original in zip(layout.copies or (), (self.embedding, self.output), strict=False):
            if name in own and not _same(own.pop(name), self.stored[original]):
                raise unsupported(
                    prefix + name,
                    f"{prefix}{name} differs from {original}: MTP layers with an embedding or "
                    "output matrix of their own are not supported",
                )
        block = {
            layout.layer + n.removeprefix(layout.block): t
            for n, t in own.items()
            if n.startswith(layout.block)
        }
        return MtpFiles(spec, self._tensors(spec, block, last), norms[0], norms[1], join)

    def _tensors(
        self, spec: DecoderSpec, block: Mapping[str, StoredTensor | Place], last: Place
    ) -> LazyTensors:
        shapes = {name: tensor.shape for name, tensor in block.items()}
        bare = dataclasses.replace(spec, last_norm=False)
        rules, conventions = self.checkpoint.rules, self.checkpoint.stored
        shapes[self.embedding] = (1, spec.hidden_size)
        sources = match_tensors(bare, rules, shapes, conventions)
        sources[names.EMBED] = Source(self.embedding, rows=slice(0, 1))
        whole = {name: checked_place(tensor) for name, tensor in block.items()}
        whole[self.embedding] = checked_place(self.stored[self.embedding])
        places = LazyTensors.of_sources(whole, sources).places
        return LazyTensors({**places, names.FINAL_NORM: last})


def mtp_tensors(
    checkpoint: Checkpoint,
    mtp: Mtp | None,
    stored: Mapping[str, StoredTensor | Place],
    sources: Mapping[str, Source],
) -> MtpTensors | None:
    """The MTP layer of a checkpoint; None where it has none.

    Args:
        checkpoint: what it is read as.
        mtp: the layout of its family's MTP layers.
        stored: its weights by their stored names.
        sources: the model's tensors.
    """
    if mtp is None:
        return None
    embedding = sources[names.EMBED].stored
    output = sources[names.LM_HEAD].stored if names.LM_HEAD in sources else embedding
    found = MtpTensors(checkpoint, mtp, stored, embedding, output)
    return found if any(name.startswith(found.prefix) for name in stored) else None


def _same(a: StoredTensor | Place, b: StoredTensor | Place) -> bool:
    """Whether samples of two weights are equal bytes."""
    if a.shape != b.shape or len(a.parts) != len(b.parts):
        return False
    for one, other in zip(a.parts, b.parts, strict=True):
        if one.dtype != other.dtype or one.nbytes != other.nbytes:
            return False
        for at in np.linspace(0, max(0, one.nbytes - _SAMPLE), _SAMPLES).astype(int).tolist():
            if one.view[at : at + _SAMPLE] != other.view[at : at + _SAMPLE]:
                return False
    return True
