"""What an engine process and whoever starts it agree on before they are connected."""

from __future__ import annotations

import msgspec

from tidemill.contract.request import RequestError

# How the folder of an engine's socket is named.
FOLDER_PREFIX = "tidemill-"


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line on stdout while the engine starts, or loads when it listens already: exactly one of
    the three is set.

    Attributes:
        progress: what is being done.
        ready: it listens.
        error: why it could not start; it exits.
    """

    progress: str | None = None
    ready: bool = False
    error: RequestError | None = None
