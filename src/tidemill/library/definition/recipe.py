"""What a model is created from: a base, and what is set on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.base.errors import TidemillError, config_error
from tidemill.base.files import open_regular
from tidemill.contract.config import QUANTIZATIONS
from tidemill.library.locate import locate_adapter
from tidemill.library.manifest import Definition

ROLES = ("system", "user", "assistant")
_MAX_BYTES = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a file or flags say of a model.

    Attributes:
        base: the model it is made from, as written; None: not said.
        definition: what is set.
        licence: its licence; None: the base's.
        notes: a line about each setting that has no effect here.
        files: instead of a base: names and digests of files that were received (`upload`).
        adapter: the same of an adapter's files.
    """

    base: str | None = None
    definition: Definition = field(default_factory=Definition)
    licence: str | None = None
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    adapter: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: Recipe) -> Recipe:
        """This recipe, with what `other` says where it says nothing."""
        return Recipe(
            self.base or other.base,
            self.definition.over(other.definition),
            self.licence or other.licence,
            (*other.notes, *self.notes),
            self.files or other.files,
            self.adapter or other.adapter,
        )


def read_text(path: Path, param: str) -> str:
    """The text of a small file.

    Raises:
        TidemillError: CONFIG, naming `param`.
    """
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise config_error(param, f"{path}: is larger than {_MAX_BYTES // 2**20} MiB")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise config_error(param, f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise config_error(param, f"{path}: is no UTF-8 text") from error


def adapter_path(text: str, folder: Path, where: str) -> str:
    """Absolute path of an adapter, of a path relative to a folder or a name of the library.

    Raises:
        TidemillError: CONFIG, if nothing is there.
    """
    try:
        return str(locate_adapter(text, folder))
    except TidemillError as error:
        raise TidemillError(error.kind, f"{where}: {error.message}", param=error.param) from None


def base_path(text: str, folder: Path) -> str:
    """A base as named in a file: a path relative to the file's folder becomes absolute."""
    path = folder / Path(text).expanduser()
    is_relative = text.startswith((".", "~")) or ("/" in text and path.exists())
    return str(path.absolute()) if is_relative or path.is_file() else text


def check_quantize(text: str, where: str) -> str:
    """The name of a quantization.

    Raises:
        TidemillError: CONFIG.
    """
    if text not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise config_error("quantize", f"{where}: quantize is one of {known}, not {text!r}")
    return text
