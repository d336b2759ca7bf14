"""Checks that a replacement engine computes the same as the first one.

Streams resume on a new engine in the middle of their output, so it must have the same weights,
vocabulary and sizes. Sizes are compared by `EngineInfo`, files by their stat (inode, size and
times), since hashing all weights would take too long.
"""

from __future__ import annotations

import os

from tidemill.base.files import OpenedFile, same_content
from tidemill.base.log import get_logger
from tidemill.contract.wire import EngineInfo

_log = get_logger(__name__)

# Fields that must be equal for a new engine to compute the same.
_RESOLVED = (
    *("identity", "backend", "isa", "dtype", "quantization", "kv_dtype", "vocab_size"),
    *("max_model_len", "block_size", "num_blocks", "max_num_seqs", "max_step_tokens"),
    *("prefix_caching", "eos_token_ids"),
)
# Chat templates are used by the API process alone, which has already loaded them.
_TEMPLATES = (".jinja", "chat_template.json")


def missing_files(first: EngineInfo) -> str | None:
    """Why no new engine can compute the same, because of changed files; None if it can."""
    for file in first.files:
        fate = file.fate()
        if fate is None:
            continue
        if not file.path.endswith(_TEMPLATES):
            return _unlike(file.path, fate)
        _log.warning("%s has been %s; the server continues with the old content", file.path, fate)
    return None


def difference(first: EngineInfo, other: EngineInfo) -> str | None:
    """Why another engine computes differently from the first; None if it does not."""
    changed = [name for name in _RESOLVED if getattr(first, name) != getattr(other, name)]
    if changed:
        return (
            f"the new engine differs from the first ({', '.join(changed)} changed: was the model "
            "replaced?); restart the server"
        )
    return different_files(first.files, other.files)


def different_files(
    ours: tuple[OpenedFile, ...], theirs: tuple[OpenedFile, ...], *, only_common: bool = False
) -> str | None:
    """Why the files of two loads of a model differ; None if they are the same.

    Args:
        ours: files opened by the first load.
        theirs: files opened by the second load.
        only_common: ignore files that the first load did not open.
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
    # Clients receive the reason. Only the log has the path.
    _log.error("%s has been %s since this server started", path, fate)
    return (
        f"the model's file {os.path.basename(path)} has been {fate} since this server started, "
        "so a new engine would compute differently; restart the server"
    )
