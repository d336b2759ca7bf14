"""The position of a streamed answer: what another server needs to go on with exactly there.

A client that wants to (a gateway, say) asks for positions with the header `POSITION` of value 0, on
any route that streams. Then a *mark* follows the parts of each step: a comment of the stream of
events, or a line of its own. What came before the last mark that arrived is the answer so far; what
came after it is to be forgotten. `Position.add` collects marks, and `Position.body` makes the same
request's body for another server, which answers with what follows, under the same ids. The header
then has the length of what is put in front of the body.

The answer goes on with tokens that are known, which are read like a prompt; it is not made again.
"""

from __future__ import annotations

import msgspec

HEADER = "x-tidemill-position"
COMMENT = b": tidemill "
"""What a mark in a stream of events begins with; it ends with an empty line."""

MEMBER = b'{"tidemill":'
"""What a mark begins with that is a line; it ends with a further brace."""

MAX_POSITION_BYTES = 64 * 2**20


class Begun(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of an answer is decided at its begin and not by its request.

    Attributes:
        key: hexadecimal: ids and seeds of the answer follow from it.
        created: seconds since the epoch.
        identity: of the model (`EngineInfo.identity`).
        prompts: digest of the prompts' tokens, hexadecimal.
    """

    key: str
    created: float
    identity: str = ""
    prompts: str = ""


class Told(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One output of one choice, as the client has it.

    Attributes:
        prompt, choice: of the request's prompts, and of that prompt's choices.
        tokens: accepted tokens, the end token included.
        finish: why the engine ended it; None: it did not.
        stop_token: that ended it.
        cached: prompt tokens that were found in the cache, in its first output.
    """

    prompt: int
    choice: int
    tokens: tuple[int, ...]
    finish: str | None = None
    stop_token: int | None = None
    cached: int | None = None


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of an answer since the mark before.

    Attributes:
        begun: in the first mark.
        told: outputs, in their order.
        moved: the server ends the answer here, so that another one goes on with it.
    """

    begun: Begun | None = None
    told: tuple[Told, ...] = ()
    moved: bool = False


class Position(msgspec.Struct, omit_defaults=True):
    """All marks of an answer so far.

    Attributes:
        begun: None: the answer has not begun, and the request is sent anew.
        told: see `Mark`. Not joined: events may be numbered.
    """

    begun: Begun | None = None
    told: list[Told] = []

    def add(self, mark: Mark) -> None:
        """Take a further mark."""
        self.begun = self.begun or mark.begun
        self.told += mark.told

    def tokens(self, prompt: int, choices: int) -> tuple[tuple[int, ...], ...]:
        """The tokens of each of a prompt's choices."""
        found: list[list[int]] = [[] for _ in range(choices)]
        for one in self.told:
            if one.prompt == prompt:
                found[one.choice] += one.tokens
        return tuple(map(tuple, found))

    def body(self, body: bytes) -> tuple[str, bytes]:
        """The value of the header, and the body, of the request for the rest of the answer."""
        if self.begun is None:
            return "0", body
        own = encoder.encode(self)
        return str(len(own)), own + body


encoder = msgspec.json.Encoder()
mark_decoder = msgspec.json.Decoder(Mark)
position_decoder = msgspec.json.Decoder(Position)


def mark_of(part: bytes) -> Mark | None:
    """The mark that a part of a stream is (an event without its empty line, or a line); None: it is
    none.

    Raises:
        msgspec.DecodeError: it begins like one.
    """
    if part.startswith(COMMENT):
        return mark_decoder.decode(part[len(COMMENT) :])
    if part.startswith(MEMBER):
        return mark_decoder.decode(part.rstrip()[len(MEMBER) : -1])
    return None
