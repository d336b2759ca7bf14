"""Creates a model of the library from another one and a recipe."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import msgspec

from tidemill.base.errors import config_error
from tidemill.library.blobs import digest_of
from tidemill.library.catalog import Entry, Library
from tidemill.library.definition.recipe import Recipe
from tidemill.library.manifest import Definition, Manifest, StoredFile
from tidemill.library.names import ModelName
from tidemill.library.progress import OnProgress, Reporter
from tidemill.library.pull import find_files
from tidemill.library.pulling import Found, Pulling
from tidemill.library.sources.local import pull_path
from tidemill.library.upload import as_manifest, uploaded, uploaded_adapter
from tidemill.loading.locate import bundled_models

Rewrite = Callable[[Path, Path, Reporter], None]
"""Writes the model at the first path to the second one, which ends in ``.gguf``; `reporter.check`
raises when it shall stop."""
Check = Callable[[str, Path, tuple[str, ...]], None]
"""Raises where the adapters at these paths do not fit the model of a name, at the first path."""


def create(
    name: str,
    recipe: Recipe,
    library: Library,
    on_progress: OnProgress = lambda progress: None,
    cancel: Event | None = None,
    rewrite: Rewrite | None = None,
    check: Check | None = None,
) -> Entry:
    """Create a model, or replace the one of that name; files are shared with its base.

    Args:
        name: of the new model.
        recipe: its base (a name of the library, a bundled model, or anything that `pull` accepts,
            which is pulled) and what is set on top of the base's own definition.
        library: where it goes.
        on_progress, cancel: see `pull.pull`.
        rewrite: writes the base's weights anew, as one GGUF file; None: they are shared.
        check: of the adapters in the recipe; None: they are verified when the model is loaded.

    Raises:
        TidemillError: CONFIG for a name that cannot be one, or no base; see also `pull.pull`.
    """
    parsed = ModelName.checked(name)
    library.check_free(parsed)
    if not recipe.base and not recipe.files:
        raise config_error(
            "from", "a model is created from another one: name it with --from (FROM in a Modelfile)"
        )
    if recipe.base and recipe.files:
        raise config_error("files", "a model is made from another one or from files; name one")
    reporter = Reporter(on_progress, cancel)
    with library.pulling():
        reporter.stage("resolving")
        if recipe.files:
            found, base = uploaded(recipe.files, library), None
        else:
            found, base = _base(recipe.base or "", library, Pulling(library, reporter))
        if rewrite is not None:
            reporter.stage("quantizing")
            found = _rewritten(found, library, rewrite, reporter)
        adapter = uploaded_adapter(recipe.adapter, library) if recipe.adapter else ()
        definition = recipe.definition
        if base is not None:
            definition, adapter = _over(base, definition, adapter)
        if check is not None and recipe.definition.adapters:
            check(found.name, library.path(as_manifest(found)), recipe.definition.adapters)
        entry = library.add(
            Manifest(
                name=str(parsed),
                source=found.source,
                files=found.files,
                entry=found.entry,
                root=found.root,
                revision=found.revision,
                licence=recipe.licence or found.licence,
                base=recipe.base,
                definition=definition,
                adapter=adapter,
            )
        )
    reporter.stage("complete", entry.size, entry.size)
    return entry


def _over(
    base: Manifest, definition: Definition, adapter: tuple[StoredFile, ...]
) -> tuple[Definition, tuple[StoredFile, ...]]:
    """A definition and the files of an adapter over the base's: adapters take the place of the
    base's, however each came here."""
    both = definition.over(base.definition)
    if adapter:
        return msgspec.structs.replace(both, adapters=()), adapter
    return both, () if definition.adapters else base.adapter


def _rewritten(found: Found, library: Library, rewrite: Rewrite, reporter: Reporter) -> Found:
    """The same model in the file that `rewrite` writes, which becomes a blob."""
    library.blobs.partial.mkdir(parents=True, exist_ok=True)
    path = library.blobs.partial / f"rewrite-{os.urandom(8).hex()}.gguf"
    try:
        rewrite(library.path(as_manifest(found)), path, reporter)
        size = path.stat().st_size
        reporter.stage("verifying", size)
        sha256 = digest_of(path, reporter.more)
        library.blobs.keep(path, sha256)
    finally:
        path.unlink(missing_ok=True)
    file = StoredFile("model.gguf", size, sha256)
    return replace(found, files=(file,), entry=file.path, root=None)


def _base(text: str, library: Library, pulling: Pulling) -> tuple[Found, Manifest | None]:
    """The files of a base, and its manifest if it is in the library."""
    bundled = bundled_models().get(text)
    if bundled is not None:
        found = pull_path(bundled, pulling)
        # An update of Tidemill may bring another one, or be another environment.
        files = tuple(library.blobs.copied(file) for file in found.files)
        return Found(text, text, files, found.entry), None
    base = library.find(text)
    if base is None:
        return find_files(text, pulling), None
    if base.is_adapter:
        raise config_error(
            "from",
            f"{base.name} is an adapter, which changes a model: name its base with --from, and the "
            f"adapter with --adapter {base.name}",
        )
    library.path(base)  # raises if a file is gone
    found = Found(
        base.name, base.source, base.files, base.entry, base.root, base.revision, base.licence
    )
    return found, base
