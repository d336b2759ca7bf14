"""A conversation survives the server: stopped, killed, or its engine killed, its next turn is a hit
from disk, with the tokens of a server that computes everything."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.real_server import RealServer

LENGTH = 1500
FLAGS = ("--threads", "1", "--max-num-seqs", "4", "--kv-memory", "64MiB")


def conversation() -> list[int]:
    rng = random.Random(3)
    return [rng.randrange(20, 2000) for _ in range(LENGTH)]


def ask(server: RealServer, prompt: list[int], tokens: int = 16, **more: Any) -> tuple[str, int]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
    answer: dict[str, Any] = server.complete(**body)
    details = answer["usage"]["prompt_tokens_details"] or {}
    return answer["choices"][0]["text"], details.get("cached_tokens", 0)


def wait_for_saves(server: RealServer, blocks: int) -> None:
    """What is killed can save nothing any more: wait until the blocks are on disk."""
    until = time.monotonic() + 30
    while True:
        [tier] = server.stats()["tiers"]
        if tier["figures"].get("saved_blocks", 0) >= blocks:
            return
        assert time.monotonic() < until, tier
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_turn_after_a_restart_is_a_hit(tmp_path: Path, number: signal.Signals) -> None:
    disk = ("--kv-disk", f"{tmp_path / 'kv'}:1GiB")
    prompt = conversation()
    turn = [*prompt, *range(100, 120)]
    with RealServer(*FLAGS, *disk) as server:
        want, _ = ask(server, turn)
        if number is signal.SIGKILL:
            wait_for_saves(server, LENGTH // 32)
            engine = server.engine()
            engine.kill()
            engine.wait(10)
        server.stop(number)
    with RealServer(*FLAGS, *disk) as server:
        assert ask(server, turn) == (want, len(turn) - 1 - (len(turn) - 1) % 32)
        text = server.http.get("/metrics").text
        assert 'tidemill_kv_tier_tokens_total{model="brook",tier="disk"}' in text


def test_a_stream_of_a_killed_engine_goes_on_from_disk(tmp_path: Path) -> None:
    disk = ("--kv-disk", f"{tmp_path / 'kv'}:1GiB")
    prompt = conversation()
    with RealServer(*FLAGS, *disk) as server:
        found: list[tuple[str, int]] = []
        asking = threading.Thread(target=lambda: found.append(ask(server, prompt, 700)))
        asking.start()
        wait_for_saves(server, LENGTH // 32 - 6)
        server.engine().kill()
        asking.join(60)
        want, cached = ask(server, prompt, 700, cache_salt="of nobody else")
        assert cached == 0 and found and found[0][0] == want
        [tier] = server.stats()["tiers"]
        assert tier.get("tokens", 0) >= LENGTH // 2
