"""Bring or compute: seconds to the first token of prompts of several lengths, computed, brought
from disk, and as the engine chooses.

The disk tier's files are not in the page cache (`posix_fadvise`). Each length has prompts of its
own, of random tokens. `python -m benchmarks.kv_crossover MODEL FOLDER REPEATS LENGTH...`
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from statistics import median
from unittest.mock import patch

from tidemill import LLM, SamplingParams
from tidemill.memory.tiers import Tiers

ONE = SamplingParams(temperature=0.0, max_tokens=1)
FIRST, LAST = 200, 500  # tokens that every vocabulary has
WARM = 6


def prompt_of(length: int, number: int) -> list[int]:
    """The tokens of one prompt; its last one is always computed."""
    rng = random.Random(f"{length} {number}")
    return [rng.randrange(FIRST, LAST) for _ in range(length + 1)]


def drop_page_cache(folder: Path) -> None:
    """Have the system forget what it keeps of the folder's files."""
    for path in folder.glob("*/*/*"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def ask(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens were cached."""
    begun = time.perf_counter()
    [output] = llm.generate([prompt], ONE)
    return time.perf_counter() - begun, output.cached_tokens


def measure(
    model: str, folder: Path, lengths: list[int], repeats: int, memory: int
) -> dict[int, tuple[float, bool]]:
    """By length, the median seconds of an engine of its own, and whether blocks were brought."""
    drop_page_cache(folder)
    found = {}
    with LLM(model, kv_disk=f"{folder}:12GiB", kv_memory=memory, max_num_seqs=4) as llm:
        for number in range(WARM):  # steps are measured
            ask(llm, prompt_of(96 + 32 * number, -1 - number))
        for length in lengths:
            taken = [ask(llm, prompt_of(length, number)) for number in range(repeats)]
            found[length] = median(t for t, _ in taken), sum(c for _, c in taken) > 0
            print(f"  {length}: {found[length][0]:.4f}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    model, folder, repeats = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    lengths = [int(one) for one in sys.argv[4:]]
    memory = int(os.environ.get("KV_MEMORY", 2**31))
    arguments = (model, folder, lengths, repeats, memory)
    folder.mkdir(parents=True, exist_ok=True)
    computed = measure(*arguments)
    with patch.object(Tiers, "seconds", lambda self, tiers: 0.0):
        brought = measure(*arguments)
    chosen = measure(*arguments)
    print("| tokens | computed | from disk | the engine's choice | against the better one |")
    print("|---|---|---|---|---|")
    for length in lengths:
        a, b, c = (pass_[length][0] for pass_ in (computed, brought, chosen))
        # What it chose is compared by the medians of both ways, not by how the machine was then.
        mine = b if chosen[length][1] else a
        way = "disk" if chosen[length][1] else "computed"
        print(f"| {length:,} | {a:.3f} | {b:.3f} | {c:.3f} ({way}) | {mine / min(a, b):.2f} |")


if __name__ == "__main__":
    main()
