"""Pulling from a hub with faults: the model is complete and right, or absent and said to be."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.fake_hub import COMMIT, Answer, FakeHub, Request
from tests.library.conftest import REPOS, WEIGHTS
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.catalog import Entry, Library
from tidemill.library.fetch import FetchSettings
from tidemill.library.locate import locate
from tidemill.library.progress import Progress
from tidemill.library.pull import pull

SMALL = FetchSettings(piece_bytes=2**16, workers=3)


def pulled(source: str, library: Library, **more: object) -> tuple[Entry, list[Progress]]:
    said: list[Progress] = []
    entry = pull(source, library, said.append, settings=SMALL, **more)  # type: ignore[arg-type]
    check_complete(library)
    assert library.resolve(entry.name).path == entry.path
    return entry, said


def refused(source: str, library: Library, kind: ErrorKind, text: str, **more: object) -> None:
    before = library.names()
    with pytest.raises(TidemillError) as caught:
        pull(source, library, settings=SMALL, **more)  # type: ignore[arg-type]
    assert caught.value.kind == kind and text in caught.value.message, caught.value.message
    assert library.names() == before
    check_complete(library)


def check_complete(library: Library) -> None:
    """Every blob is what its name says, and every model can be opened."""
    for digest in library.blobs.digests():
        content = library.blobs.path(digest).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    for name in library.names():
        library.resolve(name)


def large(change: Callable[[Answer], Answer], *, times: int = 1) -> Callable[..., Answer | None]:
    """A fault of the first answers for parts of the large file."""
    left = [times]
    mutex = threading.Lock()

    def fault(request: Request) -> Answer | None:
        is_part = request.headers.get("range", "bytes=0-0") != "bytes=0-0"
        if not is_part or request.path != "/owner/folder/model.safetensors":
            return None
        with mutex:
            left[0] -= 1
            return change(request.answer) if left[0] >= 0 else None

    return fault


def test_a_folder(hub: FakeHub, library: Library) -> None:
    entry, said = pulled("owner/folder", library)
    files = {p.relative_to(entry.path).as_posix() for p in entry.path.rglob("*") if p.is_file()}
    assert files == {
        "config.json", "tokenizer.json", "model.safetensors", "1_Dense/model.safetensors",
    }  # fmt: skip
    for path in files:
        assert (entry.path / path).read_bytes() == REPOS["owner/folder"][path]
    assert entry.manifest.revision == COMMIT and entry.manifest.licence == "apache-2.0"
    assert {p.stage for p in said} == {"resolving", "downloading", "verifying", "complete"}
    done = [p for p in said if p.stage == "downloading"]
    assert all(a.done <= b.done for a, b in itertools.pairwise(done))
    # One content is downloaded once, although two files have it.
    assert len([r for r in hub.ranges if r != "bytes=0-0"]) == -(-len(WEIGHTS) // 2**16)
    assert not list(library.blobs.partial.iterdir())


def test_again_is_nothing_new(hub: FakeHub, library: Library) -> None:
    first, _ = pulled("owner/folder", library)
    hub.asked.clear()
    again, said = pulled("owner/folder", library)
    assert again.digest == first.digest and again.manifest.created == first.manifest.created
    assert "owner/folder is up to date" in [p.message for p in said]
    assert not [path for path in hub.asked if "safetensors" in path]


def test_one_file_of_several(hub: FakeHub, library: Library) -> None:
    entry, said = pulled("owner/gguf", library)
    assert entry.name == "owner/gguf" and entry.path.name == "m-Q4_K_M.gguf"
    assert any("owner/gguf:TYPE" in (p.message or "") for p in said)
    eight, _ = pulled("owner/gguf:Q8_0", library)
    assert eight.name == "owner/gguf:Q8_0" and eight.path.read_bytes() == b"GGUF eight"
    parts, _ = pulled("owner/gguf:bf16", library, name="mine@3")
    assert parts.name == "mine@3"
    assert {p.name for p in parts.path.parent.iterdir()} == {
        "m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf",
    }  # fmt: skip
    named, _ = pulled("hf.co/owner/gguf/m-Q8_0.gguf", library)
    assert named.name == "owner/gguf:Q8_0" and named.digest == eight.digest
    for spelling in ("owner/gguf:q8_0", "hf.co/owner/gguf:Q8_0", "hf://owner/gguf/m-Q8_0.gguf"):
        assert locate(spelling, library=library).path == eight.path
    refused("owner/gguf:Q2_K", library, ErrorKind.NOT_FOUND, "there are")
    refused("owner/absent", library, ErrorKind.NOT_FOUND, "HF_TOKEN")
    refused("owner/gated", library, ErrorKind.NOT_FOUND, "terms")


@pytest.mark.parametrize("name", ["brook", "a b", "../x"])
def test_names_that_a_pull_does_not_take(hub: FakeHub, library: Library, name: str) -> None:
    refused("owner/gguf:Q8_0", library, ErrorKind.CONFIG, name, name=name)
    assert not [path for path in hub.asked if ".gguf" in path]


def test_wrong_bytes(hub: FakeHub, library: Library) -> None:
    def flipped(answer: Answer) -> Answer:
        return replace(answer, body=answer.body[:-1] + b"X")

    hub.fault = large(flipped, times=99)
    refused("owner/folder", library, ErrorKind.MODEL_FILE, "its sha256 is")
    assert hashlib.sha256(WEIGHTS).hexdigest() not in library.blobs.digests()
    assert not list(library.blobs.partial.glob("*.part"))
    hub.fault = lambda request: None
    pulled("owner/folder", library)


def test_a_small_file_with_wrong_bytes(hub: FakeHub, library: Library) -> None:
    def fault(request: Request) -> Answer | None:
        if request.path.endswith("config.json"):
            return replace(request.answer, body=request.answer.body[:-1] + b"X")
        return None

    hub.fault = fault
    refused("owner/folder", library, ErrorKind.MODEL_FILE, "config.json: 127.0.0.1 sent other")


@pytest.mark.parametrize(
    ("status", "text"), [(401, "asks for a login"), (403, "HF_TOKEN"), (404, "does not have it")]
)
def test_a_file_that_is_refused(hub: FakeHub, library: Library, status: int, text: str) -> None:
    hub.fault = lambda r: Answer(status) if r.path.endswith("tokenizer.json") else None
    refused("owner/folder", library, ErrorKind.NOT_FOUND, text)


def test_the_cdn_refuses_what_the_hub_granted(hub: FakeHub, library: Library) -> None:
    hub.fault = lambda r: Answer(403) if r.path == "/owner/folder/model.safetensors" else None
    refused("owner/folder", library, ErrorKind.NOT_FOUND, "refuses access (403)")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_for_a_while(hub: FakeHub, library: Library, status: int) -> None:
    hub.fault = large(lambda answer: Answer(status, {"Retry-After": "0"}), times=4)
    pulled("owner/folder", library)


def test_a_wait_that_is_asked_for(hub: FakeHub, library: Library) -> None:
    hub.fault = large(lambda answer: Answer(429, {"Retry-After": "2"}))
    _, said = pulled("owner/folder", library)
    assert any("429; trying again in 2 seconds" in (p.message or "") for p in said)
    for part in ("/api/", ".gguf"):
        hub.fault = lambda r, p=part: Answer(429, {"Retry-After": "999"}) if p in r.path else None
        refused("owner/gguf:Q8_0", library, ErrorKind.UNAVAILABLE, "429; try again in 999 seconds")


def test_a_server_that_stays_busy(hub: FakeHub, library: Library) -> None:
    for part in ("/api/", ".safetensors"):
        hub.fault = lambda r, p=part: Answer(503) if p in r.path else None
        refused("owner/folder", library, ErrorKind.UNAVAILABLE, "answered 503; try again later")


def test_broken_connections(hub: FakeHub, library: Library) -> None:
    hub.fault = large(lambda answer: replace(answer, cut=1000), times=12)
    pulled("owner/folder", library)


def test_an_address_that_expires(hub: FakeHub, library: Library) -> None:
    hub.fault = large(lambda answer: Answer(403))
    pulled("owner/folder", library)


def test_a_host_that_lacks_ranges_at_times(hub: FakeHub, library: Library) -> None:
    hub.fault = large(lambda answer: replace(answer, ranges=False), times=3)
    pulled("owner/folder", library)


def test_a_server_without_ranges(hub: FakeHub, library: Library) -> None:
    hub.fault = lambda r: replace(r.answer, ranges=False)
    pulled("owner/folder", library)
    assert hub.ranges == []


def test_an_interrupted_pull_resumes(hub: FakeHub, library: Library) -> None:
    last = f"bytes={len(WEIGHTS) // 2**16 * 2**16}-{len(WEIGHTS) - 1}"
    hub.fault = lambda r: Answer(404) if r.headers.get("range") == last else None
    refused("owner/folder", library, ErrorKind.NOT_FOUND, "404")
    assert library.blobs.unfinished()[0] >= 1
    hub.fault = lambda r: None
    before = len(hub.ranges)
    pulled("owner/folder", library)
    assert last in hub.ranges[before:] and len(hub.ranges) - before < 5
    assert library.blobs.unfinished() == (0, 0)


def test_resumed_bytes_that_are_wrong(hub: FakeHub, library: Library) -> None:
    last = f"bytes={len(WEIGHTS) // 2**16 * 2**16}-{len(WEIGHTS) - 1}"
    hub.fault = lambda r: Answer(404) if r.headers.get("range") == last else None
    refused("owner/folder", library, ErrorKind.NOT_FOUND, "404")
    [part] = library.blobs.partial.glob("*.part")
    part.write_bytes(b"x" * part.stat().st_size)
    hub.fault = lambda r: None
    _, said = pulled("owner/folder", library)
    assert "what an earlier pull left was wrong; downloading it again" in [p.message for p in said]


@pytest.mark.parametrize("suffix", [".pieces", ".part"])
@pytest.mark.parametrize("content", [b"", b"\xff\n1\n", b'{"size":1}\n0\n99999\n'])
def test_what_an_earlier_pull_left_is_damaged(
    hub: FakeHub, library: Library, suffix: str, content: bytes
) -> None:
    folder = library.blobs.partial
    folder.mkdir(parents=True)
    key = "sha256-" + hashlib.sha256(WEIGHTS).hexdigest()
    (folder / f"{key}.pieces").write_bytes(
        b'{"size":%d,"piece_bytes":65536,"validator":"%s"}\n0\n1' % (len(WEIGHTS), key[7:].encode())
    )
    (folder / f"{key}{suffix}").write_bytes(content)
    pulled("owner/folder", library)


def test_a_disk_that_is_too_small(
    hub: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(library.home.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    refused("owner/folder", library, ErrorKind.RESOURCE, "1 MiB free")
    assert not [r for r in hub.ranges if r != "bytes=0-0"], "checked before anything is downloaded"


def test_a_disk_that_fills_up(
    hub: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.pwrite, [200_000]

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if len(data) > left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(data)
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    refused("owner/folder", library, ErrorKind.RESOURCE, "is full")
    monkeypatch.setattr(os, "pwrite", write)
    before = len(hub.ranges)
    pulled("owner/folder", library)
    assert len(hub.ranges) - before < len(WEIGHTS) // 2**16, "what was written is kept"


def test_two_pulls_of_one_model_at_once(hub: FakeHub, library: Library) -> None:
    hub.pause = 0.005
    said: list[str | None] = []
    found: list[Entry] = []

    def one() -> None:
        mine = Library.open(library.home)
        found.append(pull("owner/folder", mine, lambda p: said.append(p.message), settings=SMALL))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(entry.digest, entry.path) for entry in found}) == 1 and len(found) == 3
    check_complete(library)
    assert any("another pull is downloading" in (line or "") for line in said)
    assert len([r for r in hub.ranges if r != "bytes=0-0"]) == -(-len(WEIGHTS) // 2**16)


def test_a_file_that_a_removal_takes_meanwhile(hub: FakeHub, library: Library) -> None:
    pulled("owner/folder", library, name="first")
    removed = []

    def remove(progress: Progress) -> None:
        if progress.stage == "verifying" and not removed:
            removed.append(library.remove("first"))

    entry = pull("owner/folder", library, remove, settings=SMALL, name="second")
    assert removed and (entry.path / "model.safetensors").read_bytes() == WEIGHTS
    check_complete(library)


def test_cancelling(hub: FakeHub, library: Library) -> None:
    hub.pause = 0.02
    cancel = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.stage == "downloading" and progress.done:
            cancel.set()

    with pytest.raises(TidemillError) as caught:
        pull("owner/folder", library, watch, settings=SMALL, cancel=cancel)
    assert caught.value.kind == ErrorKind.CANCELLED and library.names() == ()
    hub.pause = 0.0
    pulled("owner/folder", library)


def test_an_error_of_the_listener_ends_the_pull(hub: FakeHub, library: Library) -> None:
    hub.pause = 0.02

    def interrupt(progress: Progress) -> None:
        if progress.stage == "downloading" and progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("owner/folder", library, interrupt, settings=SMALL)
    assert library.names() == () and not [t for t in threading.enumerate() if "pull" in t.name]


def test_the_cache_of_the_hub_is_referenced(
    hub: FakeHub, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub/models--owner--folder/snapshots" / COMMIT
    for name, content in REPOS["owner/folder"].items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    entry, said = pulled("owner/folder", library)
    assert entry.path == snapshot and not library.blobs.folder.exists()
    assert any("nothing is copied" in (p.message or "") for p in said)
    assert library.remove("owner/folder") == 0 and snapshot.exists()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    hub.asked.clear()
    offline, _ = pulled("owner/folder", library)
    assert offline.path == snapshot and hub.asked == []
    refused("owner/gguf", library, ErrorKind.UNAVAILABLE, "HF_HUB_OFFLINE is set")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    (snapshot / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"X")
    entry, said = pulled("owner/folder", library)
    assert any("is damaged; not used" in (p.message or "") for p in said)
    assert entry.path != snapshot and (entry.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_created_model_is_not_replaced(hub: FakeHub, library: Library) -> None:
    import msgspec

    from tidemill.library.manifest import Definition

    entry, _ = pulled("owner/gguf:Q8_0", library, name="mine")
    defined = msgspec.structs.replace(entry.manifest, definition=Definition(system="Be brief."))
    library.add(defined)
    refused("owner/gguf:Q8_0", library, ErrorKind.CONFIG, "tidemill rm mine", name="mine")
    assert library.resolve("mine").definition.system == "Be brief."
