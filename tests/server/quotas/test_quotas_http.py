"""Quotas as HTTP clients see them, over a scripted engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.pipeline_server import pipeline_server
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.contract.request import EngineRequest
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import ANONYMOUS
from tidemill.metrics.quotas import QuotaMetrics
from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.security import Security
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.context import ServerContext
from tidemill.server.quotas.gate import Gate
from tidemill.server.quotas.quotas import Quotas

PROMPT = "x" * 9  # 10 tokens, with the first one


def letters(count: int) -> Callable[[EngineRequest, int], list[int]]:
    return lambda request, choice: [ord("a")] * count


def limited(
    context: ServerContext, prices: Prices | None = None, **levels: dict[str, object]
) -> Quotas:
    """The context's quotas: `levels` has the default limits of each level."""
    found = {Level(level): parse_limits(table) for level, table in levels.items()}
    defaults = Defaults(found)
    metrics = QuotaMetrics(context.metrics.registry)
    quotas = Quotas(defaults, prices, metrics)
    context.quotas = Gate(lambda: quotas)
    context.quotas.open()
    return quotas


@contextmanager
def served(
    engine: ScriptedEngine | None = None,
    prices: Prices | None = None,
    security: Security | None = None,
    **levels: dict[str, object],
) -> Iterator[tuple[httpx.Client, Quotas]]:
    engine = engine or ScriptedEngine(letters(1000))
    context = fake_context(engine)
    quotas = limited(context, prices, **levels)
    with serving(context, security) as url, httpx.Client(base_url=url, timeout=30) as http:
        yield http, quotas
    assert quotas.ledger.open == 0, "a reservation leaked"


def complete(http: httpx.Client, max_tokens: int | None = 20, **more: Any) -> httpx.Response:
    body = {"prompt": PROMPT, "max_tokens": max_tokens, **more}
    return http.post("/v1/completions", json=body)


def used(quotas: Quotas, name: str) -> int:
    now = quotas.ledger.now()
    (meter,) = (
        meter
        for account in quotas.accounts
        for meter in account.meters
        if meter.measure.name == name
    )
    return meter.amount - meter.remaining(now)


def test_a_rate_is_refused_with_the_seconds_after_which_it_fits() -> None:
    with served(key={"tpm": 2400}) as (http, _):
        refused = complete(http, 200)
        while refused.status_code == 200:  # far faster than the bucket refills
            assert refused.headers["x-ratelimit-limit-tokens"] == "2400"
            refused = complete(http, 200)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "key '127.0.0.1'" in error["message"]
        assert "2,400 tokens per minute" in error["message"]
        seconds = int(refused.headers["retry-after"])
        assert 1 <= seconds <= 10
        time.sleep(seconds)
        assert complete(http, 200).status_code == 200
        metrics = http.get("/metrics").text
        assert 'tidemill_quota_refusals_total{level="key",limit="tokens_per_minute"}' in metrics


def test_headers_say_what_is_left_of_the_tightest_limit() -> None:
    with served(server={"tpm": 5000, "rpm": 100}, key={"tpm": 9000, "rpm": 50}) as (http, _):
        headers = complete(http, 20).headers
        assert headers["x-ratelimit-limit-requests"] == "50"
        assert headers["x-ratelimit-remaining-requests"] == "49"
        assert headers["x-ratelimit-limit-tokens"] == "5000"
        assert headers["x-ratelimit-remaining-tokens"] in ("4970", "4971", "4972", "4973", "4974")
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        messages = [{"role": "user", "content": "x"}]
        body = {"model": "tiny", "max_tokens": 5, "messages": messages}
        answer = http.post("/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "50"
        assert int(answer.headers["anthropic-ratelimit-tokens-remaining"]) < 5000
        reset = answer.headers["anthropic-ratelimit-tokens-reset"]
        assert datetime.fromisoformat(reset).timestamp() >= time.time() - 2
        assert "x-ratelimit-limit-tokens" not in answer.headers
        assert "x-ratelimit-limit-tokens" not in http.get("/v1/models").headers


def test_sdks_see_their_own_rate_limit_errors() -> None:
    with served(key={"rpm": 1}) as (http, _):
        complete(http)
        client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(model="tiny", prompt="x")
        assert error.value.code == "rate_limit_exceeded"
        body = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        answer = http.post("/v1/messages", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")


def test_an_exhausted_budget_is_insufficient_quota_until_midnight() -> None:
    prices = Prices.parse({"tiny": {"input": 1000, "output": 2000}})
    with served(prices=prices, key={"money_per_day": "0.1"}) as (http, quotas):
        assert complete(http, 20).status_code == 200  # 10 * 0.001 + 20 * 0.002
        assert used(quotas, "money_per_day") == 50_000_000
        assert complete(http, 20).status_code == 200
        refused = complete(http, 20)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert "0.10 spent per day" in error["message"]
        assert "UTC" in error["message"]
        assert 0 < int(refused.headers["retry-after"]) <= 86400
        assert refused.headers["x-should-retry"] == "false"
        client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=2)
        begun = time.monotonic()
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20)
        assert time.monotonic() - begun < 5


def test_a_request_beyond_the_whole_limit_says_that_it_never_fits() -> None:
    with served(key={"tpm": 100}) as (http, _):
        refused = complete(http, 200)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert error["code"] == "request_exceeds_limit"
        assert "at most 90" in error["message"]
        assert "retry-after" not in refused.headers
        assert complete(http, 90).status_code == 200


def test_a_soft_limit_answers_with_a_warning() -> None:
    with served(key={"soft_tokens_per_day": 40, "tokens_per_day": 1000}) as (http, _):
        assert "x-tidemill-quota-warning" not in complete(http, 20).headers
        answer = complete(http, 20)
        assert answer.status_code == 200
        warning = answer.headers["x-tidemill-quota-warning"]
        assert warning == "key '127.0.0.1' exceeds its soft limit of 40 tokens per day"


@pytest.mark.parametrize(
    ("body", "charged"),
    [
        ({"max_tokens": 5}, 15),
        ({"max_tokens": 5, "n": 3}, 25),
        ({"prompt": [PROMPT, PROMPT], "max_tokens": 5, "n": 2}, 40),
        ({"max_tokens": 5, "stream": True}, 15),
        ({"max_tokens": 50, "stop": "aaa"}, 13),
        ({"max_tokens": 0, "echo": True, "logprobs": 1}, 10),
    ],
)
def test_what_requests_are_charged(body: dict[str, Any], charged: int) -> None:
    with served(key={"tokens_per_day": 10_000, "rpd": 50}) as (http, quotas):
        assert complete(http, **body).status_code == 200
        assert used(quotas, "tokens_per_day") == charged
        assert used(quotas, "requests_per_day") == 1


def test_embeddings_and_scores_are_charged_their_tokens() -> None:
    with served(key={"tokens_per_day": 100}) as (http, quotas):
        answer = http.post("/v1/embeddings", json={"input": ["abcd", "efg"]})
        assert answer.status_code == 200
        assert used(quotas, "tokens_per_day") == answer.json()["usage"]["prompt_tokens"]
        refused = http.post("/v1/embeddings", json={"input": ["a" * 95]})
        assert refused.status_code == 429


def test_a_budget_holds_the_worst_case_and_gives_back_the_rest() -> None:
    """Without max_tokens the answer may fill the context, and a hard budget must hold that."""
    with served(key={"tokens_per_day": 300}) as (http, quotas):
        assert complete(http, None).status_code == 200  # 10 + 246 reserved
        assert used(quotas, "tokens_per_day") == 256
        refused = complete(http, None)
        assert refused.status_code == 429
        assert "up to 246 generated" in refused.json()["error"]["message"]
        assert complete(http, 20).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 5])
def test_a_request_that_the_server_fails_is_charged_nothing(stream: bool, steps: int) -> None:
    limits: dict[str, object] = {"tokens_per_day": 1000, "rpd": 10}
    with served(ScriptedEngine(letters(50), fail_after=steps), key=limits) as (http, quotas):
        complete(http, 20, stream=stream)
        assert (used(quotas, "tokens_per_day"), used(quotas, "requests_per_day")) == (0, 0)


def test_a_request_that_admission_refuses_is_charged_nothing() -> None:
    engine = ScriptedEngine(letters(9), info=fake_info(num_blocks=4))
    context = fake_context(engine, admission_options=AdmissionOptions(max_queue_tokens=50))
    quotas = limited(context, key={"rpd": 5})
    with serving(context) as url, httpx.Client(base_url=url) as http:
        sampling = [SamplingParams(max_tokens=50)]
        ticket = context.host.models[0].admission.admit(ANONYMOUS, [(1,) * 200], sampling)
        refused = complete(http, 100, prompt="x" * 90)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert used(quotas, "requests_per_day") == 0
        ticket.close()
    assert quotas.ledger.open == 0


def test_a_client_that_leaves_is_charged_what_was_generated() -> None:
    engine = ScriptedEngine(letters(1000), step_seconds=0.02)
    limits: dict[str, object] = {"tokens_per_day": 1000, "concurrent_requests": 1}
    with served(engine, key=limits) as (http, quotas):
        body = {"prompt": PROMPT, "max_tokens": 200, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            busy = complete(http)
            assert busy.status_code == 429
            assert "1 concurrent requests" in busy.json()["error"]["message"]
        deadline = time.monotonic() + 10
        while quotas.ledger.open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 11 <= used(quotas, "tokens_per_day") < 210
        assert complete(http, 1).status_code == 200


def test_keys_have_the_limits_of_their_file_and_administrators_are_metered(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        '[[keys]]\nname = "ci"\nkey = "secret-of-ci-1234"\nrpm = 1\n'
        '[[keys]]\nname = "boss"\nkey = "secret-of-boss-123"\nrole = "admin"\n'
        "quotas = { requests_per_minute = 2, soft_tokens_per_day = 5 }\n"
        '[[keys]]\nname = "free"\nkey = "secret-of-free-123"\n'
    )
    keys = StaticKeys((), path)
    with served(security=Security(keys=keys)) as (http, _):

        def ask(key: str) -> int:
            http.headers["Authorization"] = f"Bearer {key}"
            return complete(http).status_code

        assert [ask("secret-of-ci-1234") for _ in range(2)] == [200, 429]
        assert [ask("secret-of-boss-123") for _ in range(3)] == [200, 200, 429]
        assert [ask("secret-of-free-123") for _ in range(5)] == [200] * 5
        path.write_text(path.read_text().replace("rpm = 1", "rpm = 3"))
        keys.reload()
        assert [ask("secret-of-ci-1234") for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("limits", "fit"),
    [
        ({"tokens_per_day": 1000, "rpm": 500}, 33),  # of 30 tokens each
        ({"money_per_month": "0.5", "soft_tokens_per_day": 1}, 10),  # of 0.05 each
    ],
)
def test_256_concurrent_requests_never_overshoot(limits: dict[str, object], fit: int) -> None:
    prices = Prices.parse({"*": {"input": 1000, "output": 2000}})
    engine = ScriptedEngine(letters(1000), step_seconds=0.005)

    async def storm(url: str) -> list[int]:
        bounds = httpx.Limits(max_connections=256)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=bounds) as http:
            body = {"prompt": PROMPT, "max_tokens": 20}
            posts = (http.post("/v1/completions", json=body) for _ in range(256))
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    with served(engine, prices=prices, key=limits) as (http, _):
        codes = asyncio.run(storm(str(http.base_url)))
    assert codes.count(200) == fit
    assert codes.count(429) == 256 - fit
    assert len(engine.requests) == fit


def test_a_pipeline_counts_once_and_its_calls_have_their_tokens(tmp_path: Path) -> None:
    source = """
        async def answer(request, models):
            await models["tiny"].generate("abc", max_tokens=3)
            async for text in models["tiny"].stream(request.messages, max_tokens=5):
                yield text
        """
    with pipeline_server(tmp_path, script=letters(50)) as server:
        server.add("two", source)
        limits: dict[str, object] = {"tokens_per_day": 200, "rpd": 5, "concurrent_requests": 1}
        quotas = limited(server.context, key=limits)
        answer = server.chat("two")
        assert answer.status_code == 200
        assert used(quotas, "requests_per_day") == 1
        assert used(quotas, "tokens_per_day") == answer.json()["usage"]["total_tokens"]
        few = parse_limits({"tokens_per_day": used(quotas, "tokens_per_day") + 8})
        quotas.set_limits({(Level.KEY, "addr:127.0.0.1"): few})
        refused = server.chat("two")  # in its second call
        assert refused.status_code == 429
        assert "tokens per day" in refused.json()["error"]["message"]
        assert quotas.ledger.open == 0
