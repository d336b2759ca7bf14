"""Which build of Tidemill this is: both ends of a socket must agree on it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata, util
from pathlib import Path

_NATIVE = "tidemill.backends.native._core"


@cache
def build_id() -> str:
    """Version and, where there is a native core, a digest of its bytes.

    Same tokens are promised per build: two processes with equal ids compute alike.
    """
    try:
        version = metadata.version("tidemill")
    except metadata.PackageNotFoundError:
        version = "source"
    try:
        found = util.find_spec(_NATIVE)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        return version
    digest = hashlib.blake2b(Path(found.origin).read_bytes(), digest_size=6)
    return f"{version}+{digest.hexdigest()}"
