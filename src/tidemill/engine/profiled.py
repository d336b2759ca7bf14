"""A profile of a supervised engine, taken by its owner."""

from __future__ import annotations

import asyncio

from tidemill.contract.profile import EngineProfile
from tidemill.contract.wire import EndProfile, StartProfile
from tidemill.engine.connection import unavailable
from tidemill.engine.owned_memory import Supervised


async def take_profile(
    engine: Supervised, seconds: float, *, events: int = 0, rates: bool = True
) -> EngineProfile:
    """Watch an engine for so long. A caller that is cancelled ends the profile at once.

    Args:
        engine: the engine.
        seconds: how long.
        events: records of the trace, at most.
        rates: measure what the machine can do first, if that is not known.

    Raises:
        TidemillError: UNAVAILABLE if the engine does not run, or ends meanwhile; OVERLOADED while
            another profile of it is taken.
    """
    if (problem := engine.problem) is not None:
        raise unavailable(problem)
    connection = engine.connection
    begun = 0

    def start(nonce: int) -> StartProfile:
        nonlocal begun
        begun = nonce
        return StartProfile(nonce, events, rates)

    try:
        await connection.profile(start)
        try:
            async with asyncio.timeout(seconds):
                await connection.wait_lost()
        except TimeoutError:
            found = await connection.profile(lambda nonce: EndProfile(nonce, begun))
            assert found is not None
            return found
        raise unavailable("the engine ended while its profile was taken")
    except asyncio.CancelledError:
        connection.send(EndProfile(0, begun))
        raise
