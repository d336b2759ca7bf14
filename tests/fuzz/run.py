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

from fuzz.report import updated
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


def _kinds(which: str) -> list[Any]:
    """What is fuzzed: ``files``, ``native`` (of those, what reaches the C++ core) or ``clients``
    (what clients send)."""
    if which == "clients":
        from fuzz.client_targets import client_targets

        return client_targets()
    from fuzz.targets import targets

    return [kind for kind in targets() if kind.native or which != "native"]


def fuzz(inputs: int, seed: int, folder: Path, which: str = "files") -> Tally:
    """Try so many inputs in this process; the input under way lies in ``folder/current``.

    Args:
        which: see `_kinds`.
    """
    tally, rng = Tally(), random.Random(seed)
    kinds = _kinds(which)
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


def _child(inputs: int, seed: int, folder: Path, which: str, results: Any) -> None:
    results.put(fuzz(inputs, seed, folder, which))


def run(inputs: int, seed: int, folder: Path, which: str = "files") -> Tally:
    """`fuzz` in a child process; its death is a failure like any other."""
    # Not forked: tests leave threads behind, whose locks would be held in the child for good.
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_child, args=(inputs, seed, folder, which, results))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    parser.add_argument("--report", type=Path)
    parser.add_argument(
        "--clients", action="store_true", help="what clients send instead of model files"
    )
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
        which = "native" if options.sanitized else "clients" if options.clients else "files"
        tally = run(options.inputs, options.seed, folder, which)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("failure*"):
                shutil.copy(path, options.keep)
    kept = options.report is not None and options.report.exists()
    before = options.report.read_text() if kept else ""
    seconds = time.monotonic() - started
    text = updated(before, which, tally, options.seed, seconds, HANG_SECONDS, FACTOR)
    if options.report is not None:
        options.report.write_text(text)
    print(text)
    for name, what, trace in tally.failures[:10]:
        print(f"--- {name}: {what}\n{trace}", file=sys.stderr)
    print(json.dumps({"failures": len(tally.failures)}))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
