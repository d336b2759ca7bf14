"""Thinking as one opaque text, for clients that keep a conversation themselves (`store: false`).

`reasoning.encrypted_content` of OpenAI hides the thinking of its models. A local model's thinking
is its owner's, and is in the answer anyway: this text is packed, with a checksum, and no secret.
"""

from __future__ import annotations

import base64
import binascii
import zlib

PREFIX = "tm1."
MAX_BYTES = 2**22


class SealError(ValueError):
    """A text that `seal` did not make; the message says so."""


def seal(text: str) -> str:
    """`text`, packed."""
    data = text.encode()
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(data, 1)).decode()


def unseal(sealed: str) -> str:
    """The text that `seal` packed.

    Raises:
        SealError: it is another server's, or damaged.
    """
    if not sealed.startswith(PREFIX):
        raise SealError(
            "another server made it, and this one cannot read it; leave the item out, or send its "
            "thinking as content"
        )
    try:
        packed = base64.urlsafe_b64decode(sealed[len(PREFIX) :].encode())
        reader = zlib.decompressobj()
        data = reader.decompress(packed, MAX_BYTES)
        if not reader.eof:
            raise SealError("it is damaged, or too long; leave the item out")
        return data.decode()
    except (binascii.Error, zlib.error, UnicodeError):
        raise SealError("it is damaged; leave the item out") from None
