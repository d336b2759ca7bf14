"""What every source of a pull needs, and what it hands back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.library import http
from tidemill.library.blobs import digest_of
from tidemill.library.catalog import Library
from tidemill.library.fetch import Fetcher, FetchSettings, RemoteFile
from tidemill.library.manifest import StoredFile
from tidemill.library.progress import Reporter


@dataclass(frozen=True, slots=True)
class Found:
    """A model whose files are all here.

    Attributes:
        name: what it is called unless the user names it.
        source: what it was pulled from, in the form that `pull` accepts.
        files, entry, root, revision, licence: see `manifest.Manifest`.
    """

    name: str
    source: str
    files: tuple[StoredFile, ...]
    entry: str | None = None
    root: str | None = None
    revision: str | None = None
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Pulling:
    """One pull.

    Attributes:
        library: where the model goes.
        reporter: hears of progress.
        settings: of downloads.
        present: revision of the source that the library already has complete, under the name that
            the model is going to have; given the source's and the default name.
    """

    library: Library
    reporter: Reporter
    settings: FetchSettings = field(default_factory=FetchSettings)
    present: Callable[[str, str], str | None] = lambda source, name: None

    def fetch(
        self,
        files: Sequence[RemoteFile],
        *,
        headers: Mapping[str, str] = {},
        cafile: str | None = None,
        extra_bytes: int = 0,
    ) -> list[StoredFile]:
        """Download files; see `Fetcher.fetch`. `headers` go to every host."""
        with http.client(headers, cafile) as session:
            fetcher = Fetcher(self.library.blobs, session, self.reporter, self.settings)
            return fetcher.fetch(files, extra_bytes)

    def reference(self, files: Mapping[str, Path]) -> tuple[StoredFile, ...]:
        """Files that stay where they are, digested: name in the model -> absolute path."""
        sizes = {name: os.stat(path).st_size for name, path in files.items()}
        self.reporter.stage("verifying", sum(sizes.values()))
        return tuple(
            StoredFile(
                name,
                sizes[name],
                digest_of(path, self.reporter.more),
                at=str(path),
                mtime_ns=os.stat(path).st_mtime_ns,
            )
            for name, path in files.items()
        )
