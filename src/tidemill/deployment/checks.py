"""Kinds of single settings, whose checks belong to the rooms that use the values.

Those rooms are imported when such a value is read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tidemill.base.errors import TidemillError
from tidemill.base.sizes import exact_size
from tidemill.contract.config import HOST_AND_PORT, folder_and_size
from tidemill.contract.quotas import Limits, parse_limits
from tidemill.contract.request import ADAPTER_NAME, ADAPTER_NAME_RULE
from tidemill.contract.speculation import available, read_setting
from tidemill.deployment import kinds
from tidemill.deployment.kinds import Kind
from tidemill.deployment.toml_text import literal

ISAS = (
    *("amx", "avx512", "avx512bf16", "avx512bw", "avxvnni", "avx2"),
    *("i8mm", "neon", "portable"),
)
"""Instruction sets of the native backend."""

_NAME_CHARS = 200
# Parts as of the library's names, and `*` for further names that are patterns.
_NAME_PART = r"[A-Za-z0-9*][A-Za-z0-9._:@*-]*"
_NAME = re.compile(rf"{_NAME_PART}(?:/{_NAME_PART})*")


def check_name(name: str) -> None:
    """Raise ValueError for what no model may be called."""
    if len(name) > _NAME_CHARS or ".." in name or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"must be at most {_NAME_CHARS} letters, digits, '.', '_', '-', ':' and '@', with '/' "
            "between parts that begin with a letter or a digit"
        )


def _check_origin(origin: str) -> None:
    from tidemill.server.access.security import check_origins

    check_origins((origin,))


def _check_proxy(address: str) -> None:
    from tidemill.server.access.security import check_proxies

    check_proxies((address,))


def _check_key(key: str) -> None:
    from tidemill.server.access.keys import StaticKeys

    StaticKeys((key,))


def _check_database(text: str) -> None:
    from tidemill.store.location import location_of

    location_of(text, Path("/"))


def _check_issuer(text: str) -> None:
    if not re.fullmatch(r"(?:https://|http://(?:127\.0\.0\.1|localhost)(?=[:/]))[^\s?#]+", text):
        raise ValueError


def _check_otel(text: str) -> None:
    if text not in ("auto", "on", "off") and not re.fullmatch(r"https?://[^\s?#/]+[^\s?#]*", text):
        raise ValueError


def watts_of(text: str) -> float | None:
    """The watts of a setting `energy`; None of one that is a word. Raises ValueError."""
    if text in ("auto", "off"):
        return None
    found = float(text.removesuffix("W"))
    if not 0.0 < found < float("inf"):
        raise ValueError
    return found


def _read_intensity(value: Any, base: Path) -> str:
    if type(value) is not str:
        raise ValueError
    try:
        found = float(value)
    except ValueError:
        path = kinds.absolute(value, base)
        if not path.is_file():
            raise ValueError(f"no such file: {path}") from None
        return str(path)
    if not 0.0 <= found < float("inf"):
        raise ValueError
    return value


def _read_isa(value: Any, _: Path) -> str:
    if value not in ISAS:
        raise ValueError
    return str(value)


def _read_speculate(value: Any, base: Path) -> str:
    if type(value) is not str:
        raise ValueError
    file = read_setting(value).file
    if kinds.looks_like_path(file):
        return value.replace(f"={file}", f"={kinds.absolute(file, base)}")
    return value


def _read_packed_cache(value: Any, base: Path) -> str:
    if value in ("auto", "off"):
        return str(value)
    found = kinds.absolute(value, base)
    if found.exists() and not found.is_dir():
        raise ValueError(f"{found} is no folder")
    return str(found)


def _read_address(value: Any, _: Path) -> str:
    if type(value) is not str or not HOST_AND_PORT.fullmatch(value):
        raise ValueError
    return value


def _read_addresses(value: Any, base: Path) -> str:
    if type(value) is not str:
        raise ValueError
    return ",".join(_read_address(one.strip(), base) for one in value.split(","))


def _read_kv_disk(value: Any, base: Path) -> str:
    try:
        folder, size = folder_and_size(str(kinds.text().read(value, base)))
    except TidemillError as error:
        raise ValueError(error.message) from None
    found = kinds.absolute(folder, base)
    if found.exists() and not found.is_dir():
        raise ValueError(f"{found} is no folder")
    return str(found) if size is None else f"{found}:{exact_size(size)}"


def _check_version(version: str) -> None:
    from tidemill.server.host.rollout.traffic import parse_traffic

    parse_traffic(version)


def show_traffic(rule: Any) -> str:
    """A rule of traffic as TOML."""
    from tidemill.server.host.rollout.traffic import to_builtins

    return literal(to_builtins(rule))


def _read_prices(value: Any, _: Path) -> dict[str, Any]:
    from tidemill.contract.prices import Prices

    if type(value) is not dict:
        raise ValueError
    for pattern in value:
        if not pattern.strip() or len(pattern) > _NAME_CHARS:
            raise ValueError(f"a model's name or pattern has 1 to {_NAME_CHARS} characters")
    try:
        Prices.parse(value, "prices.models")
    except TidemillError as error:
        raise ValueError(error.message) from None
    return value


def _read_adapters(value: Any, folder: Path) -> dict[str, str]:
    if type(value) is not dict:
        raise ValueError
    found = {}
    for name, path in value.items():
        if not ADAPTER_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of an adapter: {ADAPTER_NAME_RULE}")
        absolute = kinds.absolute(path, folder)
        if absolute.exists():
            found[name] = str(absolute)
        elif str(path).startswith((".", "/", "~")):
            raise ValueError(f"no such file or folder: {absolute}")
        else:
            found[name] = str(path)  # a name of the library, which is looked up where models are
    return found


def _read_limits(value: Any, _: Path) -> Limits:
    if type(value) is not dict:
        raise ValueError
    try:
        return parse_limits(value)
    except TidemillError as error:
        raise ValueError(error.message) from None


def _show_limits(limits: Any) -> str:
    return literal({limit.name: limit.value for limit in limits})


def _is_source(source: str, base: Path) -> bool:
    # Of GGUF files on the hub the name ends in .gguf, too.
    return source.endswith(".gguf") and (source.count("/") < 2 or (base / source).exists())


SOURCE = kinds.path_or_name("a path or a model's name", _is_source)
TEMPLATE = kinds.path_or_name(
    "a file or a template's name", lambda template, _: "/" in template or "." in template
)
VERSION = kinds.checked("1 to 64 letters, digits, '.', '_' or '-'", _check_version)
MODEL_NAME = kinds.checked("a name", check_name)
ORIGIN = kinds.checked('an origin such as "https://app.example" or "*"', _check_origin)
PROXY = kinds.checked('an address or a network such as "10.0.0.0/8"', _check_proxy)
API_KEY = kinds.checked("1 to 512 visible ASCII characters without spaces", _check_key)
DATABASE = kinds.checked(
    '"none", "sqlite:///PATH" or "postgresql://USER:PASSWORD@HOST/NAME"', _check_database
)
ISSUER = kinds.checked("a URL that begins with https://", _check_issuer)
OTEL = kinds.checked('"auto", "on", "off" or a URL that begins with http', _check_otel)
ENERGY = kinds.checked('"auto", "off" or watts such as "65W"', watts_of)
INTENSITY = Kind('a number of grams as a text, such as "380", or a file', _read_intensity)
PRICES = Kind(
    "a table of models or patterns, each with input, cached_input and output", _read_prices
)
ADAPTERS = Kind("a table of names and paths of adapters", _read_adapters)
LIMITS = Kind("a table of limits (docs/quotas.md)", _read_limits, show=_show_limits)
ISA = Kind(f"one of {', '.join(ISAS)}", _read_isa)
SPECULATE = Kind("one of " + ", ".join(map(literal, available())), _read_speculate)
ADDRESS = Kind("HOST:PORT", _read_address)
ADDRESSES = Kind("HOST:PORT, several of them separated by commas", _read_addresses)
KV_DISK = Kind("a folder, or a folder, a colon and a size", _read_kv_disk)
PACKED_CACHE = Kind('a folder, "auto" or "off"', _read_packed_cache)
