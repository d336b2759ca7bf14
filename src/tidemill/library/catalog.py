"""The models of a library, by name.

    manifests/NAME.json   one per model, written last: what has none is not in the library
    lock                  held while manifests change

Reading takes no lock: a manifest appears and disappears as a whole.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError, config_error, model_file_error
from tidemill.library.blobs import BlobGone, Blobs, sync_folder
from tidemill.library.home import MANIFESTS, default_home
from tidemill.library.manifest import MAX_BYTES, Definition, Manifest, decode, encode
from tidemill.library.names import ModelName, by_hub_name
from tidemill.loading.locate import bundled_models


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the library, found by name.

    Attributes:
        name: its canonical name.
        path: the folder or file to open.
        manifest: everything else about it.
        adapters: paths of the adapters that were received with it.
    """

    name: str
    path: Path
    manifest: Manifest
    adapters: tuple[str, ...] = ()

    @property
    def definition(self) -> Definition:
        """What it adds to its files."""
        defined = self.manifest.definition
        if not self.adapters:
            return defined
        return msgspec.structs.replace(defined, adapters=self.adapters)

    @property
    def digest(self) -> str:
        """sha256 of its files and definition."""
        return self.manifest.digest

    @property
    def size(self) -> int:
        """Bytes of its files, shared and referenced ones included."""
        return self.manifest.size


class Library:
    """The library in a folder.

    Args:
        home: the folder; it is made when something is first added.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.blobs = Blobs(home)
        self._manifests = home / MANIFESTS

    @classmethod
    def open(cls, home: Path | str | None = None) -> Library:
        """The library in `home`, by default in `default_home`; nothing is read or made yet."""
        return cls(default_home() if home is None else Path(home).expanduser().absolute())

    def names(self) -> tuple[str, ...]:
        """The names of all models, sorted; the manifests are not read."""
        try:
            found = os.listdir(self._manifests)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(sorted(str(n) for n in map(ModelName.of_file, found) if n is not None))

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of a name (``name@2``), ascending."""
        parsed = ModelName.parse(name)
        found = (ModelName.parse(other) for other in self.names())
        return tuple(
            sorted(
                other.version
                for other in found
                if parsed and other and other.version and other.unversioned == parsed.unversioned
            )
        )

    def find(self, name: str) -> Manifest | None:
        """The manifest of a name; None if it is not in the library.

        A name without a version is that entry, or else its highest version; a name on the hub may
        be spelled in any way that `pull` accepts.

        Raises:
            TidemillError: MODEL_FILE, if the manifest is damaged.
        """
        found = self._find(name)
        if found is None and (other := by_hub_name(name)) is not None and other != name:
            found = self._find(other)
        return found

    def _find(self, name: str) -> Manifest | None:
        parsed = ModelName.parse(name)
        if parsed is None:
            return None
        manifest = self._read(parsed)
        if manifest is None and parsed.version is None:
            versions = self.versions(name)
            if versions:
                manifest = self._read(ModelName(parsed.base, parsed.tag, versions[-1]))
        return manifest

    def manifest(self, name: str) -> Manifest:
        """The manifest of a name, as `find`.

        Raises:
            TidemillError: NOT_FOUND with the nearest names; MODEL_FILE, if it is damaged.
        """
        found = self.find(name)
        if found is None:
            near = self.near(name)
            raise TidemillError(
                ErrorKind.NOT_FOUND,
                f"the library has no model {name!r}"
                + (f"; did you mean {near[0]}?" if near else "; `tidemill list` shows what it has"),
                param="model",
            )
        return found

    def near(self, name: str) -> list[str]:
        """The name most similar to one that is not in the library, if any is similar."""
        return difflib.get_close_matches(name, self.names(), n=1)

    def resolve(self, name: str) -> Entry:
        """A model that can be opened.

        Raises:
            TidemillError: NOT_FOUND for an unknown name; MODEL_FILE, if a file that it refers to is
                gone or has changed, or its manifest is damaged.
        """
        manifest = self.manifest(name)
        return self._entry(manifest)

    def _entry(self, manifest: Manifest) -> Entry:
        return Entry(manifest.name, self.path(manifest), manifest, self._adapters(manifest))

    def _adapters(self, manifest: Manifest) -> tuple[str, ...]:
        """A GGUF file is an adapter of its own; other files are one folder."""
        if not manifest.adapter:
            return ()
        view = self.blobs.view(manifest.adapter)
        names = sorted(file.path for file in manifest.adapter)
        files = tuple(str(view / name) for name in names if name.endswith(".gguf"))
        return files or (str(view),)

    def path(self, manifest: Manifest) -> Path:
        """The folder or file to open for a manifest.

        Raises:
            TidemillError: MODEL_FILE, if one of its files is gone or has changed.
        """
        for file in manifest.stored:
            place = self.blobs.path(file.sha256) if file.at is None else Path(file.at)
            try:
                status = os.stat(place)
            except OSError:
                status = None
            same = status is not None and status.st_size == file.size
            if same and status is not None and file.mtime_ns is not None:
                same = status.st_mtime_ns == file.mtime_ns
            if not same:
                if status is None and file.at is None:
                    raise BlobGone(manifest.name, _remedy(manifest))
                fate = "is gone" if status is None else "has changed since"
                raise model_file_error(
                    f"{manifest.name}: its file {place} {fate}; {_remedy(manifest)}",
                    param="model",
                )
        if manifest.root is not None:
            return Path(manifest.root)
        folder = self.blobs.view(manifest.files)
        return folder if manifest.entry is None else folder / manifest.entry

    def usable(self) -> tuple[list[Entry], list[str]]:
        """All models that can be opened, without adapters, and of each other one why it cannot."""
        found, wrong = [], []
        for name in self.names():
            try:
                entry = self.resolve(name)
                if not entry.manifest.is_adapter:
                    found.append(entry)
            except TidemillError as error:
                if error.kind is not ErrorKind.NOT_FOUND:  # removed meanwhile
                    wrong.append(error.message)
            except OSError as error:
                wrong.append(f"{name}: cannot be read: {error.strerror or error}")
        return found, wrong

    def add(self, manifest: Manifest) -> Entry:
        """Add a model whose files are all here, or replace the one of that name.

        Files that only the replaced one used are removed.

        Raises:
            TidemillError: MODEL_FILE, if a file is missing; CONFIG for a name that cannot be one.
        """
        name = ModelName.checked(manifest.name)
        self.check_free(name)
        if not manifest.created:
            manifest = msgspec.structs.replace(manifest, created=time.time())
        with self._locked():
            entry = self._entry(manifest)  # makes the views
            before = self._replaced(name)
            self._write(name, manifest)
            if before is not None:
                self._collect(before)
        return entry

    def check_free(self, name: ModelName, param: str = "name") -> None:
        """Raise CONFIG for a name that only the package may give: that of a bundled model."""
        if str(name) in bundled_models():
            raise config_error(param, f"{name} is the name of a bundled model; choose another")

    def discard(self, sha256: str) -> None:
        """Remove a blob that turned out to be none of a model's files."""
        with self._locked():
            self.blobs.remove({sha256} - self._used())

    def copy(self, source: str, target: str) -> Entry:
        """Give a model a second name; its files are shared.

        Raises:
            TidemillError: see `resolve`; CONFIG for a target that cannot be a name.
        """
        manifest = self.manifest(source)
        name = ModelName.checked(target, "target")
        return self.add(msgspec.structs.replace(manifest, name=str(name), created=time.time()))

    def remove(self, name: str) -> int:
        """Remove the model of exactly this name; the bytes that this frees. Referenced files stay.

        Raises:
            TidemillError: NOT_FOUND.
        """
        parsed = ModelName.parse(name)
        with self._locked():
            try:
                manifest = None if parsed is None else self._read(parsed)
            except TidemillError:  # a damaged manifest must be removable
                manifest = Manifest("", "", ())
            if parsed is None or manifest is None:
                self._say_which(name)
                raise AssertionError("unreachable: the line above raises")
            os.unlink(self._manifests / parsed.file_name)
            sync_folder(self._manifests)
            return self._collect(manifest)

    def clean(self) -> int:
        """Remove unfinished downloads, and blobs that no model uses; the bytes that this frees.

        Raises:
            TidemillError: UNAVAILABLE while something is being pulled.
        """
        with self._locked():
            try:
                with self.pulling(exclusive=True):
                    freed = self.blobs.unfinished()[1]
                    with contextlib.suppress(FileNotFoundError):
                        for path in self.blobs.partial.iterdir():
                            path.unlink()
                    freed += self.blobs.remove(self.blobs.digests() - self._used())
                    self._remove_views()
            except BlockingIOError:
                raise TidemillError(
                    ErrorKind.UNAVAILABLE,
                    "something is being pulled; try again when it has ended",
                    retryable=True,
                ) from None
        return freed

    def unfinished(self) -> tuple[int, int]:
        """Number of files that `clean` would remove (downloads that are not complete, and blobs of
        no model), and the bytes that they take on disk."""
        count, size = self.blobs.unfinished()
        with contextlib.suppress(TidemillError):  # damaged: what it uses is unknown
            for digest in self.blobs.digests() - self._used():
                with contextlib.suppress(FileNotFoundError):
                    size += os.stat(self.blobs.path(digest)).st_size
                    count += 1
        return count, size

    @contextlib.contextmanager
    def pulling(self, *, exclusive: bool = False) -> Iterator[None]:
        """Held by every pull while it runs, and exclusively by `clean`, which fails at once
        (BlockingIOError) if it cannot be."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "pulling", "ab") as file:
            wanted = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
            fcntl.flock(file, wanted)
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._manifests.mkdir(parents=True, exist_ok=True)
        with open(self.home / "lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self, name: ModelName) -> Manifest | None:
        path = self._manifests / name.file_name
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        manifest = decode(content, str(path))
        if manifest.name != str(name):
            raise model_file_error(f"{path}: is the manifest of {manifest.name!r}")
        return manifest

    def _replaced(self, name: ModelName) -> Manifest | None:
        try:
            return self._read(name)
        except TidemillError:
            return None  # a damaged one: `clean` finds what it used

    def _write(self, name: ModelName, manifest: Manifest) -> None:
        path = self._manifests / name.file_name
        new = path.with_suffix(".new")
        with open(new, "wb") as file:
            file.write(encode(manifest))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        sync_folder(self._manifests)

    def _all(self) -> Iterator[Manifest]:
        """All manifests.

        Raises:
            TidemillError: one is damaged. What it uses is unknown, so nothing may be removed.
        """
        for text in self.names():
            name = ModelName.parse(text)
            manifest = None if name is None else self._read(name)
            if manifest is not None:
                yield manifest

    def _used(self) -> set[str]:
        return {file.sha256 for m in self._all() for file in m.stored if file.at is None}

    def _collect(self, removed: Manifest) -> int:
        """Remove what only a removed manifest used. Other blobs stay: a pull may have made them."""
        mine = {file.sha256 for file in removed.stored if file.at is None}
        try:
            freed = self.blobs.remove(mine - self._used())
            self._remove_views()
        except TidemillError:
            return 0
        return freed

    def _remove_views(self) -> None:
        self.blobs.remove_views(
            self.blobs.view(files)
            for manifest in self._all()
            for files in (() if manifest.root else manifest.files, manifest.adapter)
            if files
        )

    def _say_which(self, name: str) -> None:
        """Raise NOT_FOUND for a name that is not an entry itself."""
        versions = self.versions(name)
        if versions:
            listed = ", ".join(f"{name}@{version}" for version in versions)
            raise TidemillError(
                ErrorKind.NOT_FOUND, f"{name} has versions: name one of {listed}", param="model"
            )
        if name in bundled_models():
            raise config_error("names", f"{name} comes with Tidemill and cannot be removed")
        self.manifest(name)


def _remedy(manifest: Manifest) -> str:
    if manifest.base is not None:
        return f"create it again from {manifest.base}"
    return f"add it again with `tidemill pull {manifest.source} --as {manifest.name}`"
