"""A target as it runs: its connections, load and health, and requests as it takes them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from tidemill.base.clock import wall
from tidemill.contract.position import HEADER
from tidemill.gateway.asked import Asked
from tidemill.gateway.config import RoutingConfig, TargetConfig
from tidemill.gateway.routing.health import Health
from tidemill.gateway.routing.homes import Trust
from tidemill.gateway.routing.load import Load
from tidemill.gateway.routing.policy import Facts
from tidemill.gateway.wire.pool import Pool

_TRUE = msgspec.Raw(b"true")
_POSITION = HEADER.encode()
_USAGE = msgspec.Raw(b'{"include_usage":true}')


@dataclass(slots=True)
class Account:
    """What a target has cost on one day (UTC).

    Attributes:
        day: days since the epoch.
        own: through this gateway.
        others: through others, by their names.
    """

    day: int = 0
    own: float = 0.0
    others: dict[str, float] = field(default_factory=dict)

    def turn(self, day: int) -> None:
        """It is that day; with another one everything begins anew."""
        if day != self.day:
            self.day, self.own = day, 0.0
            self.others.clear()

    def spent(self, day: int) -> float:
        """Altogether."""
        self.turn(day)
        return self.own + sum(self.others.values())


def today() -> int:
    """Days since the epoch, UTC."""
    return int(wall() // 86400)


class Target:
    """See the module docstring.

    Args:
        config: its part of the file.
        routing: how long is waited for it.

    Attributes:
        listed: the models that it said it has, where the file names none.
        engines: model -> what its engine is called; another one when what was cached is gone.
        roles: model, as it is called there -> what its engine is for (prefill, decode, both).
        protocol: see `contract.gateway`; None: it was not asked yet.
    """

    def __init__(self, config: TargetConfig, routing: RoutingConfig) -> None:
        self.config = config
        self.name = config.name
        self.kind = config.its
        self.where = config.where
        self.address = config.address
        self.load = Load()
        self.health = Health()
        self.pool = Pool(self.address, config.max_active, routing.connect_seconds)
        self.listed: Collection[str] = frozenset()
        self.protocol: int | None = None
        self.engines: dict[str, str] = {}
        self.roles: dict[str, str] = {}
        self.trust = Trust()
        self._names = dict(config.names)
        self.account = Account()
        self._head = self._make_head()

    def spent_like(self, before: Target) -> None:
        """What one of the same name has cost counts for this one's budget."""
        self.account = before.account

    # -- what it has ---------------------------------------------------------------------------

    @property
    def models(self) -> list[str]:
        """Names here of what it serves."""
        return list(self._names) if self._names else sorted(self.listed)

    def has(self, model: str) -> bool:
        """Whether it serves a model."""
        return model in self._names if self._names else model in self.listed

    def prefills(self, model: str) -> bool:
        """Whether its engine of a model is there to compute prompts for others."""
        return self.roles.get(self.named(model)) == "prefill"

    @property
    def continues(self) -> bool:
        """Whether its streams can be gone on with, and it can go on with others'."""
        return self.kind.continues and self.protocol != 0

    def speaks(self, path: str) -> bool:
        """Whether it answers a route, as it is or translated."""
        from tidemill.gateway.translate.table import translated

        return self.kind.serves(path) or translated(self.kind, path) is not None

    @property
    def within_budget(self) -> bool:
        """It may still cost something today."""
        budget = self.config.budget
        return budget is None or self.account.spent(today()) < budget

    def cost(self, prompt: int, answer: int) -> float:
        """Of so many tokens."""
        price = self.config.price
        return (prompt * price.input + answer * price.output) / 1e6

    def spend(self, prompt: int, answer: int) -> None:
        """So many tokens were used."""
        self.account.turn(today())
        self.account.own += self.cost(prompt, answer)

    def facts(self, asked: Asked, now: float, cached: int, *, session: bool, home: bool) -> Facts:
        """It as a request sees it; `cached` in tokens of the prompt."""
        load, prompt = self.load, asked.prompt_tokens
        return Facts(
            *(self.name, load.waiting(now), min(cached, prompt), load.rate, load.floor(now)),
            *(load.active, load.given, self.cost(prompt, asked.expected)),
            *(self.config.carbon * (prompt + asked.expected) / 1e6, session, home),
        )

    # -- requests ------------------------------------------------------------------------------

    def request(self, asked: Asked, headers: Mapping[bytes, bytes]) -> bytes:
        """The bytes of a request, head and body.

        Args:
            asked: what is asked for, in a dialect that it speaks.
            headers: further ones.
        """
        members = dict(asked.members)
        if "model" in members or self.kind.routes is not None:
            members["model"] = msgspec.Raw(msgspec.json.encode(self.named(asked.model)))
        if asked.salt and self.kind.salted:
            members["cache_salt"] = msgspec.Raw(msgspec.json.encode(asked.salt))
        if asked.stream and asked.path in _WITH_USAGE and self.kind.usage:
            members["stream_options"] = _with_usage(members.get("stream_options"))
        body = msgspec.json.encode(members)
        if asked.stream and self.continues:
            headers = {**headers, _POSITION: b"%d" % len(asked.position)}
            body = asked.position + body
        return self.post(asked.path, body, headers)

    def named(self, model: str) -> str:
        """A model's name there."""
        return self._names.get(model, model)

    def post(self, path: str, body: bytes, headers: Mapping[bytes, bytes]) -> bytes:
        """A POST of a JSON body."""
        more = b"".join(b"%b: %b\r\n" % item for item in headers.items())
        length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        return b"POST " + self._path(path) + self._head + more + length + body

    def get(self, path: str) -> bytes:
        """A GET."""
        return b"GET " + self._path(path) + self._head + b"\r\n"

    def _path(self, path: str) -> bytes:
        return (self.address.path + path).encode()

    def _make_head(self) -> bytes:
        lines = [(b"host", self.address.authority.encode()), (b"user-agent", b"tidemill-gateway")]
        lines += self.kind.headers
        if self.config.key_env is not None:
            key = os.environ[self.config.key_env].strip().encode()
            lines.append((self.kind.key_header, self.kind.key_prefix + key))
        return b" HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % line for line in lines)


_WITH_USAGE = frozenset({"/v1/chat/completions", "/v1/completions"})


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    if options is None or bytes(options).strip() == b"null":
        return _USAGE
    try:
        found = msgspec.json.decode(options, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return options  # the target says what is wrong
    return msgspec.Raw(msgspec.json.encode({**found, "include_usage": _TRUE}))
