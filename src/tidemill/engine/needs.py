"""NeedsReader: what models need in memory, for a process that does not read model files itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict
from pathlib import Path

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.contract.request import exception_of
from tidemill.executor.needs import NeedsAnswer

SECONDS = 60.0
_MOST_KEPT = 1024

# Name, size, nanoseconds of the last change of each file of a model.
_Stamp = tuple[tuple[str, int, int], ...]


class NeedsReader:
    """Computes `MemoryNeeds` in a child process, once per configuration and state of the files."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, _Stamp], MemoryNeeds] = OrderedDict()
        self._lock = asyncio.Lock()

    async def needs(self, config: EngineConfig) -> MemoryNeeds:
        """What an engine of this configuration needs; see `worker.needs`.

        Its `kv_memory` and `threads` do not matter. The first time takes a quarter of a second.

        Raises:
            TidemillError: as the engine would: NOT_FOUND, MODEL_FILE, UNSUPPORTED, CONFIG;
                UNAVAILABLE if the child process fails.
        """
        config = msgspec.structs.replace(config, kv_memory=None, kv_reserve=None, threads=None)
        key = config.digest(), await asyncio.to_thread(_stamp, Path(config.model))
        async with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            needs = await _compute(config)
            if key[1]:  # else a name, of which the files are not known here
                self._known[key] = needs
                if len(self._known) > _MOST_KEPT:
                    self._known.popitem(last=False)
            return needs


async def _compute(config: EngineConfig) -> MemoryNeeds:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tidemill.executor.needs"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(msgspec.json.encode(config) + b"\n")
        answer = msgspec.json.decode(output, type=NeedsAnswer)
    except (TimeoutError, msgspec.DecodeError) as error:
        raise TidemillError(
            ErrorKind.UNAVAILABLE,
            f"what {config.served_name} needs in memory could not be computed: {error!r}",
            retryable=True,
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
    if answer.error is not None:
        raise exception_of(answer.error)
    assert answer.needs is not None
    return answer.needs


def _stamp(path: Path) -> _Stamp:
    """The state of a model's files; empty if there are none at `path`."""
    try:
        if path.is_dir():
            found = sorted((entry.name, entry.stat()) for entry in os.scandir(path))
        else:
            found = [(path.name, path.stat())]
    except OSError:
        return ()
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)
