"""Names of models on the hub: ``owner/name``, with an optional part of the repository.

The form is ``owner/name[@revision]``, optionally followed by ``:TAG`` (a quantization, as in
llama.cpp and Ollama) or by ``/path/in/it.gguf``. It may be preceded by ``hf.co/``,
``huggingface.co/``, ``hf://`` or the site's address. Addresses copied from a browser are accepted
(``/tree/``, ``/blob/`` and ``/resolve/``). A slash inside a revision is written ``%2F``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from tidemill.base.errors import TidemillError, config_error

_PART = r"\w[\w.-]{0,95}"
_HUB_ID = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w.%-]{{1,200}}))?"
    r"(?::(?P<tag>[\w.-]{1,64})|/(?P<file>[^:]{1,500}))?",
    re.ASCII,
)
_HOSTS = ("hf.co", "huggingface.co", "www.huggingface.co")
# The part of an address between a repository and a revision.
_VIEWS = ("tree", "blob", "resolve", "raw")
_FILE_SUFFIXES = (".gguf",)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub.

    Attributes:
        repo: owner/name.
        revision: a branch, tag or commit; None for the repository's main branch.
        tag: quantization that selects one of its GGUF files.
        file: path of one of its GGUF files, or of a folder of them.
    """

    repo: str
    revision: str | None = None
    tag: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision is None else "@" + self.revision.replace("/", "%2F")
        which = f":{self.tag}" if self.tag else f"/{self.file}" if self.file else ""
        return self.repo + revision + which


def parse(text: str) -> HubName | None:
    """Parse a hub model name; None when `text` is not one.

    Raises:
        TidemillError: CONFIG for the address of another site.
    """
    if "://" in text and not text.startswith("hf://"):
        return _of_address(text)
    text = text.removeprefix("hf://")
    host, slash, rest = text.partition("/")
    if slash and host in _HOSTS:
        return _of_path(rest)
    return _of_id(text, _FILE_SUFFIXES)


def with_options(model: str | None, file: str | None, revision: str | None) -> str | None:
    """A model's name with the flags --file and --revision applied.

    Raises:
        TidemillError: CONFIG when they contradict the name, or it is not a hub name.
    """
    if file is None and revision is None:
        return model
    flag = "file" if revision is None else "revision"
    name = None if model is None or os.path.exists(model) else parse(model)
    if name is None and revision is None and model is not None and os.path.isdir(model):
        return os.path.join(model, str(file))
    if name is None:
        what = "no model is named" if model is None else f"{model} is none"
        raise config_error(flag, f"--{flag} belongs to a model on the hub (owner/name); {what}")
    for flag, given, said in (
        ("file", file, name.file or name.tag),
        ("revision", revision, name.revision),
    ):
        if given is not None and (not given or said not in (None, given)):
            raise config_error(flag, f"--{flag} {given!r} contradicts the model's name {model!r}")
    if file is not None:
        name = replace(name, file=_inside(file, flag="file"))
    return str(replace(name, revision=revision or name.revision))


def _of_address(text: str) -> HubName | None:
    try:
        address = urlsplit(text)
    except ValueError:
        return None
    own = urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc
    if address.netloc not in (*_HOSTS, own):
        raise config_error(
            "model",
            f"{text.partition('?')[0]}: models are downloaded only from the Hugging Face hub; "
            "download the file and give its path",
        )
    return _of_path(address.path.strip("/"))


def _of_path(path: str) -> HubName | None:
    """Parse the part after the site's name."""
    parts = path.strip("/").split("/")
    if len(parts) < 4 or parts[2] not in _VIEWS:
        return _of_id("/".join(parts))
    found = _of_id("/".join(parts[:2]))
    if found is None:
        return None
    return replace(
        found,
        revision=unquote(parts[3]),
        file=_inside(unquote("/".join(parts[4:]))) if parts[4:] else None,
    )


def _of_id(text: str, suffixes: tuple[str, ...] = ("",)) -> HubName | None:
    match = _HUB_ID.fullmatch(text)
    if match is None or ".." in match["repo"]:
        return None
    file, revision = match["file"], match["revision"]
    if file is not None and not file.endswith(suffixes):
        return None
    try:
        file = None if file is None else _inside(file)
    except TidemillError:
        return None
    return HubName(
        match["repo"], None if revision is None else unquote(revision), match["tag"], file
    )


def _inside(file: str, flag: str = "model") -> str:
    """A path checked to be inside the repository."""
    parts = file.rstrip("/").split("/")
    if not all(parts) or {".", ".."} & set(parts):
        raise config_error(flag, f"{file!r} is not a path inside a repository")
    return "/".join(parts)
