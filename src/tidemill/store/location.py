"""Where the database lies, from `--database`. Imports nothing that a start would notice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tidemill.base.errors import config_error

DATABASE_VARIABLE = "TIDEMILL_DATABASE"
FILE_NAME = "tidemill.db"
NONE = "none"

_POSTGRESQL = ("postgresql", "postgres", "postgresql+asyncpg")


@dataclass(frozen=True, slots=True)
class Location:
    """A database.

    Attributes:
        url: SQLAlchemy's, with the driver; it may hold a password, so it is never printed.
        shown: for people, without password.
        path: of the file; None: a server.
    """

    url: str
    shown: str
    path: Path | None = None

    def __repr__(self) -> str:
        return f"Location({self.shown})"


def location_of(text: str | None, home: Path) -> Location | None:
    """The database that `--database` names; None for ``none``.

    Args:
        text: None (`tidemill.db` in `home`), ``none``, ``sqlite:///PATH`` or
            ``postgresql://USER:PASSWORD@HOST/NAME``.
        home: ``TIDEMILL_HOME``.

    Raises:
        TidemillError: kind CONFIG; the message never quotes the text, which may hold a password.
    """
    if text is None or not text.strip():
        return _sqlite(home / FILE_NAME)
    text = text.strip()
    if text == NONE:
        return None
    scheme, separator, _ = text.partition("://")
    if separator and scheme in ("sqlite", "sqlite+aiosqlite"):
        return _sqlite(_sqlite_path(text))
    if separator and scheme in _POSTGRESQL:
        return _postgresql(text)
    raise config_error(
        "database",
        "--database takes 'none', 'sqlite:///PATH' (four slashes for an absolute path) or "
        "'postgresql://USER:PASSWORD@HOST/NAME'"
        + (f"; {scheme[:32]!r} is none of them" if re.fullmatch(r"[\w+.-]+", scheme) else ""),
    )


def _sqlite_path(text: str) -> Path:
    # As SQLAlchemy has it: sqlite:///relative, sqlite:////absolute.
    rest = text.partition("://")[2]
    path = rest.partition("?")[0]
    if not path.startswith("/") or len(path) < 2 or path[1:] == ":memory:":
        raise config_error(
            "database", "--database sqlite:///PATH needs the path of a file after three slashes"
        )
    if "?" in rest:
        raise config_error("database", "--database sqlite:///PATH takes no parameters after '?'")
    return Path(path[1:]).expanduser().absolute()


def _sqlite(path: Path) -> Location:
    return Location(f"sqlite+aiosqlite:///{path}", f"sqlite:///{path}", path)


def _postgresql(text: str) -> Location:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise config_error(
            "database",
            "--database is no valid URL; percent-encode special characters of the password",
        ) from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not parts.path.strip("/"):
        raise config_error("database", "--database postgresql://HOST/NAME needs a database's name")
    # libpq's name of the option; asyncpg's is ssl.
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    host = parts.hostname or query.get("host", "localhost")
    shown = f"postgresql://{host}{f':{port}' if port else ''}{parts.path}"
    url = urlunsplit(("postgresql+asyncpg", parts.netloc, parts.path, urlencode(query), ""))
    return Location(url, shown)
