"""A model of the library as it is written down: its files by digest, and its definition."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tidemill.base.errors import TidemillError, model_file_error

FORMAT = 1
MAX_BYTES = 8 * 2**20
_HEX = frozenset("0123456789abcdef")


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a model.

    Attributes:
        path: its name in the model's folder, with slashes.
        size: in bytes.
        sha256: hexadecimal digest of its content.
        at: absolute path of a file that is referenced where it lies; None: a blob of the library.
        mtime_ns: its modification time when it was referenced.
    """

    path: str
    size: int
    sha256: str
    at: str | None = None
    mtime_ns: int | None = None


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model adds to its files; values of a request or a flag take precedence.

    Attributes:
        system: system prompt of conversations that have none.
        messages: turns before every conversation, as `role` and `content`.
        sampling: values of `SamplingParams` where a request says nothing.
        max_model_len: tokens that a request may use.
        chat_template: source of a Jinja template in place of the model's own.
        adapters: absolute paths of adapters (LoRA) applied to the weights.
        quantize: how float weights are quantized at load.
    """

    system: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    sampling: dict[str, Any] = {}
    max_model_len: int | None = None
    chat_template: str | None = None
    adapters: tuple[str, ...] = ()
    quantize: str | None = None

    @property
    def empty(self) -> bool:
        """True if it adds nothing."""
        return self == EMPTY

    def over(self, base: Definition) -> Definition:
        """This definition, with the values of `base` where it has none."""
        return Definition(
            system=base.system if self.system is None else self.system,
            messages=self.messages or base.messages,
            sampling={**base.sampling, **self.sampling},
            max_model_len=self.max_model_len or base.max_model_len,
            chat_template=base.chat_template if self.chat_template is None else self.chat_template,
            adapters=self.adapters or base.adapters,
            quantize=self.quantize or base.quantize,
        )


EMPTY = Definition()


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model of the library.

    Attributes:
        name: its name (`names.ModelName`) in canonical form.
        source: where it came from, in the form that `pull` accepts.
        files: all its files.
        entry: which of them is opened; None: the folder.
        root: absolute path of the folder or file, if all files are referenced in one place; it is
            opened instead of a folder of links.
        revision: the source's own name of this state of it: a commit or a version.
        licence: its name, or its text.
        base: the model that it was created from.
        definition: what it adds to its files.
        adapter: the files of an adapter (LoRA) that was received with it.
        created: seconds since the epoch.
        format: version of this structure.
    """

    name: str
    source: str
    files: tuple[StoredFile, ...]
    entry: str | None = None
    root: str | None = None
    revision: str | None = None
    licence: str | None = None
    base: str | None = None
    definition: Definition = EMPTY
    adapter: tuple[StoredFile, ...] = ()
    created: float = 0.0
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """sha256 of what the model is: its files' names and digests, and its definition."""
        files, adapter = (
            sorted((f.path, f.sha256) for f in each) for each in (self.files, self.adapter)
        )
        parts = (files, self.entry, self.definition, *([adapter] if adapter else []))
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()

    @property
    def is_adapter(self) -> bool:
        """It is an adapter (LoRA) alone, and no model."""
        return any(file.path == "adapter_config.json" for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.stored)

    @property
    def stored(self) -> tuple[StoredFile, ...]:
        """All its files, those of its adapter too."""
        return self.files + self.adapter


def encode(manifest: Manifest) -> bytes:
    """A manifest as JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(content: bytes, label: str) -> Manifest:
    """The manifest in a file's content.

    Args:
        content: of the file.
        label: names the file in errors.

    Raises:
        TidemillError: MODEL_FILE, if it is damaged or of a later format.
    """
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(label, str(error)) from None
    if manifest.format != FORMAT:
        raise _damaged(label, f"format {manifest.format}, and this build reads {FORMAT}")
    for file in manifest.stored:
        if not is_digest(file.sha256) or not is_inside(file.path) or file.size < 0:
            raise _damaged(label, f"the file {file.path!r} has an invalid path, size or digest")
    return manifest


def is_digest(text: str) -> bool:
    """Whether it is a sha256 in lower-case hexadecimal digits."""
    return len(text) == 64 and set(text) <= _HEX


def is_inside(path: str) -> bool:
    """Whether a file's name stays inside the folder that it is relative to."""
    parts = path.split("/")
    return "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(parts)


def _damaged(label: str, why: str) -> TidemillError:
    return model_file_error(
        f"{label}: cannot be read as a model of the library ({why}); pull or create it again"
    )
