"""Peers: engines that blocks are fetched from.

Each has a thread that is told what it has, and one that fetches; a prompt that it computes for this
engine has a thread and a connection of its own. Whatever goes wrong with a peer (it is gone, slow,
of another model, or sends what is damaged) means that it has nothing, for a while; then blocks are
computed. Nothing here waits for a peer but these threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.moves import Name, PeerLoad, RemotePrefill
from tidemill.transfer.arena import AVAILABLE, opened
from tidemill.transfer.link import Link, LinkError, Role, connect, connect_locally
from tidemill.transfer.messages import MAX_NAMES, Announce, Block, Get, Open, Opened
from tidemill.transfer.outbox import Buffer
from tidemill.transfer.record import Damaged, checksum_in, header

_log = get_logger(__name__)

SILENCE_SECONDS = 4.0
"""After so long without a word of a peer it is presumed to be gone."""

BLOCK_SECONDS = 3.0
"""That a block may take to come, and the first one beside what is sent before it; after it the rest
is computed."""

AGAIN_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Between attempts to reach a peer."""

UNTRUSTED_SECONDS = 60.0
"""Nothing is fetched from a peer that sent something damaged."""

WINDOW_BYTES = 64 * 2**20
"""Of blocks that have arrived and are not in the cache yet; a peer's next ones wait."""

SPARE_BUFFERS = 8
MAX_KNOWN = 2**20
"""Digests that are known of one peer."""


MOST_PREFILLS = 8
"""Prompts that a peer computes for this engine at a time."""

NO_PREFILL_SECONDS = 10.0
"""A peer that has failed to compute a prompt is given none."""


class Arrived(NamedTuple):
    """A block as it came.

    Attributes:
        checksum: what that of its bytes must be.
        data: its bytes.
        waited: the peer had to compute it first.
        link: they lie in the peer's memory, which it writes again once this is told that they were
            read, or has ended; None: they are this process's.
        slot: where in the peer's memory.
    """

    checksum: int
    data: Buffer
    waited: bool = False
    link: Link | None = None
    slot: int = -1


class _Channel(NamedTuple):
    """A connection for blocks, and the memory that both sides share."""

    link: Link
    slots: Sequence[memoryview] = ()


class Fetch:
    """Blocks of one peer on their way, in order.

    Args:
        peer: that has them.
        names: their contents.
        prefill: it computes those that it does not have; None: it has them.

    Attributes:
        ended: nothing more will arrive.
        taken: blocks that `take` has returned.
        waited: the last one of these was computed first.
        left: blocks that have not arrived.
        link: that it comes over, while it does.
    """

    def __init__(
        self, peer: Peer, names: Sequence[Name], prefill: RemotePrefill | None = None
    ) -> None:
        self.names = names
        self.prefill = prefill
        self.begun = monotonic()
        self.ended = False
        self.taken = 0
        self.left = len(names)
        self.waited = False
        self.link: Link | None = None
        self._lent: Arrived | None = None
        self._peer = peer
        self._moved = self.begun  # when it last got on
        self._arrived: deque[Arrived] = deque()
        self._changed = threading.Condition()

    @property
    def complete(self) -> bool:
        """All blocks have been taken."""
        return self.taken == len(self.names)

    @property
    def ready(self) -> bool:
        """There is a block, or there will be none any more."""
        now = monotonic()
        late = self.prefill is not None and now > self.begun + self.prefill.seconds
        if not self.ended and (late or (not self._arrived and now > self._moved + BLOCK_SECONDS)):
            self._peer.failed(self)
            self.cancel()
        return bool(self._arrived) or self.ended

    def take(self) -> Buffer | None:
        """The next block's bytes, until the next call, if they are what the peer says; None: it
        does not come."""
        self.give_back()
        with self._changed:
            found = self._arrived.popleft() if self._arrived else None
            self._moved = monotonic()
            self._changed.notify_all()
        if found is None:
            return None
        self._lent = found
        good = self._peer.checksum(found.data) == found.checksum
        if not (self.confirm() and good):
            if self.confirm():
                self._peer.distrust("its checksum does not match its bytes")
            self.cancel()
            return None
        self.taken += 1
        self.waited = found.waited
        return found.data

    def confirm(self) -> bool:
        """What was read of what `take` returned is what was sent; False: it may be another's."""
        return self._lent is None or self._lent.link is None or self._lent.link.is_open

    def give_back(self) -> None:
        """What `take` returned is not read any more."""
        if self._lent is not None:
            self._peer.free(self._lent)
            self._lent = None

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self.give_back()
        with self._changed:
            self.ended = True
            unread, self._arrived = self._arrived, deque()
            self._changed.notify_all()
        self._peer.drop(self)
        for block in unread:
            self._peer.free(block)

    def put(self, block: Arrived, most: int) -> bool:
        """A block has arrived; waits while there are `most`. False: it is not wanted any more."""
        with self._changed:
            while len(self._arrived) >= most and not self.ended:
                self._changed.wait()
            if not self.ended:
                self.left -= 1
                self._arrived.append(block)
                self._moved = monotonic()
            return not self.ended

    def beat(self) -> None:
        """The peer is there, and computes."""
        self._moved = monotonic()

    def end(self) -> None:
        """No more blocks come; those that have arrived stay."""
        self.ended = True


class Peer:
    """One engine; see the module docstring. Made and closed by `Peers`.

    Args:
        address: HOST:PORT.
        key: of both engines.
        identity, nbytes: of the model; see `messages.Open`.
        checksum: of a block's bytes.
        wake: called when something of a `Fetch` has changed, on any thread.

    Attributes:
        known: digests that it has.
        load: what it says that it has to compute; None: it computes no prompts for others.
        damaged: blocks that it sent and that were not what they should be.
    """

    def __init__(
        self,
        address: str,
        key: bytes,
        identity: bytes,
        nbytes: int,
        checksum: Callable[[Buffer], int],
        wake: Callable[[], None],
    ) -> None:
        self.address = address
        self.known: set[bytes] = set()
        self.load: PeerLoad | None = None
        self.damaged = 0
        self.checksum = checksum
        self._key, self._identity, self._nbytes = key, identity, nbytes
        self._wake = wake
        self._untrusted_until = self._no_prefill_until = 0.0
        self._prefills: set[Fetch] = set()
        self._fetches: deque[Fetch] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._watching: Link | None = None
        self._fetching: _Channel | None = None
        self._local = ""  # where it shares memory with processes of its machine
        self._said = ""
        self._free: list[bytearray] = []  # their pages are there already
        for run in (self._watch, self._fetch):
            threading.Thread(target=run, name="tidemill-kv-peer", daemon=True).start()

    def has(self, digest: bytes) -> bool:
        """It says so, and is believed."""
        return digest in self.known and monotonic() >= self._untrusted_until

    def fetch(self, names: Sequence[Name]) -> Fetch:
        """Begin to fetch blocks."""
        fetch = Fetch(self, names[:MAX_NAMES])
        with self._changed:
            self._fetches.append(fetch)
            self._changed.notify_all()
        return fetch

    @property
    def may_prefill(self) -> bool:
        """It computes prompts for others, and is believed to do so now."""
        now = monotonic()
        good = self.load is not None and now >= max(self._untrusted_until, self._no_prefill_until)
        return good and len(self._prefills) < MOST_PREFILLS

    def prefill(self, names: Sequence[Name], what: RemotePrefill) -> Fetch | None:
        """Have it compute a prompt, and fetch its blocks meanwhile; None: it may not."""
        if not self.may_prefill:
            return None
        fetch = Fetch(self, names[: MAX_NAMES - len(what.prompt.before)], what)
        self._prefills.add(fetch)
        threading.Thread(
            target=self._receive_computed, args=(fetch,), name="tidemill-kv-prefill", daemon=True
        ).start()
        return fetch

    def failed(self, fetch: Fetch) -> None:
        """A fetch does not get on."""
        if fetch.prefill is not None:
            self._no_prefill_until = monotonic() + NO_PREFILL_SECONDS
            _log.warning(
                "a prompt that the peer %s computes does not come; the rest is computed here",
                self.address,
            )

    def free(self, block: Arrived) -> None:
        """A block's memory is not read any more."""
        if block.link is not None:
            with contextlib.suppress(OSError):
                block.link.send(Get((), read=block.slot))
        elif isinstance(block.data, bytearray):
            with self._changed:
                if len(self._free) < SPARE_BUFFERS:
                    self._free.append(block.data)

    def distrust(self, why: str) -> None:
        """It sent something damaged."""
        self.damaged += 1
        self._untrusted_until = monotonic() + UNTRUSTED_SECONDS
        _log.warning(
            "a KV block of the peer %s is not used, and none is fetched for %.0f s: %s",
            *(self.address, UNTRUSTED_SECONDS, why),
        )

    def drop(self, fetch: Fetch) -> None:
        """A fetch was cancelled: what comes of it is not read any more."""
        with self._changed:
            if fetch in self._fetches:
                self._fetches.remove(fetch)
            elif fetch.link is not None and (fetch.left or fetch.prefill is not None):
                fetch.link.close()  # cheaper than to read what nobody wants
        self._wake()

    def close(self) -> None:
        """End both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            computed = [fetch.link for fetch in self._prefills]
            fetching = None if self._fetching is None else self._fetching.link
            for link in (self._watching, fetching, *computed):
                if link is not None:
                    link.close()

    def _open(self, role: Role) -> _Channel:
        """Connect, over shared memory where both are on one machine."""
        if role is Role.FETCH and self._local:
            try:
                return self._opened(connect_locally(self._local, self._key, role))
            except (LinkError, OSError) as error:
                self._local = ""  # until it is reached anew
                _log.debug("no memory is shared with the peer %s: %s", self.address, error)
        return self._opened(connect(self.address, self._key, role))

    def _opened(self, link: Link) -> _Channel:
        try:
            link.send(Open(self._identity, self._nbytes))
            found = link.receive(Opened)
            if found.refused:
                raise LinkError(found.refused)
            if link.role is Role.WATCH:
                self._local = found.local if AVAILABLE else ""
            link.set_timeout(SILENCE_SECONDS if link.role is Role.WATCH else BLOCK_SECONDS)
            if not (found.shares and link.is_local):
                return _Channel(link)
            return _Channel(link, opened(link.receive_file(), self._nbytes))
        except BaseException:
            link.close()
            raise

    def _watch(self) -> None:
        failures = 0
        while not self._closing:
            try:
                self._watching = link = self._open(Role.WATCH).link
                try:
                    self._say("is reached")
                    failures = 0
                    while not self._closing:
                        self._note(link.receive(Announce))
                finally:
                    link.close()
            except (LinkError, OSError, ValueError) as error:
                self._say(f"is not used: {error or type(error).__name__}")
            self.known, self.load = set(), None
            with self._changed:
                if not self._closing:
                    self._changed.wait(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
            failures += 1

    def _say(self, what: str) -> None:
        if what != self._said and not self._closing:
            self._said = what
            _log.info("the peer %s %s", self.address, what)

    def _note(self, told: Announce) -> None:
        if told.anew:
            self.known = set()
        self.load = told.load
        self.known.difference_update(told.removed)
        if len(self.known) < MAX_KNOWN:
            self.known.update(told.added)

    def _fetch(self) -> None:
        while True:
            with self._changed:
                while not self._fetches and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                fetch = self._fetches.popleft()
            try:
                self._receive(fetch)
            except (LinkError, OSError, ValueError) as error:
                _log.info("blocks of the peer %s do not come: %s", self.address, error)
                self._let_go()
            except Damaged as error:
                self.distrust(str(error))
                self._let_go()
            finally:
                fetch.end()
                self._wake()

    def _let_go(self) -> None:
        if self._fetching is not None:
            self._fetching.link.close()
            self._fetching = None

    def _receive_computed(self, fetch: Fetch) -> None:
        """Receive the blocks of a prompt that the peer computes. The connection is open until they
        have been read (`drop`)."""
        try:
            if not self._receive_on(self._open(Role.FETCH), fetch):
                self.failed(fetch)
        except Damaged as error:
            self.distrust(str(error))
        except (LinkError, OSError, ValueError) as error:
            if not (fetch.ended or self._closing):
                _log.info("the peer %s computes no prompt: %s", self.address, error)
                self.failed(fetch)
        finally:
            with self._changed:
                self._prefills.discard(fetch)
            fetch.end()
            self._wake()

    def _receive(self, fetch: Fetch) -> None:
        if self._fetching is None:
            self._fetching = self._open(Role.FETCH)
        if not self._receive_on(self._fetching, fetch):
            _log.info("the peer %s does not have blocks any more", self.address)
        with self._changed:
            fetch.link = None

    def _receive_on(self, channel: _Channel, fetch: Fetch) -> bool:
        """Receive blocks; False: it does not have the next one, nor sends the rest."""
        link, slots = channel
        with self._changed:
            fetch.link = link
            if fetch.ended or self._closing:
                link.close()
        most = max(2, WINDOW_BYTES // self._nbytes)
        prompt = None if fetch.prefill is None else fetch.prefill.prompt
        link.send(Get(tuple(fetch.names), prompt))
        for name in fetch.names:
            while (told := link.receive(Block)).later and prompt is not None:
                fetch.beat()
            head = told.header
            if not head:
                return False
            if len(head) != len(header(self._identity, name, self._nbytes, 0)):
                raise Damaged("its header has another size")
            checksum = checksum_in(head, self._identity, name, self._nbytes)
            if told.slot >= len(slots):
                raise Damaged("it names memory that it does not share")
            if told.slot >= 0:
                block = Arrived(checksum, slots[told.slot], told.waited, link, told.slot)
            else:
                with self._changed:
                    data = self._free.pop() if self._free else bytearray(self._nbytes)
                link.read_into(data)
                block = Arrived(checksum, data, told.waited)
            if not fetch.put(block, most):
                raise LinkError("they are not wanted any more")
            self._wake()
        return True


class Peers:
    """All of an engine's peers.

    Args:
        addresses: HOST:PORT of each.
        key, identity, nbytes, checksum, wake: see `Peer`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        key: bytes,
        identity: bytes,
        nbytes: int,
        checksum: Callable[[Buffer], int],
        wake: Callable[[], None],
    ) -> None:
        self.all = [Peer(a, key, identity, nbytes, checksum, wake) for a in addresses]

    def has(self, digest: bytes) -> bool:
        """Some peer has a block."""
        return any(peer.has(digest) for peer in self.all)

    def fetch(self, names: Sequence[Name]) -> Fetch | None:
        """Begin to fetch these blocks, from the peer that has most of them, from the first on."""
        best: Peer | None = None
        most = 0
        for peer in self.all:
            count = next((i for i, n in enumerate(names) if not peer.has(n[0])), len(names))
            if count > most:
                best, most = peer, count
        return None if best is None else best.fetch(names[:most])

    def loads(self) -> list[tuple[str, PeerLoad]]:
        """Peers that may compute prompts for this engine now, by address."""
        return [(p.address, p.load) for p in self.all if p.load is not None and p.may_prefill]

    def prefill(self, names: Sequence[Name], what: RemotePrefill) -> Fetch | None:
        """Have a peer compute a prompt and fetch these blocks of it; None: it may not."""
        peer = next((peer for peer in self.all if peer.address == what.address), None)
        return None if peer is None else peer.prefill(names, what)

    @property
    def damaged(self) -> int:
        """Blocks that were not what they should be."""
        return sum(peer.damaged for peer in self.all)

    def close(self) -> None:
        """End all threads."""
        for peer in self.all:
            peer.close()
