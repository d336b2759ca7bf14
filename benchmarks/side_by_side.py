"""The proof: issue "The fastest CPU engine there is", its whole table of targets, cell by cell.

Every cell measures both sides in turn in one run, at least three times, beside the machine's read
bandwidth, and takes medians; a peer's figure is its fastest setting's (`engines.SETTINGS`). Peers
are installed on first use (peers.py), models made (models.py). Finished cells are kept in
docs/side_by_side/, a file for each kind of machine, so that a run can be interrupted and every
figure looked up; the table goes into that machine's section of docs/benchmarks.md.

    .venv/bin/python benchmarks/side_by_side.py [--only decode,http-16] [--fresh] [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import engine_cells
import harness
import own_cells
import peers
import plots
import server_cells
from engine_cells import How
from rows import Outcome, Row, markdown

RESULT = harness.DOC.parent / "side_by_side" / f"{harness.machine_kind()}.json"
SECTION = f"side_by_side {harness.machine_kind()}"
_DECODE = {"bf16": 1.0, "q8_0": 1.15, "q4_0": 1.35, "q4_k_m": 1.35}
_PREFILL = {
    512: {"bf16": 1.5, "q8_0": 3.5, "q4_0": 2.7, "q4_k_m": 2.4},
    2048: {"bf16": 1.5, "q8_0": 3.0, "q4_0": 3.0, "q4_k_m": 2.5},
}
_BATCH = {"q8_0": 4.0, "q4_k_m": 3.3}

Cell = Callable[[How], Outcome]
CELLS: dict[str, Cell] = {
    **{
        f"decode-{shape}-{kind}": partial(engine_cells.decode, shape=shape, kind=kind, at_least=x)
        for shape in ("qwen3-0.6b", "llama-3.2-1b")
        for kind, x in _DECODE.items()
    },
    **{f"depth-{at}": partial(engine_cells.depth, at=at) for at in (4096, 16384)},
    **{
        f"prefill-{tokens}-{kind}": partial(
            engine_cells.prefill, tokens=tokens, kind=kind, at_least=x
        )
        for tokens, kinds in _PREFILL.items()
        for kind, x in kinds.items()
    },
    **{
        f"batch-{n}-{kind}": partial(engine_cells.batch, sequences=n, kind=kind, at_least=x)
        for n in (16, 32)
        for kind, x in _BATCH.items()
    },
    **{f"http-{n}": partial(server_cells.http, concurrency=n) for n in (16, 1)},
    "shared": server_cells.shared_prompt,
    "start": own_cells.start,
    "memory": own_cells.memory,
    "overhead": own_cells.overhead,
    "brook": own_cells.brook,
    "growth": engine_cells.growth,
}

_AMX_DECODE = (
    "llama.cpp reads at the machine's bandwidth here (38.6 tok/s of Q8_0 are 24.4 GB/s, 63 of Q4_0 "
    "23.7, beside a plain read of 26), so that no reader of the same bytes can be faster by the "
    "factor wanted. Ours stays about there or below since weights are widened to bf16 for the "
    "tiles: profiled, a row's products take 90 % of a step, and of the 43 ns (4 bits) or 80 ns "
    "(8 bits) that a group of 32 rows and 32 of k takes a thread to read, 31 to 34 are "
    "instructions, and keep the processor from looking far ahead (5 vector instructions for 32 "
    "weights where int8 took one); asking for the stream in time mended a part of that. What it "
    "buys are the rows of many tokens: prefill in 8 and 4 bits is 1.4 to 2.3 times as fast as with "
    "int8 products on this machine, 32 sequences 1.2 to 1.6 times (what a tile keeps, kernels.md)."
)
_AMX_BATCH = (
    "rows wait for memory, and llama.cpp for arithmetic: it made 121 and 140 tok/s of Q8_0 (16 and "
    "32 sequences) in an hour in which this machine read 20.7 GB/s and 190 and 198 in one of 23.2, "
    "where ours went from 233 and 355 to 332 and 434: with Q4_K_M that was 3.28 and 3.36 times "
    "llama.cpp before and 2.97 and 2.98 after, though a step of ours is 5 to 6 % shorter since "
    "(Probabilities as scores come, kernels.md). The weights and KV of 16 sequences (0.89 GB with "
    "Q8_0, 0.65 with Q4_K_M) take 38 and 28 ms to be read at 23.2. Profiled with Q4_K_M, 16 "
    "sequences: products 54 % of a step, at 73 % of the read for what a group takes to be widened "
    "(what a tile keeps, kernels.md), attention 30 %, at 87 %, and 15 % the rest."
)
_AMX_HTTP = (
    "profiled with int8 weights (201 tok/s at a read of 25 GB/s): of 19 s 10 were 197 steps of 15 "
    "streams alone (51 ms; in process 48 % of one are products and 35 % attention, both reading "
    "at 24 to 26 GB/s), and 9 were 78 steps of 13 streams and 151 tokens of prompts (115 ms). "
    "Prompts are 1.3 times as fast since; the streams, more than half of the time, wait for "
    "memory, and with the Q8_0 weights that llama-server has, prompts are slower, for weights are "
    "widened:"
)
_AMX_HIT = (
    "a hit computes 40 tokens (56 before a block that begins alike was found too), and 67 to 77 ms "
    "of its 73 to 82 are the step: 40 tokens alone take 43, attention to 2,000 tokens 25. A miss "
    "is 2,040 tokens at AMX's rate, which has risen more. It is within what the hour decides: six "
    "pairs by hand on that day gave 4.2, 4.4, 4.5, 4.5, 4.5 and 5.2 %, of misses of 1.46 to 1.91 s."
)
_BANDWIDTH = (
    "this runs at the machine's read bandwidth (see the rows of shares), and llama.cpp's rates "
    "here are most of it too, so that reading the same bytes cannot be faster by the factor wanted."
)
_SCALES = (
    "profiled for a prefill of 512 in Q8_0: 75 % of the time is matrix products, 13 % attention, "
    "4 % keys and values written, 3 % activation, 2 % norms with rounding. A group of 32 values "
    "takes eight dot products and two multiplications for the scales, of which this processor "
    "does one a cycle in whatever mixture: 80 % of what registers alone give (931 GOP/s) is the "
    "most there is, and a tile by itself reaches 78 (see what a tile writes, kernels.md). Within "
    "a run it is less: virtual processors share cores now and then (the peak of both threads "
    "together fell from 927 to 850 GOP/s within the hour), which no setting of ours prevents; an "
    "hour before, by itself, what is in now gave medians of 564 to 616 tok/s beside its variants."
)
_WAITING = (
    "a quarter of a step of many rows is attention waiting for memory while the multipliers idle: "
    "with block tables that name one row's blocks for all, so that KV stays in the caches, a step "
    "of 16 rows takes 39 ms instead of 51 and one of 32 takes 75 instead of 101 (Q8_0; Q4_K_M 40 "
    "to 48 instead of 56, and 77 instead of 102). Bringing the next layer's KV closer beside the "
    "products was built, and is not in: predicted 0.85 times the step, measured 1.02 to 1.08. A "
    "core drops what is asked for while too many lines are on their way (8 MiB asked for in one go "
    "are read at 28 GB/s afterwards, as if never asked for, a line every 9 ns at 53), the products "
    "ask for weights already, and asking cost them 1.4 to 5 %"
)
_NEAR_TARGET = (
    "within what runs of one day differ by: others gave 80 to 90.2 % of the read (Q8_0), 80.4 to "
    "91.9 (Q4_0) and 89.7 to 93.8 (Q4_K_M). Where the machine reads 44 to 50 GB/s instead of 28 to "
    "36, what a step does beside its products (attention, the first panel of each piece, waiting "
    "for the other thread: 2 to 3 ms) weighs more."
)
_DEPTH = (
    "what is missing is that reading stops between the parts of a span of 512 positions. It was 62 "
    "and 72 % before the next span's first keys were brought closer beside the last values. With "
    "everything brought twice as far ahead, and a part of V beside the softmax, it was less (60 "
    "where this gave 76 %, four runs of each in turn)."
)
_GROWTH = (
    "at worst between 2 and 4 sequences. Profiled: from 1 to 8 sequences the products take as long "
    "as the weights take to be read; attention doubles with each (1.0, 2.1, 4.4 and 7.7 ms beside "
    "other work), at 70 % of the plain read's rate. From 8 on the products are limited by "
    "arithmetic (59 % of a step of 16, 684 of 934 GOP/s), and attention, which reads, comes after "
    "them (24 %) instead of beside them: see the batches above."
)
_ZEN5_BATCH = (
    "eight runs within thirty hours gave 3.05, 3.09, 3.12, 3.40, 3.72, 3.77, 3.94 and 4.18 times "
    "in Q4_K_M, the lowest and the highest by nearly the same code: ours had 683 to 812 tok/s "
    "and llama.cpp 194 to 231, not in the same order. Processes of one program differ by up to a "
    "tenth on this machine, for the time that they live, and the cell has one of each."
)
_AVX2_DECODE = (
    "profiled for Q4_0 since threads have shares of loops: of a step of 10.2 to 10.6 ms the "
    "layers' products take 6.7 to 6.9 and the output layer's, one long product, 2.0 to 2.4; both "
    "read 36 to 43 GB/s in that minute; attention takes 0.44, "
    "norms, activations, keys and values 0.5. How fast one product reads is what is left, and it "
    "changes from minute to minute with a plain read beside it of 47 to 63 GB/s: the same code "
    "gave medians of 91 to 143 tok/s within half an hour, where the cell had 85 to 104."
)
_AVX2_ARITHMETIC = (
    "without VNNI 32 multiplications of 8-bit weights take four vector instructions and of 4-bit "
    "ones two, for llama.cpp too; the targets come from machines that do 64 in one. Of what "
    "registers alone give (182 GOP/s a thread) products of 4 bits reach 88 to 104 % (sums in 16 "
    "bits need fewer instructions than the peak counts), Q8_0 72 %: its scaling comes on top. "
    "Profiled for a prefill of 512 in Q8_0: products 77 %, attention 12 %, rounding activations "
    "4 %; in Q4_0 73, 16 and 4 %. With all products at the registers' rate and the rest as it is, "
    "prefill 512 would be 2.8 times llama.cpp in Q8_0 and 2.5 times in Q4_0."
)
_AVX2_DEPTH = (
    "a plain read in the order in which attention reads KV (8 KiB of K or V a block and head) "
    "gives four threads here 34 to 50 GB/s where one from front to end gives 46 to 67 (see how "
    "attention at depth is cut, in kernels.md). In another hour, in which the plain read was 45 "
    "and 50 GB/s, the shares were 144 and 84.9 %."
)
# Kind of machine -> beginning of a row's key -> why its target is missed, as
# far as it is known; the last that fits.
REASONS: dict[str, dict[str, str]] = {
    "avx2-family25": {
        "decode": _AVX2_DECODE,
        "depth": _AVX2_DEPTH,
        "prefill": _AVX2_ARITHMETIC,
        "batch": _AVX2_ARITHMETIC,
        "http": _AVX2_ARITHMETIC,
    },
    "amx-family6": {
        "decode": _AMX_DECODE,
        "batch": _AMX_BATCH,
        "http": f"{_AMX_HTTP} {_AMX_BATCH}",
        "shared-hit": _AMX_HIT,
    },
    "avx512bf16-family25": {
        "decode": _BANDWIDTH,
        "decode-qwen3-0.6b-q": _NEAR_TARGET,
        "depth": _DEPTH,
        "prefill": _SCALES,
        "batch": f"{_WAITING}.",
        "http": f"{_WAITING}; for the products see prefill.",
        "growth-batch": _GROWTH,
    },
    "avx512bf16-family26": {
        "batch": _ZEN5_BATCH,
    },
}


def load() -> dict[str, Any]:
    """Finished cells of earlier runs."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def run(name: str, how: How) -> dict[str, Any]:
    """Measure a cell."""
    begun = time.monotonic()
    outcome = CELLS[name](how)
    return {
        **outcome.to_json(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "seconds": time.monotonic() - begun,
        "repetitions": how.repetitions,
    }


def table(results: dict[str, Any]) -> str:
    """All cells as Markdown; those never finished are rows that say so."""
    rows: list[Row] = []
    for name in CELLS:
        if name in results:
            rows += Outcome.from_json(results[name]).rows
        else:
            rows.append(Row(name, name, "not run"))
    with_target = [row for row in rows if row.target is not None]
    met = sum(row.met is True for row in with_target)
    names = []
    for peer in peers.INSTALLERS:
        try:
            names.append(peers.get(peer).name)
        except peers.PeerMissing as missing:
            names.append(f"{peer} is missing ({missing})")
    dates = sorted(r["date"] for r in results.values())
    span = f"{dates[0]} to {dates[-1]} UTC" if dates else "never"
    line = harness.machine_line(f"{harness.threads()} threads on both sides, cells run {span}")
    return "\n".join([
        f"{line.rpartition(', ')[0]}. Peers: {', '.join(names)}. {met} of {len(with_target)} "
        "targets met.",
        "",
        markdown(rows, REASONS.get(harness.machine_kind(), {})),
    ])  # fmt: skip


def selected(only: str) -> list[str]:
    """Cells whose names begin with one of the words.

    Raises SystemExit for a word that fits none.
    """
    words = only.split(",") if only else [""]
    for word in words:
        if not any(name.startswith(word) for name in CELLS):
            raise SystemExit(f"no cell begins with {word!r}; there are {', '.join(CELLS)}")
    return [name for name in CELLS if any(name.startswith(w) for w in words)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="beginnings of cells' names, by commas")
    parser.add_argument("--fresh", action="store_true", help="measure finished cells again")
    parser.add_argument("--quick", action="store_true", help="a short look, not kept")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="only write the page again")
    args = parser.parse_args()
    results = load()
    how = How(1 if args.quick else args.repetitions, args.quick)
    for name in [] if args.report else selected(args.only):
        if name in results and not args.fresh and not args.quick:
            continue
        try:
            result = run(name, how)
        except Exception:
            traceback.print_exc()
            print(f"{name}: failed", flush=True)
            continue
        for row in Outcome.from_json(result).rows:
            print(" | ".join(row.cells()), flush=True)
        print(f"{name}: {result['seconds']:.0f} s", flush=True)
        if not args.quick:
            results[name] = result
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(json.dumps(results, indent=1))
    if not args.quick:
        harness.write_section(SECTION, table(results))
        plots.draw(results)


if __name__ == "__main__":
    main()
