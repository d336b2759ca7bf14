"""Which build this is."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tidemill.base.build import build_id


class OtherCore:
    """Finds a file in place of the native core."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "tidemill.backends.native._core":
            return None
        spec = ModuleSpec(name, None, origin=str(self._path))
        spec.has_location = True
        return spec


@pytest.mark.parametrize(
    ("core", "digest"), [(b"one core", "57699014bb7d"), (b"another", "ae448ac86c4e")]
)
def test_another_core_is_another_build(
    core: bytes, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "core.so"
    file.write_bytes(core)
    monkeypatch.setattr(sys, "meta_path", [OtherCore(file), *sys.meta_path])
    build_id.cache_clear()
    try:
        assert build_id() == f"{metadata.version('tidemill')}+{digest}"
    finally:
        build_id.cache_clear()


def test_there_is_a_core() -> None:
    version, plus, digest = build_id().partition("+")
    assert version == metadata.version("tidemill") and plus
    assert len(digest) == 12 and digest not in ("57699014bb7d", "ae448ac86c4e")
