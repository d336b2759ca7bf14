"""A proxy that keeps what a client sends: which fields it uses, and every refusal it gets."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit


class Recorder:
    """Stands between a client and a server; use it as a context manager.

    Attributes:
        url: where clients send to, without /v1.
        fields: names of the bodies' members, with the values of those that are short.
        refused: status and answer of every request that was refused.
    """

    def __init__(self, server: str) -> None:
        self.fields: dict[str, set[str]] = {}
        self.refused: list[tuple[int, dict[str, Any]]] = []
        recorder, target = self, urlsplit(server)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._forward(b"")

            def do_POST(self) -> None:
                body = self._body()
                recorder.note(body)
                self._forward(body)

            do_DELETE = do_POST

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = []
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _forward(self, body: bytes) -> None:
                connection = http.client.HTTPConnection(target.hostname, target.port, timeout=120)
                dropped = ("host", "connection", "content-length", "transfer-encoding")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                data = answer.read()
                if answer.status >= 400:
                    recorder.refused.append((answer.status, json.loads(data or b"{}")))
                self.send_response(answer.status)
                for name in ("content-type", "inference-header-content-length"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.send_header("content-length", str(len(data)))
                if "request-id" in answer.headers:  # Anthropic's clients keep it in errors
                    self.send_header("request-id", answer.headers["request-id"])
                self.end_headers()
                self.wfile.write(data)
                connection.close()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def note(self, body: bytes) -> None:
        """Keep a body's fields, and those of its messages and tools."""
        try:
            document = json.loads(body)
        except ValueError:
            return
        if not isinstance(document, dict):
            return
        self._note("", document)
        for message in document.get("messages") or ():
            self._note("messages[].", message)

    def _note(self, prefix: str, members: dict[str, Any]) -> None:
        for name, value in members.items():
            text = json.dumps(value)
            short = len(text) < 24 and not isinstance(value, str)
            self.fields.setdefault(prefix + name, set()).add(text if short else "...")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
