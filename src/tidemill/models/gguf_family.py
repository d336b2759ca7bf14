"""How a family appears in GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.models.naming import Rules
from tidemill.models.sources import AS_NAMED, Conventions


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file says, for what follows from it without a key of its own.

    Attributes:
        keys: its keys under the architecture's prefix, without it.
        tensors: stored name -> shape.
        config: the config so far.
    """

    keys: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How a family appears in GGUF files.

    Attributes:
        arch: value of ``general.architecture``.
        rules: tensor names. Where several apply, the first whose tensor the model has.
        stored: see `Conventions`. (A converter may write Q and K for a rope on neighbours, and adds
            one to norms itself.)
        biases: config key -> tensor whose presence says true (GGUF has no key for it).
        keys: further keys, without the architecture's prefix -> config key.
        unused: keys that say nothing that tensors do not say better.
        names: common config key -> the family's own name of it, as its `ConfigReader` has them.
        rope: whether the layers rotate.
        period: of families with sliding windows on some layers: every so many-th layer is full
            where the file does not list them; None for families without.
        implied: config keys that follow from the architecture, or from other keys and tensors.
        experts: whether it is the one with experts of two families of an architecture.
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


WINDOW = {"attention.sliding_window": "sliding_window"}
EXPERTS = {"expert_used_count": "num_experts_per_tok"}
