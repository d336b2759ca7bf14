"""Runs the fuzzer: inputs in a child process, so that even a crash leaves its input behind."""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError

HANG_SECONDS = 10
FACTOR, SLACK = 4, 2**20
_EXPECTED = {ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED, ErrorKind.BAD_REQUEST}


@dataclass
class Tally:
    """What a run saw.

    Attributes:
        inputs, accepted: of each target; the others were refused with an error of ours.
        slowest: seconds of the slowest input of each target.
        failures: (target, what happened, traceback), the input saved beside.
        peak: the largest (allocation - FACTOR * size) in bytes of bounded targets.
        growth: bytes the process grew beyond its size after the first inputs.
    """

    inputs: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    peak: int = 0
    growth: int = 0


class Hang(BaseException):
    """An input took longer than HANG_SECONDS."""


def _alarm(*_: object) -> None:
    raise Hang


def fuzz(inputs: int, seed: int, folder: Path, native: bool = False) -> Tally:
    """Try so many inputs in this process; the input under way lies in ``folder/current``.

    Args:
        native: only of the kinds that reach the C++ core.
    """
    from fuzz.targets import targets

    tally, rng = Tally(), random.Random(seed)
    kinds = [kind for kind in targets() if kind.native or not native]
    shares = [kind.share for kind in kinds]
    signal.signal(signal.SIGALRM, _alarm)
    warm = 0
    for number in range(inputs):
        kind = kinds[number] if number < len(kinds) else rng.choices(kinds, shares)[0]
        data = kind.make(rng)
        (folder / "current").write_bytes(kind.name.encode() + b"\n" + data)
        measured = kind.bounded and rng.random() < 0.25
        if measured:
            tracemalloc.start()
        signal.alarm(HANG_SECONDS)
        started = time.perf_counter()
        try:
            kind.read(data, folder)
            tally.accepted[kind.name] += 1
        except TidemillError as error:
            if error.kind not in _EXPECTED:
                _failed(tally, kind.name, f"kind {error.kind}", folder)
        except Hang:
            _failed(tally, kind.name, "hang", folder)
        except BaseException as error:  # the tokenizers library's panics are no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            _failed(tally, kind.name, repr(error)[:200], folder)
        finally:
            signal.alarm(0)
        seconds = time.perf_counter() - started
        tally.slowest[kind.name] = max(tally.slowest.get(kind.name, 0.0), seconds)
        tally.inputs[kind.name] += 1
        if measured:
            peak = tracemalloc.get_traced_memory()[1] - FACTOR * len(data)
            tracemalloc.stop()
            tally.peak = max(tally.peak, peak)
            if peak > SLACK:
                _failed(tally, kind.name, f"{peak} bytes beyond {FACTOR} times the file", folder)
        if number == 2000:
            warm = _resident()
    tally.growth = _resident() - warm if warm else 0
    return tally


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _failed(tally: Tally, name: str, what: str, folder: Path) -> None:
    tally.failures.append((name, what, traceback.format_exc(limit=-4)))
    shutil.copyfile(folder / "current", folder / f"failure{len(tally.failures)}")


def _child(inputs: int, seed: int, folder: Path, native: bool, results: Any) -> None:
    results.put(fuzz(inputs, seed, folder, native))


def run(inputs: int, seed: int, folder: Path, native: bool = False) -> Tally:
    """`fuzz` in a child process; its death is a failure like any other."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(inputs, seed, folder, native, results))
    child.start()
    tally: Tally | None = None
    while tally is None and child.is_alive():
        try:
            tally = results.get(timeout=1)
        except Exception:  # empty so far
            continue
    child.join()
    if tally is None:
        tally = Tally()
        current = (folder / "current").read_bytes()
        name = current.partition(b"\n")[0].decode()
        tally.failures.append((name, f"the process ended with {child.exitcode}", ""))
        shutil.copyfile(folder / "current", folder / "failure1")
    return tally


_START, _END = "<!-- sanitized -->", "<!-- end of sanitized -->"


def _table(tally: Tally) -> str:
    rows = "\n".join(
        f"| {name} | {count:,} | {tally.accepted[name]:,} | {tally.slowest[name]:.2f} |"
        for name, count in tally.inputs.most_common()
    )
    return f"| files | inputs | read as sound | slowest (s) |\n|---|---|---|---|\n{rows}\n"


def _summary(tally: Tally, seed: int, seconds: float) -> str:
    total = sum(tally.inputs.values())
    return (
        f"Last run: seed {seed}, **{total:,} inputs in {seconds:.0f} s, "
        f"{len(tally.failures)} failures**."
    )


def report(tally: Tally, seed: int, seconds: float, before: str = "") -> str:
    """The run as a page; of the page before, what another kind of run wrote is kept."""
    kept = before[before.find(_START) : before.find(_END)] if _START in before else _START + "\n"
    return f"""# Hostile files

`make fuzz` changes sound files (bytes, and the values of JSON documents) and reads them as a start
would. Each input must end in a model or in an error of ours, within {HANG_SECONDS} s; the Python
and numpy allocations of a quarter of the inputs of headers and pickles are measured and may take
{FACTOR} times the file and 1 MiB. A model is taken into the native core, and computes five tokens
there (but for GGUF files whose allocations are measured).

{_summary(tally, seed, seconds)}
Beyond {FACTOR} times its file an input took at most {max(tally.peak, 0) / 2**10:.0f} KiB; the
process grew by {tally.growth / 2**20:.0f} MiB after the first 2,000 inputs.

{_table(tally)}
What this does not do: a tokenizer.json that is no byte-level BPE goes to the `tokenizers` library,
whose memory is not measured but for the growth above, and whose regular expressions may take any
time on long texts. Ours are bounded by the text's length.

{kept}{_END}
"""


def sanitized_report(tally: Tally, seed: int, seconds: float, before: str) -> str:
    """The page with this run in its section about sanitizers."""
    section = f"""{_START}
## Under sanitizers

`make sanitizers ARGS=fuzz` reads files of the kinds that reach C++ with native modules that were
built with the address and undefined-behaviour sanitizers (portable kernels, memory of Python's own
allocated by malloc): what is read as sound is packed and computes five tokens. The first word of a
sanitizer ends the process, which is a failure with its input.

{_summary(tally, seed, seconds)}

{_table(tally)}"""
    return before[: before.index(_START)] + section + before[before.index(_END) :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    parser.add_argument("--report", type=Path)
    parser.add_argument(
        "--sanitized", action="store_true",
        help="the modules of TIDEMILL_SANITIZED, and only what reaches it",
    )  # fmt: skip
    options = parser.parse_args()
    if options.sanitized:
        importlib.import_module("helpers.sanitized_core")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tally = run(options.inputs, options.seed, folder, options.sanitized)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("failure*"):
                shutil.copy(path, options.keep)
    kept = options.report is not None and options.report.exists()
    before = options.report.read_text() if kept else ""
    if options.sanitized and _START not in before:
        before = report(Tally(), options.seed, 0.0)
    make = sanitized_report if options.sanitized else report
    text = make(tally, options.seed, time.monotonic() - started, before)
    if options.report is not None:
        options.report.write_text(text)
    print(text)
    for name, what, trace in tally.failures[:10]:
        print(f"--- {name}: {what}\n{trace}", file=sys.stderr)
    print(json.dumps({"failures": len(tally.failures)}))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
