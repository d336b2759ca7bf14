"""Kinds of targets: what each speaks, how it is asked, and how it says that it is well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"

_OPENAI = frozenset(
    {
        *(CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"),
    }
)
_RANKING = frozenset({"/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score"})
_TOKENS = frozenset({"/tokenize", "/detokenize"})
_OLLAMA = frozenset({"/api/chat", "/api/generate", "/api/embed", "/api/embeddings"})
_ANTHROPIC = frozenset({MESSAGES, "/v1/messages/count_tokens"})


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of servers.

    Attributes:
        routes: paths that it serves as they come; None: every one that a Tidemill server serves.
        probe: a GET that succeeds while it can answer.
        key_header: of its key; the key follows `key_prefix`.
        headers: that each request has.
        salted: takes `cache_salt`.
        usage: a stream's usage must be asked for with `stream_options`.
        outside: belongs to somebody else, unless the configuration says otherwise.
        continues: tokens depend on the request and its seed alone, so that an answer that one
            target began can be gone on with by another.
    """

    routes: frozenset[str] | None
    probe: str = "/v1/models"
    key_header: bytes = b"authorization"
    key_prefix: bytes = b"Bearer "
    headers: tuple[tuple[bytes, bytes], ...] = ()
    salted: bool = False
    usage: bool = True
    outside: bool = False
    continues: bool = False

    def serves(self, path: str) -> bool:
        """Whether it answers a route itself."""
        return self.routes is None or path in self.routes


KINDS: Mapping[str, Kind] = {
    "tidemill": Kind(None, "/readyz", salted=True, continues=True),
    "vllm": Kind(_OPENAI | _RANKING | _TOKENS, "/health", salted=True),
    "sglang": Kind(_OPENAI | _RANKING, "/health"),
    "llamacpp": Kind(_OPENAI | _RANKING | {"/completion", "/infill"}, "/health"),
    "ollama": Kind(_OPENAI | _OLLAMA, "/api/version"),
    "openai": Kind(_OPENAI, outside=True),
    "anthropic": Kind(
        _ANTHROPIC,
        key_header=b"x-api-key",
        key_prefix=b"",
        headers=((b"anthropic-version", b"2023-06-01"),),
        usage=False,
        outside=True,
    ),
}
"""By the name that the configuration calls them."""
