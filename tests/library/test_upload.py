"""Files that clients send, and models made of them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.catalog import Library
from tidemill.library.create import create
from tidemill.library.definition.recipe import Recipe
from tidemill.library.manifest import Definition
from tidemill.library.progress import Reporter
from tidemill.library.upload import Upload, digest_in
from tidemill.loading.formats.gguf import MAGIC
from tidemill.loading.locate import bundled_models

CONTENT = b"tide" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


def _send(library: Library, content: bytes, digest: str = "") -> str:
    digest = digest or hashlib.sha256(content).hexdigest()
    upload = Upload(library.blobs, digest, len(content))
    try:
        upload.write(content[:100])
        upload.write(content[100:])
        upload.finish()
    finally:
        upload.close()
    return f"sha256:{digest}"


def test_a_file_is_kept_under_its_digest(library: Library) -> None:
    _send(library, CONTENT)
    assert library.blobs.path(DIGEST).read_bytes() == CONTENT
    assert list(library.blobs.partial.iterdir()) == []
    assert library.unfinished()[0] == 1, "no model uses it yet"


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_wrong_or_incomplete_is_not_kept(library: Library, whole: bool) -> None:
    upload = Upload(library.blobs, DIGEST, None)
    upload.write(CONTENT[:-1])
    if whole:
        with pytest.raises(TidemillError, match="not sha256:" + DIGEST) as caught:
            upload.finish()
        assert caught.value.kind is ErrorKind.BAD_REQUEST
    upload.close()
    assert not library.blobs.has(DIGEST) and list(library.blobs.partial.iterdir()) == []


@pytest.mark.parametrize("text", ["", "sha256:00", "md5:" + DIGEST, DIGEST.upper(), "../" + DIGEST])
def test_what_is_no_digest(text: str) -> None:
    with pytest.raises(TidemillError, match="digest must be sha256:"):
        digest_in(text, "digest")


def test_a_file_for_which_there_is_no_space(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(TidemillError) as caught:
        Upload(library.blobs, DIGEST, 2**40)
    assert caught.value.kind is ErrorKind.RESOURCE


def test_a_model_of_files(library: Library) -> None:
    folder = Path(bundled_models()["brook"])
    files = {
        path.name: _send(library, path.read_bytes()) for path in folder.iterdir() if path.is_file()
    }
    entry = create("mine", Recipe(files=files), library)
    assert entry.path.is_dir() and (entry.path / "config.json").is_file()
    assert library.unfinished()[0] == 0


@pytest.mark.parametrize(
    ("files", "kind", "said"),
    [
        ({"../x.gguf": DIGEST}, ErrorKind.BAD_REQUEST, "no name of a file"),
        ({"x.gguf": "0" * 64}, ErrorKind.NOT_FOUND, "send it first"),
        ({"x.gguf": "x"}, ErrorKind.BAD_REQUEST, "files must be sha256:"),
        ({"x.gguf": DIGEST}, ErrorKind.BAD_REQUEST, "no GGUF file"),
        ({"x.gguf": DIGEST, "y.gguf": DIGEST}, ErrorKind.BAD_REQUEST, "one GGUF file"),
        ({"mmproj.gguf": DIGEST}, ErrorKind.BAD_REQUEST, "one GGUF file"),
        ({"x.txt": DIGEST}, ErrorKind.BAD_REQUEST, "no config.json"),
    ],
)
def test_files_that_are_no_model(
    library: Library, files: dict[str, str], kind: ErrorKind, said: str
) -> None:
    _send(library, CONTENT)
    with pytest.raises(TidemillError, match=said) as caught:
        create("mine", Recipe(files=files), library)
    assert caught.value.kind is kind and library.names() == ()


LORA = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


def test_adapters_that_were_received(library: Library, tmp_path: Path) -> None:
    received = {name: _send(library, content) for name, content in LORA.items()}
    entry = create("pirate", Recipe("brook", adapter=received), library)
    assert library.clean() == 0 and library.unfinished()[0] == 0, "they are the model's"
    (path,) = library.resolve("pirate").definition.adapters
    assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == LORA
    plain = create("plain", Recipe("brook"), library)
    assert entry.size == plain.size + sum(map(len, LORA.values())) and entry.digest != plain.digest

    # What is made of it has them too, unless it has others.
    create("second", Recipe("pirate"), library)
    assert library.resolve("second").definition.adapters == (path,)
    gguf = {name: _send(library, MAGIC + name.encode()) for name in ("a.gguf", "b.gguf")}
    create("third", Recipe("pirate", adapter=gguf), library)
    names = [Path(path).name for path in library.resolve("third").definition.adapters]
    assert names == ["a.gguf", "b.gguf"]
    own = Recipe("pirate", Definition(adapters=(str(tmp_path),)))
    assert create("fourth", own, library).definition.adapters == (str(tmp_path),)
    assert create("fifth", Recipe("fourth"), library).definition.adapters == (str(tmp_path),)
    fourth = Recipe("fourth", adapter=received)
    assert create("sixth", fourth, library).definition.adapters == (path,)

    for name in ("pirate", "second", "sixth"):
        assert Path(path).is_dir()
        library.remove(name)
    assert not Path(path).exists() and library.unfinished()[0] == 0


@pytest.mark.parametrize(
    ("files", "kind", "said"),
    [
        ({"../x.gguf": DIGEST}, ErrorKind.BAD_REQUEST, "no name of a file"),
        ({"x.gguf": "0" * 64}, ErrorKind.NOT_FOUND, "send it first"),
        ({"x.gguf": DIGEST}, ErrorKind.BAD_REQUEST, "no GGUF file"),
        ({"adapter_model.safetensors": DIGEST}, ErrorKind.BAD_REQUEST, "send adapter_config.json"),
        ({"x.gguf": DIGEST, "x": DIGEST}, ErrorKind.BAD_REQUEST, "send adapter_config.json"),
    ],
)
def test_files_that_are_no_adapter(
    library: Library, files: dict[str, str], kind: ErrorKind, said: str
) -> None:
    _send(library, CONTENT)
    with pytest.raises(TidemillError, match=said) as caught:
        create("mine", Recipe("brook", adapter=files), library)
    assert caught.value.kind is kind and caught.value.param == "adapters"
    assert library.names() == ()


def test_weights_that_are_written_anew(library: Library) -> None:
    def rewrite(source: Path, out: Path, reporter: Reporter) -> None:
        assert (source / "config.json").is_file()
        out.write_bytes(CONTENT)

    entry = create("mine", Recipe(base="brook"), library, rewrite=rewrite)
    assert entry.path.name == "model.gguf" and entry.path.read_bytes() == CONTENT
    assert [file.sha256 for file in entry.manifest.files] == [DIGEST]

    def fail(source: Path, out: Path, reporter: Reporter) -> None:
        out.write_bytes(CONTENT)
        raise TidemillError(ErrorKind.BAD_REQUEST, "no")

    with pytest.raises(TidemillError, match="no"):
        create("other", Recipe(base="brook"), library, rewrite=fail)
    assert library.names() == ("mine",) and list(library.blobs.partial.iterdir()) == []
