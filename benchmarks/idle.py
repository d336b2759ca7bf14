"""What an idle server holds: after an answer, and a minute after a burst of prompts.

Proportional set size of all its processes, with the default KV cache; the second start of a model,
so that its weights are mapped. Without --model: the bundled one and Qwen3-0.6B's shape with random
weights as Q8_0. With --write, the table goes between the markers of docs/benchmarks.md.

    .venv/bin/python benchmarks/idle.py [--model FILE_OR_FOLDER ...] [--write]
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from harness import (
    ROOT,
    TIDEMILL,
    Server,
    machine_line,
    proportional_bytes,
    serving,
    threads,
    write_section,
)
from memory import model_file

BROOK = ROOT / "src" / "tidemill" / "assets" / "brook"
SETTLE_SECONDS = 10
GIVEN_BACK_SECONDS = 65
BURST, BURST_TOKENS = 24, 200
MIB = 2**20


def ask(server: Server, seed: int) -> None:
    """Have one random prompt answered."""
    address = urlsplit(server.url)
    drawn = random.Random(seed)
    prompt = [drawn.randrange(100, 3000) for _ in range(BURST_TOKENS)]
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=600)
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"HTTP {response.status}: {response.read(300)!r}")
    response.read()
    connection.close()


def measure(model: Path, log: Path) -> str:
    """A row of the table."""
    command = [str(TIDEMILL), "serve", str(model), "--port", "{port}"]
    with serving(command, log=log) as server:  # packs the weights and keeps them
        ask(server, 0)
        time.sleep(SETTLE_SECONDS)
    held = []
    with serving(command, log=log) as server:
        ask(server, 0)
        for seconds in (SETTLE_SECONDS, GIVEN_BACK_SECONDS):
            time.sleep(seconds)
            held.append(proportional_bytes(server.pid))
        with ThreadPoolExecutor(BURST) as pool:
            list(pool.map(lambda seed: ask(server, seed), range(1, BURST + 1)))
        for seconds in (SETTLE_SECONDS, GIVEN_BACK_SECONDS):
            time.sleep(seconds)
            held.append(proportional_bytes(server.pid))
    files = [model] if model.is_file() else list(model.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    cells = [model.name, *(f"{nbytes / MIB:.0f}" for nbytes in (size, *held))]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, action="append")
    parser.add_argument("--log", type=Path, default=ROOT / ".work" / "idle.log")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    lines = [
        machine_line(f"{threads()} threads; a burst is {BURST} prompts of {BURST_TOKENS} tokens"),
        "",
        "| model | file, MiB | after an answer | a minute later | after a burst | a minute later |",
        "|---|---|---|---|---|---|",
    ]
    for model in args.model or (BROOK, model_file("q8_0.gguf")):
        lines.append(measure(model, args.log))
        print(lines[-1], flush=True)
    print("\n".join(lines))
    if args.write:
        write_section("idle", "\n".join(lines))


if __name__ == "__main__":
    main()
