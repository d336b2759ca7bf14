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
    """

    slot: Slot
    called: str | None = None
    watch: Watch | None = None
    copy: bool = False

    def view(self, model: ServedModel) -> ServedModel:
        """The model as this request sees it."""
        if self.called is None and self.watch is None:
            return model
        return dataclasses.replace(model, called=self.called, watch=self.watch)
