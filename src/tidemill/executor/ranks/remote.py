"""Stages on other machines, as rank 0 reaches them: `tidemill rank` waits there (`host`).

Rank 0 calls them from the last to the first, so that each finds the next one ready for what it
sends on. Commands go over a connection of which every message is proved, hidden states over others,
proved when they are opened.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import RequestError, exception_of
from tidemill.executor.ranks.channel import SILENCE_SECONDS, KeyedChannel
from tidemill.executor.ranks.messages import Begin, encode
from tidemill.executor.ranks.peers import Peer
from tidemill.models.stages import Layers
from tidemill.transfer.link import (
    KEY_VARIABLE,
    Link,
    LinkError,
    Role,
    connect,
    key_from_environment,
)

_log = get_logger(__name__)

HANDSHAKE_SECONDS = 30.0
"""How long a machine may take to be there and free: it may be starting, or ending another engine's
process."""

_RETRY_SECONDS = 0.5
_LOST_SECONDS = 10  # a machine that answers no packet for so long is lost


class Hello(msgspec.Struct, array_like=True):
    """What a machine is to compute.

    Attributes:
        session: names the connections of one engine.
        begin: for the process there.
        next: HOST:PORT of the machine to which hidden states go on; None: they go back to rank 0.
    """

    session: bytes
    begin: Begin
    next: str | None


class Welcome(msgspec.Struct, array_like=True):
    """The answer: whether it will, and if not whether it may be asked again."""

    error: RequestError | None = None


class Joins(msgspec.Struct, array_like=True):
    """What a connection of hidden states is for: it brings a session's, or (`results`) takes those
    of the last stage."""

    session: bytes
    results: bool = False


decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_welcome = msgspec.msgpack.Decoder(Welcome).decode


class RemoteStages:
    """The stages of an engine behind the first, on other machines.

    Args:
        config: names them.
        layers: of each stage, rank 0's included.
        resources: what is opened here is closed with it, but the channels of `peers`.

    Attributes:
        sockets: descriptors of rank 0's `Stage`: it receives from one, and sends to the other.

    Raises:
        TidemillError: CONFIG where the key is missing or is another one there, UNAVAILABLE naming a
            machine that is not there.
    """

    def __init__(
        self, config: EngineConfig, layers: Sequence[Layers], resources: ExitStack
    ) -> None:
        assert config.pipeline_peers is not None
        self._addresses = config.pipeline_peers.split(",")
        self._key = _key()
        self._channels: list[KeyedChannel] = []  # from the last to the first
        session = secrets.token_bytes(16)
        with ExitStack() as undo:
            following: str | None = None
            for i, address in reversed(list(enumerate(self._addresses, 1))):
                begin = Begin(config, i, len(layers), layers[i], alone=True)
                channel = self._handshake(address, Hello(session, begin, following))
                undo.callback(channel.close)
                self._channels.append(channel)
                following = address
            results = self._join(self._addresses[-1], Joins(session, results=True))
            resources.enter_context(results)
            states = self._join(self._addresses[0], Joins(session))
            resources.enter_context(states)
            undo.pop_all()
        self.sockets = results.fileno(), states.fileno()

    def peers(self) -> Iterator[Peer]:
        """The stages, in order."""
        for i, channel in enumerate(reversed(self._channels), 1):
            yield Peer(f"stage {i} (at {self._addresses[i - 1]})", channel)

    def _handshake(self, address: str, hello: Hello) -> KeyedChannel:
        until = monotonic() + HANDSHAKE_SECONDS
        waited = False
        while True:
            try:
                channel = KeyedChannel(self._open(address, Role.RANK), SILENCE_SECONDS)
                channel.send(encode(hello))
                body = channel.receive()
                if body is None:
                    raise ConnectionError("it ended the connection")
                if (error := _decode_welcome(body).error) is None:
                    return channel
                channel.close()
                if not error.retryable:
                    raise exception_of(error)
                why: object = error.message
            except (LinkError, OSError) as failed:  # also while a link comes back, or a route
                why = failed
            if monotonic() > until:
                raise (
                    _refused(address, why)
                    if isinstance(why, LinkError)
                    else (_unreachable(address, why))
                )
            if not waited:
                _log.info(
                    "waiting for %s, which is to compute a part of the model: %s", address, why
                )
            waited = True
            time.sleep(_RETRY_SECONDS)

    def _join(self, address: str, joins: Joins) -> socket.socket:
        try:
            link = self._open(address, Role.STATES)
            link.send(joins)
        except (LinkError, OSError) as error:
            raise _unreachable(address, error) from None
        return link.detach()

    def _open(self, address: str, role: Role) -> Link:
        return open_link(address, self._key, role)


def open_link(address: str, key: bytes, role: Role) -> Link:
    """Connect to a machine that computes a part of the model.

    Raises:
        OSError: it is not there. LinkError: it has another key.
    """
    link = connect(address, key, role)
    link.watch_peer(_LOST_SECONDS)
    return link


def _key() -> bytes:
    try:
        key = key_from_environment()
    except ValueError as error:
        raise config_error("pipeline_peers", f"pipeline_peers: {error}") from None
    if key is None:
        raise config_error(
            "pipeline_peers",
            f"pipeline_peers needs a key that all machines have: set {KEY_VARIABLE} "
            "(docs/parallel.md)",
        )
    return key


def _refused(address: str, why: object) -> TidemillError:
    return config_error(
        "pipeline_peers",
        f"pipeline_peers: {address} is no `tidemill rank` with this key ({why}); set "
        f"{KEY_VARIABLE} to the same text on all machines",
    )


def _unreachable(address: str, why: object) -> TidemillError:
    return TidemillError(
        ErrorKind.UNAVAILABLE,
        f"{address}, which is to compute a part of the model, does not take it: {why}; is "
        "`tidemill rank` running there?",
        param="pipeline_peers",
        retryable=True,
    )
