"""Large conversations stay smooth. Times are the best of a few, since neighbours are loud."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.real_server import RealServer
from helpers.scripted_answers import answer_with
from helpers.web_page import Page

pytestmark = pytest.mark.xdist_group("ui")

SEED = """async ([id, count, length]) => {
    const database = await new Promise((resolve) => {
        const asked = indexedDB.open("tidemill");
        asked.onsuccess = () => resolve(asked.result);
    });
    const work = database.transaction(["conversations", "messages"], "readwrite");
    const text = "Some **bold** words and `code`, again and again. ".repeat(length);
    for (let seq = 0; seq < count; seq++) {
        work.objectStore("messages").put({
            id: `${id}-${seq}`, conversation: id, seq, created: 1e12 + seq,
            parent: seq ? `${id}-${seq - 1}` : null,
            role: seq % 2 ? "assistant" : "user", content: `${seq} ${text}`,
        });
    }
    const settings = {model: "", system: "", parameters: {}, stop: [], thinking: "default",
        logprobs: false, builtinTools: [], tools: [], format: "text", schema: "{}"};
    work.objectStore("conversations").put({
        id, title: id, created: 1, updated: Date.now(), leaf: `${id}-${count - 1}`, settings,
    });
    await new Promise((resolve) => { work.oncomplete = resolve; });
    database.close();
}"""

OPEN = """(id) => new Promise((resolve) => {
    const began = performance.now();
    location.hash = `#/chat/${id}`;
    const look = () => {
        const shown = document.querySelector("h1.title")?.textContent === id
            && document.querySelectorAll("article").length >= 40;
        if (shown) resolve(performance.now() - began);
        else requestAnimationFrame(look);
    };
    look();
})"""

WATCH = """() => {
    globalThis.longest = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) longest = Math.max(longest, entry.duration);
    }).observe({type: "longtask"});
}"""


def best(measure: Callable[[], float], bound: float, tries: int = 4) -> None:
    found: list[float] = []
    for _ in range(tries):
        found.append(measure())
        if found[-1] <= bound:
            return
    raise AssertionError(f"{found} milliseconds, at most {bound} wanted")


def test_ten_thousand_messages_open_at_once(page: Page) -> None:
    page.page.evaluate(SEED, ["large", 10_000, 4])
    page.page.evaluate(SEED, ["small", 60, 1])
    page.page.reload()
    page.page.locator("h1").first.wait_for()

    def measure() -> float:
        page.page.evaluate(OPEN, "small")
        took: float = page.page.evaluate(OPEN, "large")
        return took

    best(measure, 300)
    page.page.locator(".messages").evaluate("box => { box.scrollTop = 0; }")
    page.page.get_by_text("9920 earlier").wait_for()


def test_a_long_answer_has_no_long_task(page: Page) -> None:
    page.page.evaluate(SEED, ["many", 500, 4])
    paragraph = "Some **bold** words, `code` and a [link](https://example.com). " * 6 + "\n\n"
    answer_with(page, [paragraph[:100], paragraph[100:]] * 530)

    def measure() -> float:
        page.page.goto("about:blank")
        page.open("#/chat/many")
        page.page.locator("article").nth(39).wait_for()
        page.page.evaluate(WATCH)
        before = page.answers.count()
        page.send("Go on.")
        page.page.get_by_text("1 + 1,060 tokens").last.wait_for()
        page.page.wait_for_timeout(1500)
        assert page.answers.count() >= before
        text = page.answers.last.locator(".markdown").inner_text()
        assert len(text) > 100_000
        longest: float = page.page.evaluate("longest")
        return longest

    best(measure, 100)


def test_an_open_live_view_costs_the_server_little(page: Page, server: RealServer) -> None:
    import psutil

    processes = [psutil.Process(server.process.pid), server.engine()]

    def busy() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    page.go("machine")
    page.page.get_by_text("Tokens per second").wait_for()
    page.page.wait_for_timeout(2000)

    def share() -> float:
        before = busy()
        page.page.wait_for_timeout(10_000)
        return 100 * (busy() - before) / 10

    best(share, 1.0, tries=2)


def test_the_page_is_there_in_a_second(page: Page) -> None:
    def measure() -> float:
        page.page.goto("about:blank")
        page.open()
        page.composer.wait_for()
        took: float = page.page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        return took

    best(measure, 1000)
