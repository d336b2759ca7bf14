"""A running server, as commands talk to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from http.client import HTTPResponse

DEFAULT_URL = "http://127.0.0.1:8000"
SECONDS = 30.0

# Both options of every command that talks to a server.
URL = option(DEFAULT_URL, help="The server.", envvar="TIDEMILL_URL")
API_KEY = option(
    None, help="A key with the role admin, where the server has keys.", envvar="TIDEMILL_API_KEY"
)

_KINDS = {
    400: ErrorKind.BAD_REQUEST,
    401: ErrorKind.UNAUTHORIZED,
    403: ErrorKind.UNAUTHORIZED,
    404: ErrorKind.NOT_FOUND,
    429: ErrorKind.OVERLOADED,
    503: ErrorKind.UNAVAILABLE,
}


class ServerClient:
    """Requests to one server; every error is a TidemillError that says what to do.

    Args:
        url: of the server, without a path.
        api_key: sent as a bearer token; None: none.
        seconds: that it may be silent.
    """

    def __init__(
        self, url: str = DEFAULT_URL, api_key: str | None = None, *, seconds: float = SECONDS
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise config_error("url", f"--url begins with http:// or https://, not {url!r}")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = api_key
        self._seconds = seconds

    def get(self, path: str) -> Any:
        """The document at a path.

        Raises:
            TidemillError: UNAVAILABLE where no server answers; else what the server says.
        """
        return self._document("GET", path, None)

    def post(self, path: str, body: object = None) -> Any:
        """The answer to a document; see `get`."""
        return self._document("POST", path, {} if body is None else body)

    def delete(self, path: str) -> Any:
        """The answer to a deletion; see `get`."""
        return self._document("DELETE", path, None)

    def events(self, path: str, body: object) -> Iterator[Any]:
        """The lines of an answer in NDJSON, as they come; see `get`."""
        with self._open("POST", path, body, "application/x-ndjson") as response:
            for line in response:
                if line.strip():
                    yield json.loads(line)

    def _document(self, method: str, path: str, body: object) -> Any:
        with self._open(method, path, body, "application/json") as response:
            data = response.read()
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise self._other() from None

    @contextmanager
    def _open(self, method: str, path: str, body: object, accept: str) -> Iterator[HTTPResponse]:
        # Not at the top: every command imports this module, few ask a server.
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        headers = {"Accept": accept}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = Request(self._url + path, data, headers, method=method)
        try:
            with urlopen(request, timeout=self._seconds) as response:
                yield response
        except HTTPError as error:
            raise self._refused(error.code, error.read()) from None
        except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise TidemillError(
                ErrorKind.UNAVAILABLE,
                f"no server answers at {self._url} ({reason}); `tidemill serve` starts one, and "
                "--url names another",
            ) from None

    def _refused(self, status: int, data: bytes) -> TidemillError:
        try:
            error = json.loads(data)["error"]
            message, param = error["message"], error.get("param")
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._other(status)
        if status == 401:
            message += " (--api-key, or TIDEMILL_API_KEY)"
        return TidemillError(_KINDS.get(status, ErrorKind.INTERNAL), message, param=param)

    def _other(self, status: int = 200) -> TidemillError:
        return TidemillError(
            ErrorKind.UNAVAILABLE,
            f"what answers at {self._url} is no Tidemill server of this version (status {status})",
        )
