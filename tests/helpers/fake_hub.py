"""A model hub on loopback: what the client library asks of one, and no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories by name.

    Args:
        repos: owner/name -> path in it -> content.
        gated: repositories whose terms must be accepted.

    Attributes:
        url: where it listens.
        asked: paths of all requests.
        down: answers 503 to everything.
    """

    def __init__(
        self, repos: Mapping[str, Mapping[str, bytes]], gated: tuple[str, ...] = ()
    ) -> None:
        self.asked: list[str] = []
        self.down = False
        self._repos = repos
        self._gated = gated
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.asked.append(self.path)
                status, headers, body = hub.answer(unquote(urlsplit(self.path).path))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def listening(self) -> Iterator[FakeHub]:
        """In a thread of its own."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        if self.down:
            return 503, {}, b""
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._listing("/".join(parts[2:4]), parts[4:])
        if len(parts) < 5:
            return 404, {}, b""
        repo, revision = "/".join(parts[:2]), parts[3]
        content = self._repos.get(repo, {}).get("/".join(parts[4:]))
        if parts[2] != "resolve" or content is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        assert revision in ("main", COMMIT)
        etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, content

    def _listing(self, repo: str, rest: list[str]) -> tuple[int, dict[str, str], bytes]:
        files = self._repos.get(repo)
        if repo in self._gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        if files is None:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if rest[:1] == ["revision"] and rest[1] not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        body: object = {
            "id": repo,
            "sha": COMMIT,
            "siblings": [{"rfilename": file} for file in files],
        }
        if rest[:1] == ["tree"]:
            body = [
                {"type": "file", "path": file, "size": len(content), "oid": COMMIT}
                for file, content in files.items()
            ]
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
