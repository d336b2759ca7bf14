"""The proof: issue "The fastest CPU engine there is", its whole table of targets, cell by cell.

Every cell measures both sides in turn in one run, at least three times, beside the machine's read
bandwidth, and takes medians; a peer's figure is its fastest setting's (`engines.SETTINGS`). Peers
are installed on first use (peers.py), models made (models.py). Finished cells are kept in
docs/side_by_side/, a file for each kind of machine, so that a run can be interrupted and every
figure looked up; the table goes into that machine's page there, and its summary into
docs/benchmarks.md.

    .venv/bin/python benchmarks/side_by_side.py [--only decode,http-16] [--fresh] [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
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
import summary
from engine_cells import How
from rows import Outcome, Row, markdown

RESULT = harness.SIDE_BY_SIDE / f"{harness.machine_kind()}.json"
REASONS = harness.SIDE_BY_SIDE / "reasons.toml"
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


def reasons() -> dict[str, str]:
    """Why targets were missed on this kind of machine: beginning of a row's key -> reason."""
    by_machine: dict[str, dict[str, str]] = tomllib.loads(REASONS.read_text())
    return by_machine.get(harness.machine_kind(), {})


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
        markdown(rows, reasons()),
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
        harness.write_section(SECTION, table(results), harness.machine_page())
        summary.write()
        plots.draw(results)


if __name__ == "__main__":
    main()
