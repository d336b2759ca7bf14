"""String formats: those that the grammar library supports, and those expressed as patterns.

Formats whose meaning is not in the text (does the path exist?) are ignored, as validators do. Other
formats are rejected.
"""

from __future__ import annotations

from typing import Any

from tidemill.grammar.schema.numbers import INTEGER_FORMATS

# llguidance accepts 29 February in every year, year 0000, and second 60 in every minute. These
# patterns restrict dates to the calendar (RFC 3339, appendix C; years from 1) and leap seconds to
# 23:59 UTC, written for offsets of whole hours.
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_CALENDAR = (
    f"(?:{_YEAR}-(?:02-(?:[01][0-9]|2[0-8])|(?:0[13-9]|1[0-2])-[0-9]{{2}})"
    f"|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_LEAP = "|".join(
    f"{hour:02}:59:60{{fraction}}(?:[+]{(hour + 1) % 24:02}|-{23 - hour:02}):00"
    for hour in range(24)
)
_CLOCK = f"(?:[0-9:]{{6}}[0-5]|23:59:60{{fraction}}[zZ]|{_LEAP})".replace(
    "{fraction}", "(?:[.][0-9]+)?"
)
_POINTER = "(?:/(?:[^/~]|~[01])*)*"


def _base64(alphabet: str, pad: str) -> str:
    return (
        f"^(?:[{alphabet}]{{4}})*(?:[{alphabet}]{{2}}{pad.replace('=', '==')}"
        f"|[{alphabet}]{{3}}{pad})?$"
    )


_BASE64 = {"pattern": _base64("A-Za-z0-9+/", "=")}

_LIBRARY = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
# Format -> the library's format, if any, and further constraints.
_MORE: dict[str, tuple[str | None, dict[str, Any]]] = {
    "date": ("date", {"pattern": f"^{_CALENDAR}"}),
    "date-time": ("date-time", {"pattern": f"^{_CALENDAR}[tT]{_CLOCK}"}),
    "time": ("time", {"pattern": f"^{_CLOCK}"}),
    **{f"uuid{v}": ("uuid", {"pattern": f"^.{{14}}{v}"}) for v in range(1, 9)},
    "ipvanyaddress": (None, {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
    "byte": (None, _BASE64),
    "base64": (None, _BASE64),
    "base64url": (None, {"pattern": _base64("A-Za-z0-9_-", "(?:=)?")}),
    "json-pointer": (None, {"pattern": f"^{_POINTER}$"}),
    "relative-json-pointer": (None, {"pattern": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$"}),
}
ENFORCED = _LIBRARY | frozenset(_MORE)

_SAY_NOTHING = frozenset({
    "path", "file-path", "directory-path", "new-path", "password", "binary", "float", "double",
})  # fmt: skip
# Formats that zod writes next to an equivalent pattern.
_PATTERN_SIBLINGS = frozenset({
    "cuid", "cuid2", "ulid", "xid", "ksuid", "nanoid", "emoji", "e164", "cidrv4", "cidrv6", "jwt",
})  # fmt: skip


def check(schema: Any) -> str | None:
    """Why a schema's format cannot be enforced, or None."""
    name = schema["format"]
    if isinstance(name, str):
        if name in ENFORCED or name in _SAY_NOTHING or name in INTEGER_FORMATS:
            return None
        if name in _PATTERN_SIBLINGS and "pattern" in schema:
            return None
    known = ", ".join(sorted(ENFORCED))
    return f"the format {str(name)[:64]!r} cannot be enforced; known are {known}"


def integer_bounds(name: object) -> tuple[int, int] | None:
    """The range of an integer format, or None."""
    return INTEGER_FORMATS.get(name) if isinstance(name, str) else None


def lowered(schema: dict[str, Any]) -> None:
    """Replace a schema's format by keywords that the grammar library enforces, in place."""
    name = schema.pop("format")
    kept, more = _MORE.get(name, (name if name in _LIBRARY else None, {}))
    if kept is not None:
        schema["format"] = kept
    if more:
        schema["allOf"] = [*schema.get("allOf", ()), dict(more)]
