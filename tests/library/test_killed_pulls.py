"""Pulls killed at any point: nothing that is listed is incomplete, and the next pull resumes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.helpers.fake_hub import FakeHub
from tests.helpers.pull_killer import Killer, killer
from tests.helpers.wheels import index_pages
from tests.library.conftest import REPOS, WEIGHTS
from tests.library.test_pull import check_complete
from tests.library.test_sources import MODEL, chunked
from tidemill.library.catalog import Library

# Points per source; `make pulls` draws more.
KILLS = int(os.environ.get("TIDEMILL_PULL_KILLS", "10"))
_BATCH = 20
_LAST_LINES = 250
FILES = {
    "owner/folder": {"model.safetensors": WEIGHTS, "tokenizer.json": b"{}"},
    "pypi:big-model": {"m.gguf": MODEL},
}


@pytest.mark.parametrize("batch", range(-(-KILLS // _BATCH)))
@pytest.mark.parametrize("source", FILES)
def test_killed_at_any_point(source: str, batch: int, tmp_path: Path) -> None:
    draw = random.Random(f"{source} {batch}")
    kills = min(KILLS - batch * _BATCH, _BATCH)
    hub = FakeHub(REPOS, token="secret", pages=index_pages(chunked()))
    hub.pause = 0.001
    with hub.listening(), killer(hub.url, tmp_path / "hf", "secret") as forks:
        status, seconds, _ = forks.pull(source, tmp_path / "whole")
        _, _, lines = forks.pull(source, tmp_path / "traced", kill_at=0)
        assert status == 0 and lines > 500
        # One home is killed again and again; the others once, half of them near the end, where
        # files and manifest get their names.
        often = Library.open(tmp_path / "often")
        for _ in range(kills // 2):
            _killed(forks.pull(source, often.home, kill_after=draw.uniform(0, seconds)), often)
        _complete(forks, source, often)
        for point in range(kills - kills // 2):
            library = Library.open(tmp_path / str(point))
            first = lines - _LAST_LINES if point % 2 else 1
            at = draw.randint(first, lines)
            _killed(forks.pull(source, library.home, kill_at=at), library)
            _complete(forks, source, library)


def _killed(result: tuple[int, float, int], library: Library) -> None:
    check_complete(library)
    if result[0] == 0:
        assert len(library.names()) == 1


def _complete(forks: Killer, source: str, library: Library) -> None:
    status, _, _ = forks.pull(source, library.home)
    assert status == 0
    check_complete(library)
    [name] = library.names()
    path = library.resolve(name).path
    for file, content in FILES[source].items():
        assert (path if path.is_dir() else path.parent).joinpath(file).read_bytes() == content
    assert library.unfinished() == (0, 0)
