"""PEFT's layout: adapter_config.json and adapter_model.safetensors (or .bin) in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.loading.adapters.base import Changes, LowRank, values_of
from tidemill.loading.adapters.layout import CONFIG
from tidemill.loading.adapters.settings import LoraSettings
from tidemill.loading.mapped import StoredTensor

_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)"
    r"(?:\.(?P<end>weight|bias))?"
)
_NESTED = ".base_layer"  # of a module with several adapted parameters
_OTHER = re.compile(r"lora_|trainable_tokens|token_adapter")


@dataclass(slots=True)
class _Module:
    """The stored tensors of one adapted module, by their part's name."""

    parts: dict[str, StoredTensor] = field(default_factory=dict)


def read_peft(stored: Mapping[str, StoredTensor], settings: LoraSettings, changes: Changes) -> None:
    """Take every tensor of an adapter.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the tensor that is unknown, incomplete, not
            finite, or of another shape than the base's.
    """
    if not stored:
        raise model_file_error("holds no tensors")
    modules: dict[str, _Module] = {}
    for full, tensor in stored.items():
        name = full.removeprefix(_PREFIX)
        if name == full:
            raise _unknown(full)
        match = _PART.fullmatch(name)
        if match is not None:
            part = match["part"] + (".bias" if match["end"] == "bias" else "")
            parts = modules.setdefault(match["module"], _Module()).parts
            if part in parts:
                raise _unknown(full)
            parts[part] = tensor
        elif _OTHER.search(name):
            raise _unknown(full)
        else:
            changes.replace(name.replace(".base_layer.", "."), tensor)
    for module, found in modules.items():
        _take(module, found.parts, settings, changes)


def _take(
    module: str, parts: dict[str, StoredTensor], settings: LoraSettings, changes: Changes
) -> None:
    owner = module
    while owner.endswith(_NESTED):
        owner = owner.removesuffix(_NESTED)
    stacks = [
        f"{owner}.{name.rpartition('.')[2]}"
        for name in settings.parameters
        if f".{owner}".endswith(f".{name.rpartition('.')[0]}")
    ]
    if stacks:
        _take_stack(owner, stacks, parts, settings, changes)
        return
    table = "lora_embedding_A" in parts
    first, second = ("lora_embedding_A", "lora_embedding_B") if table else ("lora_A", "lora_B")
    allowed = {first, second, "lora_magnitude_vector"} | (set() if table else {"lora_B.bias"})
    if not {first, second} <= set(parts) <= allowed:
        raise model_file_error(
            f"module {module[:200]!r} has {', '.join(sorted(parts))}, where {first} and {second} "
            "belong together",
            param=module[:200],
        )
    a, b = values_of(parts[first]), values_of(parts[second])
    rank = settings.rank_of(module)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank:
        raise model_file_error(
            f"module {module[:200]!r} has matrices of shape {list(a.shape)} and {list(b.shape)}, "
            f"but its rank is {rank} in {CONFIG}",
            param=module[:200],
        )
    magnitude = parts.get("lora_magnitude_vector")
    if settings.dora != (magnitude is not None):
        raise model_file_error(
            f"module {module[:200]!r} has {'a' if magnitude else 'no'} lora_magnitude_vector, and "
            f"use_dora is {str(settings.dora).lower()} in {CONFIG}",
            param=module[:200],
        )
    scale = settings.scale_of(module)
    changes.low_rank(
        LowRank(
            f"{module}.weight",
            b.T if table else a,  # a table is [in, out]: its rows are looked up
            a.T if table else b,
            scale,
            None if magnitude is None else values_of(magnitude).reshape(-1),
            0 if table else 1,
        )
    )
    bias = parts.get("lora_B.bias")
    if bias is not None:
        changes.add(f"{module}.bias", values_of(bias) * scale)


def _take_stack(
    owner: str,
    names: list[str],
    parts: dict[str, StoredTensor],
    settings: LoraSettings,
    changes: Changes,
) -> None:
    """Take the pairs of all experts in one tensor. PEFT does not store which of a module's tensors
    a pair belongs to: it is the one that has its shape."""
    if set(parts) != {"lora_A", "lora_B"}:
        raise model_file_error(
            f"module {owner[:200]!r} has {', '.join(sorted(parts))}, where lora_A and lora_B "
            "belong together",
            param=owner[:200],
        )
    a, b = values_of(parts["lora_A"]), values_of(parts["lora_B"])
    for name in names if a.size and b.size else ():
        rank = settings.rank_of(name)
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] % rank or b.shape[1] != a.shape[0]:
            continue
        experts = a.shape[0] // rank
        change = LowRank(
            name,
            a.reshape(experts, rank, -1),  # of one expert after the other
            b.reshape(-1, rank, experts).transpose(2, 0, 1),  # the experts' columns in turn
            settings.scale_of(name),
        )
        if changes.fits(change):
            changes.low_rank(change)
            return
    raise model_file_error(
        f"module {owner[:200]!r} has matrices of shape {list(a.shape)} and {list(b.shape)}, which "
        f"fit none of {', '.join(n.rpartition('.')[2] for n in names)[:200]} of the base",
        param=owner[:200],
    )


def _unknown(name: str) -> TidemillError:
    return model_file_error(
        f"tensor {name[:200]!r} is not one of a LoRA that is read here", param=name[:200]
    )
