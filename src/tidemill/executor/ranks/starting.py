"""Starting the ranks of an engine: rank 0's part in this process, the others where they run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tidemill.backends.base import (
    Backend,
    BackendFactory,
    BackendOptions,
    PackedWeights,
    Shard,
    Stage,
)
from tidemill.base.errors import unsupported
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.executor.ranks.backend import GroupBackend
from tidemill.executor.ranks.cpus import pinned, threads_of
from tidemill.executor.ranks.messages import Begin
from tidemill.executor.ranks.peers import Peer, Peers, start_process
from tidemill.executor.ranks.process import identity_of
from tidemill.models.spec import DecoderSpec
from tidemill.models.stages import Layers, divide_layers
from tidemill.models.tensors import TensorMap

_log = get_logger(__name__)

Lost = Callable[[str], None]


class Places:
    """Where the ranks of an engine compute.

    Attributes:
        setting: that asks for them.
        note: what they are, for people.
        options: changes to the options of rank 0.
        alone: rank 0 has its machine's threads and processors for itself.
        start: starts the other ranks.
    """

    def __init__(
        self,
        setting: str,
        note: str,
        options: dict[str, object],
        start: Callable[[], Iterator[Peer]],
        *,
        alone: bool = False,
    ) -> None:
        self.setting, self.note, self.options = setting, note, options
        self.start, self.alone = start, alone


def ranks_factory(
    config: EngineConfig, load: BackendFactory, digest: bytes, lost: Lost | None
) -> BackendFactory:
    """A factory of backends whose model is computed by several processes.

    Args:
        config: the engine's configuration, which all of them load.
        load: makes the backend of rank 0's part.
        digest: of the model's weights.
        lost: called on another thread with how a rank ended; None: it is logged, and steps fail.
    """

    def factory(
        spec: DecoderSpec,
        tensors: TensorMap,
        options: BackendOptions,
        packed: PackedWeights | None = None,
    ) -> Backend:
        resources, own = ExitStack(), list[Backend]()

        def on_lost(how: str) -> None:
            _log.error("%s; what it computed is lost", how)
            for backend in own:
                backend.fail_group()  # type: ignore[attr-defined]
            if lost is not None:
                lost(how)

        with ExitStack() as undo:
            undo.push(resources.__exit__)
            places = _places(config, spec, tensors, resources)
            ranks = max(config.tensor_parallel, config.stages)
            changes = dict(places.options)
            if not places.alone:
                changes["threads"] = threads_of(options.threads, 0, ranks)
            with pinned(0, 1 if places.alone else ranks):
                own.append(load(spec, tensors, replace(options, **changes), packed))  # type: ignore[arg-type]
            undo.callback(own[0].close)
            started: list[Peer] = []
            try:
                started.extend(places.start())
            finally:
                peers = Peers(started, on_lost)
                undo.callback(peers.close)
            peers.wait_loaded(identity_of(digest, own[0]))
            undo.pop_all()
        return GroupBackend(own[0], peers, resources, places.setting, places.note)

    return factory


def _places(
    config: EngineConfig, spec: DecoderSpec, tensors: TensorMap, resources: ExitStack
) -> Places:
    if config.stages <= 1:
        return _shards(config, resources)
    try:
        layers = divide_layers(spec, tensors, config.stages)
    except ValueError as error:
        from tidemill.backends.native.stages import refused

        raise refused(str(error)) from None
    if config.pipeline_peers is None:
        return _stages(config, layers, resources)
    return _remote_stages(config, layers, resources)


def _shards(config: EngineConfig, resources: ExitStack) -> Places:
    from tidemill.backends.native import group_bytes

    if not hasattr(os, "memfd_create"):
        raise unsupported("tensor_parallel", "tensor_parallel above 1 needs Linux")
    ranks = config.tensor_parallel
    descriptor = os.memfd_create("tidemill-ranks", os.MFD_CLOEXEC)
    resources.callback(os.close, descriptor)
    os.ftruncate(descriptor, group_bytes())

    def start() -> Iterator[Peer]:
        for rank in range(1, ranks):
            begin = Begin(config, rank, ranks)
            yield Peer(f"rank {rank}", *start_process(begin, [descriptor]))

    note = f"tensor parallel: {ranks} processes, each with a part of the model"
    return Places("tensor_parallel", note, {"shard": Shard(0, ranks, descriptor)}, start)


def _stages(config: EngineConfig, layers: Sequence[Layers], resources: ExitStack) -> Places:
    """Stages on this machine: from each to the next goes a pair of sockets."""
    count = len(layers)
    pairs = [socket.socketpair() for _ in layers]
    for pair in pairs:
        for end in pair:
            resources.enter_context(end)

    def sockets(index: int) -> tuple[int, int]:
        return pairs[index - 1][1].fileno(), pairs[index][0].fileno()

    def start() -> Iterator[Peer]:
        for i in range(1, count):
            begin = Begin(config, i, count, layers[i])
            yield Peer(f"stage {i}", *start_process(begin, sockets(i)))

    stage = Stage(0, count, range(*layers[0]), *sockets(0))
    return Places("pipeline_parallel", stages_note(layers), {"stage": stage}, start)


def _remote_stages(config: EngineConfig, layers: Sequence[Layers], resources: ExitStack) -> Places:
    from tidemill.executor.ranks.remote import RemoteStages

    remote = RemoteStages(config, layers, resources)
    stage = Stage(0, len(layers), range(*layers[0]), *remote.sockets)
    note = stages_note(layers)
    return Places("pipeline_parallel", note, {"stage": stage}, remote.peers, alone=True)


def stages_note(layers: Sequence[Layers]) -> str:
    """How layers are divided, for people."""
    parts = ", ".join(f"{first} to {end - 1}" for first, end in layers)
    return f"pipeline parallel: {len(layers)} processes, with layers {parts}"
