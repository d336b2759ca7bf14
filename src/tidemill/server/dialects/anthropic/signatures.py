"""Signatures of thinking: that a thinking block which comes back is as this server wrote it.

A signature is base64 of a kind, a MAC (HMAC-SHA256 over the kind and the thinking) and, where the
thinking was not shown (``display: omitted``), the thinking itself, so that the conversation can go
on with it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import zlib

KEY_VARIABLE = "TIDEMILL_SIGNATURE_KEY"
"""Environment variable: a secret by which signatures outlive the server; else they end with it."""

_SHOWN, _OMITTED = b"\x01", b"\x02"
_MAC_BYTES = 32
_MOST_CHARS = 2**24


class Signer:
    """Signs and verifies.

    Args:
        secret: of the MACs; empty: drawn.
    """

    def __init__(self, secret: bytes = b"") -> None:
        self._key = secret or secrets.token_bytes(32)

    @classmethod
    def from_environment(cls) -> Signer:
        """With the secret of `KEY_VARIABLE`, if it is set."""
        return cls(os.environ.get(KEY_VARIABLE, "").encode())

    def sign(self, thinking: str, *, shown: bool = True) -> str:
        """The signature of a thinking; it holds the text unless that is shown."""
        kind, text = (_SHOWN if shown else _OMITTED), thinking.encode()
        held = b"" if shown else zlib.compress(text)
        return base64.b64encode(kind + self._mac(kind, text) + held).decode()

    def verified(self, thinking: str, signature: str) -> str | None:
        """The thinking that a block stands for; None where the signature is not valid for it."""
        try:
            data = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return None
        kind, mac, held = data[:1], data[1 : 1 + _MAC_BYTES], data[1 + _MAC_BYTES :]
        text = thinking.encode()
        if kind == _OMITTED and not thinking:
            inflater = zlib.decompressobj()
            try:
                text = inflater.decompress(held, _MOST_CHARS)
            except zlib.error:
                return None
        elif kind != _SHOWN or held:
            return None
        return text.decode() if hmac.compare_digest(self._mac(kind, text), mac) else None

    def _mac(self, kind: bytes, text: bytes) -> bytes:
        return hmac.digest(self._key, kind + text, "sha256")
