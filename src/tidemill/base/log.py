"""Logging: one line per event on stderr, as text or JSON, without what clients wrote.

Tracebacks are printed with their places and the kinds of their errors. The errors' messages are
left out unless their kind says nothing of a request's content: a message such as ``invalid
literal: '...'`` quotes prompts. Our own errors' messages are printed, but those about requests.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime

from tidemill.base.errors import ErrorKind, TidemillError

ROOT = "tidemill"
FORMATS = ("text", "json")

# Raised by the interpreter and the machine with messages about code, sizes and files.
_TELLING = (
    *(ArithmeticError, AttributeError, IndexError, MemoryError, NameError, NotImplementedError),
    *(OSError, RecursionError, TimeoutError, ImportError, EOFError),
)
# Of our own errors, those that say what is wrong with a request.
_QUOTING = {ErrorKind.BAD_REQUEST, ErrorKind.UNSUPPORTED, ErrorKind.NOT_FOUND}
_SECRETS = re.compile(r"(?i)(bearer\s+|authorization\W+|\bsk-)[^\s'\",;]+")


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module below ``tidemill``."""
    return logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")


def describe_exception(error: BaseException) -> str:
    """A traceback of an exception and its causes, without messages that may quote content."""
    parts: list[str] = []
    _describe(error, parts, set())
    return "\n".join(parts)


def summary(error: BaseException) -> str:
    """An exception in a line: its kind, and its message unless that may quote a client."""
    name = type(error).__qualname__
    # Ours carry a kind and a field, which are no content.
    told = [str(v) for k in ("kind", "param") if (v := getattr(error, k, None)) is not None]
    about = f" [{', '.join(told)}]" if told else ""
    if isinstance(error, TidemillError):
        telling = error.kind not in _QUOTING
    else:
        telling = isinstance(error, _TELLING) and not isinstance(error, UnicodeError)
    if telling:
        return f"{name}{about}: {error}"
    return f"{name}{about} (its message of {len(str(error))} characters is not logged)"


def _describe(error: BaseException, parts: list[str], seen: set[int]) -> None:
    seen.add(id(error))
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if behind is not None and id(behind) not in seen:
        _describe(behind, parts, seen)
        parts.append("which led to:")
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    if frames:
        parts.append("Traceback (most recent call last):\n" + frames)
    parts.append(summary(error))
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            _describe(one, parts, seen)


class _Text(logging.Formatter):
    def formatException(self, ei: object) -> str:
        """A traceback without content."""
        assert isinstance(ei, tuple)
        return describe_exception(ei[1]) if ei[1] is not None else ""

    def format(self, record: logging.LogRecord) -> str:
        """One event; what looks like a key is blotted out."""
        return _SECRETS.sub(r"\1[redacted]", super().format(record))


class _Json(_Text):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """One event as a line of JSON; an `event` given with it adds its fields."""
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._role,
            "logger": record.name,
            "message": _SECRETS.sub(r"\1[redacted]", record.getMessage()),
        }
        document.update(getattr(record, "event", {}))
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def log_format() -> str:
    """What `set_up_logging` was given in this process, for the processes that it starts."""
    handlers = logging.getLogger(ROOT).handlers
    return "json" if any(isinstance(h.formatter, _Json) for h in handlers) else "text"


def log_level() -> str:
    """The lowest level that this process's log prints, for the processes that it starts."""
    return logging.getLevelName(logging.getLogger(ROOT).getEffectiveLevel()).lower()


def log_line(text: str) -> str:
    """A warning of this process's log as it is printed; plain text before `set_up_logging`."""
    record = logging.LogRecord(f"{ROOT}.base.log", logging.WARNING, "", 0, text, None, None)
    handlers = logging.getLogger(ROOT).handlers
    return handlers[0].format(record) if handlers else text


def set_up_logging(role: str, level: str = "info", form: str = "text") -> None:
    """Send Tidemill's log to stderr.

    Args:
        role: ``api``, ``engine``; on every line.
        level: the lowest that is printed.
        form: ``text`` for people or ``json`` for machines (of `FORMATS`).
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json(role)
        if form == "json"
        else _Text(f"%(asctime)s %(levelname).1s {role} %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    # An error while writing a line (a full disk) must not write more lines.
    logging.raiseExceptions = False
