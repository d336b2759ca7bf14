"""What constraints cost: 16 streams under 16 schemas beside 16 free ones, and a new schema's TTFT.

The 0.6B shape of `make_model.py`, q8_0, in process, so that nothing but the engine is measured.
Rounds of both kinds alternate; figures are medians. Free streams write as many tokens as the
constrained ones did (`ignore_eos`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import msgspec  # noqa: E402
from helpers.constrained import Brook, schema  # noqa: E402

STREAMS = 16
TOKENS = 64


def long_schema(index: int) -> dict[str, Any]:
    """A document that does not end within the run; each stream's has names of its own."""
    row = {
        "type": "object",
        "properties": {
            f"name_{index}": {"type": "string", "maxLength": 40},
            f"kind_{index}": {"enum": [f"kind {index} {i}" for i in range(8)]},
            f"count_{index}": {"type": "integer", "minimum": 0, "maximum": 9999},
            f"ratio_{index}": {"type": "number"},
            f"tags_{index}": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": [f"name_{index}", f"kind_{index}", f"count_{index}"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": row, "minItems": 50}


def batch(engine: Brook, round_: int, *, constrained: bool, tokens: list[int] | None) -> Any:
    """Send 16 requests together; seconds and tokens."""
    requests = []
    for i in range(STREAMS):
        phases = (schema(json.dumps(long_schema(i))),) if constrained else ()
        count = TOKENS if tokens is None else tokens[i]
        how = {"temperature": 1.0, "max_tokens": count, "seed": round_ * 100 + i}
        if not constrained:
            how["ignore_eos"] = True
        name = f"{'c' if constrained else 'f'}{round_}-{i}"
        requests.append(engine.request(name, f"Item {i}", phases, **how))
    begun = time.perf_counter()
    answers = engine.run(requests, 600)
    seconds = time.perf_counter() - begun
    return seconds, [len(a[0].tokens) for a in answers]


def first_token(engine: Brook, name: str, phases: tuple[Any, ...]) -> float:
    """Seconds to the first token of a lone request."""
    request = engine.request(
        name, "Hello", phases, max_tokens=1, temperature=1.0, ignore_eos=not phases
    )
    begun = time.perf_counter()
    engine.run([request])
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / ".work" / "models" / "qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = Brook(
        path=options.model, threads=None, quantize="q8_0", max_num_seqs=STREAMS, kv_memory=2**30
    )
    try:
        first_token(engine, "warm", (schema('{"type": "null"}'),))
        shares, rates = [], {"free": [], "constrained": []}
        for round_ in range(options.rounds + 1):
            seconds, tokens = batch(engine, round_, constrained=True, tokens=None)
            free_seconds, free_tokens = batch(engine, round_, constrained=False, tokens=tokens)
            if round_ == 0:
                continue  # compiles the languages
            rates["constrained"].append(sum(tokens) / seconds)
            rates["free"].append(sum(free_tokens) / free_seconds)
            shares.append(rates["constrained"][-1] / rates["free"][-1])
        gaps = []
        for i in range(25):
            free = first_token(engine, f"free-{i}", ())
            new = first_token(engine, f"new-{i}", (schema(json.dumps(long_schema(1000 + i))),))
            gaps.append(1000 * (new - free))
    finally:
        engine.close()
    found = {
        "free_tok_s": statistics.median(rates["free"]),
        "constrained_tok_s": statistics.median(rates["constrained"]),
        "share": statistics.median(shares),
        "shares": shares,
        "ttft_gap_ms_median": statistics.median(gaps),
        "ttft_gap_ms_worst": max(gaps),
    }
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
