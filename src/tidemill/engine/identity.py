"""Whether another engine computes what the first one would have computed.

Streams go on with a new engine token by token, so it must have the same weights, the same
vocabulary and the same sizes. Sizes come from `EngineInfo`; of the files, whatever the system says
of them decides, since no digest is made of all their bytes.
"""

from __future__ import annotations

import os

from tidemill.base.files import OpenedFile, same_content
from tidemill.base.log import get_logger
from tidemill.contract.wire import EngineInfo

_log = get_logger(__name__)

# A new engine computes alike if it has these in common with the first.
_RESOLVED = (
    *("identity", "backend", "isa", "dtype", "quantization", "kv_dtype", "vocab_size"),
    *("max_model_len", "block_size", "num_blocks", "max_num_seqs", "max_step_tokens"),
    *("prefix_caching", "eos_token_ids"),
)
# Chat templates are the API process's, which keeps the ones it began with.
_TEMPLATES = (".jinja", "chat_template.json")


def missing_files(first: EngineInfo) -> str | None:
    """Why no engine can be like the first any more, by what its files have become; None: it can."""
    for file in first.files:
        fate = file.fate()
        if fate is None:
            continue
        if not file.path.endswith(_TEMPLATES):
            return _unlike(file.path, fate)
        _log.warning("%s has been %s; the server goes on with what it was", file.path, fate)
    return None


def difference(first: EngineInfo, other: EngineInfo) -> str | None:
    """Why another engine is unlike the first; None: it is not."""
    changed = [name for name in _RESOLVED if getattr(first, name) != getattr(other, name)]
    if changed:
        return (
            f"the next engine computes otherwise ({', '.join(changed)} changed: was the model "
            "replaced?); start the server again"
        )
    return different_files(first.files, other.files)


def different_files(
    ours: tuple[OpenedFile, ...], theirs: tuple[OpenedFile, ...], *, only_common: bool = False
) -> str | None:
    """Why two readings of a model are not of the same files; None: they are.

    `only_common`: the first reading was of some of the files alone.
    """
    stamps = {file.path: file.stamp for file in ours}
    for file in theirs:
        if file.path.endswith(_TEMPLATES):
            continue
        if (before := stamps.get(file.path)) is None:
            if not only_common:
                return _unlike(file.path, "added")
        elif not same_content(before, file.stamp):
            return _unlike(file.path, "changed")
    return None


def _unlike(path: str, fate: str) -> str:
    # Clients are told why; where files lie is for the log.
    _log.error("%s has been %s since this server started", path, fate)
    return (
        f"the model's file {os.path.basename(path)} has been {fate} since this server started, "
        "and another engine would compute otherwise; start the server again"
    )
