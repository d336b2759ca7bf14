"""KeptWeights: a cache of one model's packed weights in a `PackedStore`, written in the background.

An entry depends on the content of the model's files, not on their names. Its key is a hash of
samples of every tensor, the layout and the build; its header has a digest of every byte of the
files. Files already verified, by their stat, are not read again; others (copies, a new container)
are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from tidemill.backends.base import Checksum, UInt8
from tidemill.base.build import build_id
from tidemill.base.errors import ErrorKind, TidemillError, unsupported
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.loading.mapped import MappedFile, file_stamp
from tidemill.loading.parts import ModelFiles
from tidemill.worker.packed_store import (
    CHUNK,
    CorruptEntry,
    Entry,
    PackedStore,
    Stamp,
    StoreFull,
    default_folder,
)

_log = get_logger(__name__)

# Packing a smaller model is faster than a lookup.
MIN_BYTES = 64 * 2**20
_READ_BYTES = 2**17  # of a file at a time, while a digest is made
# Writing to the store starts after this delay, so that it does not slow the first requests.
DELAY_SECONDS = 2.0
# A file changed so shortly before it was opened could change again within its timestamp.
SETTLED_NS = 2_000_000_000
_LOWEST_PRIORITY = 19
_LOCK_SECONDS = 0.5

Tell = Callable[[str], None]


class _Stopped(Exception):
    """The engine closes; the weights need not be stored."""


class KeptWeights:
    """See `backends.base.PackedWeights`.

    Args:
        store: where.
        model: its name, for people.
        weights: digest of samples of the weights.
        files: the mapped files they come from.
        threads: for reading the files.
        tell: told in a line each what was found or why not.
        loss: what packing lost, to be said at every start; None where it lost nothing.
        min_bytes: less is not kept.
        delay: seconds before keeping begins.

    Attributes:
        note: what was lost when the weights that were found were packed.
    """

    def __init__(
        self,
        store: PackedStore,
        model: str,
        weights: bytes,
        files: Sequence[MappedFile],
        threads: int,
        tell: Tell,
        *,
        loss: Callable[[], str | None] = lambda: None,
        min_bytes: int = MIN_BYTES,
        delay: float = DELAY_SECONDS,
    ) -> None:
        self._store = store
        self._model = model
        self._weights = weights
        self._files = tuple(files)
        self._threads = threads
        self._tell = tell
        self._loss = loss
        self.note: str | None = None
        self._min_bytes = min_bytes
        self._delay = delay
        self._stop = threading.Event()
        self._unread = threading.Event()  # nothing reads what is kept
        self._unread.set()
        self._thread: threading.Thread | None = None
        self._stored: Entry | None = None

    def find(self, layout: str, nbytes: int, checksum: Checksum) -> UInt8 | None:
        """See PackedWeights."""
        if nbytes < self._min_bytes:
            return None
        key = self._key(layout)
        try:
            found = self._store.open(key)
            if found is None:
                return None
            entry, view = found
            if entry.nbytes != nbytes:
                raise CorruptEntry(f"it holds {entry.nbytes} bytes, not {nbytes}")
            data = np.frombuffer(view, np.uint8)
            if checksum(data) != entry.checksum:
                raise CorruptEntry("its checksum does not match its bytes")
        except CorruptEntry as error:
            self._say(f"packed weights are damaged and made again: {error}")
            self._store.remove(key)
            return None
        if not self._same_content(entry):
            return None
        self._store.used(key)
        self.note = entry.note
        self._tell(f"packed weights mapped from {self._store.folder}")
        return data

    def keep(self, layout: str, data: UInt8, checksum: Checksum) -> None:
        """See PackedWeights."""
        if len(data) < self._min_bytes:
            return

        def work() -> None:
            try:
                self._keep(layout, data, checksum)
            except _Stopped:
                _log.debug("the packed weights were not kept: the engine ended before that")
            except (StoreFull, OSError) as error:
                self._say(f"packed weights are not kept in {self._store.folder}: {error}")
            finally:
                self._unread.set()

        self._unread.clear()
        self._thread = threading.Thread(target=work, name="tidemill-packed", daemon=True)
        self._thread.start()

    def open_copy(self, data: UInt8) -> tuple[int, int]:
        """See PackedWeights. What is too small to be kept for the next start is written to a file
        without a name, which ends with this process."""
        if self._thread is None:
            return self._spill(data)
        if self._thread.is_alive():
            raise TidemillError(
                ErrorKind.UNAVAILABLE, "the packed weights are still being stored", retryable=True
            )
        found = None if self._stored is None else self._store.open_file(self._stored)
        if found is None:
            raise unsupported(
                "packed_cache",
                f"the packed weights could not be kept in {self._store.folder} (see the log), so "
                "they cannot be mapped: free space there, or unload the model",
            )
        return found

    def _spill(self, data: UInt8) -> tuple[int, int]:
        try:
            return self._store.unnamed(data.data), 0
        except OSError as error:
            raise TidemillError(
                ErrorKind.RESOURCE,
                f"the packed weights cannot be written to {self._store.folder}: {error}; free "
                "space there, or unload the model",
            ) from error

    def close(self) -> None:
        """See PackedWeights."""
        self._stop.set()
        self._unread.wait()

    def wait(self) -> None:
        """Return when writing to the store has ended, with or without success."""
        if self._thread is not None:
            self._thread.join()

    def _key(self, layout: str) -> str:
        text = f"{build_id()}\n{layout}\n".encode()
        return hashlib.blake2b(text + self._weights, digest_size=16).hexdigest()

    def _say(self, line: str) -> None:
        _log.warning("%s", line)

    def _same_content(self, entry: Entry) -> bool:
        stamp = self._stamp()
        if self._store.is_known(entry.key, entry.content, stamp):
            return True
        try:
            if self._content(self._threads) != entry.content:
                return False
        except OSError as error:
            self._say(f"packed weights are not used: {error}")
            return False
        self._remember(entry, stamp)
        return True

    def _keep(self, layout: str, data: UInt8, checksum: Checksum) -> None:
        self._pause(self._delay)
        with contextlib.suppress(OSError, AttributeError):  # of this thread, on Linux
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        key, stamp = self._key(layout), self._stamp()
        content = self._content(1)
        entry = Entry(key, self._model, content, len(data), checksum(data), self._loss())
        while True:
            with self._store.locked(wait=False) as ours:
                if ours:
                    if not self._is_there(entry):
                        self._store.write(entry, self._chunks(data))
                    break
            self._pause(_LOCK_SECONDS)
        self._stored = entry
        self._remember(entry, stamp)
        _log.info("packed weights kept in %s", self._store.folder)

    def _is_there(self, entry: Entry) -> bool:
        """True if another process has stored the same entry meanwhile."""
        try:
            found = self._store.open(entry.key)
        except CorruptEntry:
            return False
        return found is not None and found[0] == entry

    def _chunks(self, data: UInt8) -> Iterator[memoryview]:
        for start in range(0, len(data), CHUNK):
            if self._stop.is_set():
                raise _Stopped
            yield data[start : start + CHUNK].data
        self._unread.set()  # what is left is the disk's work

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def _stamp(self) -> Stamp:
        return tuple(file.stamp for file in self._files)

    def _remember(self, entry: Entry, stamp: Stamp) -> None:
        if any(time.time_ns() - max(one[3:]) < SETTLED_NS for one in stamp):
            return
        with contextlib.suppress(OSError):
            self._store.remember(entry.key, entry.content, stamp)

    def _content(self, threads: int) -> str:
        """Digest of every byte of the files: BLAKE2b over the digests of their chunks.

        Raises OSError when a file is another than the mapped one by now.
        """
        total = hashlib.blake2b(digest_size=32)
        with ThreadPoolExecutor(threads) as pool:
            for file in self._files:
                total.update(file.size.to_bytes(8, "little"))
                with open(file.path, "rb", buffering=0) as opened:
                    read = partial(self._digest, opened.fileno(), file.size)
                    for digest in pool.map(read, range(0, file.size, CHUNK)):
                        total.update(digest)
                    if file_stamp(file.path, opened.fileno()) != file.stamp:
                        raise OSError(f"{file.path} has been replaced or changed meanwhile")
        return total.hexdigest()

    def _digest(self, descriptor: int, size: int, at: int) -> bytes:
        if self._stop.is_set():
            raise _Stopped
        digest = hashlib.blake2b(digest_size=32)
        buffer = memoryview(bytearray(min(_READ_BYTES, size - at)))
        for begin in range(at, min(at + CHUNK, size), len(buffer)):
            count = os.preadv(descriptor, [buffer], begin)
            digest.update(buffer[: min(count, at + CHUNK - begin)])
        return digest.digest()


def packed_folder(config: EngineConfig) -> Path | None:
    """Where packed weights are kept; None when `packed_cache` is ``off``, or ``auto`` and there is
    no user's folder."""
    if config.packed_cache == "off":
        return None
    try:
        return default_folder() if config.packed_cache == "auto" else Path(config.packed_cache)
    except RuntimeError:  # a user without a home
        return None


def kept_weights(
    config: EngineConfig,
    files: ModelFiles,
    weights: bytes,
    threads: int,
    loss: Callable[[], str | None],
    tell: Tell,
) -> KeptWeights | None:
    """The packed weights of a model; None when `packed_cache` is ``off``, or ``auto`` and there is
    no user's folder.

    Args:
        config: the engine's.
        files: the model's.
        weights: digest of samples of its weights.
        threads: see `KeptWeights`.
        loss: see `KeptWeights`.
        tell: see `KeptWeights`.
    """
    folder = packed_folder(config)
    if folder is None:
        return None
    # How stored numbers are to be read may be said in the config alone.
    described = json.dumps(dict(files.config), sort_keys=True, default=str).encode()
    digest = hashlib.blake2b(weights + described, digest_size=16).digest()
    store, name = PackedStore(folder), config.served_name
    return KeptWeights(store, name, digest, files.files, threads, tell, loss=loss)
