"""A model hub on loopback: what clients of one request, with its faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Files that a hub keeps as LFS objects, on another host.
_LARGE = (".gguf", ".safetensors", ".bin")


@dataclass(frozen=True)
class Answer:
    """A response.

    Attributes:
        cut: bytes of the body after which the connection breaks; None: all are sent.
        ranges: whether a range of the body is sent on request.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    ranges: bool = False


@dataclass(frozen=True)
class Request:
    """A request: path without query, headers in lower case, and the answer that it would get."""

    path: str
    headers: Mapping[str, str]
    answer: Answer


class FakeHub:
    """Repositories by name, and other pages by path.

    Args:
        repos: owner/name -> path in it -> content.
        gated: repositories whose terms must be accepted.
        token: what every request to the hub itself must carry; None: nothing is required.
        pages: path -> content of further pages.

    Attributes:
        url: where it listens.
        cdn: where it keeps large files.
        asked: paths of all requests.
        ranges: ranges of all requests that had one.
        down: answers 503 to everything.
        fault: given a request, the answer to send instead of its own; None: its own.
        pause: seconds before each 16 KiB of a large file.
        repos: as given; may be replaced.
    """

    def __init__(
        self,
        repos: Mapping[str, Mapping[str, bytes]],
        gated: tuple[str, ...] = (),
        token: str | None = None,
        pages: Mapping[str, bytes] | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.down = False
        self.fault: Callable[[Request], Answer | None] = lambda request: None
        self.pause = 0.0
        self.pages = dict(pages or {})
        self.repos = repos
        self._gated = gated
        self._token = token
        self._servers = [
            _Server(("127.0.0.1", 0), _handler(self, answer))
            for answer in (self.answer, self.answer_cdn)
        ]
        self.url, self.cdn = (f"http://127.0.0.1:{s.server_address[1]}" for s in self._servers)

    @contextmanager
    def listening(self) -> Iterator[FakeHub]:
        """In threads of its own."""
        threads = [
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            for server in self._servers
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server, thread in zip(self._servers, threads, strict=True):
                server.shutdown()
                server.server_close()
                thread.join()

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        """The hub's answer to a request."""
        if self.down:
            return Answer(503)
        if path in self.pages:
            content = self.pages[path]
            kind = "text/html" if content[:1] == b"<" else "application/vnd.pypi.simple.v1+json"
            etag = hashlib.sha256(content).hexdigest()
            return _content(content, {"Content-Type": kind, "ETag": f'"{etag}"'})
        if self._token is not None and headers.get("authorization") != f"Bearer {self._token}":
            return Answer(401, {"X-Error-Code": "RepoNotFound"})
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._listing("/".join(parts[2:4]), parts[4:])
        if len(parts) < 5:
            return Answer(404)
        repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        content = self.repos.get(repo, {}).get(name)
        if parts[2] != "resolve" or content is None:
            return Answer(404, {"X-Error-Code": "EntryNotFound"})
        assert revision in ("main", COMMIT)
        if not name.endswith(_LARGE):
            return _content(content, {"ETag": f'"{_git_id(content)}"', "X-Repo-Commit": COMMIT})
        digest = hashlib.sha256(content).hexdigest()
        return Answer(
            302,
            {
                "Location": f"{self.cdn}/{repo}/{name}?signature=1",
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(content)),
            },
        )

    def answer_cdn(self, path: str, headers: Mapping[str, str]) -> Answer:
        """The answer of the host of large files, which must never see the hub's token."""
        if "authorization" in headers:
            return Answer(400)
        owner, repo, *rest = path.strip("/").split("/")
        content = self.repos[f"{owner}/{repo}"]["/".join(rest)]
        return _content(content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    def _listing(self, repo: str, rest: list[str]) -> Answer:
        files = self.repos.get(repo)
        if repo in self._gated:
            return Answer(403, {"X-Error-Code": "GatedRepo"}, b"{}")
        if files is None:
            return Answer(401, {"X-Error-Code": "RepoNotFound"}, b"{}")
        if rest[:1] == ["revision"] and rest[1] not in ("main", COMMIT):
            return Answer(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
        body: object = {
            "id": repo,
            "sha": COMMIT,
            "cardData": {"license": "apache-2.0"},
            "siblings": [_sibling(file, content) for file, content in files.items()],
        }
        if rest[:1] == ["tree"]:
            body = [
                {"type": "file", "path": file, "size": len(content), "oid": COMMIT}
                for file, content in files.items()
            ]
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: clients are killed here."""


def _sibling(file: str, content: bytes) -> dict[str, object]:
    row: dict[str, object] = {
        "rfilename": file,
        "size": len(content),
        "blobId": _git_id(content),
    }
    if file.endswith(_LARGE):
        digest = hashlib.sha256(content).hexdigest()
        row["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
    return row


def _git_id(content: bytes) -> str:
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def _content(content: bytes, headers: Mapping[str, str]) -> Answer:
    return Answer(200, {"Accept-Ranges": "bytes", **headers}, content, ranges=True)


def _handler(
    hub: FakeHub, answer: Callable[[str, Mapping[str, str]], Answer]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            hub.asked.append(self.path)
            own = answer(path, headers)
            sent = hub.fault(Request(path, headers, own)) or own
            try:
                self._send(sent, headers)
            except OSError:  # the client was killed
                self.close_connection = True

        do_HEAD = do_GET

        def _send(self, sent: Answer, headers: Mapping[str, str]) -> None:
            status, body, more = sent.status, sent.body, dict(sent.headers)
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
            if span is not None and sent.ranges and status == 200:
                hub.ranges.append(headers["range"])
                if headers.get("if-range", more.get("ETag")) == more.get("ETag"):
                    start, end = int(span[1]), int(span[2] or len(body) - 1)
                    more["Content-Range"] = f"bytes {start}-{end}/{len(body)}"
                    status, body = 206, body[start : end + 1]
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "GET":
                return
            kept = body if sent.cut is None else body[: sent.cut]
            if hub.pause and sent.ranges:
                for start in range(0, len(kept), 2**14):
                    time.sleep(hub.pause)
                    self.wfile.write(kept[start : start + 2**14])
            else:
                self.wfile.write(kept)
            if sent.cut is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
