"""The adapters of a served model: loaded by name while it serves, and named by requests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.clock import wall
from tidemill.base.errors import TidemillError, bad_request
from tidemill.base.log import get_logger
from tidemill.contract.request import AdapterUse
from tidemill.generation.adapters import AdapterTable, Registered, check_name

if TYPE_CHECKING:
    from tidemill.engine.client import EngineClient
    from tidemill.generation.request import AskedAdapters
    from tidemill.server.host.routed import Routed
    from tidemill.server.host.served import ServedModel

log = get_logger(__name__)


class ModelAdapters:
    """The adapters of one model by name, whether the model is loaded or not.

    One that was declared at the start is verified when it is first needed, one that is loaded while
    the server runs before it has a name.

    Attributes:
        scales: of the adapters that are applied where a request names none.
    """

    def __init__(self, declared: Mapping[str, str] | None = None) -> None:
        self.scales: dict[str, float] = {}
        self._applied: tuple[str, ...] = ()  # names of those that are part of the model
        self._table = AdapterTable()
        self._declared: dict[str, str] = {}  # paths of those that are not verified yet
        self._ids: dict[str, int] = {}
        self._next_id = 0
        self._loading = asyncio.Lock()
        for name, path in (declared or {}).items():
            self.declare(name, path)

    def declare(self, name: str, path: str) -> None:
        """An adapter that is verified when it is first needed. Raises BAD_REQUEST for its name."""
        self._declared[check_name(name)] = path
        self._number(name)

    def follow(self, declared: Mapping[str, str]) -> None:
        """What is declared has changed: new adapters are declared, and others of these names are
        verified again."""
        for name, path in declared.items():
            if name not in self or (found := self._table.get(name)) is None:
                self.declare(name, path)
            elif found.use.path != str(Path(path).expanduser().absolute()):
                self._table.remove(name)
                self.declare(name, path)

    def apply(self, paths: Sequence[str]) -> None:
        """Adapters that are part of the model: every request has them, and they have no names."""
        self._applied = tuple(f"applied/{path.strip('/')[-112:]}" for path in paths)
        for name, path in zip(self._applied, paths, strict=True):
            if self._table.get(name) is None:
                self._declared[name] = path

    @property
    def always(self) -> bool:
        """Whether requests have adapters that name none."""
        return bool(self.scales or self._applied)

    def _number(self, name: str) -> None:
        if name not in self._ids:
            self._ids[name] = self._next_id
            self._next_id += 1

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        """Names in the order in which they came."""
        return iter(list(self._ids))

    def __len__(self) -> int:
        return len(self._ids)

    def id_of(self, name: str) -> int:
        """Its number, which no other adapter of the model ever has."""
        return self._ids[name]

    def get(self, name: str) -> Registered | None:
        """What is known of a verified adapter."""
        return self._table.get(name)

    async def load(
        self, client: EngineClient, name: str, path: str, *, pinned: bool = False
    ) -> Registered:
        """Verify an adapter and give it its name; one that has the name is replaced: requests that
        run finish with the old one.

        Raises:
            TidemillError: BAD_REQUEST for the name, or why it cannot be used.
        """
        check_name(name)
        async with self._loading:
            return await self._verified(client, name, path, pinned=pinned)

    async def verify(self, client: EngineClient) -> None:
        """Verify those that were declared; see `load`."""
        for name in list(self._declared):
            await self.uses(client, name)

    async def _verified(
        self, client: EngineClient, name: str, path: str, *, pinned: bool = False
    ) -> Registered:
        folder = str(Path(path).expanduser().absolute())
        info = await client.check_adapter(AdapterUse(name, folder, pinned=pinned))
        before = self._table.put(name, folder, info, pinned=pinned, created=int(wall()))
        self._declared.pop(name, None)
        if name not in self._applied:
            self._number(name)
        if before is not None and not self._table.needs(before.use.digest):
            client.drop_adapter(before.use.digest)
        found = self._table.get(name)
        assert found is not None
        log.info("adapter %s: rank %d, digest %s", name, info.rank, info.digest)
        return found

    def unload(self, client: EngineClient | None, name: str) -> None:
        """Forget a name; requests that run finish with the adapter. Raises NOT_FOUND."""
        if name not in self._ids:
            self._table.remove(name)  # says which there are
        del self._ids[name]
        self._declared.pop(name, None)
        self.scales.pop(name, None)
        if self._table.get(name) is not None:
            digest = self._table.remove(name).use.digest
            if client is not None and not self._table.needs(digest):
                client.drop_adapter(digest)

    def named(self, asked: AskedAdapters) -> dict[str, float]:
        """Names and scales of adapters that a request names by names or numbers.

        Raises:
            TidemillError: BAD_REQUEST for a number that no adapter has.
        """
        if isinstance(asked, str):
            return {asked: 1.0}
        by_id = {number: name for name, number in self._ids.items()}
        found: dict[str, float] = {}
        for key, scale in asked.items():
            if isinstance(key, int) and key not in by_id:
                raise bad_request(
                    "lora", f"no adapter has the id {key}; GET /lora-adapters lists them"
                )
            found[by_id[key] if isinstance(key, int) else key] = scale
        return found

    async def uses(self, client: EngineClient, asked: AskedAdapters) -> tuple[AdapterUse, ...]:
        """What a request with these adapters carries.

        Raises:
            TidemillError: NOT_FOUND, BAD_REQUEST, or why a declared one cannot be used.
        """
        scales = {**dict.fromkeys(self._applied, 1.0), **self.named(asked)}
        for name in [name for name in scales if name in self._declared]:
            async with self._loading:
                if name in self._declared:
                    await self._verified(client, name, self._declared[name])
        return self._table.uses(scales)


@asynccontextmanager
async def adapted(
    routed: Routed, lease: AbstractAsyncContextManager[ServedModel]
) -> AsyncIterator[ServedModel]:
    """A leased model with the adapter that its name means, or those that are always applied."""
    adapters = routed.slot.adapters
    async with lease as model:
        uses = await adapters.uses(model.client, routed.adapter or adapters.scales)
        if not uses and routed.called is None:
            yield model
            return
        yield dataclasses.replace(model, adapters=uses, called=routed.called or model.called)


def declared_adapters(texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """``NAME=PATH`` or ``BASE:NAME=PATH`` of the command line as base (empty: the first model),
    name and path.

    Raises:
        TidemillError: CONFIG for another form.
    """
    from tidemill.base.errors import config_error

    found = []
    for text in texts:
        whole, equals, path = text.partition("=")
        base, _, name = whole.rpartition(":")
        try:
            check_name(name)
        except TidemillError as error:
            raise config_error("adapter", f"--adapter {text[:200]}: {error.message}") from None
        if not equals or not path:
            raise config_error("adapter", f"--adapter takes NAME=PATH, got {text[:200]!r}")
        found.append((base, name, path))
    return found
