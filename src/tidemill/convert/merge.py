"""A model with an adapter's changes made in its weights.

Merged values are computed in float32 and rounded once, to the type that the base stores them in.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tidemill.base.errors import unsupported
from tidemill.convert.folder.names import put
from tidemill.convert.gguf.names import stored_name
from tidemill.convert.output import Buffer, Loss, OutTensor, copied, narrowed
from tidemill.loading.adapters.source import open_adapter
from tidemill.loading.checkpoint import open_model
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import Float32, OneTensor, Place, held_bytes, one_tensor
from tidemill.models import tensors as names
from tidemill.models.adapters import Adapter
from tidemill.models.naming import Rules
from tidemill.models.quantization import FLOAT_TYPES, QUANTIZERS, convert, to_float32
from tidemill.models.sources import Source
from tidemill.models.tensors import RawTensor


@dataclass(frozen=True, slots=True)
class Merged:
    """A base's weight with the adapter's change, as a `Place`.

    Attributes:
        place: the base's weight.
        canonical: its name.
        adapter: what changes it.
    """

    place: Place
    canonical: str
    adapter: Adapter

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def dtype(self) -> str:
        return self.place.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.place.shape

    @property
    def nbytes(self) -> int:
        return self.place.nbytes

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.place.parts

    @property
    def exact(self) -> str:
        """See `Place`: the base's float type, to which the merged values are rounded."""
        return self.place.exact if self.place.exact in FLOAT_TYPES else "F32"

    def values(self) -> Float32:
        """See `Place`."""
        return self.adapter.applied(self.canonical, self.place.values())

    def packed(self, rounded: bool = False) -> RawTensor:
        """See `Place`."""
        bits = narrowed(self.values(), self.exact)
        return RawTensor(self.exact, self.shape, bits.reshape(-1).view(np.uint8).data)


def opened(source: Path, adapter: Path | None) -> tuple[ModelFiles, str]:
    """A model, merged with an adapter if one is given, and the identity of its weights."""
    if adapter is None:
        files = open_model(source)
        return files, files.digest().hex()
    files, changes = merged(source, adapter)
    return files, f"{files.digest().hex()} {changes.digest.hex()}"


def merged(source: Path, adapter: Path) -> tuple[ModelFiles, Adapter]:
    """An opened model whose changed weights are `Merged`, and the adapter.

    Raises:
        TidemillError: see `open_adapter`; UNSUPPORTED for an activated adapter, whose model before
            its invocation tokens is the base, and for a prompt adapter.
    """
    base = open_model(source)
    changes = open_adapter(adapter, base)
    if changes.invocation is not None:
        raise unsupported(
            "merge", "an activated LoRA changes the model only after its invocation tokens: it "
            "cannot be merged"
        )  # fmt: skip
    if changes.of_prompt:
        raise unsupported(
            "merge", "a prompt adapter changes no weights, but what stands in front of the prompt: "
            "it cannot be merged"
        )  # fmt: skip
    places = dict(base.tensors.places)
    spec, config = base.spec, base.config
    if changes.unties(spec):
        if base.other_parts:
            raise unsupported(
                "merge",
                "the adapter changes an embedding that is the output layer too, in a model with a "
                "vision part: not supported",
            )
        spec = replace(spec, tied_embeddings=False)
        config = {**config, "tie_word_embeddings": False}
        places[names.LM_HEAD] = places[names.EMBED]
    for name in changes.targets:
        places[name] = Merged(places[name], name, changes)
    files = replace(base, spec=spec, config=config, tensors=LazyTensors(places))
    return files, changes


def stored_tensors(
    files: ModelFiles, stored: Mapping[str, StoredTensor], rules: Rules, loss: Loss
) -> list[OutTensor]:
    """All tensors of the base's files under their own names and in their own types, the merged
    values in their places; what no adapter changes is copied.

    Args:
        files: of `merged`.
        stored: name -> tensor, of all the base's files.
        rules: the base format's names.
        loss: counts the error of weights that are quantized again.

    Raises:
        TidemillError: UNSUPPORTED for a changed weight whose type cannot be written.
    """
    changed: dict[str, list[tuple[Source, Merged]]] = defaultdict(list)
    for canonical, place in files.tensors.places.items():
        if isinstance(place, Merged) and canonical in files.sources:
            changed[place.name].append((files.sources[canonical], place))
    out = [
        _changed(name, one_tensor(tensor), changed[name], loss) if name in changed
        else copied(name, tensor)
        for name, tensor in stored.items()
    ]  # fmt: skip
    head = files.tensors.places.get(names.LM_HEAD)
    if head is None or names.LM_HEAD in files.sources:
        return out
    # The output layer was tied: it gets a tensor of its own.
    found = stored_name(rules, names.LM_HEAD, files.spec.expected_tensors(), anyhow=True)
    if found is None:
        raise unsupported("merge", f"{files.spec.family} models have no output layer of their own")
    name, table = found[0], stored[head.name]
    own = copied(name, table)
    if isinstance(head, Merged):
        own = _changed(name, one_tensor(table), [(Source(name), head)], loss)
    return [*(tensor for tensor in out if tensor.name != name), own]


def _changed(
    name: str, base: OneTensor, views: list[tuple[Source, Merged]], loss: Loss
) -> OutTensor:
    dtype = base.dtype
    if dtype not in FLOAT_TYPES and dtype not in QUANTIZERS:
        kinds = ", ".join((*FLOAT_TYPES, *QUANTIZERS))
        raise unsupported(
            name, f"{name} is stored as {dtype}, and merged weights are written as {kinds}: merge "
            "into the model that it was made from, then quantize"
        )  # fmt: skip
    pieces = partial(_pieces, name, base, views, loss)
    return OutTensor(name, dtype, base.shape, held_bytes(dtype, base.shape), pieces)


def _pieces(
    name: str, base: OneTensor, views: list[tuple[Source, Merged]], loss: Loss
) -> Iterator[Buffer]:
    whole = np.array(base.values(), np.float32)
    for source, place in views:
        values = place.values()
        if source.decay:
            values = -np.exp(values)
        put(whole, source, values - np.float32(source.plus) if source.plus else values)
    if base.dtype in FLOAT_TYPES:
        yield narrowed(whole, base.dtype).reshape(-1).view(np.uint8).data
        return
    packed = convert(RawTensor("F32", whole.shape, whole.reshape(-1).data.cast("B")), base.dtype)
    loss.add(name, whole, to_float32(packed))
    yield packed.data


def check_float(files: ModelFiles) -> None:
    """UNSUPPORTED unless every changed weight of a folder is stored in a float type."""
    for place in files.tensors.places.values():
        if isinstance(place, Merged) and place.dtype not in FLOAT_TYPES:
            raise unsupported(
                place.name,
                f"{place.name} is stored as {place.dtype}: an adapter is merged into float "
                "weights; give the model that this one was quantized from, then quantize",
            )


def note_untied(folder: Path) -> None:
    """Note in a written config.json that the output layer is separate."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "tie_word_embeddings": False}, indent=2), "utf-8")
