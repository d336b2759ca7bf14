"""Pulls killed at any point: nothing that is listed is incomplete, and the next pull resumes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers.fake_hub import FakeHub
from tests.helpers.pull_killer import Killer, kill_points, killer
from tests.helpers.wheels import index_pages
from tests.library.conftest import REPOS, WEIGHTS
from tests.library.test_pull import check_complete
from tests.library.test_sources import MODEL, chunked
from tidemill.library.catalog import Library

# Points per source; `make pulls` draws more.
KILLS = int(os.environ.get("TIDEMILL_PULL_KILLS", "10"))
FILES = {
    "owner/folder": {"model.safetensors": WEIGHTS, "tokenizer.json": b"{}"},
    "pypi:big-model": {"m.gguf": MODEL},
}


@pytest.mark.parametrize("source", FILES)
def test_killed_at_any_point(source: str, tmp_path: Path) -> None:
    hub = FakeHub(REPOS, token="secret", pages=index_pages(chunked()))
    hub.pause = 0.001
    with hub.listening(), killer(hub.url, tmp_path / "hf", "secret") as forks:
        status, whole = forks.pull(source, tmp_path / "whole")
        assert status == 0
        # Half of the homes are killed once, the others again and again until one pull is through.
        for seed, count in ((1, KILLS // 2), (2, KILLS - KILLS // 2)):
            library = Library.open(tmp_path / f"home-{seed}")
            for point, delay in enumerate(kill_points(seed, count, whole * 1.1)):
                if seed == 1:
                    library = Library.open(tmp_path / f"home-{seed}-{point}")
                _killed(forks, source, library, delay)
                if seed == 1:
                    _complete(forks, source, library)
            _complete(forks, source, library)


def _killed(forks: Killer, source: str, library: Library, delay: float) -> None:
    status, _ = forks.pull(source, library.home, delay)
    check_complete(library)
    if status == 0:
        assert len(library.names()) == 1


def _complete(forks: Killer, source: str, library: Library) -> None:
    status, _ = forks.pull(source, library.home)
    assert status == 0
    check_complete(library)
    [name] = library.names()
    path = library.resolve(name).path
    for file, content in FILES[source].items():
        assert (path if path.is_dir() else path.parent).joinpath(file).read_bytes() == content
    assert library.blobs.unfinished() == (0, 0)
