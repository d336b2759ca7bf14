"""Opening the tiers that a configuration asks for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tidemill.backends.base import Backend
from tidemill.base.build import build_id
from tidemill.base.errors import config_error, unsupported
from tidemill.contract.config import EngineConfig, folder_and_size
from tidemill.models.spec import DecoderSpec
from tidemill.transfer.record import identity_of
from tidemill.worker.tiers.disk import DiskTier
from tidemill.worker.tiers.mover import Mover, record_sizes
from tidemill.worker.tiers.ram import RamTier
from tidemill.worker.tiers.record_files import RecordFiles

_MIB = 2**20
_GIB = 2**30


def check_tiers(config: EngineConfig, spec: DecoderSpec, block_bytes: int) -> None:
    """What can be known of the tiers before the weights are read.

    Args:
        config: one of `kv_ram`, `kv_disk`, `kv_listen` and `kv_peers` is set.
        spec: of the model.
        block_bytes: of a block of its cache.

    Raises:
        TidemillError: UNSUPPORTED for models whose prefixes are more than blocks, CONFIG for sizes
            that hold no block and folders that cannot be written.
    """
    names = ("kv_ram", "kv_disk", "kv_listen", "kv_peers")
    asked = next(name for name in names if getattr(config, name))
    if spec.foreign is not None or not spec.causal:
        raise unsupported(
            asked,
            f"{asked}: blocks of this model cannot leave the cache: of models that transformers "
            f"runs, and of encoders, a prefix is more than its blocks; leave {asked} out",
        )
    what = f"one block of {block_bytes} bytes"
    if spec.state_bytes:  # it is worth nothing without a state
        least = block_bytes + spec.state_bytes
        what = f"one block and one recurrent state, {least} bytes together"
        block_bytes = least
    if config.kv_ram and config.kv_ram < block_bytes:
        raise config_error("kv_ram", f"kv_ram is less than {what}")
    if config.kv_listen or config.kv_peers:
        from tidemill.worker.tiers.peers import check_peers  # few have any

        check_peers(config)
    if config.kv_disk:
        folder, limit = folder_and_size(config.kv_disk)
        if limit is not None and limit < 2 * block_bytes:
            raise config_error(
                "kv_disk",
                f"kv_disk: {limit} bytes are less than twice {what}; give it more",
            )
        path = Path(folder).expanduser()
        _sealed_files()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            raise config_error(
                "kv_disk", f"kv_disk: the folder {path} cannot be written: {reason}"
            ) from error


def open_tiers(
    config: EngineConfig,
    backend: Backend,
    identity: str,
    progress: Callable[[str], None],
    first_snapshot: int = 0,
) -> Mover:
    """The mover of an engine, started.

    Args:
        config: its `kv_*` settings count, at least one of them set.
        backend: with its cache allocated.
        identity: of the weights and how they compute.
        progress: called with a line for each tier.
        first_snapshot: see `Mover`.

    Raises:
        TidemillError: UNSUPPORTED for models whose prefixes are more than blocks, CONFIG for sizes
            that hold no block and folders that cannot be written.
    """
    check_tiers(config, backend.spec, sum(backend.block_bytes()))
    nbytes = record_sizes(sum(backend.block_bytes()), backend.state_bytes()).nbytes
    ram = None
    if config.kv_ram:
        ram = RamTier(config.kv_ram)
        progress(f"KV blocks in RAM below the cache: {config.kv_ram / _GIB:.2f} GiB")
    disk = None
    if config.kv_disk:
        disk = _open_disk(config.kv_disk, backend, identity, nbytes)
        encrypted = "encrypted, " if disk.encrypted else ""
        progress(
            f"KV blocks on disk: {disk.limit / _GIB:.2f} GiB in {disk.folder}, "
            f"{disk.held() / _GIB:.2f} GiB used ({encrypted}{nbytes / _MIB:.2f} MiB per block)"
        )
        if disk.limit > (room := disk.held() + disk.free()):
            progress(f"kv_disk: the disk of {disk.folder} has room for {room / _GIB:.2f} GiB alone")
    mover = Mover(backend, ram, disk, first_snapshot)
    if config.kv_listen or config.kv_peers:
        from tidemill.worker.tiers.peers import open_peers  # few have any

        open_peers(config, mover, _identity(backend, identity), backend, progress)
    mover.start()
    return mover


def _identity(backend: Backend, identity: str) -> bytes:
    """Equal ones, equal bytes of equal blocks."""
    options = backend.options
    # The angles of positions can depend on the context's length.
    return identity_of(
        (
            *(build_id(), identity, repr(backend.spec), options.kv_dtype, options.block_size),
            *(options.max_positions, *backend.block_bytes(), backend.state_bytes()),
        )
    )


def _sealed_files() -> RecordFiles | None:
    from tidemill.worker.tiers.sealed import sealed_from_environment  # few have a key

    return sealed_from_environment()


def _open_disk(setting: str, backend: Backend, identity: str, nbytes: int) -> DiskTier:
    folder, limit = folder_and_size(setting)
    path = Path(folder).expanduser()
    try:
        return DiskTier(
            *(path, limit, _identity(backend, identity), nbytes, backend.checksum),
            files=_sealed_files(),
        )
    except OSError as error:
        raise config_error("kv_disk", f"kv_disk: {folder} cannot be used: {error}") from error
