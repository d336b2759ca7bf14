"""A pipeline's file becomes its function."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

Function = Callable[[Any, Any], Any]

NAME = "tidemill_pipeline"
"""Name of the file's module."""


class CannotLoad(Exception):
    """The file cannot be a pipeline; the message is for the operator's log."""


def load(path: Path) -> Function:
    """Run a file and return its function ``answer``.

    Modules in the file's folder can be imported, unless the standard library or an installed
    package has their name.

    Raises:
        CannotLoad: naming the line.
    """
    sys.path.append(str(path.parent))
    module = ModuleType(NAME)
    module.__file__ = str(path)
    sys.modules[NAME] = module  # dataclasses and pickle look it up
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise CannotLoad(f"line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        # Nothing of a request can be in this message: there was none yet.
        raise CannotLoad(f"{lines_of(error.__traceback__, path)}: {_said(error)}") from None
    function = getattr(module, "answer", None)
    if function is None:
        raise CannotLoad("it has no `async def answer(request, models)`")
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise CannotLoad(f"line {_line(function)}: answer must be an `async def`")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise CannotLoad(
            f"line {_line(function)}: answer takes two arguments: (request, models)"
        ) from None
    return function  # type: ignore[no-any-return]


def lines_of(trace: TracebackType | None, path: Path) -> str:
    """The lines of a traceback from the pipeline's file on, innermost last: ``file:line``."""
    frames = traceback.extract_tb(trace)
    first = next((i for i, frame in enumerate(frames) if frame.filename == str(path)), 0)
    shown = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[first:]]
    return " > ".join(shown) or str(path)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _line(function: Any) -> int:
    code = getattr(function, "__code__", None)
    return 0 if code is None else int(code.co_firstlineno)
