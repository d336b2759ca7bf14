"""The startup protocol of an engine process and its parent, before they are connected."""

from __future__ import annotations

import msgspec

from tidemill.contract.request import RequestError

# Prefix of the name of the folder with an engine's socket.
FOLDER_PREFIX = "tidemill-"


class LoadProgress(msgspec.Struct, frozen=True):
    """How far weights are loaded.

    Attributes:
        loaded: bytes in memory, in the form that computes. Mapped weights count at once.
        total: bytes of all weights.
    """

    loaded: int
    total: int


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line on stdout while the engine starts, and while weights load after it listens. Exactly
    one of the fields is set.

    Attributes:
        progress: a stage of loading, in words.
        weights: how far the weights are loaded; sent once the engine listens, and until all are.
        ready: the engine listens.
        error: why the engine could not start; it exits.
    """

    progress: str | None = None
    weights: LoadProgress | None = None
    ready: bool = False
    error: RequestError | None = None
