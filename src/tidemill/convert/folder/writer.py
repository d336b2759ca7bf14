"""Writes safetensors: one file, or shards with an index.

Format: see `loading/formats/safetensors.py`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from tidemill.base.errors import TidemillError
from tidemill.convert.output import OutTensor, Progress, ResumableFile
from tidemill.loading.formats.safetensors import INDEX, SINGLE
from tidemill.loading.jsonfile import read_optional_object

SHARD_BYTES = 5 * 2**30
_ALIGN = {"I64": 8, "F64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}


def write_safetensors(
    folder: Path,
    tensors: Sequence[OutTensor],
    identity: str,
    tell: Progress = lambda count: None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write tensors into a folder; resumes an interrupted earlier call with the same identity."""
    shards: list[list[OutTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    count = len(shards)
    names = [SINGLE] if count == 1 else [
        f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)
    ]  # fmt: skip
    note = folder / "finished.part.json"
    finished = _finished(note, identity)
    for name, shard in zip(names, shards, strict=True):
        if name in finished and (folder / name).exists():
            tell(sum(t.nbytes for t in shard))
            continue
        _write_file(folder / name, shard, identity, tell)
        finished.append(name)
        note.write_text(json.dumps({"identity": identity, "finished": finished}))
    if count > 1:
        index = {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard}
        total = sum(t.nbytes for t in tensors)
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
        (folder / INDEX).write_text(text)
    note.unlink(missing_ok=True)


def _finished(note: Path, identity: str) -> list[str]:
    """Shards that an earlier run with the same identity completed."""
    with contextlib.suppress(TidemillError):
        found = read_optional_object(note)
        names = found.get("finished")
        if found.get("identity") == identity and isinstance(names, list):
            return [str(name) for name in names]
    return []


def _write_file(path: Path, tensors: list[OutTensor], identity: str, tell: Progress) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    # Wider types first, so that every tensor is aligned without gaps.
    tensors = sorted(tensors, key=lambda t: -_ALIGN.get(t.dtype, 1))
    offsets, at = [], 0
    for tensor in tensors:
        end = at + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end],
        }  # fmt: skip
        offsets.append(at)
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    placed = [(len(head) + o, t) for o, t in zip(offsets, tensors, strict=True)]
    ResumableFile(path, head, identity).write(placed, len(head) + at, tell)
