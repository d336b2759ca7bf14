"""What a request reserves of its caller's quotas, and what it is charged in the end.

docs/usage.md states the charge of each kind of request. A request that its client leaves, or that
its deadline ends, is charged its prompt, which may have been computed; one that an error of the
server ends is charged nothing.
"""

from __future__ import annotations

from tidemill.base.errors import ErrorKind
from tidemill.contract.request import FinishReason
from tidemill.generation.caller import UNLIMITED, Reservation
from tidemill.generation.choices import TOOL_CALLS
from tidemill.generation.prepare import Prepared
from tidemill.generation.vectors import PreparedInputs
from tidemill.server.host.served import ServedModel

_CHARGED = frozenset(
    {
        *(reason.value for reason in FinishReason if reason is not FinishReason.ERROR),
        *(TOOL_CALLS, ErrorKind.TIMEOUT.value),
    }
)


async def reserve_generation(model: ServedModel, prepared: Prepared) -> Reservation:
    """Reserve what a generation may use.

    Without a `max_tokens` of the request its answers may fill the context; their expected length is
    what admission control has learned.

    Raises:
        Rejection: 429, naming the limit that has no room.
    """
    asked = prepared.request
    quota = asked.caller.quota
    if quota is None:
        return UNLIMITED
    most = expected = 0
    if not asked.scored:
        stated = asked.sampling.max_tokens is not None
        for sampling in prepared.sampling:
            tokens = sampling.max_tokens or 1
            most += sampling.width * tokens
            if not stated:
                tokens = model.admission.expected_tokens(asked.caller, tokens)
            expected += sampling.width * tokens
    return await quota.reserve(model.info.model, prepared.prompt_tokens, expected, most)


async def reserve_inputs(model: ServedModel, prepared: PreparedInputs) -> Reservation:
    """Reserve the tokens of inputs without generation.

    Raises:
        Rejection: 429, naming the limit that has no room.
    """
    quota = prepared.caller.quota
    if quota is None:
        return UNLIMITED
    return await quota.reserve(model.info.model, prepared.prompt_tokens, 0, 0)


def settle(held: Reservation, reason: str, *, prompt: int, cached: int, generated: int) -> None:
    """Charge a request that was submitted to the engine.

    Args:
        held: what it reserved.
        reason: why it ended: a finish reason, or the kind of an error.
        prompt, cached, generated: its tokens.
    """
    if reason in _CHARGED:
        held.settle(prompt, cached, generated)
    else:
        held.release()
