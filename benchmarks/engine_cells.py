"""Cells without a server: decoding, prefill, batches, depth, growth, by the engines themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import kernels
import models
from engines import (
    OURS,
    Contest,
    Engine,
    Samples,
    contest,
    opened,
    read_rate,
)
from rows import Outcome, Row, Target

SHORT = 128  # tokens already cached where depth is not the subject


@dataclass(frozen=True)
class How:
    """How thoroughly to measure."""

    repetitions: int = 3
    quick: bool = False


def _named(kind: str) -> str:
    return {"bf16": "bf16"}.get(kind, kind.upper())


def _files(shape: str, kind: str, *names: str) -> dict[str, Path]:
    return {name: models.gguf_file(shape, kind) for name in names}


def _measured(found: Contest) -> dict[str, object]:
    return {
        "samples": {name: asdict(s) for name, s in found.samples.items()},
        "said": found.said,
        "missing": found.missing,
    }


def _side(found: Contest, peer: str, unit: str) -> tuple[str, Samples | None]:
    """A side's figure as text: the fastest setting's median, or why there is none."""
    best = found.best(peer)
    if best is None:
        return f"none: {found.missing.get(peer, 'not measured')[:160]}".replace("|", "/"), None
    name, samples = best
    setting = "" if peer == OURS else f" ({name.partition(': ')[2]})"
    return f"{samples.median:.4g} {unit}{setting}", samples


def _compare(
    key: str, work: str, found: Contest, target: Target | None, unit: str, peer: str = "llama_cpp"
) -> Row:
    """Ours against a peer's fastest setting, as a ratio of medians."""
    ours, mine = _side(found, OURS, unit)
    theirs, other = _side(found, peer, unit)
    ratio = mine.median / other.median if mine and other else float("nan")
    read = mine.read if mine else 0.0
    return Row(key, work, ours, theirs, ratio, target, "x", read)


def decode(how: How, shape: str, kind: str, at_least: float) -> Outcome:
    """One stream; also the share of the read, counting weights and KV."""
    steps = 16 if how.quick else 48
    names = [OURS, "llama_cpp"]
    all_models = _files(shape, kind, *names)
    if shape.startswith("qwen") and kind == "bf16" and not how.quick:
        all_models["transformers"] = models.harness.make_model(shape)
    found = contest(
        all_models, lambda e: steps / e.call("decode", sequences=1, depth=SHORT, tokens=steps),
        how.repetitions, context=512,
        prepare=lambda e: e.call("prepare", sequences=1, depth=SHORT),
    )  # fmt: skip
    key, work = f"decode-{shape}-{kind}", f"decode, 1 stream, {shape}, {_named(kind)}"
    rows = [_compare(key, work, found, Target(at_least, "x"), "tok/s")]
    if (best := found.best(OURS)) is not None:
        each = models.tensor_bytes(all_models[OURS])
        each += SHORT * found.said[best[0]]["kv_bytes_per_token"]
        share = best[1].share_of_read(each)
        text = f"{each * best[1].median / 1e9:.1f} GB/s"
        rows.append(Row(f"{key}-read", f"{work}: share of the read", text, "", share,
                        Target(0.9, "%"), "", best[1].read))  # fmt: skip
    if "transformers" in all_models:
        rows.append(_compare(f"{key}-hf", f"{work}, beside transformers (bf16)", found, None,
                             "tok/s", "transformers"))  # fmt: skip
    return Outcome(rows, _measured(found))


def depth(how: How, at: int) -> Outcome:
    """One stream with a long context; Q8_0 weights, caches of 16 bits."""
    steps = 8 if how.quick else 24
    shape, kind = "qwen3-0.6b", "q8_0"
    files = _files(shape, kind, OURS, "llama_cpp")
    found = contest(
        files, lambda e: steps / e.call("decode", sequences=1, depth=at, tokens=steps),
        how.repetitions, context=at + 128,
        prepare=lambda e: e.call("prepare", sequences=1, depth=at),
    )  # fmt: skip
    key, work = f"depth-{at}", f"decode, 1 stream at depth {at}, {shape}, {_named(kind)}"
    rows = [_compare(key, work, found, Target(1.3, "x"), "tok/s")]
    if (best := found.best(OURS)) is not None:
        cached = at * found.said[best[0]]["kv_bytes_per_token"]
        weights = models.tensor_bytes(files[OURS])
        # What attention alone reads and takes: a step here, less one with almost no context.
        with opened(OURS, model=str(files[OURS]), context=512, sequences=1) as (engine, _):
            short = Samples()
            for _ in range(how.repetitions):
                before = read_rate()
                short.values.append(engine.call("decode", sequences=1, depth=32, tokens=steps))
                short.reads.append((before + read_rate()) / 2)
        alone = 1 / best[1].median - short.median / steps
        reached = cached / alone / best[1].read
        whole = best[1].share_of_read(weights + cached)
        text = f"{cached / alone / 1e9:.1f} GB/s of KV; whole step {whole:.0%} of the read"
        rows.append(Row(f"{key}-read", f"{work}: attention's share of the read", text, "", reached,
                        Target(0.8, "%"), "", best[1].read))  # fmt: skip
    return Outcome(rows, _measured(found))


def prefill(how: How, tokens: int, kind: str, at_least: float) -> Outcome:
    """A prompt to its first token."""
    shape = "qwen3-0.6b"
    all_models = _files(shape, kind, OURS, "llama_cpp")
    if kind == "bf16" and tokens == 512 and not how.quick:
        all_models["transformers"] = models.harness.make_model(shape)
    found = contest(
        all_models, lambda e: tokens / e.call("prefill", tokens=tokens), how.repetitions,
        context=tokens + 64,
    )  # fmt: skip
    key, work = f"prefill-{tokens}-{kind}", f"prefill {tokens}, {shape}, {_named(kind)}"
    rows = [_compare(key, work, found, Target(at_least, "x"), "tok/s")]
    if "transformers" in all_models:
        rows.append(_compare(f"{key}-hf", f"{work}, beside transformers (bf16)", found, None,
                             "tok/s", "transformers"))  # fmt: skip
    return Outcome(rows, _measured(found))


def batch(how: How, sequences: int, kind: str, at_least: float) -> Outcome:
    """Many sequences decoding, no server."""
    steps = 4 if how.quick else 12
    shape = "qwen3-0.6b"
    found = contest(
        _files(shape, kind, OURS, "llama_cpp"),
        lambda e: (
            sequences * steps / e.call("decode", sequences=sequences, depth=SHORT, tokens=steps)
        ),
        how.repetitions, context=256, sequences=sequences,
        prepare=lambda e: e.call("prepare", sequences=sequences, depth=SHORT),
    )  # fmt: skip
    work = f"{sequences} sequences decoding, no server, {shape}, {_named(kind)}"
    row = _compare(f"batch-{sequences}-{kind}", work, found, Target(at_least, "x"), "tok/s")
    return Outcome([row], _measured(found))


BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
# A share of the roofline that falls by more than this from one point to the next is a knee.
KNEE = 0.75
Q8_BYTES = 34 / 32  # of a weight of Q8_0


def growth(how: How) -> Outcome:
    """Step time over batch size and over context, beside what the machine's two limits allow."""
    shape, kind, steps = "qwen3-0.6b", "q8_0", 4 if how.quick else 10
    path = models.gguf_file(shape, kind)
    weights = models.tensor_bytes(path)
    program = kernels.build()
    points: dict[str, list[dict[str, float]]] = {"batch": [], "context": []}
    sweeps = {
        "batch": [(b, SHORT) for b in BATCHES],
        "context": [(1, c) for c in CONTEXTS if c <= (8192 if how.quick else 32768)],
    }
    for name, sweep in sweeps.items():
        widest, deepest = max(s for s, _ in sweep), max(d for _, d in sweep)
        with opened(
            OURS, model=str(path), context=deepest + 64, sequences=widest
        ) as (engine, said):  # fmt: skip
            engine.call("prepare", sequences=widest, depth=deepest)
            for sequences, at in sweep:
                point = _point(engine, how, sequences, at, steps, weights, said)
                point["computing"] = 2 * sequences * weights / Q8_BYTES / kernels.int8_peak(program)
                points[name].append(point)
    rows = []
    for name, of in points.items():
        # One limit for all points: the machine's read swings more between them than they do.
        read = median(p["read"] for p in of)
        for p in of:
            p["roofline"] = max(p["bytes"] / read, p["computing"])
        shares = [p["roofline"] / p["seconds"] for p in of]
        worst = min(b / a for a, b in pairwise(shares))
        text = ", ".join(
            f"{p['x']:.0f}: {1e3 * p['seconds']:.1f} ms ({s:.0%})"
            for p, s in zip(of, shares, strict=True)
        )
        rows.append(Row(
            f"growth-{name}", f"step time by {name} size, {shape}, {_named(kind)}: share of the "
            "roofline kept from each point to the next, at worst", text, "", worst,
            Target(KNEE, "x"), "", read,
        ))  # fmt: skip
    return Outcome(rows, points)


def _point(
    engine: Engine, how: How, sequences: int, at: int, steps: int, weights: int,
    said: Mapping[str, float],
) -> dict[str, float]:  # fmt: skip
    samples = Samples()
    for _ in range(how.repetitions):
        before = read_rate()
        samples.values.append(engine.call("decode", sequences=sequences, depth=at, tokens=steps))
        samples.reads.append((before + read_rate()) / 2)
    read = weights + sequences * at * said["kv_bytes_per_token"]
    return {
        "x": sequences if sequences > 1 or at == SHORT else at,
        "seconds": samples.median / steps,
        "bytes": read,
        "read": samples.read,
    }
