"""Names of the library's models: ``name``, ``name:tag`` and ``name@2``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from tidemill.base.errors import TidemillError, config_error
from tidemill.loading.hub_choice import label
from tidemill.loading.hub_name import HubName, parse

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(
    rf"(?P<base>{_PART}(?:/{_PART}){{0,3}})"
    r"(?::(?P<tag>[A-Za-z0-9][A-Za-z0-9._-]{0,63}))?"
    r"(?:@(?P<version>[1-9][0-9]{0,8}))?"
)
_MAX_CHARS = 160  # quoted it must be a file's name
_DEFAULT_TAG = "latest"


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model's name; `str()` of it is the one canonical way to write it.

    Attributes:
        base: up to four parts separated by slashes.
        tag: a variant of it, such as a quantization; ``latest`` is written as no tag.
        version: a number, where a name has several versions.
    """

    base: str
    tag: str | None = None
    version: int | None = None

    @classmethod
    def parse(cls, text: str) -> ModelName | None:
        """The name that `text` is, or None if it cannot be one."""
        match = _NAME.fullmatch(text) if len(text) <= _MAX_CHARS else None
        if match is None or ".." in match["base"]:
            return None
        tag = None if match["tag"] == _DEFAULT_TAG else match["tag"]
        version = match["version"]
        return cls(match["base"], tag, None if version is None else int(version))

    @classmethod
    def checked(cls, text: str, param: str = "name") -> ModelName:
        """The name that `text` is.

        Raises:
            TidemillError: CONFIG, naming `param`, if it cannot be a name.
        """
        name = cls.parse(text)
        if name is None:
            raise config_error(
                param,
                f"{text!r} cannot be a model's name: it is made of letters, digits, '.', '_' and "
                "'-', with '/' between parts, and may end in :tag and @version (a number)",
            )
        return name

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.base}{tag}" + (f"@{self.version}" if self.version is not None else "")

    @property
    def unversioned(self) -> ModelName:
        """The name without its version."""
        return replace(self, version=None)

    @property
    def file_name(self) -> str:
        """The name as a file's name."""
        return quote(str(self), safe="@") + ".json"

    @classmethod
    def of_file(cls, file_name: str) -> ModelName | None:
        """The name whose `file_name` this is, or None."""
        name = cls.parse(unquote(file_name.removesuffix(".json")))
        return name if name is not None and name.file_name == file_name else None


def hub_default(name: HubName) -> str:
    """What a model of the hub is called in the library, unless it is named otherwise."""
    if name.file is not None:
        stem = name.file.rpartition("/")[2].removesuffix(".gguf")
        return f"{name.repo}:{label(name.file) or stem}"
    return name.repo + (f":{name.tag.upper()}" if name.tag else "")


def by_hub_name(text: str) -> str | None:
    """The name in the library of a model of the hub in any of its spellings; None for a revision,
    which the library does not distinguish, and for what is no name on the hub."""
    try:
        name = parse(text)
    except TidemillError:  # the address of another site
        return None
    return None if name is None or name.revision is not None else hub_default(name)
