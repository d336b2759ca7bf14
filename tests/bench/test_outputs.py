"""What a run leaves behind: the page, quality, energy and cost, and the command line."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.simulated_time import ScriptedServer, run_simulated
from rich.console import Console

from tidemill.base.errors import TidemillError
from tidemill.bench.energy import EnergyMeter, cost, is_local
from tidemill.bench.html import render_html
from tidemill.bench.load import measure_server
from tidemill.bench.options import BenchOptions
from tidemill.bench.quality import read_questions
from tidemill.bench.report import client_line, quality_lines, render_table, report_json, sparkline
from tidemill.bench.results import BenchReport, ClientUse, RequestTrace
from tidemill.bench.summary import summarize
from tidemill.cli.main import app_of


def a_report(label: str = "a", **how: Any) -> BenchReport:
    server = ScriptedServer(lambda body, number, now: [0.1, 0.2 + number % 5 / 100])
    options = BenchOptions("http://x", **{"requests": 30, "label": label, **how}).validate()
    return run_simulated(server, measure_server, options)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.data = ""
        self._in_data = False
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [v for k, v in given.items() if k in ("src", "href") and v]
        self._in_data = tag == "script" and given.get("id") == "data"
        self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        self.data += data if self._in_data else ""

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False


def test_the_page_holds_everything() -> None:
    evil = "</script><script>alert(1)</script>"
    first, second = a_report("first"), a_report(evil)
    text = render_html([first, second])
    page = _Page()
    page.feed(text)
    assert page.loads == [] and page.scripts == 2
    assert "default-src 'none'" in text
    data = json.loads(page.data)
    assert [r["label"] for r in data["reports"]] == ["first", evil]
    assert data["reports"][0]["points"][0]["samples"]["e2e"][0] == pytest.approx(210)
    assert data["comparisons"][0]["verdict"] in ("faster", "slower", "not shown")
    assert "/*" + "DATA*/" not in text and "/*" + "JS*/" not in text and "/*" + "CSS*/" not in text


class _Answering(ScriptedServer):
    """Answers with the last word of the prompt in capitals; scores each word with -2."""

    def __init__(self) -> None:
        super().__init__(lambda body, number, now: [0.1])

    async def _stream(self, body: dict[str, Any], pipe: Any) -> None:
        if body.get("echo"):
            words, places, at = body["prompt"].split(" "), [], 0
            for word in words:
                places.append(at)
                at += len(word) + 1
            scores = [None, *[-2.0] * (len(words) - 1), -9.0]
            found = {"token_logprobs": scores, "text_offset": [*places, len(body["prompt"])]}
            data = json.dumps({"choices": [{"logprobs": found}]}).encode()
            pipe.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
            return
        text = f" {body['prompt'].split()[-1].upper()}\n"
        event = json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode()
        data = b"data: " + event + b"\n\ndata: [DONE]\n\n"
        pipe.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))


def test_quality(tmp_path: Path) -> None:
    questions = tmp_path / "q.jsonl"
    questions.write_text(
        '{"prompt": "say paris", "expected": "PARIS"}\n\n'
        '{"messages": [{"role": "user", "content": "say rome"}], "expected": ["ROMA", "ROME"]}\n'
        '{"prompt": "say oslo", "expected": "oslo"}\n'
    )
    text = tmp_path / "text.txt"
    text.write_text("word " * 1000)
    options = BenchOptions(
        "http://x", model="m", requests=2, answers=questions, perplexity=text, concurrency=(2,)
    ).validate()
    report = run_simulated(_Answering(), measure_server, options)
    assert report.quality is not None
    assert report.quality["answers"]["outcomes"] == [1, 1, 0]
    found = report.quality["perplexity"]
    assert found["perplexity"] == pytest.approx(math.exp(2))
    # Each window's first word is not scored, and neither is what was generated.
    assert found["tokens"] == pytest.approx(1000 - 3, abs=3)
    assert found["bits_per_byte"] == pytest.approx(2 / math.log(2) / 5, rel=0.02)
    assert ["66.7% of 3" in line for line in quality_lines(report)] == [True, False]


def test_a_question_without_an_answer_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "q.jsonl").write_text('{"prompt": "a", "expected": "b"}\n{"prompt": "c"}\n')
    with pytest.raises(TidemillError, match="line 2"):
        read_questions(path)


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (ClientUse(cpu=0.95, lag={"p99": 1.0}), "saturated: 95%"),
        (ClientUse(cpu=0.2, lag={"p99": 40.0}), "held up"),
        (ClientUse(cpu=0.2, lag={"p99": 4.0}), None),
        (ClientUse(cpu=0.2), None),
    ],
)
def test_a_client_that_limits_what_it_measures_is_said(client: ClientUse, said: str | None) -> None:
    traces = [RequestTrace(i, i, [i + 0.1], i + 0.2, 5, 1, 0, "stop") for i in range(30)]
    point = summarize("rate", 1.0, traces, client=client)
    assert point.client.saturated is (said is not None)
    assert said is None or said in client_line(point)


def test_a_blocked_client_notices() -> None:
    """In real time: what stops the event loop for 30 ms at every answer is seen as lateness."""

    async def main() -> BenchReport:
        server = ScriptedServer(lambda body, number, now: [0.01])
        options = BenchOptions("http://x", rates=(100.0,), requests=40, output_tokens=1, warmup=0)
        block = lambda *_: time.sleep(0.03)  # noqa: E731
        return await measure_server(options.validate(), block, connect=server.connect)

    report = asyncio.run(main())
    assert report.points[0].client.saturated
    assert any("held up" in note for note in report.notes)


def test_energy_is_read_where_it_can_be(tmp_path: Path) -> None:
    for name, label in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(label + "\n")
        (tmp_path / name / "max_energy_range_uj").write_text("9999999\n")
        (tmp_path / name / "energy_uj").write_text("9000000\n")
    meter, elsewhere = EnergyMeter("127.0.0.1", tmp_path), EnergyMeter("10.0.0.1", tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1500000\n")  # began anew
    assert meter.read()["rapl:package-0"] == 2.5
    assert elsewhere.read() == {}
    assert not any("rapl" in name for name in EnergyMeter("localhost", tmp_path / "none").read())
    assert is_local("::1") and not is_local("example.org")


def test_cost_is_by_the_prices_that_were_given() -> None:
    (point,) = a_report().points
    assert cost(point, {}) == {}
    point.input_tokens, point.cached_tokens, point.output_tokens = 3000, 1000, 500
    point.seconds = 36.0
    found = cost(point, {"input": 2.0, "cached": 0.5, "output": 8.0, "hour": 1.0})
    assert found["tokens"] == pytest.approx((2000 * 2 + 1000 * 0.5 + 500 * 8) / 1e6)
    assert found["machine_per_million_output"] == pytest.approx(20)


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([]) == sparkline([0, 0]) == ""
    assert len(sparkline([1.0] * 1000)) == 16


@pytest.mark.parametrize("width", [80, 100, 120, 140, 160])
def test_no_figure_is_cut_on_a_narrow_terminal(width: int) -> None:
    report = a_report(repeat=2, concurrency=(1, 16), objectives={"ttft": 50.0})
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render_table(report, width))
    text = console.export_text()
    assert "…" not in text and ("TPOT" in text) is (width >= 115)
    for point in report.points:
        row = point.latencies["ttft"]
        assert f"{row['p50']:.1f} / {row['p99']:.1f}" in text
        assert f"{point.completed}/{point.requests}" in text
        assert (sparkline(point.series["output_tokens"])[:6] in text) is (width >= 125)


def test_no_key_is_in_a_report() -> None:
    report = a_report(api_key="secret-1", headers=("X-Key: secret-2",))
    assert "secret" not in report_json(report)


def _run(*arguments: str) -> None:
    app_of(["bench"]).main(["bench", *arguments], standalone_mode=False)


def test_compare_and_report_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, tokens in (("one", 2), ("two", 2)):
        path = tmp_path / f"{name}.json"
        path.write_text(report_json(a_report("same", output_tokens=tokens)))
        files.append(str(path))
    _run("compare", *files, "--html", str(page := tmp_path / "x.html"), "--fail-if-slower")
    assert "two faster or slower than one: not shown" in capsys.readouterr().out
    assert "<!doctype html>" in page.read_text()
    _run("report", *files, "--html", str(other := tmp_path / "y.html"))
    assert other.exists()
