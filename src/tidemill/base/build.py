"""Which build of Tidemill this is: both ends of a socket must agree on it."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "backends" / "native"
_NATIVE = "tidemill.backends.native._core"


@cache
def build_id() -> str:
    """Version and, where there is a native core, a digest of its bytes.

    Same tokens are promised per build: two processes with equal ids compute alike.
    """
    version = installed_version() or "source"
    core = _native_core()
    if core is None:
        return version
    with core.open("rb") as file:
        return f"{version}+{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"


def installed_version() -> str | None:
    """The version that is installed; None in a source tree that is not. `importlib.metadata` takes
    two megabytes in each process to say it."""
    for entry in sys.path:
        for found in Path(entry).glob("tidemill-*.dist-info"):
            return found.name.removeprefix("tidemill-").removesuffix(".dist-info")
    return None


def _native_core() -> Path | None:
    """The file of the native core. `util.find_spec` would import the rooms around it."""
    for finder in sys.meta_path:
        found = finder.find_spec(_NATIVE, [str(_FOLDER)])
        if found is not None and found.origin is not None:
            return Path(found.origin)
    return None
