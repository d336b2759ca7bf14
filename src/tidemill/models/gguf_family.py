"""How a family appears in GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error
from tidemill.models.naming import Rules
from tidemill.models.sources import AS_NAMED, Conventions
from tidemill.models.spec import DecoderSpec

Factors = tuple[float | NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file says, for what follows from it without a key of its own.

    Attributes:
        keys: its keys under the architecture's prefix, without it.
        tensors: stored name -> shape.
        config: the config so far.
        lists: of the keys whose lists are by layer: config key -> a value per layer.
    """

    keys: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    config: Mapping[str, Any]
    lists: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folding:
    """Numbers of a config that files have no keys for: their tensors are multiplied by them.

    Attributes:
        keys: of the config.
        factors: (config, spec) -> canonical name, of layers without ``layers.N.``, -> numbers or
            vectors (one per row) that the tensor is multiplied by, one after another.
    """

    keys: tuple[str, ...]
    factors: Callable[[Mapping[str, Any], DecoderSpec], dict[str, Factors]]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How a family appears in GGUF files.

    Attributes:
        arch: value of ``general.architecture``.
        rules: tensor names. Where several apply, the first whose tensor the model has.
        stored: see `Conventions`. (A converter may write Q and K for a rope on neighbours, and adds
            one to norms itself.)
        biases: config key -> tensor whose presence says true (GGUF has no key for it); ``{i}`` is
            any layer.
        keys: further keys, without the architecture's prefix -> config key.
        unused: keys that say nothing that tensors do not say better, or that `implied` reads; the
            common ones among them do not become config keys.
        names: common config key -> the family's own name of it, as its `ConfigReader` has them.
        rope: whether the layers rotate.
        period: of families with sliding windows on some layers: every so many-th layer is full
            where the file does not list them; None for families without.
        implied: config keys that follow from the architecture, or from other keys and tensors.
        experts: whether it is the one with experts of two families of an architecture.
        by_layer: keys whose lists may differ between layers; `implied` says what they mean.
        full_factors: rope divisors in tensors are those of layers without a window alone.
        latent: attention is to latents, whose widths are keys of their own: what the common keys
            say of heads does not hold.
        gating: of families of one architecture, which rule of scoring experts is this one's
            (expert_gating_func; 1 where a file names none); None for any.
        folding: see `Folding`; None where files say every number.
    """

    arch: str
    rules: Rules
    stored: Conventions = AS_NAMED
    biases: Mapping[str, str] | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    rope: bool = True
    period: int | None = None
    implied: Callable[[GgufFile], dict[str, Any]] | None = None
    experts: bool = False
    by_layer: frozenset[str] = frozenset()
    full_factors: bool = False
    latent: bool = False
    gating: int | None = None
    folding: Folding | None = None


def by_layer(file: GgufFile, key: str) -> list[int]:
    """Of a config key that files may give as a list, each layer's value.

    Raises:
        TidemillError: MODEL_FILE when the list has another length than the model, or holds anything
            but numbers.
    """
    layers = file.config.get("num_hidden_layers")
    if type(layers) is not int or not 0 < layers < 2**16:
        return []  # refused with the number of layers
    values = file.lists.get(key, [file.config.get(key, 0)] * layers)
    if len(values) != layers or not all(type(value) is int and value >= 0 for value in values):
        raise model_file_error(f"the GGUF list of {key} must hold a number for each layer")
    return values


INNER = "ssm.inner_size"  # width of a recurrent mixer
WINDOW = {"attention.sliding_window": "sliding_window"}
EXPERTS = {"expert_used_count": "num_experts_per_tok"}
