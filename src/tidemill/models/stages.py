"""How a model's layers are divided among the stages of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from tidemill.models import tensors as names
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import RawTensor, TensorHeader

Layers = tuple[int, int]
"""First layer of a stage, and the one after its last."""

_LAYER = re.compile(r"layers\.(\d+)\.")
# Decoding reads the output layer for every token, prefill for the last one of a prompt.
_HEAD_SHARE = 0.5


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None: to none."""
    found = _LAYER.match(name)
    return None if found is None else int(found[1])


def cuts_of(spec: DecoderSpec) -> list[int]:
    """Layers in front of which a stage may begin: nothing from there on reads K and V of a layer
    before."""
    reads = [
        (layer if mixer.kv_layer is None else mixer.kv_layer, layer)
        for layer, mixer in spec.attentions().items()
    ]
    inner = range(1, len(spec.layers))
    return [cut for cut in inner if not any(source < cut <= layer for source, layer in reads)]


def divide_layers(
    spec: DecoderSpec,
    tensors: Mapping[str, RawTensor] | Mapping[str, TensorHeader],
    stages: int,
) -> list[Layers]:
    """Layers of each stage, so that the largest holds as few bytes of weights as possible. Of the
    output layer, which stage 0 has, half counts.

    Raises:
        ValueError: there are not so many parts; its text says why.
    """
    sizes = [0.0] * len(spec.layers)
    head = 0.0
    for name, tensor in tensors.items():
        if (layer := layer_of(name)) is not None:
            sizes[layer] += tensor.nbytes
        elif name == (names.EMBED if spec.tied_embeddings else names.LM_HEAD):
            head = _HEAD_SHARE * tensor.nbytes
    bounds = [0, *cuts_of(spec), len(sizes)]
    if len(bounds) - 1 < stages:
        whole = len(bounds) - 1 == len(sizes)
        why = "" if whole else ", because layers read the keys and values of others"
        raise ValueError(f"its {len(sizes)} layers make at most {len(bounds) - 1} parts{why}")
    sums = [0.0]
    for size in sizes:
        sums.append(sums[-1] + size)
    # Of the layers up to each bound in so many stages: the largest part, and where each begins.
    best = {bound: (head + sums[bound], [0]) for bound in bounds[1:]}
    for _ in range(stages - 1):
        longer: dict[int, tuple[float, list[int]]] = {}
        for bound in bounds[2:]:
            options = [
                (max(best[before][0], sums[bound] - sums[before]), [*best[before][1], before])
                for before in bounds[1:]
                if before < bound and before in best
            ]
            if options:
                longer[bound] = min(options)
        best = longer
    starts = [*best[len(sizes)][1], len(sizes)]
    return list(pairwise(starts))
