"""The most memory that a server takes from its start through its first answers, by type of file.

Qwen3-0.6B's shape with random weights. For each type: a first start, with an empty folder of packed
weights, until those are kept, and a second start; the proportional set size of all its processes is
looked at every 20 ms. Ratios are without the KV cache. With --write, the table goes between the
markers of docs/benchmarks.md.

    .venv/bin/python benchmarks/memory.py [--file q8_0.gguf] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from harness import (
    MODEL,
    MODELS,
    TIDEMILL,
    free_port,
    machine_line,
    make_model,
    proportional_bytes,
    threads,
    write_section,
)
from models import quantized_folder
from start import first_token

EVERY_SECONDS = 0.02
ANSWERS = 4
WAIT_SECONDS = 300
KV_BYTES = 64 * 2**20
MIB = 2**20
# Name -> (--type of `tidemill quantize`, scheme of `models.SCHEMES`, or neither; flags of serve).
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "bf16": ("", ()),
    "bf16, --quantize q8_0": ("", ("--quantize", "q8_0")),
    "bf16.gguf": ("convert", ()),
    "q8_0.gguf": ("q8_0", ()),
    "q4_0.gguf": ("q4_0", ()),
    "q4_k.gguf": ("q4_k", ()),
    "gptq, 4 bits": ("gptq", ()),
    "fp8 in blocks, --quantize q8_0": ("fp8", ("--quantize", "q8_0")),
    "w8a8": ("w8a8", ()),
}


def model_file(name: str) -> Path:
    """The folder or file of a type, written when it is not there."""
    kind, _ = FILES[name]
    source = make_model()
    if not kind:
        return source
    if not name.endswith(".gguf"):
        return quantized_folder(MODEL.name, kind)
    path = MODELS / f"{MODEL.name}-own-{name}"
    if not path.exists():
        command = ["convert"] if kind == "convert" else ["quantize", "--type", kind]
        subprocess.run([TIDEMILL, *command, source, path], check=True)
    return path


class Peak:
    """The highest proportional set size of a process and all that it started, while it runs."""

    def __init__(self, pid: int) -> None:
        self.nbytes = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            with contextlib.suppress(OSError):  # a process ended meanwhile
                self.nbytes = max(self.nbytes, proportional_bytes(self._pid))

    def end(self) -> int:
        """Look no more; returns the peak in bytes."""
        self._stop.set()
        self._thread.join()
        return self.nbytes


def start(model: Path, flags: Sequence[str], packed: Path, *, keep: bool) -> int:
    """The peak in bytes of one start; with `keep`, until the packed weights are kept."""
    port = free_port()
    command = [
        str(TIDEMILL), "serve", str(model), "--port", str(port), "--served-name", MODEL.name,
        "--packed-cache", str(packed), "--kv-memory", str(KV_BYTES), *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak = Peak(process.pid)
    until = time.monotonic() + WAIT_SECONDS
    try:
        for _ in range(ANSWERS):
            first_token(port, until)
        while keep and not list(packed.glob("*.sources")):
            if time.monotonic() > until:
                raise SystemExit(f"{model.name}: the packed weights were not kept")
            time.sleep(0.1)
        return peak.end()
    finally:
        process.terminate()
        process.wait(60)


def measure(name: str) -> str:
    """A row of the table."""
    model, flags = model_file(name), FILES[name][1]
    stored = model if model.is_file() else model / "model.safetensors"
    with tempfile.TemporaryDirectory(prefix="tidemill-memory-", dir=MODELS) as folder:
        packed = Path(folder)
        peaks = [start(model, flags, packed, keep=keep) for keep in (True, False)]
        size = max(path.stat().st_size for path in packed.iterdir())
    larger = max(stored.stat().st_size, size)
    cells = [name, f"{stored.stat().st_size / MIB:.0f}", f"{size / MIB:.0f}"]
    for peak in peaks:
        beside = peak - larger - KV_BYTES  # pages of the cache are huge: nearly all are touched
        cells += [f"{peak / MIB:.0f}", f"{beside / MIB:.0f}", f"{1 + beside / larger:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", choices=list(FILES), action="append", help="all by default")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    names = args.file or list(FILES)
    lines = [
        machine_line(f"{threads()} threads, {KV_BYTES // MIB} MiB of KV cache at most"),
        "",
        "| file | its MiB | packed, MiB | first start: peak, MiB | beside the larger and the cache "
        "| ratio | second start: peak, MiB | beside | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [measure(name) for name in names]
    print("\n".join(lines))
    if args.write:
        write_section("memory", "\n".join(lines))


if __name__ == "__main__":
    main()
