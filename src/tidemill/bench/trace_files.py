"""Published traces of production traffic, as requests with times, lengths and prefix hashes.

| format | file | fields |
|---|---|---|
| azure | CSV | TIMESTAMP, ContextTokens, GeneratedTokens (2023 and 2024) |
| burstgpt | CSV | Timestamp (s), Request tokens, Response tokens; failures have no response |
| mooncake | JSONL | timestamp (ms), input_length, output_length, hash_ids of blocks of 512 tokens |
| plain | JSONL | timestamp (s), input, output; model, where it is another one |
| audit | JSONL | of `tidemill audit export`: arrivals, lengths, what was cached |
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tidemill.base.errors import config_error
from tidemill.bench.words import Segment

MOONCAKE_BLOCK = 512


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        due: seconds from the trace's first request.
        input_tokens, output_tokens: lengths.
        prefix: segments that requests with equal hashes share; empty: nothing is known.
        model: the name that it is sent to; None: nothing is known.
    """

    due: float
    input_tokens: int
    output_tokens: int
    prefix: tuple[Segment, ...] = field(default=())
    model: str | None = None


def _azure_seconds(text: str) -> float:
    """2023: seven digits of a second, no zone; 2024: six and +00:00."""
    whole, _, fraction = text.strip().partition("+")[0].partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return moment.timestamp() + float(f"0.{fraction or 0}")


def _azure(row: dict[str, str]) -> TraceRequest:
    return TraceRequest(
        _azure_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"])
    )


def _burstgpt(row: dict[str, str]) -> TraceRequest:
    return TraceRequest(
        float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"])
    )


def _mooncake(row: dict[str, object]) -> TraceRequest:
    length = int(str(row["input_length"]))
    left, prefix = length, []
    ids = row.get("hash_ids") or []
    assert isinstance(ids, list)
    for block in ids:
        taken = min(MOONCAKE_BLOCK, left)
        if taken > 0:
            prefix.append(Segment(int(block), taken))
        left -= taken
    seconds = float(str(row["timestamp"])) / 1000
    return TraceRequest(seconds, length, int(str(row["output_length"])), tuple(prefix))


def _plain(row: dict[str, object]) -> TraceRequest:
    return TraceRequest(
        float(str(row["timestamp"])),
        int(str(row["input"])),
        int(str(row["output"])),
        model=str(row["model"]) if row.get("model") else None,
    )


def _audit(row: dict[str, object]) -> TraceRequest:
    """A row of the audit log; of anything but an answered request, 0 tokens. What was found in the
    cache becomes a beginning that requests of the same client share."""
    detail = row.get("detail")
    if row.get("kind") != "request" or not isinstance(detail, dict):
        return TraceRequest(0.0, 0, 0)
    given, cached = int(detail.get("prompt", 0)), int(detail.get("cached", 0))
    prefix = (Segment(_key_of(str(detail.get("client", ""))), min(cached, given)),)
    return TraceRequest(
        float(detail["at"]) / 1000, given, int(detail.get("generated", 0)), prefix if cached else ()
    )


def _key_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


# Fields that identify a format -> its reader.
_CSV: dict[str, Callable[[dict[str, str]], TraceRequest]] = {
    "ContextTokens": _azure,
    "Request tokens": _burstgpt,
}
_JSONL: dict[str, Callable[[dict[str, object]], TraceRequest]] = {
    "chain": _audit,
    "input_length": _mooncake,
    "input": _plain,
}


def _rows(path: Path, lines: list[str]) -> Iterator[tuple[int, Callable[[], TraceRequest]]]:
    first = lines[0] if lines else ""
    if first.lstrip().startswith("{"):
        kind = next((read for name, read in _JSONL.items() if f'"{name}"' in first), None)
        if kind is not None:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, lambda line=line: kind(json.loads(line))  # type: ignore[misc]
            return
    else:
        reader = csv.DictReader(lines)
        names = reader.fieldnames or []
        read = next((read for name, read in _CSV.items() if name in names), None)
        if read is not None:
            for row in reader:
                yield reader.line_num, lambda row=row: read(row)  # type: ignore[misc]
            return
    raise config_error(
        "trace",
        f"{path} is no known trace: expected Azure's CSV (ContextTokens), BurstGPT's CSV "
        "(Request tokens), Mooncake's JSONL (input_length), what `tidemill audit export` "
        "writes, or JSONL with timestamp, input, output",
    )


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a trace in the order of their times, the first at 0 s. Rows without a
    prompt or an answer (failures) are left out.

    Raises:
        TidemillError: CONFIG naming the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise config_error("trace", f"cannot read {path}: {error}") from error
    found: list[TraceRequest] = []
    for number, read in _rows(path, lines):
        try:
            request = read()
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise config_error("trace", f"{path}, line {number}: {error!r}") from error
        if request.input_tokens > 0 and request.output_tokens > 0:
            found.append(request)
    if not found:
        raise config_error("trace", f"{path} holds no request with a prompt and an answer")
    return _from_zero(found)


def _from_zero(found: Iterable[TraceRequest]) -> list[TraceRequest]:
    ordered = sorted(found, key=lambda request: request.due)
    zero = ordered[0].due
    return [replace(request, due=request.due - zero) for request in ordered]
