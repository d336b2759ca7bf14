"""The listener's side: what there is, and blocks that are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tidemill.base.log import get_logger
from tidemill.contract.moves import Name, PeerLoad, PrefillPrompt
from tidemill.transfer.announced import Announced
from tidemill.transfer.link import Link, LinkError, Role
from tidemill.transfer.messages import MAX_NAMES, Announce, Block, Get, Open, Opened
from tidemill.transfer.outbox import LEASE_SECONDS, Buffer, Outbox
from tidemill.transfer.record import header

_log = get_logger(__name__)

TELL_SECONDS = 0.05
BEAT_SECONDS = 1.0
"""A watcher is told that this engine is there, whether or not there is news."""

DIGESTS = 4096
"""Of one message."""

AHEAD_BYTES = 32 * 2**20
"""Blocks that are brought into the outbox before they are sent."""

LENT_BYTES = 16 * 2**20
"""Blocks in shared memory that are not read yet; few, so that they stay in processors' caches."""

MAX_LINKS = 64
SEND_SECONDS = 10.0
"""That the other side may take to read something."""


class Prefill(Protocol):
    """A prompt that is computed for another engine; for any thread."""

    @property
    def ended(self) -> bool:
        """No more of its blocks are computed."""

    def cancel(self) -> None:
        """Nobody waits for it."""


class Prefills(Protocol):
    """Computes prompts for other engines; for any thread."""

    def load(self) -> PeerLoad:
        """What there is to compute."""

    def begin(
        self, names: tuple[Name, ...], prompt: PrefillPrompt, wake: Callable[[], None]
    ) -> Prefill | None:
        """Compute a prompt; `wake` is called when it has ended. None: it is none of this model, or
        not computed here."""


class BlockServer:
    """Serves the blocks of one engine on links, each on a thread of its own.

    Args:
        identity: of the model; see `record.identity_of`.
        nbytes: bytes of a block.
        checksum: of a block's bytes, 64 bits.
        bring: has blocks copied into the outbox, some time soon; on any thread.

    Attributes:
        announced: what the engine has.
        outbox: where copies wait.
        prefills: computes prompts for others; None: nobody does here.
        local: where processes of this machine get blocks in shared memory (`Listener.local`).
        sent: blocks sent.
    """

    def __init__(
        self,
        identity: bytes,
        nbytes: int,
        checksum: Callable[[Buffer], int],
        bring: Callable[[tuple[Name, ...]], None],
    ) -> None:
        self.announced = Announced()
        self.outbox = Outbox(nbytes)
        self.prefills: Prefills | None = None
        self.local = ""
        self.sent = 0
        self._identity = identity
        self._nbytes = nbytes
        self._checksum = checksum
        self._bring = bring
        self._most_lent = max(2, min(self.outbox.most // 2, LENT_BYTES // nbytes))
        self._ahead = max(2, min(self.outbox.most // 2, AHEAD_BYTES // nbytes))
        self._closing = threading.Event()
        self._links: set[Link] = set()

    def serve(self, link: Link) -> None:
        """Serve a link on a new thread, until it ends."""
        if len(self._links) >= MAX_LINKS or self._closing.is_set():
            link.close()
            return
        self._links.add(link)
        threading.Thread(
            target=self._run, args=(link,), name="tidemill-kv-peer", daemon=True
        ).start()

    def close(self) -> None:
        """End all links."""
        self._closing.set()
        for link in tuple(self._links):
            link.close()
        self.outbox.close()

    def _run(self, link: Link) -> None:
        lent: list[Buffer] = []
        try:
            link.set_timeout(SEND_SECONDS)
            if self._open(link):
                if link.role is Role.WATCH:
                    self._tell(link)
                else:
                    self._send(link, lent)
        except (LinkError, OSError) as error:
            _log.debug("a connection of a peer has ended: %s", error)
        except Exception:
            _log.exception("a connection of a peer ends")
        finally:
            self._links.discard(link)
            link.close()  # before what was lent over it is written again
            for buffer in lent:
                self.outbox.free(buffer)

    def _open(self, link: Link) -> bool:
        asked = link.receive(Open)
        if (asked.identity, asked.nbytes) == (self._identity, self._nbytes):
            arena = self.outbox.share() if link.is_local and link.role is Role.FETCH else None
            link.send(Opened(local=self.local, shares=arena is not None))
            if arena is not None:
                link.send_file(arena.fd)
            return True
        link.send(Opened("it serves another model, or was built or configured differently"))
        return False

    def _tell(self, link: Link) -> None:
        seen, silent, told = None, 0.0, None
        while not self._closing.wait(TELL_SECONDS):
            seen, changes, anew = self.announced.since(seen)
            silent += TELL_SECONDS
            load = None if self.prefills is None else self.prefills.load()
            if not (changes or anew or load != told) and silent < BEAT_SECONDS:
                continue
            silent, told = 0.0, load
            for start in range(0, max(1, len(changes)), DIGESTS):
                # Of a block that came and went the last word counts.
                last = dict(changes[start : start + DIGESTS])
                added = tuple(digest for digest, there in last.items() if there)
                removed = tuple(digest for digest, there in last.items() if not there)
                link.send(Announce(added, removed, anew and not start, load))

    def _send(self, link: Link, lent: list[Buffer]) -> None:
        while not self._closing.is_set():
            link.set_timeout(None)
            get = link.receive(Get)
            names = get.names[:MAX_NAMES]
            link.set_timeout(SEND_SECONDS)
            if get.read >= 0:
                self._return(get.read, lent)
                continue
            if get.prompt is not None:
                self._send_computed(link, names, get.prompt, lent)
                continue
            asked = done = 0
            try:
                for i, name in enumerate(names):
                    done = i + 1
                    if asked - i <= self._ahead // 2:
                        more = names[asked : i + self._ahead]
                        asked += len(more)
                        self._ask(more)
                    if not self._send_block(link, name, lent):
                        break  # the rest begins with it, and is of no use
            finally:
                self.outbox.drop([name[0] for name in names[done:asked]])

    def _send_computed(
        self, link: Link, names: tuple[Name, ...], prompt: PrefillPrompt, lent: list[Buffer]
    ) -> None:
        """Send blocks as they are computed."""
        prefill = None
        if self.prefills is not None:
            every = (*prompt.before, *names)
            prefill = self.prefills.begin(every, prompt, self.announced.wake)
        if prefill is None:
            link.send(Block())
            return
        asked = done = 0
        try:
            for i, name in enumerate(names):
                waited = asked <= i and self._await(link, name, prefill)
                if waited is None:
                    link.send(Block())
                    return
                more = []
                while asked < len(names) and asked - i < self._ahead:
                    if not self.announced.has(names[asked][0]):
                        break
                    more.append(names[asked])
                    asked += 1
                self._ask(tuple(more))
                done = i + 1
                if asked <= i:  # it was evicted meanwhile
                    link.send(Block())
                    return
                if not self._send_block(link, name, lent, waited=waited):
                    return
        finally:
            prefill.cancel()
            self.outbox.drop([name[0] for name in names[done:asked]])

    def _await(self, link: Link, name: Name, prefill: Prefill) -> bool | None:
        """Whether a block had to be computed first; None: it does not come."""
        waited = False
        while not self.announced.wait(name[0], BEAT_SECONDS, lambda: prefill.ended):
            waited = True
            if prefill.ended or self._closing.is_set():
                return None
            link.send(Block(later=True))
        return waited

    def _ask(self, names: tuple[Name, ...]) -> None:
        new = set(self.outbox.expect([name[0] for name in names]))
        if new:
            self._bring(tuple(name for name in names if name[0] in new))

    def _send_block(
        self, link: Link, name: Name, lent: list[Buffer], *, waited: bool = False
    ) -> bool:
        """Whether there is such a block."""
        while len(lent) >= self._most_lent:  # nothing else is said before this block was sent
            self._return(link.receive(Get).read, lent)
        data = self.outbox.take(name[0], LEASE_SECONDS)
        if data is None:
            link.send(Block())
            return False
        try:
            head = header(self._identity, name, self._nbytes, self._checksum(data))
            slot = self.outbox.slot_of(data) if link.is_local else None
            if slot is None:
                link.send(Block(head, waited=waited), (data,))
        except BaseException:
            self.outbox.free(data)
            raise
        if slot is None:
            self.outbox.free(data)
        else:
            lent.append(data)
            link.send(Block(head, waited=waited, slot=slot))
        self.sent += 1
        return True

    def _return(self, slot: int, lent: list[Buffer]) -> None:
        """The other side does not read a slot of the shared memory any more."""
        for i, buffer in enumerate(lent):
            if self.outbox.slot_of(buffer) == slot:
                del lent[i]
                self.outbox.free(buffer)
                return
        raise LinkError("it has read what it was not sent")
