"""Running requests move from one real server's engine to another's: the answers are a quiet run's,
whatever is killed meanwhile."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from helpers.addresses import free_address
from helpers.real_server import RealServer

from tidemill.loading.locate import bundled_models
from tidemill.transfer.link import KEY_VARIABLE

FLAGS = ("--threads", "1", "--database", "none")
TOKENS = 900
KEY = {KEY_VARIABLE: "a secret of these tests"}
STREAMS = 6
BROOK = bundled_models()["brook"]
MODELS = ("verse", "verse", "ripple")


@contextmanager
def _pair(
    key: dict[str, str] = KEY, mine: tuple[str, ...] = (), theirs: tuple[str, ...] = ()
) -> Iterator[tuple[RealServer, RealServer, str]]:
    """Two servers, and where the second's engine listens."""
    here, there = free_address(), free_address()
    with (
        RealServer(*FLAGS, *mine, "--kv-listen", here, environment=KEY) as one,
        RealServer(
            *(*FLAGS, *theirs, "--kv-listen", there, "--kv-peers", here), environment=key
        ) as two,
    ):
        yield one, two, there


def _body(number: int, model: str) -> dict[str, Any]:
    members = {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}}
    schema = {"type": "object", "properties": members, "required": [*members]}
    constrained = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    found: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Story {number}, please. " * 20}],
        "stream": True,
        "seed": number,
        "temperature": 0.9,
        "max_tokens": TOKENS,
        "n": 2 if number == 3 else 1,
    }
    return found | ({"response_format": constrained} if number == 2 else {"ignore_eos": True})


@dataclass
class Answer:
    """Texts and finish reasons by choice, and how much there is so far."""

    texts: dict[int, str] = field(default_factory=dict)
    size: int = 0
    error: str = ""


def _ask(server: RealServer, number: int, answer: Answer, model: str) -> Answer:
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=_body(number, model), timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                answer.error = str(event.get("error", ""))
                for choice in event.get("choices", ()):
                    more = choice["delta"].get("content") or ""
                    more += choice["finish_reason"] or ""
                    before = answer.texts.get(choice["index"], "")
                    answer.texts[choice["index"]] = before + more
                    answer.size += len(more)
    return answer


def _moved(
    one: RealServer, meanwhile: Callable[[], None], count: int = STREAMS, models: Sequence[str] = ()
) -> list[dict[int, str]]:
    """Answers during which something happens."""
    answers = [Answer() for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        running = [
            threads.submit(_ask, one, i, answers[i], models[i] if models else "brook")
            for i in range(count)
        ]
        until = time.monotonic() + 60
        while min(answer.size for answer in answers) < 10:
            assert time.monotonic() < until
            time.sleep(0.005)
        meanwhile()
        for each in running:
            each.result()
    assert [answer.error for answer in answers] == [""] * count
    return [answer.texts for answer in answers]


def _post(server: RealServer, act: str, **body: str) -> dict[str, Any]:
    answer = server.http.post(f"/admin/engines/{act}", json={"model": "brook", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_requests_move_and_come_back_whatever_is_killed() -> None:
    with _pair() as (one, two, there):
        quiet = _moved(one, lambda: None)

        def drain() -> None:
            found = _post(one, "drain", to=there)
            assert found["moved"] > 0 and found["away"]["at"] == there

        assert _moved(one, drain) == quiet
        metrics = two.http.get("/metrics").text
        brought = [
            line for line in metrics.split("\n") if 'tier_tokens_total{model="brook",t' in line
        ]
        assert 'tier="peer"' in brought[0] and float(brought[0].split()[-1]) > 0

        # New ones go there, too; those that run come back.
        def restore() -> None:
            assert _post(one, "restore")["moved"] > 0

        assert _moved(one, restore) == quiet

        # The engine that is left dies: what has moved goes on.
        def drain_and_kill_here() -> None:
            drain()
            one.engine().kill()

        assert _moved(one, drain_and_kill_here) == quiet
        until = time.monotonic() + 60
        while one.http.get("/readyz").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        _post(one, "restore")

        # The engine that they went to dies: they come back.
        def drain_and_kill_there() -> None:
            drain()
            two.engine().kill()

        assert _moved(one, drain_and_kill_there) == quiet
        assert one.http.get("/admin/engines").json()["engines"][0]["away"] is None
        until = time.monotonic() + 60
        while two.http.get("/readyz").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)

        # Its server is killed: the engine ends in order, and its requests come back, too.
        def drain_and_kill_server() -> None:
            drain()
            two.process.kill()

        assert _moved(one, drain_and_kill_server) == quiet
        assert one.http.get("/admin/engines").json()["engines"][0]["away"] is None


def _until_away(server: RealServer, count: int) -> None:
    until = time.monotonic() + 30
    while server.http.get("/admin/engines").json()["engines"][0]["away"]["requests"] != count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_requests_with_adapters_move_where_the_same_ones_are(tmp_path: Path) -> None:
    verse, ripple = BROOK / "lora-verse", BROOK / "lora-ripple"
    shutil.copytree(verse, tmp_path / "copy")
    mine = (f"--adapter=verse={verse}", f"--adapter=ripple={ripple}")
    with _pair(mine=mine, theirs=(f"--adapter=other={tmp_path / 'copy'}",)) as (one, two, there):
        quiet = _moved(one, lambda: None, 3, models=MODELS)
        two.complete(model="other", prompt="It is loaded now.", max_tokens=1)

        def drain() -> None:
            found = _post(one, "drain", to=there)
            assert 1 <= found["moved"] <= 2  # not ripple's

        assert _moved(one, drain, 3, models=MODELS) == quiet

        # New ones go there; one whose adapter the other server has lost since comes back.
        assert _moved(one, lambda: _until_away(one, 2), 3, models=MODELS) == quiet
        gone = two.http.post("/v1/unload_lora_adapter", json={"lora_name": "other"})
        assert gone.status_code == 200, gone.text

        assert _moved(one, lambda: _until_away(one, 0), 3, models=MODELS) == quiet


def test_requests_stay_where_the_other_engine_cannot_take_them() -> None:
    with _pair({KEY_VARIABLE: "another secret of these"}) as (one, _, there):
        quiet = _moved(one, lambda: None, 2)

        def fail() -> None:
            for to, status in ((there, 503), (free_address(), 503), ("nowhere", 400)):
                answer = one.http.post("/admin/engines/drain", json={"model": "brook", "to": to})
                assert answer.status_code == status, answer.text
                assert to in answer.text

        assert _moved(one, fail, 2) == quiet
        assert one.http.get("/admin/engines").json()["engines"][0]["away"] is None
