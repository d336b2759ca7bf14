"""Bounds that keep one client from exhausting the API process; each can be set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.base.errors import config_error
from tidemill.contract.sampling import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the HTTP API, checked before any work is done.

    The error response names the bound and the actual value. Its status is 400 for fields, 413 for
    bodies, 414 for URLs, 431 for heads and 408 for timeouts.

    Attributes:
        max_connections: further connections are answered 503 and closed.
        max_head_bytes, max_headers, max_url_bytes: of one request's head.
        head_timeout: seconds for a head to arrive on a new connection.
        keep_alive_timeout: seconds after which an idle connection is closed.
        max_pipelined: requests of one connection that may wait while one is answered.
        max_body_bytes: of one request.
        body_timeout: seconds for a body to arrive.
        body_idle_timeout: seconds without progress after which a body times out.
        max_bodies_bytes: of all bodies being received or parsed; shared by clients. Beyond: 429.
        max_answer_bytes: upper bound of one answer; of a streamed one, of its prompts' logprobs.
        max_answers_bytes: of answers that are buffered until they are complete, generated or
            expected; shared by clients. Beyond: 429.
        max_unread_bytes: of an answer that are buffered for a slow reader.
        slow_reader_timeout: seconds without progress after which a slow reader is disconnected.
        max_json_depth: nesting of a body.
        max_json_nodes: objects and lists of a body; the same bound applies to keys.
        max_json_values: values of a body (token ids, for instance).
        max_messages, max_tools: of one request.
        max_schema_bytes, max_schema_depth: of one JSON schema or grammar.
        max_prompts: prompts of one completions request.
        max_inputs: inputs of one embeddings request, documents or texts of one rerank or score.
        max_logprobs: alternatives whose logprobs are given at each position; raised to the size of
            the vocabulary, requests may ask for all (-1), which takes megabytes per token.
        max_n, max_logit_bias, max_stop, max_stop_chars, max_stop_token_ids: of one
            request; the defaults are also the maxima.
        max_stored_bytes: of responses and conversations that are kept; the oldest of the client
            that holds most are forgotten.
        max_active_choices: choices being generated and inputs being embedded, over all
            requests; shared by clients (`server.admission.shares`). Beyond: 429.
    """

    max_connections: int = 10_000
    max_head_bytes: int = 64 * 2**10
    max_headers: int = 128
    max_url_bytes: int = 8 * 2**10
    head_timeout: float = 30.0
    keep_alive_timeout: float = 75.0
    max_pipelined: int = 16
    max_body_bytes: int = 16 * 2**20
    body_timeout: float = 60.0
    body_idle_timeout: float = 15.0
    max_bodies_bytes: int = 64 * 2**20
    max_answer_bytes: int = 256 * 2**20
    max_answers_bytes: int = 512 * 2**20
    max_unread_bytes: int = 256 * 2**10
    slow_reader_timeout: float = 20.0
    max_json_depth: int = 64
    max_json_nodes: int = 65_536
    max_json_values: int = 2**21
    max_messages: int = 4096
    max_tools: int = 256
    max_schema_bytes: int = 256 * 2**10
    max_schema_depth: int = 48
    max_prompts: int = 256
    max_inputs: int = 2048
    max_n: int = MAX_CHOICES
    max_logprobs: int = 20
    max_logit_bias: int = MAX_LOGIT_BIAS
    max_stop: int = MAX_STOP_STRINGS
    max_stop_chars: int = MAX_STOP_STRING_CHARS
    max_stop_token_ids: int = MAX_STOP_TOKENS
    max_stored_bytes: int = 64 * 2**20
    max_active_choices: int = 4096

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Limits:
        """Bounds from ``name=value`` settings (`serve --limit`).

        Raises:
            TidemillError: kind CONFIG naming the setting.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, int | float] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            name = name.strip().replace("-", "_")
            if name not in names:
                known = ", ".join(names)
                raise config_error("limit", f"--limit has no {name!r}; known are {known}")
            default: int | float = getattr(_DEFAULTS, name)
            try:
                value = type(default)(text)
            except ValueError:
                value = 0
            if not 0 < value < math.inf:
                what = "a whole number" if isinstance(default, int) else "a number of seconds"
                raise config_error("limit", f"--limit {name} must be {what} above 0, not {text!r}")
            if name in FIXED and value > default:
                raise config_error("limit", f"--limit {name} is at most {default}, got {text}")
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]


FIXED = (
    *("max_n", "max_logit_bias"),
    *("max_stop", "max_stop_chars", "max_stop_token_ids"),
)
_DEFAULTS = Limits()
