"""RankHost: offers this machine to an engine elsewhere, which computes a part of its model here.

The part is computed in a process of its own (`process`), the same as on rank 0's machine. This one
lets in who knows the key, opens what hidden states pass through, passes commands and replies on,
and ends the process with the engine's connection. Then it waits for the next engine.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import RequestError
from tidemill.executor.ranks.channel import Channel, KeyedChannel
from tidemill.executor.ranks.messages import encode
from tidemill.executor.ranks.peers import start_process
from tidemill.executor.ranks.remote import Hello, Joins, Welcome, decode_hello, open_link
from tidemill.transfer.link import Link, LinkError, Role
from tidemill.transfer.listener import Listener

_log = get_logger(__name__)

_JOIN_SECONDS = 15.0
_LOST_SECONDS = 10


class RankHost:
    """Listens for engines, of which it serves one at a time.

    Args:
        address: HOST:PORT; port 0 is any free one.
        key: of the engines.
        localize: an engine's configuration as it holds here: the model's place, threads.

    Attributes:
        address: where it listens.

    Raises:
        OSError, ValueError: it cannot listen there.
    """

    def __init__(
        self, address: str, key: bytes, localize: Callable[[EngineConfig], EngineConfig]
    ) -> None:
        self._key, self._localize = key, localize
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._listener = Listener(address, key, self._take)
        self.address = self._listener.address

    def close(self) -> None:
        """Listen no more, and end what computes."""
        self._listener.close()
        with self._lock:
            session = self._session
        if session is not None:
            session.end()

    def _take(self, link: Link) -> None:
        """Serve a connection, on a thread of its own."""
        link.watch_peer(_LOST_SECONDS)
        try:
            if link.role is Role.RANK:
                self._serve(KeyedChannel(link, _JOIN_SECONDS))
            elif link.role is Role.STATES:
                self._join(link)
            else:
                link.close()
        except (LinkError, OSError, msgspec.DecodeError, TidemillError) as error:
            _log.warning("an engine's connection is given up: %s", error)
            link.close()

    def _join(self, link: Link) -> None:
        link.set_timeout(_JOIN_SECONDS)
        joins = link.receive(Joins)
        with self._lock:
            session = self._session
        if session is None or session.name != joins.session:
            link.close()
            return
        (session.results if joins.results else session.states).put(link.detach())

    def _serve(self, channel: KeyedChannel) -> None:
        body = channel.receive()
        if body is None:
            return
        hello = decode_hello(body)
        session = _Session(hello.session, channel)
        with self._lock:
            busy = self._session is not None
            if not busy:
                self._session = session
        if busy:
            text = "it computes a part of another engine's model"
            told = RequestError(ErrorKind.UNAVAILABLE, text, None, True)
            channel.send(encode(Welcome(told)))
            channel.close()
            return
        try:
            channel.send(encode(Welcome()))
            _log.info("computing layers %d to %d of an engine's model", *_layers(hello))
            session.run(hello, self._localize(hello.begin.config), self._key)
        finally:
            session.end()
            with self._lock:
                self._session = None
            _log.info("the engine's connection has ended")


def _layers(hello: Hello) -> tuple[int, int]:
    first, end = hello.begin.layers or (0, 0)
    return first, end - 1


class _Session:
    """One engine's part here."""

    def __init__(self, name: bytes, channel: Channel) -> None:
        self.name = name
        # Connections of the stage before, and of rank 0 where this stage is the last.
        self.states: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._channel = channel
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, hello: Hello, config: EngineConfig, key: bytes) -> None:
        """Compute the part until the engine's connection or the process ends."""
        begin = msgspec.structs.replace(hello.begin, config=config)
        with ExitStack() as ours:
            try:
                if hello.next is None:
                    sends = self.results.get(timeout=_JOIN_SECONDS)
                else:
                    link = open_link(hello.next, key, Role.STATES)
                    link.send(Joins(hello.session))
                    sends = link.detach()
                ours.enter_context(sends)
                receives = ours.enter_context(self.states.get(timeout=_JOIN_SECONDS))
            except queue.Empty:
                raise LinkError("the engine did not open the connections of its states") from None
            local, self._process = start_process(
                begin, (receives.fileno(), sends.fileno()), patience=None
            )
        threading.Thread(
            target=_pass_on, args=(local, self._channel), name="tidemill-rank-replies", daemon=True
        ).start()
        try:
            assert isinstance(self._channel, KeyedChannel)
            self._channel.wait_forever()
            _pass_on(self._channel, local)
        finally:
            local.close()

    def end(self) -> None:
        """End the process and the connection. On any thread."""
        self._channel.close()
        if (process := self._process) is not None:
            process.kill()
            process.wait()


def _pass_on(source: Channel, target: Channel) -> None:
    """Pass messages on until one side ends, and then end both."""
    try:
        while (body := source.receive()) is not None:
            target.send(body)
    except OSError:
        pass
    finally:
        source.close()
        target.close()
