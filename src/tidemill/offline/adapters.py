"""Adapters of `LLM`: loaded by name, and named by requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.contract.request import AdapterUse
from tidemill.contract.wire import AdapterInfo
from tidemill.engine.offline import InprocEngine
from tidemill.generation.adapters import AdapterTable, check_name

# A name; several adapters with their scales, added up; None: the base model.
Asked = str | Mapping[str, float] | None


class OfflineAdapters:
    """The adapters of an engine in this process.

    Args:
        engine: loads them.
        applied: paths of adapters that every request has, without a name.
    """

    def __init__(self, engine: InprocEngine, applied: Sequence[str] = ()) -> None:
        self._engine = engine
        self._table = AdapterTable()
        self._applied: dict[str, float] = {}  # part of the model
        for i, path in enumerate(applied):
            self.load(name := f"applied/{i}", path)
            self._applied[name] = 1.0

    def load(self, name: str, path: str | Path, *, pinned: bool = False) -> AdapterInfo:
        """Verify an adapter and register it; see `LLM.load_adapter`."""
        folder = str(Path(path).expanduser().absolute())
        use = AdapterUse(check_name(name), folder, pinned=pinned)
        info = self._engine.check_adapter(use)
        before = self._table.put(name, folder, info, pinned=pinned)
        if before is not None:
            self._drop(before.use.digest)
        return info

    def unload(self, name: str) -> None:
        """Forget a name; see `LLM.unload_adapter`."""
        self._drop(self._table.remove(name).use.digest)

    def uses(self, asked: Asked) -> tuple[AdapterUse, ...]:
        """What a request carries."""
        named = {asked: 1.0} if isinstance(asked, str) else asked or {}
        return self._table.uses({**self._applied, **named})

    def per_prompt(self, asked: Any, count: int) -> list[tuple[AdapterUse, ...]]:
        """Of one for all prompts or a list of one for each."""
        if isinstance(asked, Sequence) and not isinstance(asked, str):
            if len(asked) != count:
                raise bad_request("adapter", f"{len(asked)} adapters for {count} prompts")
            return [self.uses(one) for one in asked]
        return [self.uses(asked)] * count

    def _drop(self, digest: str) -> None:
        if not self._table.needs(digest):
            self._engine.drop_adapter(digest)
