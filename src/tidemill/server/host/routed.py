"""Where a request goes: the model that answers it, and what is measured of the answer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Slot

if TYPE_CHECKING:
    from tidemill.server.host.watching import Watch


@dataclass(frozen=True, slots=True)
class Routed:
    """One request's model.

    Attributes:
        slot: the model, or the version of the name that was asked for.
        called: the name that the answer carries; None: the model's.
        watch: measures the answer, where the name's versions are compared.
        copy: it is a copy, which gives way to requests.
        adapter: name of the model's adapter that was asked for; None: the model itself.
    """

    slot: Slot
    called: str | None = None
    watch: Watch | None = None
    copy: bool = False
    adapter: str | None = None

    @property
    def recorded(self) -> str:
        """The name in logs and usage."""
        return self.slot.name if self.adapter is None else self.recorded_as(self.adapter)

    def recorded_as(self, adapter: str) -> str:
        """The same with an adapter: of ``chat@2`` ``chat:adapter@2``."""
        base, at, version = self.slot.name.partition("@")
        return f"{base}:{adapter}{at}{version}"

    def view(self, model: ServedModel) -> ServedModel:
        """The model as this request sees it."""
        if self.called is None and self.watch is None:
            return model
        return dataclasses.replace(model, called=self.called, watch=self.watch)
