"""GGUF's LoRA files, as llama.cpp writes and reads them (general.type ``adapter``)."""

from __future__ import annotations

import math

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.loading.adapters.base import Changes, LowRank, values_of
from tidemill.loading.formats.gguf import GgufFile
from tidemill.loading.mapped import StoredTensor
from tidemill.models.gguf_family import GgufFamily

_TABLE = "token_embd.weight"  # looked up: A is stored [vocab, rank], B [hidden, rank]
_TOKENS = "adapter.alora.invocation_tokens"


def read_gguf(file: GgufFile, family: GgufFamily, changes: Changes) -> tuple[int, ...] | None:
    """Take every tensor of an adapter; the result is `Adapter.invocation`.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the key or tensor.
    """
    metadata = file.metadata
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if metadata.get(key) != wanted:
            raise model_file_error(
                f"{key} is {str(metadata.get(key))[:40]!r}, in a LoRA {wanted!r}", param=key
            )
    arch = metadata.get("general.architecture")
    if arch != family.arch:
        raise model_file_error(
            f"general.architecture is {str(arch)[:40]!r}, and the base's {family.arch!r}: the "
            "adapter belongs to another model",
            param="general.architecture",
        )
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise model_file_error("adapter.lora.alpha must be a number", param="adapter.lora.alpha")
    if not file.tensors:
        raise model_file_error("holds no tensors")
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in file.tensors.items():
        module, _, part = name.rpartition(".")
        if part in ("lora_a", "lora_b"):
            pairs.setdefault(module, {})[part] = tensor
        else:
            changes.replace(name, tensor)
    for module, parts in pairs.items():
        _take(module, parts, float(alpha), changes)
    return _invocation(file)


def _take(module: str, parts: dict[str, StoredTensor], alpha: float, changes: Changes) -> None:
    if len(parts) != 2:
        raise _lone(module, parts)
    a, b = values_of(parts["lora_a"]), values_of(parts["lora_b"])
    if a.ndim < 2 or b.ndim < 2:
        raise _lone(module, parts)
    table = module == _TABLE
    rank = max(1, b.shape[-1])
    scale = alpha / rank if alpha else 1.0
    changes.low_rank(LowRank(module, b.T if table else a, a if table else b, scale))


def _lone(module: str, parts: dict[str, StoredTensor]) -> TidemillError:
    shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in sorted(parts.items()))
    return model_file_error(
        f"{module[:200]} has {shapes}, where the matrices lora_a and lora_b belong together",
        param=module[:200],
    )


def _invocation(file: GgufFile) -> tuple[int, ...] | None:
    tokens = file.metadata.get(_TOKENS)
    if tokens is None:
        return None
    try:
        return tuple(int(token) for token in tokens)
    except (TypeError, ValueError) as error:
        raise unsupported(_TOKENS, f"{_TOKENS} must be a list of token ids") from error
