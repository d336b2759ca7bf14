"""The benchmark's page in a real browser: drawn, clicked, and asking no network for anything."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.simulated_time import ScriptedServer, run_simulated

from tidemill.bench.html import render_html
from tidemill.bench.load import measure_server
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import BenchReport, RequestTrace
from tidemill.bench.summary import merge, summarize

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as BrowserPage

pytestmark = pytest.mark.xdist_group("ui")


def a_report(label: str, slow: float) -> BenchReport:
    """Streams that share a server: more of them are slower, each request is its own."""

    def script(body: dict, number: int, now: float) -> list[float]:
        first = slow * (0.2 + number * 37 % 11 / 50)
        return [first + 0.02 * slow * i for i in range(8)]

    options = BenchOptions(
        "http://127.0.0.1", concurrency=(1, 2, 4), requests=40, repeat=3, label=label,
        objectives={"ttft": 350.0},
    )  # fmt: skip
    # In a thread of its own: the browser's event loop runs in this one.
    with ThreadPoolExecutor(1) as pool:
        server = ScriptedServer(script)
        return pool.submit(run_simulated, server, measure_server, options.validate()).result()


@contextmanager
def opened(browser: Browser, path: Path, *reports: BenchReport) -> Iterator[BrowserPage]:
    """The page of some runs; errors of its script, and requests, fail the test."""
    path.write_text(render_html(reports), "utf-8")
    context = browser.new_context(viewport={"width": 1240, "height": 1000})
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.locator("#points tbody tr").first.wait_for()
    yield page
    context.close()
    assert wrong == [] and asked == [path.as_uri()]


@pytest.fixture
def report(browser: Browser, tmp_path: Path) -> Iterator[BrowserPage]:
    """The page of two runs, the second 1.5 times slower."""
    runs = a_report("before", 1.0), a_report("after", 1.5)
    with opened(browser, tmp_path / "bench.html", *runs) as page:
        yield page


def test_points_without_a_latency_are_drawn_too(browser: Browser, tmp_path: Path) -> None:
    """All failed, one request, and equal latencies."""
    runs = [a_report(name, 0.0) for name in ("failed", "single", "equal")]
    failed = RequestTrace(0.0, 0.0, end=0.1, error="http 503", detail="busy")
    single = RequestTrace(0.0, 0.0, [0.1], 0.1, 5, 1, 0, "stop")
    runs[0].points = [merge([summarize("rate", 1.0, [failed])], [[failed]])]
    runs[1].points = [merge([summarize("rate", 1.0, [single])], [[single]])]
    runs[2].points = [merge([summarize("rate", 1.0, [single] * 30)], [[single] * 30])]
    with opened(browser, tmp_path / "bench.html", *runs) as page:
        for row in range(3):
            page.locator("#points tbody tr").nth(row).click()
            for form in ("bars", "share"):
                page.select_option("#choose-form", form)
            page.check("#log")
            page.uncheck("#log")
        assert "1x http 503: busy" in page.locator("#notes").inner_text()


def test_the_page_is_drawn_and_clicked(report: BrowserPage, screenshots: Path | None) -> None:
    assert report.locator(".verdict.slower").inner_text().startswith("after is slower than before")
    dots = report.locator("#curve circle.dot")
    assert dots.count() == 6
    dots.first.click()
    assert report.locator("#time-caption").inner_text().startswith("before, 1 streams")
    assert report.locator("#scatter circle").count() == 120
    report.locator("#points tbody tr").last.click()
    assert report.locator("#time-caption").inner_text().startswith("after, 4 streams")
    assert report.locator("tr.on").count() == 1
    if screenshots is not None:
        report.screenshot(path=screenshots / "bench-report.png", full_page=True)


def test_what_is_chosen_is_shown(report: BrowserPage) -> None:
    median = float(report.locator("#spread-caption").inner_text().split("p50 ")[1].split(",")[0])
    assert 250 < median < 700
    for form in ("bars", "share"):
        report.select_option("#choose-form", form)
        marks = report.locator("#spread rect" if form == "bars" else "#spread polyline")
        assert marks.count() >= 2
    report.select_option("#choose-latency", "ttft")
    assert "TTFT p50" in report.locator("#curve").inner_text()
    assert report.locator("#curve line[stroke-dasharray]").count() == 1  # the objective
    report.check("#log")
    report.locator("#runs button").first.click()
    assert report.locator("#curve circle.dot").count() == 3
    report.locator("#curve circle.dot").first.hover()
    assert report.locator("#tip").inner_text().startswith("after: 1 streams")
