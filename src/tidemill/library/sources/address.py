"""Pulls a GGUF file from an address on the web."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import unquote, urldefrag, urlsplit, urlunsplit

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.library import http
from tidemill.library.fetch import RemoteFile
from tidemill.library.manifest import is_digest
from tidemill.library.pulling import Found, Pulling

_SPLIT = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
_MAGIC = b"GGUF"


def pull_address(text: str, sha256: str | None, pulling: Pulling) -> Found:
    """One GGUF file, or all parts of a split one.

    Args:
        text: an address; it may end in ``#sha256=HEX``.
        sha256: digest that the file must have.

    Raises:
        TidemillError: CONFIG for an address that is not accepted; MODEL_FILE for content that is
            none; see also `Fetcher.fetch`.
    """
    url, fragment = urldefrag(text)
    sha256 = _digest(fragment, sha256)
    parts = urlsplit(url)
    if parts.scheme != "https" and sha256 is None and not http.is_loopback(url):
        raise config_error(
            "source",
            f"{http.host(url)} would be read without encryption: give an https address, or the "
            "file's digest (#sha256=HEX), which proves what arrives",
        )
    file_name = PurePosixPath(unquote(parts.path)).name
    if not re.fullmatch(r"[\w][\w.+ -]*\.gguf", file_name):
        raise config_error(
            "source",
            f"{file_name or parts.path!r}: an address of a model ends in the name of a .gguf file; "
            "folders of safetensors are pulled from the hub (owner/name)",
        )
    files = [RemoteFile(url, file_name, sha256=sha256)]
    split = _SPLIT.fullmatch(file_name)
    if split is not None:
        if sha256 is not None:
            raise config_error("sha256", "a digest is of one file, and this model has several")
        files = [
            replace(files[0], url=url.replace("-00001-of-", f"-{number:05}-of-"),
                    path=file_name.replace("-00001-of-", f"-{number:05}-of-"))
            for number in range(1, int(split[2]) + 1)
        ]  # fmt: skip
    stored = pulling.fetch(files)
    for file in stored:
        _check_content(file.sha256, url, pulling)
    if sha256 is None:
        listed = ", ".join(f"sha256:{file.sha256}" for file in stored)
        pulling.reporter.say(f"no digest was given to compare with; what arrived has {listed}")
    name = (split[1] if split else file_name.removesuffix(".gguf")).replace(" ", "-")
    # A login and a signature are not written down.
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if sha256 is not None:
        shown += f"#sha256={sha256}"
    return Found(name.replace("+", "-"), shown, tuple(stored), file_name)


def _digest(fragment: str, sha256: str | None) -> str | None:
    named = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
    given = [text.lower().removeprefix("sha256:") for text in (named, sha256) if text is not None]
    for text in given:
        if not is_digest(text):
            raise config_error("sha256", f"{text!r} is no sha256: it has 64 hexadecimal digits")
    if len({*given}) > 1:
        raise config_error("sha256", "the address and the option --sha256 name two digests")
    return given[0] if given else None


def _check_content(sha256: str, url: str, pulling: Pulling) -> None:
    """Raise unless a downloaded file is GGUF; it is removed then."""
    with open(pulling.library.blobs.path(sha256), "rb") as file:
        head = file.read(32)
    if not head.startswith(_MAGIC):
        pulling.library.discard(sha256)
        raise TidemillError(
            ErrorKind.MODEL_FILE,
            f"what {http.host(url)} sent is no GGUF file (it begins with {head[:16]!r}); is the "
            "address that of a web page about it?",
            param="source",
        )
