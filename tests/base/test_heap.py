"""When freed memory is given back."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys

import pytest

from tidemill.base import heap


def test_once_some_time_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    async def bursts() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(heap, "give_back", lambda: given.append(loop.time()))
        giver = heap.HeapTrimmer(0.1)
        for _ in range(2):
            begun = loop.time()
            for _ in range(20):
                giver.done()
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.3)
            assert given.pop() - begun >= 0.099 and not given

    asyncio.run(bursts())


def test_a_loop_that_ends_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        heap.HeapTrimmer(0.0).done()
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0.01)

    asyncio.run(work())
    assert "Traceback" not in capfd.readouterr().err


# Heaps of threads reserve 64 MiB from a multiple of them: what they use, and then nobody's. (Other
# large mappings may begin at such a multiple by chance.) The main one is called [heap].
COUNT_ARENAS = """
import re, threading
from tidemill.base import heap
if {few}:
    heap.use_few_arenas()
def hold():
    kept.append(bytes(50_000))
    both.wait()
kept, both = [], threading.Barrier(7)
threads = [threading.Thread(target=hold) for _ in range(6)]
for thread in threads:
    thread.start()
anonymous = r"^([0-9a-f]+)-([0-9a-f]+) (rw-p|---p) \\S+ 00:00 0\\s*$"
found = re.findall(anonymous, open("/proc/self/maps").read(), re.M)
used = {{int(start, 16): int(end, 16) for start, end, kind in found if kind == "rw-p"}}
reserved = {{int(start, 16): int(end, 16) for start, end, kind in found if kind == "---p"}}
whole = 64 << 20
heaps = [start for start, end in used.items() if reserved.get(end, 0) >= start + whole]
print(sum(start % whole == 0 for start in heaps))
both.wait()
"""


def arenas(*, few: bool, **env: str) -> int:
    inherited = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"}
    code = COUNT_ARENAS.format(few=few)
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | env, capture_output=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
def test_threads_share_a_few_heaps_unless_an_operator_chose() -> None:
    plain = arenas(few=False)
    assert plain > heap.ARENAS
    assert arenas(few=True) < heap.ARENAS  # the main one is none of those counted
    assert arenas(few=True, MALLOC_ARENA_MAX="16") == plain
