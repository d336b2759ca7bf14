"""Whether embeddings are tied, according to config.json and to the tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Place
from tidemill.models import tensors as names
from tidemill.models.naming import Rules, canonical_names
from tidemill.models.spec import DecoderSpec

_PIECE = 2**23  # bytes compared at once


def as_stored(
    spec: DecoderSpec, rules: Rules, weights: Mapping[str, StoredTensor | Place]
) -> tuple[DecoderSpec, tuple[str, ...]]:
    """The spec with a separate output layer when the stored one differs from the embedding that the
    config ties it to, and a note on it. transformers decides the same way."""
    if not spec.generates or not spec.tied_embeddings:
        return spec, ()
    found: dict[str, str] = {}
    for name in weights:
        for part in canonical_names(rules, name)[1].parts:
            if part in (names.EMBED, names.LM_HEAD):
                found.setdefault(part, name)
    if len(found) < 2 or _same(weights[found[names.EMBED]], weights[found[names.LM_HEAD]]):
        return spec, ()
    note = (
        f"{found[names.LM_HEAD]} differs from {found[names.EMBED]}, to which config.json ties it "
        "(tie_word_embeddings): it is used as it is stored"
    )
    return dataclasses.replace(spec, tied_embeddings=False), (note,)


def _same(a: StoredTensor | Place, b: StoredTensor | Place) -> bool:
    """Whether two weights are stored as equal bytes."""
    if len(a.parts) != 1 or len(b.parts) != 1 or a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, other = a.parts[0], b.parts[0]
    if one.nbytes != other.nbytes:
        return False
    for start in range(0, one.nbytes, _PIECE):
        end = min(start + _PIECE, one.nbytes)
        left, right = (np.frombuffer(t.view[start:end], np.uint8) for t in (one, other))
        if not np.array_equal(left, right):
            return False
        for tensor in (one, other):
            tensor.file.release_pages(tensor.offset + start, end - start)
    return True
