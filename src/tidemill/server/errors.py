"""Errors that clients see, with their HTTP status; each dialect gives them its own shape.

Details of internal errors stay in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.resolve import ContextLengthError

log = get_logger(__name__)

JSON = "application/json"
RETRY_SECONDS = 1

# kind -> (status, OpenAI's error type, code)
_KINDS: dict[ErrorKind, tuple[int, str, str | None]] = {
    ErrorKind.BAD_REQUEST: (400, "invalid_request_error", "invalid_value"),
    ErrorKind.UNSUPPORTED: (400, "invalid_request_error", "unsupported"),
    ErrorKind.CONFIG: (400, "invalid_request_error", "invalid_configuration"),
    ErrorKind.MODEL_FILE: (500, "server_error", "model_unusable"),
    ErrorKind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    ErrorKind.FORBIDDEN: (403, "permission_error", "forbidden"),
    ErrorKind.NOT_FOUND: (404, "invalid_request_error", "not_found"),
    ErrorKind.TIMEOUT: (408, "timeout_error", "timeout"),
    ErrorKind.OVERLOADED: (429, "rate_limit_error", "overloaded"),
    ErrorKind.CANCELLED: (503, "server_error", "cancelled"),
    ErrorKind.NOT_FINITE: (500, "server_error", "model_output_not_finite"),
    ErrorKind.RESOURCE: (503, "server_error", "out_of_resources"),
    ErrorKind.UNAVAILABLE: (503, "server_error", "engine_unavailable"),
    ErrorKind.DATABASE: (503, "server_error", "database_unavailable"),
}
_HTTP_CODES = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "timeout"),
    413: ("invalid_request_error", "body_too_large"),
    414: ("invalid_request_error", "url_too_long"),
    415: ("invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "overloaded"),
    431: ("invalid_request_error", "head_too_large"),
    503: ("server_error", "unavailable"),
    508: ("server_error", "loop"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One error as the client sees it.

    Attributes:
        status: HTTP status.
        type, code: in OpenAI's terms; other dialects map them.
        message: what is wrong, and what to do about it.
        param: the field it is about, if there is one.
        headers: further response headers.
        request_id: of the request, where it is known; some dialects' errors have it.
    """

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""

    @property
    def whole_message(self) -> str:
        """The message with the field's name, for shapes of errors without a member for it."""
        known = not self.param or self.param in self.message
        return self.message if known else f"{self.param}: {self.message}"


ErrorBody = Callable[[Problem], bytes]
"""A dialect's JSON document for an error."""


def problem_response(problem: Problem, error_body: ErrorBody) -> Response:
    """The HTTP response for an error."""
    return Response(
        error_body(problem),
        status_code=problem.status,
        media_type=JSON,
        headers=dict(problem.headers),
    )


def fail(request: Request, error: Exception) -> Problem:
    """The error of a request, with the field as the client named it; noted for the access log."""
    problem = problem_of(error, request.state.request_id)
    problem = named_as_sent(problem, getattr(request.state, "sent_as", {}))
    problem = replace(problem, request_id=request.state.request_id)
    request.state.problem = problem
    return problem


def named_as_sent(problem: Problem, names: Mapping[str, str]) -> Problem:
    """A problem that names a field as the client sent it: under an alias, or at another place.

    Args:
        problem: the error.
        names: from declared names to the names as sent (see `members.fill`); what they contain
            (``messages[2].content`` in ``messages[2]``) is renamed with them.
    """
    param, known = problem.param or "", None
    while param and known is None:
        known = names.get(param)
        if known is None:
            param = param[: max(param.rfind("."), param.rfind("["), 0)]
    if known is None or problem.param is None:
        return problem
    sent = known + problem.param[len(param) :]
    message = problem.message
    if ("[" in problem.param or "." in problem.param) and problem.param in message:
        message = message.replace(problem.param, sent)
    else:
        message = f"{sent}: {message}"
    return replace(problem, param=sent, message=message)


class Rejection(Exception):
    """Raised to answer a request with an error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def reject(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Rejection:
    """A rejection with the given status; its type follows from the status."""
    other = "server_error" if status >= 500 else "invalid_request_error"
    kind, default = _HTTP_CODES.get(status, (other, None))
    return Rejection(Problem(status, kind, message, param, code or default, headers or {}))


def problem_of(error: BaseException, request_id: str) -> Problem:
    """The error response to an exception; internal errors are logged here."""
    if isinstance(error, Rejection):
        return error.problem
    if isinstance(error, TidemillError) and error.kind in _KINDS:
        status, kind, code = _KINDS[error.kind]
        if isinstance(error, ContextLengthError):
            code = "context_length_exceeded"
        if status == 500:
            log.error("request %s failed: %s", request_id, error.message)
        retry = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
        return Problem(status, kind, error.message, error.param, code, retry)
    if isinstance(error, HTTPException):
        kind, http_code = _HTTP_CODES.get(error.status_code, ("invalid_request_error", "http"))
        return Problem(
            error.status_code, kind, str(error.detail), None, http_code, error.headers or {}
        )
    log.error("request %s failed", request_id, exc_info=error)
    message = f"internal error; the server's log has the details under request id {request_id}"
    return Problem(500, "server_error", message, None, "internal_error")
