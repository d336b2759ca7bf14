"""A model in several processes beside one: decoding and prefill, by turns.

    .venv/bin/python benchmarks/ranks.py MODEL [--threads 2] [--rounds 5] [--quantize q8_0]

Each kind is a process of its own that keeps the model loaded; they take turns, and what is printed
is the median of one process divided by that of the kind: above 1 the kind is quicker. MODEL needs a
tokenizer, which is not used.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from time import monotonic
from typing import Any

KINDS: dict[str, dict[str, int]] = {
    "one": {},
    "tensor": {"tensor_parallel": 2},
    "pipeline": {"pipeline_parallel": 2},
}
# Name -> streams, tokens of each prompt, tokens of each answer.
LOADS = {
    "decode, 1 stream": (1, 4, 24),
    "decode, 32 streams": (32, 4, 12),
    "prefill, 512 tokens": (1, 512, 1),
    "prefill, 4 x 1024 tokens": (4, 1024, 1),
}


def work(model: str, settings: dict[str, Any]) -> None:
    """Load a model, and take for each line of the input the seconds of that load."""
    from tidemill import LLM, SamplingParams

    with LLM(model, kv_memory=2**29, max_model_len=4096, prefix_caching=False, **settings) as llm:
        rng = random.Random(1)
        print("ready", flush=True)
        for line in sys.stdin:
            streams, prompt, answer = LOADS[line.strip()]
            prompts = [[rng.randrange(1000, 2000) for _ in range(prompt)] for _ in range(streams)]
            begun = monotonic()
            llm.generate(prompts, SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True))
            print(monotonic() - begun, flush=True)


class Worker:
    """A process that keeps a model loaded."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, model, "--work", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process has ended")
        return line

    def seconds(self, load: str) -> float:
        """What a load takes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{load}\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.model, json.loads(args.work))
        return
    common = {"threads": args.threads, "quantize": args.quantize}
    workers = {kind: Worker(args.model, common | extra) for kind, extra in KINDS.items()}
    for load in LOADS:
        took: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(args.rounds + 1):
            for kind, worker in workers.items():
                seconds = worker.seconds(load)
                if turn:  # the first is to warm up
                    took[kind].append(seconds)
        medians = {kind: statistics.median(found) for kind, found in took.items()}
        ratios = ", ".join(
            f"{kind} {medians['one'] / median:.2f}" for kind, median in medians.items()
        )
        print(f"{load}: one {medians['one']:.2f} s; {ratios}", flush=True)
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main()
