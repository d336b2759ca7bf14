"""What models need in memory, computed in a process of its own: `python -m
tidemill.executor.needs`.

Reading headers takes numpy, which a server's API process does not import. Every line on stdin is an
`EngineConfig` in JSON; for each, a line with a `NeedsAnswer` goes to stdout.
"""

from __future__ import annotations

import os
import sys

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.contract.request import RequestError


class NeedsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model needs, or why that cannot be said."""

    needs: MemoryNeeds | None = None
    error: RequestError | None = None


def answer(line: bytes) -> NeedsAnswer:
    """The answer to a line of input."""
    try:
        config = msgspec.json.decode(line, type=EngineConfig)
        from tidemill.worker.needs import memory_needs

        return NeedsAnswer(memory_needs(config))
    except TidemillError as error:
        return NeedsAnswer(error=RequestError(error.kind, error.message, error.param))
    except msgspec.DecodeError as error:
        return NeedsAnswer(error=RequestError(ErrorKind.CONFIG, f"invalid configuration: {error}"))
    except Exception as error:
        text = f"the model's files could not be read: {error!r}"
        return NeedsAnswer(error=RequestError(ErrorKind.INTERNAL, text))


def main() -> None:
    """See the module docstring."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of libraries must not mix with the answers
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(answer(line)) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
