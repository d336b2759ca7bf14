"""The library on disk: names, manifests, blobs, views, and what removing frees."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.catalog import Library
from tidemill.library.locate import locate
from tidemill.library.manifest import Definition, Manifest, StoredFile
from tidemill.library.names import ModelName
from tidemill.loading.locate import bundled_models


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library.open(tmp_path / "home")


def stored(library: Library, path: str, content: bytes) -> StoredFile:
    """A blob of the library with this content."""
    digest = hashlib.sha256(content).hexdigest()
    library.blobs.partial.mkdir(parents=True, exist_ok=True)
    part = library.blobs.partial / "test.part"
    part.write_bytes(content)
    library.blobs.keep(part, digest)
    return StoredFile(path, len(content), digest)


def manifest(library: Library, name: str, **files: bytes) -> Manifest:
    listed = tuple(stored(library, f"{k}.bin", v) for k, v in files.items())
    return Manifest(name, "test:source", listed)


@pytest.mark.parametrize(
    ("text", "base", "tag", "version"),
    [
        ("qwen3", "qwen3", None, None),
        ("qwen3:0.6b", "qwen3", "0.6b", None),
        ("org/repo:Q4_K_M@12", "org/repo", "Q4_K_M", 12),
        ("chat@2", "chat", None, 2),
        ("chat:latest", "chat", None, None),
    ],
)
def test_names(text: str, base: str, tag: str | None, version: int | None) -> None:
    name = ModelName.parse(text)
    assert name == ModelName(base, tag, version)
    assert str(name) == text.removesuffix(":latest")
    assert ModelName.of_file(name.file_name) == name


@pytest.mark.parametrize(
    "text",
    ["", "a b", "../a", "a..b", "/a", "a/", "a@", "a@0", "a@x", "a:", "-a", "a\\b", "a\n", 
     "x" * 200, "a/b/c/d/e", "./a", "é"],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    assert ModelName.parse(text) is None
    with pytest.raises(TidemillError) as caught:
        ModelName.checked(text)
    assert caught.value.kind == ErrorKind.CONFIG and caught.value.param == "name"


def test_an_empty_library_is_no_folder(library: Library) -> None:
    assert library.names() == () and library.find("a") is None
    assert not library.home.exists()


def test_files_have_their_names_and_are_stored_once(library: Library) -> None:
    one = library.add(manifest(library, "one", a=b"shared", b=b"own"))
    two = library.add(manifest(library, "org/two:t", a=b"shared"))
    assert library.names() == ("one", "org/two:t")
    assert (one.path / "a.bin").read_bytes() == b"shared"
    assert os.path.samefile(one.path / "a.bin", two.path / "a.bin")
    assert len(library.blobs.digests()) == 2
    assert library.resolve("org/two:t").path == two.path and two.size == 6
    with pytest.raises(PermissionError):
        if os.geteuid() == 0:  # to whom modes mean nothing
            assert not os.stat(one.path / "a.bin").st_mode & 0o222
            raise PermissionError
        (one.path / "a.bin").write_bytes(b"x")


def test_removing_frees_what_nobody_else_uses(library: Library) -> None:
    library.add(manifest(library, "one", a=b"shared", b=b"own"))
    library.add(manifest(library, "two", a=b"shared"))
    pulled_meanwhile = stored(library, "c", b"of a pull that is not complete")
    assert library.remove("one") == 3
    assert library.names() == ("two",)
    assert library.resolve("two").path.joinpath("a.bin").read_bytes() == b"shared"
    assert library.blobs.has(pulled_meanwhile.sha256)
    assert len(list(library.blobs.views.iterdir())) == 1
    assert library.remove("two") == 6
    assert library.unfinished() == (1, pulled_meanwhile.size)
    assert library.clean() == pulled_meanwhile.size and library.blobs.digests() == set()


def test_replacing_a_model_frees_what_it_alone_used(library: Library) -> None:
    library.add(manifest(library, "m", a=b"old", b=b"same"))
    library.add(manifest(library, "m", a=b"new", b=b"same"))
    assert len(library.blobs.digests()) == 2
    assert (library.resolve("m").path / "a.bin").read_bytes() == b"new"


def test_copies_and_versions(library: Library) -> None:
    library.add(manifest(library, "chat@1", a=b"1"))
    library.add(manifest(library, "chat@10", a=b"10"))
    library.copy("chat@1", "chat@2")
    assert library.versions("chat") == (1, 2, 10)
    assert library.resolve("chat").name == "chat@10"
    with pytest.raises(TidemillError, match="name one of chat@1, chat@2, chat@10"):
        library.remove("chat")
    library.copy("chat@2", "chat")
    assert library.resolve("chat").name == "chat"
    assert library.remove("chat@1") == 0
    assert library.resolve("chat@2").path.joinpath("a.bin").read_bytes() == b"1"


def test_an_unknown_name(library: Library) -> None:
    library.add(manifest(library, "mistral", a=b"1"))
    for call in (library.resolve, library.remove):
        with pytest.raises(TidemillError, match="did you mean mistral") as caught:
            call("mistrall")
        assert caught.value.kind == ErrorKind.NOT_FOUND


def test_a_referenced_file_is_opened_where_it_lies(library: Library, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    mtime = file.stat().st_mtime_ns
    listed = StoredFile("m.gguf", 7, digest, at=str(file), mtime_ns=mtime)
    library.add(Manifest("m", str(file), (listed,), entry="m.gguf", root=str(file)))
    assert library.resolve("m").path == file and not library.blobs.folder.exists()
    os.utime(file, ns=(mtime, mtime + 10**9))
    with pytest.raises(TidemillError, match="has changed since; add it again"):
        library.resolve("m")
    file.unlink()
    with pytest.raises(TidemillError, match=r"is gone; add it again with `tidemill pull") as caught:
        library.resolve("m")
    assert caught.value.kind == ErrorKind.MODEL_FILE
    assert library.remove("m") == 0


def test_a_model_without_a_file_is_not_added(library: Library) -> None:
    absent = StoredFile("a", 1, "0" * 64)
    with pytest.raises(TidemillError, match="is gone"):
        library.add(Manifest("m", "test:source", (absent,)))
    assert library.names() == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"name": "m", "source": "s", "files": [], "format": 99}',
        b'{"name": "m", "source": "s", "files": [{"path": "../x", "size": 1, "sha256": "%b"}]}'
        % (b"0" * 64),
        b'{"name": "m", "source": "s", "files": [{"path": "x", "size": 1, "sha256": "../../x"}]}',
        b'{"name": "other", "source": "s", "files": []}',
    ],
)
def test_a_damaged_manifest_is_said_and_can_be_removed(library: Library, content: bytes) -> None:
    kept = library.add(manifest(library, "kept", a=b"1"))
    (library.home / "manifests/m.json").write_bytes(content)
    with pytest.raises(TidemillError) as caught:
        library.resolve("m")
    assert caught.value.kind == ErrorKind.MODEL_FILE and "m.json" in caught.value.message
    library.remove("m")
    assert library.names() == ("kept",) and library.resolve("kept").path == kept.path


def test_a_view_is_made_again(library: Library) -> None:
    entry = library.add(manifest(library, "m", a=b"1"))
    (entry.path / "a.bin").unlink()
    entry.path.rmdir()
    assert (library.resolve("m").path / "a.bin").read_bytes() == b"1"


def test_nothing_is_cleaned_while_something_is_pulled(library: Library) -> None:
    with library.pulling(), library.pulling(), pytest.raises(TidemillError, match="being pulled"):
        library.clean()
    assert library.clean() == 0


def test_manifests_are_stable(library: Library) -> None:
    made = manifest(library, "m", a=b"1")
    defined = msgspec.structs.replace(made, definition=Definition(sampling={"top_p": 1.0, "n": 2}))
    entry = library.add(defined)
    again = library.resolve("m")
    assert again.digest == entry.digest != made.digest
    assert library.copy("m", "other").digest == entry.digest


def test_a_definition_over_another() -> None:
    base = Definition(system="a", sampling={"top_k": 1, "top_p": 0.5}, quantize="q8_0")
    over = Definition(system="", sampling={"top_p": 0.9}).over(base)
    assert over == Definition(system="", sampling={"top_k": 1, "top_p": 0.9}, quantize="q8_0")


def test_locating_by_name(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = library.add(manifest(library, "m", a=b"1"))
    monkeypatch.chdir(tmp_path)
    assert locate("m", library=library).path == entry.path
    assert locate("m", library=library).digest == entry.digest
    (tmp_path / "m").mkdir()
    said: list[str] = []
    assert locate("m", said.append, library).path == entry.path
    assert said == ["m is the model of the library; the path of that name is ./m"]
    assert locate("./m", library=library).path == Path("m")
    assert locate(None, library=library).path == bundled_models()["brook"]
    with pytest.raises(TidemillError, match="bundled model"):
        library.add(manifest(library, "brook", a=b"1"))
    with pytest.raises(TidemillError, match="no such file or folder"):
        locate("absent", library=library)
    library.copy("m", "mistral")
    with pytest.raises(TidemillError, match=r"no such file.*; the library has mistral"):
        locate("mistrall", library=library)


def test_the_room_imports_nothing_large() -> None:
    code = (
        "import sys, tidemill.library.locate, tidemill.library.progress; "
        "print([m for m in ('numpy', 'httpx', 'huggingface_hub', 'rich') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
