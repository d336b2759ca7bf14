"""Who sends a request, until when its answer is of use, and what its use is charged to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.contract.quotas import QuotaView


class Reservation(Protocol):
    """What a request holds of its caller's quotas; ends exactly once."""

    def taken(self) -> tuple[QuotaView, ...]:
        """What it took of each limit, asked right after it was reserved."""

    def progress(self, tokens: int) -> None:
        """So many more tokens were generated."""

    def settle(self, prompt: int, cached: int, generated: int) -> None:
        """The request has ended: charge the tokens that it used."""

    def release(self) -> None:
        """The request was not served: charge nothing."""


class Quota(Protocol):
    """The limits that one request counts on."""

    async def reserve(self, model: str, prompt: int, expected: int, most: int) -> Reservation:
        """Reserve what a request may use; the first call of one request counts it.

        Args:
            model: decides the price.
            prompt: its tokens.
            expected, most: tokens that will be generated, probably and at most; of all choices.

        Raises:
            Exception: 429, naming the limit that has no room.
        """


class Unlimited:
    """The reservation where nothing is limited."""

    def taken(self) -> tuple[QuotaView, ...]:
        """Nothing."""
        return ()

    def progress(self, tokens: int) -> None:
        """Nothing to charge."""

    def settle(self, prompt: int, cached: int, generated: int) -> None:
        """Nothing to charge."""

    def release(self) -> None:
        """Nothing to charge."""


UNLIMITED = Unlimited()


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, and the request's deadline.

    Attributes:
        client, weight: the unit of fairness and its share.
        cache_salt: prefixes are shared only between equal salts.
        deadline: `base.clock.monotonic` time in seconds at which the request expires; or None.
        priority: among one client's requests, smaller values run first.
        user: whom the client asks for, as it says; "" where it says nothing.
        background: the answer may wait for capacity that no other request wants.
        quota: what its use is charged to; None: nothing is limited.
        max_tokens: the most that an answer to it may have; None: what the context leaves.
    """

    client: str = ""
    weight: float = 1.0
    cache_salt: str = ""
    deadline: float | None = None
    priority: int = 0
    user: str = ""
    background: bool = False
    quota: Quota | None = None
    max_tokens: int | None = None


ANONYMOUS = Caller()
