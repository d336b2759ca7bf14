"""What the adapters of a request mean for its sequences."""

from __future__ import annotations

from tidemill.base.errors import bad_request
from tidemill.contract.request import EngineRequest


def check_adapters(request: EngineRequest) -> None:
    """Raises BAD_REQUEST for an activated adapter that the prompt does not invoke, and for one
    among several."""
    for use in request.adapters:
        if not use.invocation:
            continue
        if len(request.adapters) > 1:
            raise bad_request(
                "adapter", f"the activated adapter {use.name!r} is not added up with others"
            )
        if _last(request.prompt_token_ids, use.invocation) is None:
            raise bad_request(
                "adapter",
                f"the prompt does not invoke the adapter {use.name!r}: it applies from the tokens "
                f"{list(use.invocation)[:16]} on (alora_invocation_tokens), which must be in it",
            )


def invocation_start(request: EngineRequest) -> int:
    """Position from which the request's adapters apply: of an activated one that of the last
    occurrence of its invocation tokens in the prompt; 0 for others."""
    for use in request.adapters:
        if use.invocation:
            return _last(request.prompt_token_ids, use.invocation) or 0
    return 0


def _last(tokens: tuple[int, ...], wanted: tuple[int, ...]) -> int | None:
    """Where `wanted` occurs last in `tokens`."""
    count, first = len(wanted), wanted[0]
    for start in range(len(tokens) - count, -1, -1):
        if tokens[start] == first and tokens[start : start + count] == wanted:
            return start
    return None
