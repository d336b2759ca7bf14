"""Which build this is."""

from __future__ import annotations

import hashlib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tidemill.base.build import build_id


def test_it_holds_a_digest_of_the_native_core() -> None:
    found = find_spec("tidemill.backends.native._core")
    assert found is not None and found.origin is not None
    digest = hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
    version, _, core = build_id().partition("+")
    assert version == metadata.version("tidemill") and len(core) == 12 and digest.startswith(core)
