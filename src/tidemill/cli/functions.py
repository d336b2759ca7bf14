"""Plain Python functions as tools, described by their signatures and docstrings.

The file belongs to the user and is executed without a sandbox. Annotations give the parameters'
types; docstrings (Google, NumPy or Sphinx style) give their descriptions.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.base.errors import TidemillError, config_error

_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    inspect.Parameter.empty: {},
    list: {"type": "array"},
    dict: {"type": "object"},
}
_PARAM_LINES = (
    re.compile(r"^\s*:param\s+(?:[^:\s]+\s+)?(\w+)\s*:\s*(.+)$"),  # Sphinx
    re.compile(r"^\s+(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$"),  # Google, below "Args:"
)
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?)\s*:?\s*$")


class Functions:
    """The functions of a file, as tools.

    Attributes:
        tools: their descriptions in OpenAI's format.

    Args:
        functions: name -> function.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = dict(functions)
        self.tools = [describe(name, function) for name, function in functions.items()]

    @classmethod
    def of_file(cls, path: str) -> Functions:
        """Load the public functions that a Python file defines.

        Raises:
            TidemillError: kind CONFIG: the file is missing, fails to run, or defines none.
        """
        file = Path(path)
        if not file.is_file():
            raise config_error("tools", f"--tools {path}: no such file")
        spec = importlib.util.spec_from_file_location("tidemill_tools", file)
        if spec is None or spec.loader is None:
            raise config_error("tools", f"--tools {path}: not a Python file (.py)")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise config_error("tools", f"--tools {path}: {_error_text(error)}") from error
        found = {
            name: value
            for name, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        }
        if not found:
            raise config_error("tools", f"--tools {path} defines no public functions")
        return cls(found)

    def call(self, name: str, arguments: str) -> str:
        """Call a function and return its result for the model: a string as is, else JSON.

        An exception becomes an ``error`` result, which lets the model retry.
        """
        try:
            function = self._functions[name]
            values = json.loads(arguments)
            kept = {p: _as_annotated(function, p, v) for p, v in values.items()}
            result = function(**kept)
        except Exception as error:
            return json.dumps({"error": _error_text(error)}, ensure_ascii=False)
        if isinstance(result, str):
            return result
        return json.dumps(result, ensure_ascii=False, default=_plain)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.value if isinstance(value, enum.Enum) else str(value)


def describe(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function as a tool in OpenAI's format.

    Raises:
        TidemillError: kind CONFIG naming the function and the parameter that cannot be described.
    """
    summary, meanings = read_docstring(inspect.getdoc(function) or "")
    hints = _hints(name, function)
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _param_error(name, parameter.name, "takes any arguments; name them")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise _param_error(name, parameter.name, "is positional only; arguments come by name")
        try:
            schema = schema_of(hints.get(parameter.name, parameter.empty))
        except TypeError as error:
            raise _param_error(name, parameter.name, str(error)) from None
        if parameter.name in meanings:
            schema["description"] = meanings[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required}
    about = {"description": summary} if summary else {}
    return {"type": "function", "function": {"name": name, **about, "parameters": parameters}}


def _param_error(name: str, parameter: str, why: str) -> TidemillError:
    return config_error("tools", f"--tools: {name}(): the parameter {parameter!r} {why}")


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception as error:
        raise config_error("tools", f"--tools: {name}(): {_error_text(error)}") from error


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of an annotation.

    Raises:
        TypeError: JSON cannot represent the type.
    """
    if isinstance(kind, type | types.NoneType) or kind is Any or kind is inspect.Parameter.empty:
        simple = _SIMPLE.get(type(None) if kind is None else kind)
        if simple is not None:
            return dict(simple)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is typing.Annotated:
        return schema_of(inner[0])
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(part) for part in inner]}
    if origin is tuple:
        return _tuple_schema(inner)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if inspect.isclass(origin) and issubclass(origin, Sequence | set | frozenset):
        return {"type": "array", "items": schema_of(inner[0])}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        missing = dataclasses.MISSING
        needed = [f.name for f in fields if f.default is missing and f.default_factory is missing]
        return _object(typing.get_type_hints(kind), needed)
    if typing.is_typeddict(kind):
        return _object(typing.get_type_hints(kind), sorted(kind.__required_keys__))
    raise TypeError(f"has a type that JSON cannot carry: {getattr(kind, '__name__', kind)}")


def _tuple_schema(inner: tuple[Any, ...]) -> dict[str, Any]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return {"type": "array", "items": schema_of(inner[0])}
    parts = [schema_of(part) for part in inner]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}


def _object(hints: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: schema_of(kind) for name, kind in hints.items()},
        "required": required,
        "additionalProperties": False,
    }


def _as_annotated(function: Callable[..., Any], parameter: str, value: Any) -> Any:
    """Convert a JSON value to the annotated enum or dataclass; others pass unchanged."""
    kind = typing.get_type_hints(function).get(parameter)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return kind(**value)
    return value


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph and the parameters' descriptions (Google, NumPy or Sphinx)."""
    paragraph = text.split("\n\n", 1)[0].strip()
    summary = "" if paragraph.startswith(":param") else " ".join(paragraph.split())
    meanings: dict[str, str] = {}
    lines = text.splitlines()
    section, last = "", ""
    for index, line in enumerate(lines):
        header = _SECTION.match(line)
        underlined = index + 1 < len(lines) and set(lines[index + 1].strip()) == {"-"}
        if header and (underlined or line.rstrip().endswith(":")):
            section, last = header.group(1), ""
            continue
        numpy = re.match(r"^(\w+)\s*:\s*\S", line) if section == "Parameters" else None
        found = _PARAM_LINES[0].match(line)
        if found is None and section in ("Args", "Arguments", "Parameters"):
            found = _PARAM_LINES[1].match(line)
        if numpy:
            last = numpy.group(1)
        elif found:
            last = found.group(1)
            meanings[last] = found.group(2).strip()
        elif last and line.strip() and line.startswith((" ", "\t")):
            meanings[last] = f"{meanings.get(last, '')} {line.strip()}".strip()
    return summary, meanings
