"""Where a running server's models are described: its deployment, and this machine's library."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.cli.serving import memory_budget, model_options, name_options, pipeline_options

if TYPE_CHECKING:
    from threading import Event

    from tidemill.deployment.deployment import Deployment
    from tidemill.deployment.difference import Difference
    from tidemill.deployment.resolve import DeploymentInputs
    from tidemill.library.catalog import Library
    from tidemill.library.progress import Progress
    from tidemill.server.host.source import Creation, ModelChanges, OnPull, Reload, Upload

log = get_logger(__name__)

Say = Callable[[str], None]

_NO_TEXT = ("aliases", "pin", "keep_alive", "adapters", "adapter_folder")
"""Settings that are applied in place and do not concern a model's text side."""


class DeployedModels:
    """A `server.host.source.Source`.

    Args:
        inputs: what the deployment is made from.
        deployment: made from them.
        whole: names of the library's models are served as they come and go.
        say: called with each line of progress.
    """

    def __init__(
        self, inputs: DeploymentInputs, deployment: Deployment, *, whole: bool, say: Say
    ) -> None:
        self._inputs = inputs
        self._deployment = deployment
        self._whole = whole
        self._say = say
        self._adopted: tuple[str, ...] = ()
        self._budget = deployment.server.memory
        self._prices = deployment.prices
        self._quotas = deployment.quotas
        self._stamp = self._library_stamp()
        self._wrong: list[str] | None = None  # `serve` says what is left out at the start
        self._digests = self._library_digests()
        self._extra = self._extra_now()

    @property
    def reloadable(self) -> bool:
        """See `Source`."""
        return self._inputs.file is not None

    @property
    def watched(self) -> bool:
        """See `Source`."""
        served = (model.source in self._digests for model in self._deployment.models)
        return bool(self._stamp) and (self._whole or any(served))

    def look(self) -> ModelChanges | None:
        """See `Source`."""
        stamp = self._library_stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        before, self._digests = self._digests, self._library_digests()
        gone = before.keys() - self._digests.keys()
        self._adopted = tuple(name for name in self._adopted if name not in gone)
        changed = {n for n, digest in self._digests.items() if before.get(n, digest) != digest}
        return self._follow(changed)

    def adopt(self, name: str) -> ModelChanges:
        """See `Source`."""
        from tidemill.server.host.source import ModelChanges

        served = {model.source for model in self._deployment.models}
        if self._whole or name in served or name in self._deployment.served_names:
            return ModelChanges()
        self._adopted = (*self._adopted, name)
        return self._follow(set())

    def reload(self) -> Reload:
        """See `Source`."""
        from tidemill.deployment.difference import difference
        from tidemill.server.host.source import ModelChanges, Reload

        new = self._asked().resolve()
        found = difference(self._deployment, new)
        found.check()
        self._check_models(new, found)
        before = {one.name: one for one in pipeline_options(self._deployment)}
        pipelines = {one.name: one for one in pipeline_options(new)}
        # A file that has changed is noticed by the pipeline itself.
        restarted = [n for n in found.pipelines_restarted if before[n] != pipelines[n]]
        options = {option.name: option for option in model_options(new, self._say)}
        texts = {
            change.name
            for change in found.changes
            if change.table == "models" and change.key not in _NO_TEXT
        }
        memory = self._budget
        if new.server.memory != self._deployment.server.memory:
            memory = memory_budget(new, self._say)

        def commit() -> None:
            self._deployment, self._budget = new, memory
            self._prices.become(new.prices)
            self._quotas.become(new.quotas)

        return Reload(
            ModelChanges(
                added=tuple(options[name] for name in found.models_added),
                removed=found.models_removed,
                replaced=tuple(options[name] for name in found.models_restarted),
                updated=tuple(options[n] for n in found.models_updated if n in options),
                texts=frozenset(texts.intersection(found.models_updated, options)),
                pipelines_added=tuple(pipelines[name] for name in found.pipelines_added),
                pipelines_removed=found.pipelines_removed,
                pipelines_restarted=tuple(pipelines[name] for name in restarted),
            ),
            names=name_options(new),
            upstream=new.upstream,
            order=tuple(options),
            memory=memory,
            drain_timeout=new.server.drain_timeout,
            document=found.as_json(),
            commit=commit,
        )

    def budget(self, held: int) -> int:
        """See `Source`."""
        from tidemill.base.free_memory import free_memory
        from tidemill.cli.serving import MEMORY_SHARE

        self._budget = int((free_memory() + held) * MEMORY_SHARE)
        return self._budget

    def pull(
        self, source: str, name: str | None, sha256: str | None, told: OnPull, cancel: Event
    ) -> str:
        """See `Source`."""
        from tidemill.library.pull import pull

        def progress(state: Progress) -> None:
            told(state.stage, state.done, state.total, state.message)

        return pull(source, _library(), progress, name=name, sha256=sha256, cancel=cancel).name

    def create(self, asked: Creation, told: OnPull, cancel: Event) -> str:
        """See `Source`."""
        from dataclasses import replace

        from tidemill.cli.creation import create_asked

        for model in self._deployment.models:  # `base` may be a name that only this server gives
            if asked.base in (model.name, *model.aliases):
                asked = replace(asked, base=model.source)
        return create_asked(asked, _library(), told, cancel)

    def has_file(self, digest: str) -> bool:
        """See `Source`."""
        from tidemill.library.upload import digest_in

        return _library().blobs.has(digest_in(digest, "digest"))

    def receive_file(self, digest: str, size: int | None) -> Upload:
        """See `Source`."""
        from tidemill.library.upload import Upload, digest_in

        return Upload(_library().blobs, digest_in(digest, "digest"), size)

    def copy(self, source: str, target: str) -> str:
        """See `Source`."""
        return _library().copy(source, target).name

    def remove(self, name: str) -> int:
        """See `Source`."""
        return _library().remove(name)

    # -- how ---------------------------------------------------------------------------------

    def _check_models(self, new: Deployment, found: Difference) -> None:
        """The checks of `config check` that read models, of what a reload changes: each in a
        process of its own, since this one imports no numpy.

        Raises:
            DeploymentError: with every problem.
        """
        from tidemill.cli.deployments import check_models
        from tidemill.deployment.problems import DeploymentError
        from tidemill.deployment.resolve import located
        from tidemill.server.host.needs import read_needs

        begun = {*found.models_added, *found.models_restarted}
        pinned = {model.name for model in new.models if model.pin}
        counted = set(begun)
        if new.server.memory != self._deployment.server.memory:
            counted |= {model.name for model in new.models}
        elif pinned & {*begun, *found.models_updated}:
            counted |= pinned
        if new.server.memory is None:
            counted = begun  # the rest fits in what is free
        problems = [*located(new, check_models(new, read_needs, begun, counted))]
        if problems:
            raise DeploymentError(problems)

    def _asked(self) -> DeploymentInputs:
        """The inputs with what the library has now, where it is served, and what was adopted."""
        import msgspec

        from tidemill.deployment.problems import Origin
        from tidemill.deployment.reading import Sourced

        origin = Origin("flag", "command line")
        first = self._inputs.models[:1] if self._whole else self._inputs.models
        more = tuple(Sourced(name, origin) for name in self._extra_now())
        return msgspec.structs.replace(self._inputs, models=(*first, *more))

    def _extra_now(self) -> list[str]:
        """Names of the library that are served although nobody listed them."""
        if self._whole:
            return list(self._digests)
        listed = {one.value for one in self._inputs.models}
        return [name for name in self._adopted if name not in listed]

    def _follow(self, changed: set[str]) -> ModelChanges:
        """What the library's models are now; of the deployment file, what is in force stays."""
        import msgspec

        from tidemill.server.host.source import ModelChanges

        try:
            new = msgspec.structs.replace(self._asked(), checks=()).resolve()
        except TidemillError as error:
            log.error("the library's models stay as they were: %s", error.message)
            return ModelChanges()
        before, self._extra = self._extra, self._extra_now()
        known = {model.name for model in self._deployment.models}
        added = [m for m in new.models if m.source in self._extra and m.name not in known]
        gone = [m for m in self._deployment.models if m.source in before]
        removed = {model.name for model in gone if model.source not in self._extra}
        kept = [model for model in self._deployment.models if model.name not in removed]
        names = {model.name for model in added}
        sections = [s for s in self._deployment.sections if s.name not in removed]
        sections += [s for s in new.sections if s.table == "models" and s.name in names]
        self._deployment = msgspec.structs.replace(
            self._deployment, models=(*kept, *added), sections=tuple(sections)
        )
        options = {option.name: option for option in model_options(self._deployment, self._say)}
        return ModelChanges(
            added=tuple(options[model.name] for model in added),
            removed=tuple(removed),
            replaced=tuple(options[model.name] for model in kept if model.source in changed),
        )

    def _library_stamp(self) -> int:
        from tidemill.library.home import MANIFESTS, default_home

        try:
            return os.stat(default_home() / MANIFESTS).st_mtime_ns
        except OSError:
            return 0

    def _library_digests(self) -> Mapping[str, str]:
        """Of the models that can be opened; which others there are is said once."""
        if not self._stamp:
            return {}
        found, wrong = _library().usable()
        new = [] if self._wrong is None else [one for one in wrong if one not in self._wrong]
        for problem in new:
            log.warning("not served: %s", problem)
        self._wrong = wrong
        return {entry.name: entry.digest for entry in found}


def _library() -> Library:
    from tidemill.library.catalog import Library

    return Library.open()
