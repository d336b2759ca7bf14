"""The load generator against a scripted server: lengths, percentiles, errors, both loops."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from tidemill.base.errors import TidemillError
from tidemill.bench.lengths import read_lengths
from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions
from tidemill.bench.report import render_table, report_json
from tidemill.bench.stats import percentile
from tidemill.cli.bench import bench


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class FakeServer:
    """Streams max_tokens chunks, one every `gap` seconds; every `fail_every`-th answer is a 503."""

    def __init__(self, gap: float = 0.01, fail_every: int = 0, cut_every: int = 0) -> None:
        self.gap, self.fail_every, self.cut_every = gap, fail_every, cut_every
        self.bodies: list[dict] = []
        self.running = self.most = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = json.dumps({"data": [{"id": "fake"}]}).encode()
            length = f"Content-Length: {len(body)}\r\n\r\n".encode()
            writer.write(b"HTTP/1.1 200 OK\r\n" + length + body)
        else:
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            self.bodies.append(json.loads(await reader.readexactly(length)))
            self.running += 1
            self.most = max(self.most, self.running)
            await self.answer(writer, len(self.bodies))
            self.running -= 1
        await writer.drain()
        writer.close()

    async def answer(self, writer: asyncio.StreamWriter, number: int) -> None:
        if self.fail_every and number % self.fail_every == 0:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")
            return
        body = self.bodies[-1]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        count = body["max_tokens"]
        for i in range(count):
            await asyncio.sleep(self.gap)
            if self.cut_every and number % self.cut_every == 0 and i == 1:
                return
            reason = "length" if i == count - 1 else None
            text = json.dumps({"choices": [{"text": "x", "finish_reason": reason}]})
            writer.write(chunk(f"data: {text}\n\n".encode()))
        usage = {"prompt_tokens": 11, "completion_tokens": count}
        usage["prompt_tokens_details"] = {"cached_tokens": 3}
        end = json.dumps({"choices": [], "usage": usage})
        writer.write(chunk(f"data: {end}\n\ndata: [DONE]\n\n".encode()) + b"0\r\n\r\n")


@contextmanager
def serving(server: FakeServer) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.handle, "127.0.0.1", 0))
    port = listener.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listener.close()
        loop.close()


def test_closed_loop_measures_what_the_server_does() -> None:
    server = FakeServer(gap=0.02)
    with serving(server) as url:
        options = BenchOptions(base_url=url, concurrency=(4,), requests=8, output_tokens=5)
        report = run_bench(options)
    (point,) = report.points
    assert report.model == "fake"
    assert (point.completed, point.output_tokens, point.input_tokens) == (8, 40, 88)
    assert point.cached_tokens == 24
    assert server.most == 4
    assert 18 < point.latencies["itl"]["p50"] < 60
    assert 18 < point.latencies["ttft"]["p50"] < 100
    assert point.latencies["e2e"]["p50"] >= 5 * 19
    assert len({json.dumps(b["prompt"]) for b in server.bodies}) == 9  # 8 and a warm-up, all new


def test_failures_are_counted_by_kind() -> None:
    with serving(FakeServer(gap=0.001, fail_every=3)) as url:
        report = run_bench(BenchOptions(base_url=url, requests=6, warmup=0, output_tokens=2))
    assert report.points[0].errors == {"http 503": 2}
    assert "HTTP 503" in report.points[0].error_details["http 503"]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(report))
    assert "2x http 503" in (text := console.export_text()) and "HTTP 503" in text
    with serving(FakeServer(gap=0.001, cut_every=3)) as url:
        report = run_bench(BenchOptions(base_url=url, requests=6, warmup=0, output_tokens=4))
    (point,) = report.points
    assert point.completed == 4 and sum(point.errors.values()) == 2


def test_open_loop_sends_at_its_own_pace() -> None:
    server = FakeServer(gap=0.05)
    with serving(server) as url:
        options = BenchOptions(base_url=url, rates=(200.0,), requests=20, output_tokens=3)
        report = run_bench(options)
    assert report.points[0].mode == "rate"
    assert server.most > 8  # arrivals do not wait for answers


def test_a_point_ends_with_its_time() -> None:
    with serving(FakeServer(gap=0.1)) as url:
        options = BenchOptions(
            base_url=url, requests=50, warmup=0, output_tokens=1000, max_seconds=0.3
        )
        (point,) = run_bench(options).points
    assert point.errors == {"end of the point's time": 1}
    assert point.seconds < 5


def test_chat_sends_messages_and_reads_deltas() -> None:
    class ChatServer(FakeServer):
        async def answer(self, writer: asyncio.StreamWriter, number: int) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for delta in ({"role": "assistant", "content": ""}, {"reasoning_content": "hm"},
                          {"content": "x"}):  # fmt: skip
                text = json.dumps({"choices": [{"delta": delta, "finish_reason": None}]})
                writer.write(chunk(f"data: {text}\n\n".encode()))
            text = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            writer.write(chunk(f"data: {text}\n\ndata: [DONE]\n\n".encode()) + b"0\r\n\r\n")

    server = ChatServer()
    with serving(server) as url:
        (point,) = run_bench(BenchOptions(base_url=url, endpoint="chat", requests=2)).points
    assert server.bodies[0]["messages"][0]["role"] == "user"
    assert (point.completed, point.output_tokens) == (2, 4)  # without usage: content chunks


def test_lengths_file_and_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"input": 3, "output": 2}\n[5, 4]\n')
    server = FakeServer(gap=0.0)
    with serving(server) as url:
        options = BenchOptions(
            base_url=url, requests=4, warmup=0, lengths_file=path, token_ids=True, vocab=50
        )
        run_bench(options)
    assert sorted((len(b["prompt"]), b["max_tokens"]) for b in server.bodies) == [
        (3, 2), (3, 2), (5, 4), (5, 4),
    ]  # fmt: skip
    assert all(0 <= t < 50 for b in server.bodies for t in b["prompt"])


def test_sessions_are_sent_to_several_models() -> None:
    server = FakeServer(gap=0.0)
    with serving(server) as url:
        run_bench(BenchOptions(base_url=url, requests=40, warmup=0, models=("a", "b")))
    assert {body["model"] for body in server.bodies} == {"a", "b"}


def test_bad_lengths_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("input,output\n10,20\nten,20\n")
    with pytest.raises(TidemillError, match="line 3"):
        read_lengths(path)


def test_unreachable_server_is_one_clear_error() -> None:
    with pytest.raises(TidemillError, match="Is it running"):
        run_bench(BenchOptions(base_url="http://127.0.0.1:9/v1"))


def test_report_is_json_and_a_table() -> None:
    with serving(FakeServer(gap=0.0)) as url:
        report = run_bench(BenchOptions(base_url=url, requests=1, output_tokens=1))
    data = json.loads(report_json(report))
    assert data["points"][0]["latencies"]["itl"]["p50"] is None  # one token has no gap
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(report))
    assert "TTFT" in console.export_text()


def test_percentile_is_linear() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([5.0], 99) == 5.0


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured() -> None:
    asked = ["http://127.0.0.1:9", "--csv", "/none/a.csv"]
    with pytest.raises(TidemillError, match=r"--csv /none/a\.csv"):
        CliRunner().invoke(bench, asked, catch_exceptions=False)
