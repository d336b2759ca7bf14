"""What translates one exchange: its request, and the answer whole or in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidemill.base.errors import bad_request
from tidemill.gateway.wire.kinds import CHAT

if TYPE_CHECKING:
    from tidemill.gateway.asked import Asked


class Translator(Protocol):
    """See the module docstring.

    Attributes:
        body: of the request, in the target's dialect.
    """

    body: bytes

    def whole(self, answer: bytes) -> bytes:
        """A whole answer in the client's dialect."""

    def feed(self, events: bytes) -> bytes:
        """Events of the client's dialect for whole events of the target's."""

    def end(self) -> bytes:
        """The last events, once the target's stream has ended."""


def translator(asked: Asked, model: str) -> Translator:
    """The translator of a request whose target speaks the other of two dialects.

    Args:
        asked: the request.
        model: its name there.

    Raises:
        TidemillError: kind UNSUPPORTED: it asks for what the other dialect has not.
    """
    from tidemill.gateway.translate.chat_to_messages import ChatToMessages
    from tidemill.gateway.translate.messages_to_chat import MessagesToChat

    make = ChatToMessages if asked.path == CHAT else MessagesToChat
    try:
        return make(asked, model)
    except MALFORMED as error:
        raise bad_request(None, f"the body is malformed: {type(error).__name__}") from None


MALFORMED = (KeyError, IndexError, TypeError, AttributeError, ValueError)
"""What bodies that are not as documented make translation raise."""
