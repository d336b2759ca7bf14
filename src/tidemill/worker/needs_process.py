"""`python -m tidemill.worker.needs_process`: an `EngineConfig` on standard input becomes its
`MemoryNeeds` on standard output, both as JSON.

For the API process, which imports neither numpy nor what reads weights.
"""

from __future__ import annotations

import sys

import msgspec

from tidemill.base.errors import TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.contract.request import RequestError
from tidemill.worker.needs import memory_needs


def main() -> None:
    """Read, compute, write."""
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    found: MemoryNeeds | RequestError
    try:
        found = memory_needs(config)
    except TidemillError as error:
        found = RequestError(error.kind, error.message, error.param, error.retryable)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
