"""Opening what moves blocks between engines: the listener, and the peers."""

from __future__ import annotations

import socket
from collections.abc import Callable

import numpy as np

from tidemill.backends.base import Backend
from tidemill.base.errors import TidemillError, config_error
from tidemill.contract.config import EngineConfig
from tidemill.transfer.link import KEY_VARIABLE, Link, Role, host_and_port, key_from_environment
from tidemill.transfer.listener import Listener
from tidemill.transfer.outbox import Buffer
from tidemill.transfer.peers import Peers
from tidemill.transfer.serving import BlockServer
from tidemill.worker.tiers.mover import Mover


def open_peers(
    config: EngineConfig,
    mover: Mover,
    identity: bytes,
    backend: Backend,
    progress: Callable[[str], None],
) -> None:
    """Attach other engines to a mover that has not started yet.

    Args:
        config: its `kv_listen` and `kv_peers` count, at least one of them set.
        mover: of this engine.
        identity: of blocks; see `record.identity_of`.
        backend: with its cache allocated.
        progress: called with a line that says where this engine listens.

    Raises:
        TidemillError: CONFIG without a key, or where nothing can listen.
    """
    key = _key(config)
    nbytes = mover.sizes.nbytes

    def checksum(data: Buffer) -> int:
        return backend.checksum(np.frombuffer(data, np.uint8))

    server, more = None, list[Listener]()
    if config.kv_listen:
        server = BlockServer(identity, nbytes, checksum, mover.bring)

        def let_in(link: Link) -> None:
            if link.role is not Role.REQUESTS:
                served.serve(link)
            elif mover.on_requests is not None:
                mover.on_requests(link)
            else:
                link.close()

        served = server
        try:
            more.append(Listener(config.kv_listen, key, let_in))
        except (OSError, ValueError) as error:
            raise _bad_address("kv_listen", config.kv_listen, error) from None
        server.local = more[0].local
        progress(f"other engines reach this one at {more[0].address}")
    peers = None
    if config.kv_peers:
        peers = Peers(*(config.kv_peers.split(","), key, identity, nbytes, checksum, mover.wake))
    mover.attach(peers, server, *more)


def _bad_address(name: str, address: str, error: Exception) -> TidemillError:
    return config_error(name, f"{name}: nothing can listen at {address}: {error}")


def check_peers(config: EngineConfig) -> None:
    """What can be known before the weights are read.

    Raises:
        TidemillError: CONFIG without a key, and where nothing can listen.
    """
    _key(config)
    for address in (config.kv_peers or "").split(",") if config.kv_peers else ():
        try:
            host_and_port(address)
        except ValueError as error:
            raise config_error("kv_peers", f"kv_peers {error}") from None
    if config.kv_listen:
        try:
            host, port = host_and_port(config.kv_listen)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server((host, port), family=family).close()
        except (OSError, ValueError) as error:
            raise _bad_address("kv_listen", config.kv_listen, error) from None


def _key(config: EngineConfig) -> bytes:
    asked = "kv_listen" if config.kv_listen else "kv_peers"
    try:
        key = key_from_environment()
    except ValueError as error:
        raise config_error(asked, f"{asked}: {error}") from None
    if key is None:
        raise config_error(
            asked,
            f"{asked} needs the key that its engines share in the variable {KEY_VARIABLE}, such as "
            "what `openssl rand -hex 32` prints",
        )
    return key
