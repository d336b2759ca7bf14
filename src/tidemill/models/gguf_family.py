"""GGUF conventions of a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error
from tidemill.models.mtp import Mtp
from tidemill.models.naming import Rules
from tidemill.models.sources import AS_NAMED, Conventions
from tidemill.models.spec import DecoderSpec

Factors = tuple[float | NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Contents of a GGUF file, from which a family derives config keys that GGUF lacks.

    Attributes:
        keys: its keys under the architecture's prefix, without the prefix.
        tensors: stored name -> shape.
        config: the config so far.
        lists: config key -> a value per layer, for keys whose lists are per layer.
    """

    keys: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    config: Mapping[str, Any]
    lists: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folding:
    """Config numbers without GGUF keys: the file's tensors are already multiplied by them.

    Attributes:
        keys: of the config.
        factors: (config, spec) -> canonical name (of layers without ``layers.N.``) -> numbers or
            vectors (one per row) that the tensor is multiplied by, in order.
    """

    keys: tuple[str, ...]
    factors: Callable[[Mapping[str, Any], DecoderSpec], dict[str, Factors]]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """GGUF conventions of a family.

    Attributes:
        arch: value of ``general.architecture``.
        rules: tensor names. Of several matching rules the first whose tensor the model has applies.
        stored: see `Conventions`. (A converter may write Q and K in paired rope order, and adds one
            to norms itself.)
        biases: config key -> tensor whose presence means true (GGUF has no key for it); ``{i}`` is
            any layer.
        keys: further keys, without the architecture's prefix -> config key.
        unused: keys that only repeat what tensors state, or that `implied` reads; the common keys
            among them do not become config keys.
        names: common config key -> the family's own name, as in its `ConfigReader`.
        rope: whether the layers rotate.
        period: for families with sliding windows on some layers: every n-th layer is full when the
            file does not list them; None for families without.
        implied: config keys that follow from the architecture, or from other keys and tensors.
        experts: whether it is the one with experts, when two families share an architecture.
        by_layer: keys whose lists may differ between layers; `implied` interprets them.
        full_factors: rope divisors in tensors apply only to layers without a window.
        latent: attention is latent and its widths have keys of their own, so the common keys for
            heads do not apply.
        gating: the expert scoring rule (expert_gating_func; 1 without the key) that selects this
            family when several share an architecture; None for any.
        folding: see `Folding`; None when files state every number.
        mtp: its layers that draft tokens; None: they are not read.
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
    mtp: Mtp | None = None


def by_layer(file: GgufFile, key: str) -> list[int]:
    """Value of each layer, for a config key that files may give as a list.

    Raises:
        TidemillError: MODEL_FILE when the list's length is not the number of layers, or an entry is
            not a number.
    """
    layers = file.config.get("num_hidden_layers")
    if type(layers) is not int or not 0 < layers < 2**16:
        return []  # rejected with the number of layers
    values = file.lists.get(key, [file.config.get(key, 0)] * layers)
    if len(values) != layers or not all(type(value) is int and value >= 0 for value in values):
        raise model_file_error(f"the GGUF list of {key} must hold a number for each layer")
    return values


INNER = "ssm.inner_size"  # width of a recurrent mixer
WINDOW = {"attention.sliding_window": "sliding_window"}
EXPERTS = {"expert_used_count": "num_experts_per_tok"}
