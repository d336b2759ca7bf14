"""Which package index pip would use: its environment variables and configuration files."""

from __future__ import annotations

import configparser
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from tidemill.base.errors import config_error
from tidemill.library import http

_SECTIONS = ("global", "download")


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Where packages are looked up.

    Attributes:
        urls: of indexes (the simple API), in order.
        cafile: authorities that sign their certificates; None: the usual ones.
    """

    urls: tuple[str, ...]
    cafile: str | None


def index_settings() -> IndexSettings:
    """pip's settings; where nothing is set, the index that pip is made for.

    Indexes that are not reached over http(s) are left out, and so are those without encryption,
    unless they are on this machine or among pip's trusted hosts.

    Raises:
        TidemillError: CONFIG, if no index is left.
    """
    files = _files_settings()

    def setting(key: str) -> str | None:
        variable = "PIP_" + key.upper().replace("-", "_")
        return os.environ.get(variable) or files.get(key)

    first = setting("index-url") or _default()
    listed = [first] if first and (setting("no-index") or "0") in ("0", "false", "no") else []
    listed += (setting("extra-index-url") or "").split()
    trusted = (setting("trusted-host") or "").split()
    urls = tuple(url.rstrip("/") for url in listed if _is_usable(url, trusted))
    if not urls:
        raise config_error(
            "source",
            "no package index is known: set PIP_INDEX_URL, or index-url in pip's configuration, to "
            "the https address of one",
        )
    return IndexSettings(urls, setting("cert"))


def _is_usable(url: str, trusted: list[str]) -> bool:
    parts = urlsplit(url)
    encrypted = parts.scheme == "https" or parts.hostname in trusted or http.is_loopback(url)
    return parts.scheme in ("http", "https") and encrypted


def _files_settings() -> dict[str, str]:
    """Settings of pip's configuration files, later files and sections taking precedence."""
    found: dict[str, str] = {}
    for path in _files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself says what is wrong with it
        for section in _SECTIONS:
            if parser.has_section(section):
                found.update(parser.items(section))
    return found


def _files() -> list[Path]:
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    machine = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    return [
        *(Path(folder) / "pip" / "pip.conf" for folder in machine),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        config / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(named)] if named else []),
    ]


def _default() -> str | None:
    """The index in pip's own code; None without pip."""
    try:
        return str(import_module("pip._internal.models.index").PyPI.simple_url)
    except (ImportError, AttributeError):
        return None
