"""How side_by_side.py talks to an engine in a process of its own: a JSON line each way.

Standard library alone, because peers' environments import it too.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def serve(engine: object) -> None:
    """Answer calls of `engine`'s methods until standard input ends.

    A call is ``{"op": name, ...arguments}``, its answer ``{"value": ...}`` or ``{"error": text}``.
    What libraries print goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"value": getattr(engine, call.pop("op"))(**call)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
