"""Faults on demand, inside an engine process that knows nothing of them.

`faulty/sitecustomize.py` is loaded by every Python started with the environment made here, and
wraps the executor of an engine process. Nothing of the package can be asked to fail.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER = Path(__file__).parent / "faulty"


def fault_environment(faults: dict[str, int]) -> dict[str, str]:
    """What to add to a process's environment.

    Args:
        faults: kind of fault -> the token id that causes it by being in a prompt. Kinds: ``abort``
            (the process dies in the step), ``hang`` (the step never ends), ``raise`` (the step
            fails with an exception), ``memory`` (with a MemoryError when more than one row or more
            than 8 tokens are computed), ``submit`` (the plan is refused with an exception),
            ``message`` (the process ends as it tells of the request), ``receive`` (as it is given
            it),
            ``compile`` (the process dies while it compiles a grammar with "poison" in it; the token
            does not matter), ``sandbox`` (the grammar sandbox dies at "poison-segv", "poison-cpu"
            and "poison-memory" in a grammar; likewise).
    """
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "TIDEMILL_TEST_FAULTS": json.dumps(faults)}
