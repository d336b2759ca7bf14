"""Every bound on what one client may send, one case at and one beyond it; and malformed HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.base.errors import TidemillError
from tidemill.server.access.limits import Limits
from tidemill.server.dialects import bounds
from tidemill.server.dialects.bounds import check_fields, check_shape

JSON_HEAD = b"Host: x\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + JSON_HEAD
BODY = b'{"prompt": "a"}'


def _talk(url: str, data: bytes, *, seconds: float = 5.0, end: bool = True) -> bytes:
    """Everything the server answers to `data` until it closes (or a whole answer, if `end`)."""
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        except (ConnectionError, TimeoutError):
            pass
    return received


def _is_ours(answer: bytes, status: int) -> dict[str, Any]:
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    limits = Limits(
        max_head_bytes=4000, max_headers=20, max_url_bytes=300, max_body_bytes=2000, max_pipelined=4
    )
    with serving(fake_context(ScriptedEngine(), limits=limits)) as url:
        yield url


# -- malformed and ambiguous HTTP -------------------------------------------------------------


SMUGGLING = {
    "cl and te": POST + b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "te and cl": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n0\r\n\r\n",
    "two cl": POST + b"Content-Length: 15\r\nContent-Length: 16\r\n\r\n" + BODY,
    "equal cl": POST + b"Content-Length: 15\r\nContent-Length: 15\r\n\r\n" + BODY,
    "cl list": POST + b"Content-Length: 15, 15\r\n\r\n" + BODY,
    "cl plus": POST + b"Content-Length: +15\r\n\r\n" + BODY,
    "cl minus": POST + b"Content-Length: -1\r\n\r\n" + BODY,
    "cl overflow": POST + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    "cl space": POST + b"Content-Length : 15\r\n\r\n" + BODY,
    "obs-fold": GET + b"A: b\r\n c\r\n\r\n",
    "obs-fold te": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare lf": b"GET /healthz HTTP/1.1\nHost: x\n\n",
    "bare lf header": GET[:-2] + b"\nA: b\r\n\r\n",
    "bare cr": GET + b"A: b\rc\r\n\r\n",
    "nul in value": GET + b"A: b\0c\r\n\r\n",
    "nul in name": GET + b"A\0: b\r\n\r\n",
    "nul in url": b"GET /healthz\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
    "te gzip": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "te gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "te xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "te twice": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "te in 1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk ends in lf": POST + b"Transfer-Encoding: chunked\r\n\r\n1\n{\n0\n\n",
    "chunk extension ends in lf": POST + b"Transfer-Encoding: chunked\r\n\r\n1;a\n{\r\n0\r\n\r\n",
    "chunk size in c": POST + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\n{\r\n0\r\n\r\n",
    "chunk size overflow": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 18 + b"\r\n{",
    "other host": b"GET http://evil.example/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "other scheme": b"GET ftp://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "connect": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/3.0": b"GET / HTTP/3.0\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "no method": b"/healthz\r\n\r\n",
}


@pytest.mark.parametrize("case", SMUGGLING)
def test_ambiguous_requests_are_refused(url: str, case: str) -> None:
    # The request behind it must not be answered: it is what an attacker would smuggle.
    answer = _talk(url, SMUGGLING[case] + GET + b"\r\n", end=False, seconds=3)
    _is_ours(answer, 400)
    assert answer.count(b"HTTP/1.1 ") == 1 and b"connection: close" in answer


def test_trailers_never_become_headers(url: str) -> None:
    chunks = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer x\r\n\r\n" % (len(BODY), BODY)
    answer = _talk(url, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, end=False, seconds=3)
    assert _is_ours(answer, 400)["code"] == "bad_http"


def test_what_is_unusual_and_fine(url: str) -> None:
    close = b"Connection: close\r\n\r\n"
    for request in (
        b"GET http://x/healthz HTTP/1.1\r\nHost: x\r\n" + close,
        b"GET /healthz HTTP/1.0\r\n\r\n",
        GET + b"A: \xff\r\n" + close,
        b"\r\n" + GET + close,
        POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"f;name=value\r\n" + BODY + b"\r\n0\r\n\r\n",
    ):
        assert _talk(url, request, end=False).startswith(b"HTTP/1.1 200"), request


@pytest.mark.parametrize("split", [False, True])
def test_an_offer_of_another_protocol_is_passed_over(url: str, split: bool) -> None:
    # Java's client offers h2c with every request, bodies included.
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    head = POST + offer + b"Content-Length: %d\r\n\r\n" % len(BODY)
    after = GET + b"Connection: close\r\n\r\n"
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
        if split:
            connection.sendall(head)
            time.sleep(0.05)
            connection.sendall(BODY[:5])
            time.sleep(0.05)
            connection.sendall(BODY[5:] + after)
        else:
            connection.sendall(head + BODY + after)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1 200") == 2 and b"text_completion" in received


def test_a_broken_request_behind_a_good_one_does_not_break_its_answer() -> None:
    engine = ScriptedEngine(lambda request, choice: [97] * 40, step_seconds=0.01)
    with serving(fake_context(engine)) as url:
        body = b'{"prompt": "a", "stream": true, "max_tokens": 20}'
        good = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
        answer = _talk(url, good + b"garbage\r\n\r\n", end=False)
    assert answer.count(b"HTTP/1.1") == 1 and b"[DONE]" in answer
    assert answer.endswith(b"0\r\n\r\n")


def test_head_is_get_without_a_body(url: str) -> None:
    for path, status in (("/healthz", 200), ("/v1/models", 200), ("/metrics", 200), ("/x", 404)):
        with httpx.Client(base_url=url) as http:
            head, get = http.head(path), http.get(path)
            assert head.status_code == get.status_code == status and not head.content
            assert head.headers["content-type"] == get.headers["content-type"]
    assert httpx.head(f"{url}/v1/completions").status_code == 405


# -- heads, bodies, connections ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 250 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /" + b"a" * 400 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (GET + b"A: b\r\n" * 30 + b"\r\n", 431),
        (GET + b"A: " + b"b" * 3500 + b"\r\nConnection: close\r\n\r\n", 200),
        (GET + b"A: " + b"b" * 5000, 431),
        (POST + b"Content-Length: 3000\r\n\r\n" + b"x" * 3000, 413),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 4,
            413,
        ),
    ],
)
def test_heads_and_bodies(url: str, data: bytes, status: int) -> None:
    answer = _talk(url, data, end=False, seconds=2)
    if status == 200:
        assert answer.startswith(b"HTTP/1.1 200")
    else:
        error = _is_ours(answer, status)
        if status not in (404,):
            assert any(n in error["message"] for n in ("300", "4000", "20 headers", "2000"))


def test_a_refused_body_leaves_the_connection_to_the_next_request(url: str) -> None:
    with httpx.Client(base_url=url) as http:
        for _ in range(3):
            assert http.post("/v1/completions", json={"prompt": "x" * 50_000}).status_code == 413
            assert http.get("/healthz").status_code == 200


def test_pipelining_is_bounded() -> None:
    engine = ScriptedEngine(step_seconds=0.2)
    with serving(fake_context(engine, limits=Limits(max_pipelined=4))) as url:
        one = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        answer = _talk(url, one + (GET + b"\r\n") * 50, end=False, seconds=8)
    assert 1 <= answer.count(b"HTTP/1.1 200") <= 6


def test_connections_are_bounded() -> None:
    with serving(fake_context(ScriptedEngine(), limits=Limits(max_connections=3))) as url:
        parts = urlsplit(url)
        with ExitStack() as stack:
            for _ in range(3):
                connection = socket.create_connection((parts.hostname, parts.port), timeout=5)
                stack.enter_context(connection)
                connection.sendall(GET + b"\r\n")
                assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            answer = _talk(url, b"", end=False)
            assert _is_ours(answer, 503)["code"] == "too_many_connections"
            assert b"retry-after: 1" in answer
        deadline = time.monotonic() + 5
        while httpx.get(f"{url}/healthz").status_code != 200:
            assert time.monotonic() < deadline


def test_slow_bodies_idle_connections_and_drips_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.server.transport.http.BODY_GRACE_SECONDS", 0.3)
    limits = Limits(body_timeout=0.4, keep_alive_timeout=0.4, head_timeout=0.5)
    with serving(fake_context(ScriptedEngine(), limits=limits)) as url:
        parts = urlsplit(url)

        def drip(first: bytes, drop: bytes) -> tuple[bytes, float]:
            began, received = time.monotonic(), b""
            with socket.create_connection((parts.hostname, parts.port), timeout=0.1) as connection:
                connection.sendall(first)
                while time.monotonic() < began + 8:
                    try:
                        connection.sendall(drop)
                        part = connection.recv(65536)
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        break
                    if not part:
                        break
                    received += part
            return received, time.monotonic() - began

        for first, drop, status in (
            (b"GET /healthz HTTP/1.1\r\n", b"a", b"408"),  # a head that never ends
            (POST + b"Content-Length: 1000\r\n\r\n", b"x", b"408"),  # a body
            (GET + b"Content-Length: 100000\r\n\r\n", b"x", b"200"),  # one nobody waits for
            (GET + b"\r\n", b"\r\n", b"200"),  # empty lines between requests
            (b"", b"\r\n", b""),  # and before the first
        ):
            received, seconds = drip(first, drop)
            assert seconds < 6, first
            assert received.startswith(b"HTTP/1.1 " + status if status else b""), received[:80]


def test_a_body_behind_its_answer_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.server.transport.http.BODY_GRACE_SECONDS", 0.3)
    with serving(fake_context(ScriptedEngine())) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
            connection.sendall(GET + b"Content-Length: 100000\r\n\r\nx")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            assert connection.recv(1000) == b""


def test_slow_readers_are_cut_off_and_stall_nobody() -> None:
    # Long enough to fill what the kernel takes before anything waits here.
    engine = ScriptedEngine(lambda r, choice: [97] * 1_000, info=fake_info(max_model_len=20_000))
    context = fake_context(engine, limits=Limits(slow_reader_timeout=1.0, max_unread_bytes=2**14))
    with serving(context) as url:
        parts = urlsplit(url)
        body = b'{"prompt": "a", "stream": true, "n": 16, "ignore_eos": true, "logprobs": 20}'
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((parts.hostname, parts.port))
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            deadline = time.monotonic() + 30
            while not engine.cancelled:
                answer = httpx.get(f"{url}/healthz", timeout=15)
                assert answer.status_code == 200
                assert time.monotonic() < deadline, "the stream was not cancelled"
                time.sleep(0.05)
        assert "tidemill_slow_readers_total 1.0" in httpx.get(f"{url}/metrics").text


def test_every_answer_is_dated() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        parts = urlsplit(url)
        fine = httpx.get(f"{url}/healthz").headers["date"]
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
            connection.sendall(b"no HTTP at all\r\n\r\n")
            refused = connection.recv(10_000).decode()
    [line] = [line for line in refused.split("\r\n") if line.lower().startswith("date: ")]
    for date in (fine, line[6:]):
        assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60


# -- JSON and fields --------------------------------------------------------------------------


def _nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"prompt": value}


SMALL = Limits(
    max_json_depth=8,
    max_json_nodes=50,
    max_json_values=100,
    max_messages=3,
    max_tools=2,
    max_schema_bytes=200,
    max_schema_depth=4,
    max_n=2,
    max_logprobs=3,
    max_logit_bias=2,
    max_stop=2,
    max_stop_chars=5,
    max_stop_token_ids=2,
    max_prompts=2,
    max_inputs=2,
)
MESSAGE = {"role": "user", "content": "x"}
DEEP: dict[str, Any] = {"a": {"b": {"c": {"d": {}}}}}
TOO_MUCH: list[tuple[str, dict[str, Any], str | None, tuple[str, ...]]] = [
    ("completions", _nested(8), None, ("8 levels",)),
    (
        "completions",
        {"prompt": "a", "metadata": {str(i): "" for i in range(60)}},
        None,
        ("50 keys",),
    ),
    ("completions", {"prompt": [[] for _ in range(60)]}, None, ("50 objects",)),
    ("completions", {"prompt": [1] * 200}, None, ("100 values",)),
    ("completions", {"prompt": ["a"] * 3}, "prompt", ("2", "3")),
    ("embeddings", {"input": ["a"] * 3}, "input", ("2", "3")),
    ("rerank", {"query": "a", "documents": ["a"] * 3}, "documents", ("2", "3")),
    ("score", {"text_1": "a", "text_2": ["a"] * 3}, "text_2", ("2", "3")),
    ("completions", {"prompt": "a", "n": 3}, "n", ("2", "3")),
    ("completions", {"prompt": "a", "logprobs": 4}, "logprobs", ("3", "4")),
    (
        "completions",
        {"prompt": "a", "logit_bias": {"1": 1, "2": 1, "3": 1}},
        "logit_bias",
        ("2", "3"),
    ),
    ("completions", {"prompt": "a", "stop": ["a", "b", "c"]}, "stop", ("2", "3")),
    ("completions", {"prompt": "a", "stop": "abcdef"}, "stop", ("5", "6")),
    ("completions", {"prompt": "a", "stop": ["a", "abcdef"]}, "stop", ("5", "6")),
    ("completions", {"prompt": "a", "stop_token_ids": [1, 2, 3]}, "stop_token_ids", ("2", "3")),
    ("chat/completions", {"messages": [MESSAGE] * 4}, "messages", ("3", "4")),
    ("chat/completions", {"messages": [MESSAGE], "tools": [{}] * 3}, "tools", ("2", "3")),
    ("chat/completions", {"messages": [MESSAGE], "top_logprobs": 4}, "top_logprobs", ("3", "4")),
    ("chat/completions", {"messages": [MESSAGE], "tools": [DEEP]}, "tools[0]", ("4", "5")),
    ("chat/completions", {"messages": [MESSAGE], "guided_json": DEEP}, "guided_json", ("4", "5")),
    (
        "chat/completions",
        {"messages": [MESSAGE], "guided_regex": "a" * 201},
        "guided_regex",
        ("200",),
    ),
    (
        "chat/completions",
        {"messages": [MESSAGE], "response_format": {"type": "json_schema", "x": "y" * 200}},
        "response_format",
        ("200",),
    ),
]


@pytest.fixture(scope="module")
def small() -> Iterator[httpx.Client]:
    engine = ScriptedEngine()
    with (
        serving(fake_context(engine, limits=SMALL)) as url,
        httpx.Client(base_url=url) as http,
    ):
        yield http
    assert not engine.requests, "something that is too much reached the engine"


@pytest.mark.parametrize(("route", "body", "param", "numbers"), TOO_MUCH)
def test_too_much_is_a_400_that_names_field_bound_and_number(
    small: httpx.Client,
    route: str,
    body: dict[str, Any],
    param: str | None,
    numbers: tuple[str, ...],
) -> None:
    answer = small.post(f"/v1/{route}", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert all(number in error["message"] for number in numbers), error["message"]
    assert param is None or param in error["message"]


VALUES = st.recursive(
    st.none() | st.integers() | st.text('ab"\\[]{}:,\n€', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('a"[\\', max_size=3), inner)
    ),
    max_leaves=25,
)


def _count(value: Any) -> tuple[int, int]:
    """Containers and depth."""
    if not isinstance(value, (dict, list)):
        return 0, 0
    inner = [_count(v) for v in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(n for n, _ in inner), 1 + max((d for _, d in inner), default=0)


@given(VALUES, st.booleans(), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_shapes_are_counted_without_parsing(value: Any, ascii_: bool, chunk: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii_).encode()
    nodes, depth = _count(value)
    kept, bounds._CHUNK = bounds._CHUNK, chunk
    try:
        check_shape(body, Limits(max_json_depth=max(depth, 1)))
        bare = b"".join(bounds._outside_strings(body))
        assert bare.count(b"[") + bare.count(b"{") == nodes
        if depth > 1:
            with pytest.raises(TidemillError, match="nested"):
                check_shape(body, Limits(max_json_depth=depth - 1))
    finally:
        bounds._CHUNK = kept


@pytest.mark.parametrize(
    "body",
    [
        *(b"[" * 10**7, b'"\\' * 5 * 10**6, b'""' * 5 * 10**6, b'"' + b"\\" * 10**7),
        *(b"{}," * 3 * 10**6, b"1," * 5 * 10**6, b'"":' * 3 * 10**6),
    ],
)
def test_shapes_of_hostile_texts_cost_little(body: bytes) -> None:
    began = time.thread_time()
    with suppress(TidemillError):
        check_shape(body, Limits())
    assert time.thread_time() - began < 2


def test_a_million_mistakes_are_not_listed(url: str) -> None:
    item = b"0," * 900_000 + b"0"
    with serving(fake_context(ScriptedEngine())) as wide:
        for body in (
            b'{"messages": [' + item + b"]}",
            b'{"messages": [{"role": "user"}], "stop_token_ids": [' + item + b"]}",
        ):
            began = time.monotonic()
            answer = httpx.post(
                f"{wide}/v1/chat/completions",
                content=body,
                headers={"content-type": "application/json"},
                timeout=30,
            )
            assert answer.status_code == 400 and "900001" in answer.text
            assert time.monotonic() - began < 10


def test_fields_of_other_types_are_left_to_the_schema() -> None:
    for value in (1, "x", None, True, [], {}, [[]], 10**400):
        for name in ("messages", "stop", "tools", "response_format", "logit_bias"):
            check_fields({name: value}, Limits())
    with pytest.raises(TidemillError, match="more than 64 bits"):
        check_fields({"n": 10**400}, Limits())


@pytest.mark.parametrize(
    "setting", ["x=1", "max_n", "max_n=0", "max_n=-1", "max_n=1.5", "max_n=129", "body_timeout=nan"]
)
def test_bad_settings(setting: str) -> None:
    with pytest.raises(TidemillError) as caught:
        Limits.parse([setting])
    assert caught.value.param == "limit"


def test_settings() -> None:
    parsed = Limits.parse(["max_body_bytes=100", "max-n=3", "body_timeout=0.5"])
    assert (parsed.max_body_bytes, parsed.max_n, parsed.body_timeout) == (100, 3, 0.5)
