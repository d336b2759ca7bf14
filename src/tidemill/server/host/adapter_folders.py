"""AdapterFolders: the adapters in watched folders have names as long as they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.request import ADAPTER_NAME
from tidemill.server.host.slot import Slot

log = get_logger(__name__)

LOOK_SECONDS = 2.0
MAX_FOUND = 10_000
_CONFIG = "adapter_config.json"
_FILES = (_CONFIG, "adapter_model.safetensors", "adapter_model.bin")

# Name, size and time of change of an adapter's files; another one is another adapter.
Signature = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _Watched:
    """What is known of one model's folder.

    Attributes:
        folder: where.
        known: name -> signature of adapters that got their names here.
        refused: entries that were logged because they can have no name.
        missing: the folder could not be read when it was looked at last.
    """

    folder: str
    known: dict[str, Signature] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    missing: bool = False


class AdapterFolders:
    """Looks at the folders of all models every `LOOK_SECONDS`. An adapter that is new or has
    changed is verified when a request first names it; one that is gone has no name any more.

    Args:
        slots: the models now.
        taken: whether a name is a model's.
    """

    def __init__(self, slots: Callable[[], Iterable[Slot]], taken: Callable[[str], bool]) -> None:
        self._slots = slots
        self._taken = taken
        self._watched: dict[str, _Watched] = {}
        self._looking = asyncio.Lock()
        self._task = asyncio.create_task(self._run(), name="tidemill-adapter-folders")

    async def look(self) -> None:
        """Look at all folders once."""
        async with self._looking:
            for slot in self._slots():
                if (folder := slot.hosted.adapter_folder) is None:
                    continue
                watched = self._watched.get(slot.name)
                if watched is None or watched.folder != folder:
                    if watched is not None:
                        self._apply(slot, watched, {})
                    watched = self._watched[slot.name] = _Watched(folder)
                try:
                    found = await asyncio.to_thread(adapters_in, Path(folder))
                except OSError as error:
                    if not watched.missing:
                        log.warning("the folder of adapters %s cannot be read: %s", folder, error)
                    watched.missing = True
                    continue
                watched.missing = False
                self._apply(slot, watched, found)

    async def close(self) -> None:
        """Look no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("looking for adapters failed; it goes on")
            await asyncio.sleep(LOOK_SECONDS)

    def _apply(self, slot: Slot, watched: _Watched, found: dict[str, Signature]) -> None:
        client = None if slot.loaded is None else slot.loaded.served.client
        adapters = slot.adapters
        for name in [name for name in watched.known if name not in found]:
            del watched.known[name]
            if name in adapters:
                adapters.unload(client, name)
                log.info("adapter %s is gone from %s", name, watched.folder)
        for name, signature in found.items():
            if watched.known.get(name) == signature:
                continue
            if name not in watched.known and (why := self._refusal(slot, name)):
                if name not in watched.refused:
                    log.warning("the adapter %s in %s %s", name[:80], watched.folder, why)
                watched.refused.add(name)
                continue
            if name in adapters:
                adapters.unload(client, name)
            try:
                adapters.declare(name, str(Path(watched.folder, path_of(name, signature))))
            except TidemillError as error:
                log.warning("the adapter %s: %s", name[:80], error.message)
                continue
            watched.known[name] = signature
            log.info("adapter %s found in %s", name, watched.folder)

    def _refusal(self, slot: Slot, name: str) -> str:
        if not ADAPTER_NAME.fullmatch(name):
            return "cannot have this name"
        if self._taken(name):
            return "has the name of a model"
        return "has the name of another adapter" if name in slot.adapters else ""


def adapters_in(folder: Path) -> dict[str, Signature]:
    """Name -> signature of the adapters in a folder: subfolders with adapter_config.json and
    tensors, and GGUF files without their ending. Hidden ones are none.

    Raises:
        OSError: the folder cannot be read.
    """
    found: dict[str, Signature] = {}
    for entry in sorted(folder.iterdir()):
        name = entry.name
        if name.startswith(".") or len(found) >= MAX_FOUND:
            continue
        if entry.suffix == ".gguf":
            if (whole := _signature([entry])) and entry.stem not in found:
                found[entry.stem] = whole
        elif entry.is_dir():
            signature = _signature(entry / file for file in _FILES)
            if len(signature) > 1 and signature[0][0] == _CONFIG:
                found[name] = signature
    return found


def path_of(name: str, signature: Signature) -> str:
    """The path of an adapter in its folder."""
    return name if signature[0][0] == _CONFIG else signature[0][0]


def _signature(files: Iterable[Path]) -> Signature:
    found = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        found.append((file.name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
