"""What a request asks for, as far as the gateway has to know: its body is decoded at its top alone,
and the rest goes on as it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tidemill.base.errors import bad_request
from tidemill.gateway.routing.prefixes import BLOCK_BYTES, keys_of
from tidemill.gateway.routing.privacy import OPEN, Verdict

BYTES_PER_TOKEN = 4.0
EXPECTED_TOKENS = 256
"""Of an answer of which nothing is known."""

MOST_TOKENS = 4096
"""That an answer without a bound of its own is reserved for."""

_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PROMPT = (
    *("tools", "system", "instructions", "messages", "prompt", "input", "inputs", "text_input"),
    *("query", "documents", "texts", "content", "text_1", "text_2"),
)
"""Members that make the prompt, in the order in which most templates put them."""

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")

_STREAMING = frozenset({"/api/chat", "/api/generate"})
"""Routes that stream unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        path: of the route, its parameters filled in.
        model: that it names; empty: none.
        members: of the body, each as its JSON text.
        stream: the answer is one.
        prompt: bytes of what the model reads.
        most: tokens that the answer may have; None: not said.
        session: requests with equal ones stay together; empty: none.
        salt: its prefixes are shared only with equal ones.
        verdict: where it may go.
        deadline: of the monotonic clock; None: none.
        position: from where its answer is gone on with (`contract.position`); empty: its begin.
        keys: of its prompt's blocks, for `Prefixes`.
        name: its request's id, which targets are told; empty: none.
    """

    path: str
    model: str
    members: Mapping[str, msgspec.Raw]
    stream: bool
    prompt: bytes
    most: int | None = None
    session: str = ""
    salt: str = ""
    verdict: Verdict = OPEN
    deadline: float | None = None
    position: bytes = b""
    keys: list[int] = field(default_factory=list)
    name: str = ""

    @property
    def prompt_tokens(self) -> int:
        """As estimated."""
        return max(1, round(len(self.prompt) / BYTES_PER_TOKEN))

    @property
    def home(self) -> bytes:
        """What it has in common with requests that should meet it, at every gateway: its session,
        or its prompt's first block; empty: nothing."""
        if self.session:
            return self.session.encode(errors="replace")
        return self.model.encode() + self.prompt[:BLOCK_BYTES] if self.keys else b""

    @property
    def expected(self) -> int:
        """Tokens of its answer, as estimated."""
        return min(EXPECTED_TOKENS, self.most or EXPECTED_TOKENS)

    def value(self, name: str) -> Any:
        """A member's value; None where it is absent."""
        raw = self.members.get(name)
        return None if raw is None else msgspec.json.decode(raw)

    def with_keys(self) -> Asked:
        """With the keys of its prompt's blocks."""
        return replace(self, keys=keys_of(f"{self.model}\0{self.salt}", self.prompt))

    def named(self, model: str) -> Asked:
        """The same request for another model."""
        raw = msgspec.Raw(msgspec.json.encode(model))
        members = {**self.members, "model": raw} if "model" in self.members else self.members
        return replace(self, model=model, members=members).with_keys()


def read(path: str, body: bytes, *, whole: bool = False, named: str = "") -> Asked:
    """What a body asks for.

    Args:
        path: of its route.
        body: JSON.
        whole: decode all of it and write it anew, so that what was looked at is what is sent: no
            member twice, nothing beside the JSON.
        named: the model, where the path has it.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    try:
        if whole:
            body = msgspec.json.encode(msgspec.json.decode(body))
        members = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request(None, "the body must be a JSON object") from None
    model = named or _text(members, "model") or ""
    stream = _flag(members, "stream")
    if stream is None:
        stream = path in _STREAMING or path.endswith("/generate_stream")
    found = [members[name] for name in _PROMPT if name in members]
    return Asked(
        path=path,
        model=model,
        members=members,
        stream=stream,
        prompt=b"".join(map(bytes, found)),
        most=min((n for n in (_number(members, k) for k in _LENGTHS) if n), default=None),
    )


def _text(members: Mapping[str, msgspec.Raw], name: str) -> str | None:
    raw = members.get(name)
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    if value is None or isinstance(value, str):
        return value
    raise bad_request(name, f"{name} must be a string")


def _flag(members: Mapping[str, msgspec.Raw], name: str) -> bool | None:
    raw = members.get(name)
    if raw is None:
        return None
    text = bytes(raw).strip()
    return {b"true": True, b"false": False}.get(text)


def _number(members: Mapping[str, msgspec.Raw], name: str) -> int | None:
    raw = members.get(name)
    text = b"" if raw is None else bytes(raw).strip()
    return int(text) if text.isdigit() and len(text) < 10 else None
