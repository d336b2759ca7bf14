"""What the adapters of a request mean for its sequences."""

from __future__ import annotations

from tidemill.base.errors import bad_request
from tidemill.contract.request import AdapterUse, EngineRequest


def check_adapters(request: EngineRequest) -> None:
    """Raises BAD_REQUEST for an activated adapter that the prompt does not invoke, for one among
    several, and for a prompt adapter that is not used as it was trained."""
    for use in request.adapters:
        if use.virtual_tokens:
            _check_prompt_adapter(request, use)
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


def _check_prompt_adapter(request: EngineRequest, use: AdapterUse) -> None:
    if len(request.adapters) > 1 or use.scale != 1.0:
        raise bad_request(
            "adapter",
            f"the prompt adapter {use.name!r} is neither scaled nor added to others: use it alone "
            "and with scale 1",
        )
    pooling = request.pooling
    if pooling is not None and (pooling.kind != "last" or pooling.second):
        raise bad_request(
            "adapter",
            f"the prompt adapter {use.name!r} puts vectors in front of the input, which this "
            "model's pooling does not allow for: only that of the last token does",
        )


def virtual_tokens(request: EngineRequest) -> int:
    """How many vectors a prompt adapter puts in front of the request's prompt."""
    return sum(use.virtual_tokens for use in request.adapters)


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
