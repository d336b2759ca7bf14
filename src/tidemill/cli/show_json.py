"""`tidemill show --json`: what `show` says, for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tidemill.contract.needs import MemoryNeeds
    from tidemill.offline.opened import OpenedModel
    from tidemill.offline.opened_text import OpenedText


def vocabulary_document(path: Path, text: OpenedText) -> dict[str, Any]:
    """A file that holds a vocabulary alone."""
    return {"name": text.name, "path": str(path), **_text(text)}


def model_document(opened: OpenedModel, needs: MemoryNeeds | str) -> dict[str, Any]:
    """A model; sizes are in bytes.

    Args:
        opened: the model.
        needs: what an engine of it takes, or why it cannot be loaded.
    """
    files, spec, text = opened.files, opened.files.spec, opened.text
    places = files.tensors.places
    stored = sum(math.prod(place.shape) for place in places.values())
    return {
        "name": text.name,
        "path": str(files.path),
        "format": files.format,
        "bytes": files.file_bytes,
        "weights_dtype": spec.weights_dtype,
        "family": spec.family if spec.foreign is None else None,
        "architecture": None if spec.foreign is None else spec.foreign.architecture,
        "parameters": spec.parameters() if spec.foreign is None else stored,
        "layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "generates": spec.generates,
        "context": {"usual": spec.reach.usual, "longest": spec.reach.longest},
        **_text(text),
        "eos_token_ids": sorted(files.eos_token_ids),
        "memory": {"error": needs} if isinstance(needs, str) else _memory(needs),
        "tensors": [
            {
                "name": name,
                "dtype": place.dtype,
                "shape": list(place.shape),
                "bytes": place.nbytes,
            }
            for name, place in places.items()
        ],
        "notes": [*files.notes, *text.tokenizer.notes],
    }


def _text(text: OpenedText) -> dict[str, Any]:
    return {
        "vocab_size": text.tokenizer.vocab_size,
        "special_tokens": dict(text.tokenizer.special),
        "chat_template": text.template.exists,
        "sampling_defaults": dict(text.defaults),
    }


def _memory(needs: MemoryNeeds) -> dict[str, Any]:
    return {
        "backend": needs.backend,
        "dtype": needs.dtype,
        "kv_dtype": needs.kv_dtype,
        "weights": needs.weight_bytes,
        "kv_per_token": needs.token_bytes,
        "recurrent_state": needs.state,
        "step": needs.step + needs.tables,
        "sequence": needs.sequence,
        "process": needs.process,
        "context": needs.context,
        "total_one_request": needs.total(sequences=1),
    }
