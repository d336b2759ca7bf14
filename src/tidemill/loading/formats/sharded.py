"""A folder's tensors: one file, or the shards that an index lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemill.base.errors import model_file_error
from tidemill.loading.jsonfile import read_object
from tidemill.loading.mapped import StoredTensor


@dataclass(frozen=True, slots=True)
class Layout:
    """File names of a format in a folder.

    Attributes:
        single: the unsharded file.
        index: the index of the shards.
        suffix: ending of shards' names.
        read: a file's tensors by name.
    """

    single: str
    index: str
    suffix: str
    read: Callable[[Path], dict[str, StoredTensor]]

    def present(self, folder: Path) -> bool:
        """True when the folder holds the format's file or index."""
        return (folder / self.single).exists() or (folder / self.index).exists()


def read_folder(folder: Path, layout: Layout) -> dict[str, StoredTensor]:
    """Tensors of a folder that holds the layout's file or index.

    Raises:
        TidemillError: MODEL_FILE for an invalid index, a missing or invalid shard, a file name
            outside the folder, or a tensor that is in another shard than the index says, or in two.
    """
    if (folder / layout.single).exists():
        return layout.read(folder / layout.single)
    weight_map = read_object(folder / layout.index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise model_file_error(
            f"{layout.index}: weight_map is missing or empty", param="weight_map"
        )
    for name, shard in weight_map.items():
        _check_shard_name(name, shard, layout)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not (folder / shard).is_file():
            raise model_file_error(
                f"{layout.index} names {shard!r}, which is missing; fetch it again"
            )
        for name, tensor in layout.read(folder / shard).items():
            if weight_map.get(name, shard) != shard or name in tensors:
                raise model_file_error(
                    f"tensor {name!r} is in {shard}, contrary to {layout.index}, or is there twice",
                    param=name,
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors:
            raise model_file_error(
                f"{layout.index} places tensor {name!r} in {shard}, which does not hold it",
                param=name,
            )
    return tensors


def _check_shard_name(tensor: str, shard: object, layout: Layout) -> None:
    # A name with a path separator could leave the folder. Hub caches link single files, never
    # folders.
    plain = isinstance(shard, str) and shard.endswith(layout.suffix)
    if not plain or any(c in str(shard) for c in "/\\\0") or str(shard).startswith("."):
        raise model_file_error(
            f"{layout.index} places tensor {tensor!r} in {str(shard)[:80]!r}, not the name of "
            f"a {layout.suffix} file in the same folder",
            param=tensor,
        )
