"""The one exception type Tidemill raises on purpose.

Every error carries a kind (what class of thing went wrong), a message written for the person who
reads it at night (it names the field or file and the remedy), and whether trying again can help.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class ErrorKind(StrEnum):
    """What class of thing went wrong; dialects map it to their status codes."""

    BAD_REQUEST = "bad_request"  # the client's request is wrong; `param` names the field
    UNSUPPORTED = "unsupported"  # understood, and this build, model or backend cannot do it
    NOT_FOUND = "not_found"  # no such model, route or request
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"  # known who asks, and it may not
    OVERLOADED = "overloaded"  # a bound was reached; later it may work
    TIMEOUT = "timeout"  # the request's own deadline passed
    CANCELLED = "cancelled"
    MODEL_FILE = "model_file"  # a model file is missing, corrupt or contradicts itself
    CONFIG = "config"  # a flag or setting is wrong or contradicts another
    RESOURCE = "resource"  # the machine lacks memory, a port, a disk
    UNAVAILABLE = "unavailable"  # a process that should answer does not
    DATABASE = "database"  # the database does not answer; serving goes on without it
    NOT_FINITE = "not_finite"  # the model computes NaN or infinities
    INTERNAL = "internal"  # a bug in Tidemill


class TidemillError(Exception):
    """An error with a kind, a message for people, the field it is about, and retryability.

    Args:
        kind: see `ErrorKind`.
        message: one or two sentences: what is wrong, and what to do about it.
        param: the request field, flag or tensor the error is about, if there is one.
        retryable: True when the same call may succeed later without a change.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        retryable: bool = False,
    ) -> None:
        # A path in it may hold bytes that are no text, and it must be possible to send it.
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retryable = retryable


# Called once background loading has ended: with None, or with the error that ended it.
LoadCallback = Callable[[TidemillError | None], object]


def bad_request(param: str | None, message: str) -> TidemillError:
    """A client's mistake in the field `param`."""
    return TidemillError(ErrorKind.BAD_REQUEST, message, param=param)


def unsupported(param: str | None, message: str) -> TidemillError:
    """Something understood that this build, model or backend does not do."""
    return TidemillError(ErrorKind.UNSUPPORTED, message, param=param)


def model_file_error(message: str, *, param: str | None = None) -> TidemillError:
    """A model file that is missing, corrupt or contradicts itself."""
    return TidemillError(ErrorKind.MODEL_FILE, message, param=param)


def config_error(param: str | None, message: str) -> TidemillError:
    """A flag or setting that is wrong or contradicts another."""
    return TidemillError(ErrorKind.CONFIG, message, param=param)
