"""What a model will take in memory, asked of a process that reads its headers and ends."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.contract.request import RequestError, exception_of
from tidemill.server.host.switching import Need

SECONDS = 60.0
"""Time that reading the headers may take."""

_COMMAND = (sys.executable, "-P", "-m", "tidemill.worker.needs_process")

MOST_CONTEXTS = 4
"""A KV cache holds at most so many requests of full length, or `MOST_TOKENS` if that is more."""

MOST_TOKENS = 2**17

LEAST_TOKENS = 2**14
"""Of the context of a model for which nobody said one: it shrinks so far before models have to take
turns."""


async def ask_needs(config: EngineConfig) -> MemoryNeeds:
    """What an engine of this configuration needs.

    Raises:
        TidemillError: the model cannot be read.
    """
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate(msgspec.json.encode(config))
    except TimeoutError:
        raise _too_slow(config) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _answer(config, process.returncode, out)


def read_needs(config: EngineConfig) -> MemoryNeeds:
    """As `ask_needs`, for a thread; it blocks."""
    import subprocess

    try:
        done = subprocess.run(
            _COMMAND, input=msgspec.json.encode(config), stdout=subprocess.PIPE, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _too_slow(config) from None
    return _answer(config, done.returncode, done.stdout)


def _too_slow(config: EngineConfig) -> TidemillError:
    return TidemillError(
        ErrorKind.UNAVAILABLE,
        f"the headers of {config.model} could not be read within {SECONDS:g} s",
    )


def _answer(config: EngineConfig, code: int | None, out: bytes) -> MemoryNeeds:
    if code:
        raise TidemillError(
            ErrorKind.INTERNAL, f"reading the headers of {config.model} failed; see the log"
        )
    if b'"weights"' in out:
        return msgspec.json.decode(out, type=MemoryNeeds)
    raise exception_of(msgspec.json.decode(out, type=RequestError))


def need_of(needs: MemoryNeeds, config: EngineConfig) -> Need:
    """A model's memory as the host's policy sees it.

    A KV cache size that is configured is kept; else it may be anything from one request of full
    length to a few of them. A context that nobody bounded shrinks to the memory there is.
    """
    fixed = needs.total(0)
    if config.kv_memory is not None:
        return Need(fixed, config.kv_memory, config.kv_memory)
    tokens = max(MOST_CONTEXTS * needs.context, MOST_TOKENS)
    most = tokens * needs.token_bytes + 2 * config.max_num_seqs * needs.state
    least = needs.least_cache
    if config.max_model_len is None:
        least = min(least, LEAST_TOKENS * needs.token_bytes + 2 * needs.state)
    return Need(fixed, least, max(least, most))
