"""Conversations, as a person has them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from helpers.real_server import RealServer
from helpers.scripted_answers import answer_with
from helpers.web_page import Page

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.xdist_group("ui")

LONG = "Count: 1 2 3 4 5 6 7 8 9"


def eventually(test: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def begin_long(page: Page) -> None:
    """Begin an answer of a thousand tokens or more, at a speed that can be watched."""
    page.set_field("Most tokens", "3000")
    page.set_field("System prompt", "You count.")
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.continue_(
            post_data=json.dumps(
                {**json.loads(route.request.post_data or "{}"), "ignore_eos": True}
            )
        ),
    )
    before = page.answers.count()
    page.send(LONG)
    written = page.answers.nth(before).locator(".markdown")
    eventually(lambda: written.count() == 1 and len(written.inner_text()) > 20)


def test_an_answer_streams_and_has_figures(page: Page) -> None:
    answer = page.ask("What is 12 * 7?")
    assert answer.strip()
    assert re.search(r"\d+ \+ \d+ tokens", page.answers.first.inner_text())
    assert page.page.title() == "Chat · Tidemill"
    assert re.search(r"#/chat/[0-9a-f]{24}$", page.page.url)


def test_stop_frees_the_engine_s_blocks_and_keeps_what_came(page: Page, server: RealServer) -> None:
    before = server.stats()["generated_tokens"]
    begin_long(page)
    assert server.stats()["running"] == 1
    page.composer.press("Escape")
    page.page.get_by_text("Stopped.").wait_for()
    eventually(lambda: server.stats()["running"] == 0)
    # It did not go on to its end, as for a client that may come back.
    assert server.stats()["generated_tokens"] - before < 3000
    text = page.answers.first.locator(".markdown").inner_text()
    assert 20 < len(text) < 8000
    page.page.unroute_all()
    page.page.reload()
    page.page.get_by_text("Stopped.").wait_for()
    assert page.answers.first.locator(".markdown").inner_text() == text
    assert page.messages()[-1].get("resume") is None


def test_versions_are_a_tree_with_arrows(page: Page) -> None:
    page.ask("What is 1 + 1?")
    page.answers.first.get_by_role("button", name="Regenerate").click()
    page.page.get_by_text("2 of 2").wait_for()
    page.answer(0)
    mine = page.page.locator("article.user").first
    mine.get_by_role("button", name="Edit", exact=True).click()
    mine.get_by_role("textbox").fill("What is 2 + 2?")
    mine.get_by_role("button", name="Save and send").click()
    page.page.locator("article.user").get_by_text("What is 2 + 2?").wait_for()
    page.answer(0)
    page.button("Version before").click()
    page.page.locator("article.user").get_by_text("What is 1 + 1?").wait_for()
    assert page.answers.first.get_by_text("2 of 2").is_visible()
    parents = [row["parent"] for row in page.messages()]
    assert len(parents) == 5 and parents.count(None) == 2


def test_a_reload_in_the_middle_of_a_stream_goes_on_with_it(page: Page, server: RealServer) -> None:
    steps = server.stats()["generated_tokens"]
    begin_long(page)
    eventually(lambda: bool(page.messages()[-1].get("resume", {}).get("eventId")))
    page.page.reload()
    page.answers.first.locator(".figures").wait_for()
    text = page.answers.first.locator(".markdown").inner_text()
    assert len(text) > 500
    generated = server.stats()["generated_tokens"] - steps
    assert generated <= 3000, "the answer was generated twice"
    assert f"+ {generated:,} tokens" in page.answers.first.inner_text()


def test_a_killed_engine_leaves_one_seamless_answer(page: Page, server: RealServer) -> None:
    begin_long(page)
    server.engine().kill()
    killed = page.answer(0)
    page.page.goto("about:blank")
    page.open()
    begin_long(page)
    assert page.answer(0) == killed


def test_probabilities_of_tokens(page: Page) -> None:
    page.button("Chat settings").click()
    page.page.get_by_label("Ask for probabilities of the tokens").check()
    page.ask("What is 12 * 7?")
    page.button("Probabilities of the tokens").click()
    tokens = page.page.locator(".tokens span")
    assert tokens.count() > 1
    tokens.nth(1).hover()
    page.page.get_by_text(re.compile(r"Token 2 of \d+")).wait_for()
    page.page.locator(".tokens").press("ArrowLeft")
    page.page.get_by_text(re.compile(r"Token 1 of \d+")).wait_for()
    assert page.page.locator(".alternatives tr").count() == 5


def test_a_calculator_in_the_page_answers_a_call(page: Page) -> None:
    page.button("Chat settings").click()
    page.page.locator("summary", has_text="Tools").click()
    page.page.get_by_label("calculator").check()
    arguments = '{"expression": "(1234 + 2^3) * -5.5 / sqrt(4)"}'
    call = {"index": 0, "id": "call-1", "function": {"name": "calculator", "arguments": arguments}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    bodies = []

    def answer(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        if len(bodies) > 1:
            route.continue_()
            return
        body = f"id: a:0\ndata: {json.dumps(chunk)}\n\nid: a:1\ndata: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    page.page.route("**/v1/chat/completions", answer)
    page.send("What is it?")
    page.answer(1)
    assert page.page.locator("article.tool .plain").text_content() == "-3415.5"
    assert page.page.locator(".call-name").first.inner_text() == "Calls calculator"
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert bodies[1]["messages"][2] == {
        "role": "tool",
        "content": "-3415.5",
        "tool_call_id": "call-1",
    }


def test_search_export_and_import(page: Page) -> None:
    page.ask("What is the zebra's colour?")
    page.button("New chat").first.click()
    page.page.get_by_text("What shall it be?").wait_for()
    page.ask("Who are you?")
    page.page.get_by_label("Search conversations").fill("ZEBRA")
    entries = page.page.locator(".conversations li")
    eventually(lambda: entries.count() == 1)
    entries.first.get_by_role("link").click()
    page.page.get_by_label("Search conversations").fill("")
    page.page.get_by_text("Export and import").click()
    with page.page.expect_download() as markdown:
        page.button("Export this as Markdown").click()
    text = markdown.value.path().read_text()
    assert text.startswith("# What is the zebra's colour?") and "## User" in text
    with page.page.expect_download() as exported:
        page.button("Export all as JSON").click()
    page.page.locator("input[type=file][accept*=json]").set_input_files(exported.value.path())
    page.page.get_by_text("2 conversations imported.").wait_for()
    eventually(lambda: entries.count() == 4)
    rows = page.messages()
    assert len(rows) == 8 and len({row["conversation"] for row in rows}) == 4


def test_an_attached_file_reaches_the_model(page: Page) -> None:
    page.page.locator("form input[type=file]").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"The password is walnut."}
    )
    page.page.get_by_role("list", name="Attached files").get_by_text("notes.txt").wait_for()
    with page.page.expect_request("**/v1/chat/completions") as sent:
        page.ask("What is it?")
    content = json.loads(sent.value.post_data or "")["messages"][-1]["content"]
    assert "notes.txt" in content and "walnut" in content and content.endswith("What is it?")


def test_two_tabs_show_the_same_conversation(page: Page) -> None:
    other = Page(page.page.context.new_page(), page.url)
    page.ask("What is 1 + 1?")
    other.page.goto(page.page.url)
    other.answers.first.wait_for()
    page.ask("What is 2 + 2?")
    other.page.locator("article.user").get_by_text("What is 2 + 2?").wait_for()
    eventually(lambda: other.answers.count() == 2)
    begin_long(page)
    other.page.get_by_text("Being written in another tab").wait_for()
    page.composer.press("Escape")
    other.page.get_by_text("Stopped.").wait_for()
    assert not other.errors


def test_a_person_answers_a_call_of_an_own_tool(page: Page) -> None:
    page.button("Chat settings").click()
    page.page.locator("summary", has_text="Tools").click()
    settings = page.page.get_by_role("complementary", name="Chat settings")
    settings.get_by_label("Name", exact=True).fill("weather")
    settings.get_by_label("Arguments (JSON schema)").fill("{")
    assert settings.get_by_role("button", name="Add or replace the tool").is_disabled()
    settings.get_by_label("Arguments (JSON schema)").fill('{"type": "object"}')
    settings.get_by_role("button", name="Add or replace the tool").click()
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": "{}"}}
    other = {"index": 1, "id": "c2", "function": {"name": "weather", "arguments": "{}"}}
    answer_with(page, ["Let me see."], tool_calls=[call, other])
    with page.page.expect_request("**/v1/chat/completions") as asked:
        page.send("What is the weather?")
    tools = json.loads(asked.value.post_data or "")["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["weather"]
    page.page.get_by_label("Result of weather").fill("rain")
    page.button("Give the result").click()
    page.page.locator("article.tool", has_text="rain").wait_for()
    page.page.unroute_all()
    with page.page.expect_request("**/v1/chat/completions") as asked:
        page.page.get_by_label("Result of weather").fill("snow")
        page.button("Give the result").click()
    messages = json.loads(asked.value.post_data or "")["messages"]
    results = [(one["tool_call_id"], one["content"]) for one in messages if one["role"] == "tool"]
    assert results == [("c1", "rain"), ("c2", "snow")]
    page.answer(1)


def test_presets_are_kept_and_parameters_are_checked(page: Page) -> None:
    page.set_field("Temperature", "0.7")
    page.set_field("System prompt", "You are a pirate.")
    page.page.locator("summary", has_text="Presets").click()
    page.page.get_by_label("Name of the preset").fill("pirate")
    page.page.locator(".settings form", has_text="Save").last.get_by_text("Save").click()
    kept = page.page.get_by_label("Use a preset").locator("option", has_text="pirate")
    kept.wait_for(state="attached")
    page.page.reload()
    page.set_field("Temperature", "7")
    page.page.get_by_text("From 0 to 2.").wait_for()
    page.page.locator("summary", has_text="Presets").click()
    page.page.get_by_label("Use a preset").select_option("pirate")
    with page.page.expect_request("**/v1/chat/completions") as asked:
        page.ask("Who are you?")
    body = json.loads(asked.value.post_data or "")
    assert body["temperature"] == 0.7
    assert body["messages"][0] == {"role": "system", "content": "You are a pirate."}


def test_an_answer_is_changed_continued_and_taken_into_a_new_chat(page: Page) -> None:
    page.set_field("Most tokens", "4")
    page.ask("Who are you?")
    page.page.get_by_text("reached its limit").wait_for()
    before = page.answers.first.locator(".markdown").inner_text()
    page.set_field("Most tokens", "30")
    with page.page.expect_request("**/v1/chat/completions") as asked:
        page.button("Continue").click()
    body = json.loads(asked.value.post_data or "")
    assert body["continue_final_message"] is True
    assert body["messages"][-1] == {"role": "assistant", "content": before}
    markdown = page.answers.first.locator(".markdown")
    eventually(lambda: len(markdown.inner_text()) > len(before))
    assert markdown.inner_text().startswith(before)
    page.answers.first.get_by_role("button", name="Edit", exact=True).click()
    page.answers.first.get_by_role("textbox").fill("I am a teapot.")
    page.answers.first.get_by_role("button", name="Save").click()
    page.answers.first.get_by_text("2 of 2").wait_for()
    page.answers.first.get_by_role("button", name="Go on from here in a new chat").click()
    page.page.get_by_role("heading", name="Who are you? (branch)").wait_for()
    assert page.answers.first.locator(".markdown").inner_text() == "I am a teapot."
    eventually(lambda: page.page.locator(".conversations li").count() == 2)
    page.answers.first.get_by_role("button", name="Delete this and what follows").click()
    eventually(lambda: page.answers.count() == 0)
    assert page.page.locator("article.user").count() == 1
