"""The page for people: static files at `/` and `/webui/`, built from webui/; they need no key.

The page itself contains nothing of the server: what it shows it requests from the API, with the
key of the person who uses it. Programs that request `/` get JSON, as before: only a client that
accepts HTML, which a browser says, gets the page.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/webui/"
"""Paths of the page's files."""

PATTERN = "/webui/{file}"
"""Its route, in logs."""

_INDEX = "index.html"
_FOLDER = Path(__file__).parents[1] / "webui"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
_CODINGS = (("br", ".br"), ("gzip", ".gz"))

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text becomes markup: neither a model's output nor a name can add a script.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The page's Content-Security-Policy."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class PageFile(NamedTuple):
    """A file of the page.

    Attributes:
        media_type: its content type.
        tag: its ETag.
        bodies: its bytes by content coding; "": as they are.
        forever: its name has a digest of its content, so that it never changes.
    """

    media_type: str
    tag: str
    bodies: dict[str, bytes]
    forever: bool


class PageMiddleware:
    """ASGI middleware, outside of authentication, that answers requests for the page.

    Args:
        app: the wrapped application, which gets every other request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        name = page_file_name(scope)
        if name is None:
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["route"] = PATTERN if name != _INDEX else "/"
        await page_response(name, Headers(scope=scope))(scope, receive, send)


def page_file_name(scope: Scope) -> str | None:
    """The file of the page that a request is for; None: it is for the API."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return None
    path: str = scope["path"]
    if path.startswith(PREFIX):
        return path[len(PREFIX) :]
    if path == "/" and _accepts_html(scope) and page_file(_INDEX) is not None:
        return _INDEX
    return None


def page_response(name: str, headers: Headers) -> Response:
    """The response with a file: 200, 304 where the client has it, or 404."""
    file = page_file(name)
    if file is None:
        return Response(
            "There is no such file of the page; reload the page.",
            404,
            {**_HEADERS, "Cache-Control": "no-store"},
            "text/plain",
        )
    answer = {
        **_HEADERS,
        "ETag": file.tag,
        "Vary": "Accept, Accept-Encoding" if name == _INDEX else "Accept-Encoding",
        "Cache-Control": "public, max-age=31536000, immutable" if file.forever else "no-cache",
    }
    if file.tag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=answer)
    accepted = _accepted_codings(headers.get("accept-encoding", ""))
    for coding, _ in _CODINGS:
        if coding in accepted and coding in file.bodies:
            answer["Content-Encoding"] = coding
            return Response(file.bodies[coding], headers=answer, media_type=file.media_type)
    import gzip  # hardly any client takes neither coding

    plain = file.bodies.get("") or gzip.decompress(file.bodies["gzip"])
    return Response(plain, headers=answer, media_type=file.media_type)


@cache
def page_file(name: str) -> PageFile | None:
    """A file of the page, read once; None: there is none of that name.

    Text is stored compressed alone, by both codings; a client that takes neither gets it expanded.
    """
    stored = _stored()
    found = {
        coding: stored[name + suffix].read_bytes()
        for coding, suffix in (("", ""), *_CODINGS)
        if name + suffix in stored
    }
    media_type = _TYPES.get(name.rpartition(".")[2])
    if media_type is None or not found:
        return None
    digest = hashlib.sha256(found.get("gzip") or found[""]).hexdigest()[:32]
    return PageFile(media_type, f'W/"{digest}"', found, forever=name != _INDEX)


@cache
def _stored() -> dict[str, Path]:
    return {file.name: file for file in _FOLDER.iterdir()} if _FOLDER.is_dir() else {}


def _accepts_html(scope: Scope) -> bool:
    return "text/html" in Headers(scope=scope).get("accept", "")


def _accepted_codings(value: str) -> set[str]:
    """The content codings of an Accept-Encoding header, without those of weight 0."""
    found = set()
    for part in value.split(","):
        coding, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            found.add(coding.strip().lower())
    return found
