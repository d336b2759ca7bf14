"""How a model of the library was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Made:
    """What its maker said of a model, beside its files and `Preset`; nothing of other models.

    Attributes:
        base: the model that it was created from.
        licence: its name, or its text.
        adapters: paths of adapters that are part of it.
        context: tokens that a request may use; None: not said.
    """

    base: str = ""
    licence: str = ""
    adapters: tuple[str, ...] = ()
    context: int | None = None


NOT_SAID = Made()
