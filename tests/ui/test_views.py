"""The views beside the chat, as a person uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.web_page import Page

from tidemill.loading import bundled_models


def keep(page: Page, folder: Path | None, name: str) -> None:
    if folder is not None:
        page.page.screenshot(path=folder / f"{name}.png", full_page=True)


pytestmark = pytest.mark.xdist_group("ui")


def test_a_model_is_unloaded_and_loaded_again(page: Page) -> None:
    page.go("models")
    row = page.page.locator("tr", has_text="brook")
    row.get_by_text("loaded", exact=True).wait_for()
    row.get_by_role("button", name="Unload").click()
    row.get_by_text("not loaded").wait_for()
    row.get_by_role("button", name="Load", exact=True).click()
    row.get_by_text("loaded", exact=True).wait_for()
    assert page.page.locator(".legend").get_by_text("brook: KV cache").is_visible()
    row.get_by_role("button", name="brook", exact=True).click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_text("Chat template").wait_for()
    assert dialog.get_by_text("bfloat16").first.is_visible()
    page.page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_an_adapter_is_loaded_used_and_unloaded(page: Page) -> None:
    folder = bundled_models()["brook"] / "lora-verse"
    page.go("models")
    page.page.get_by_label("Name of the adapter").fill("verse")
    page.page.get_by_label("Path on the server").fill(str(folder))
    page.button("Load the adapter").click()
    row = page.page.locator("form tr", has_text="verse")
    row.wait_for()
    page.go("chat")
    page.page.get_by_role("combobox", name="Model").select_option("verse")
    page.ask("What is the capital of France?")
    assert page.answers.first.locator(".who").inner_text() == "verse"
    page.go("models")
    row.get_by_role("button", name="Unload").click()
    row.wait_for(state="detached")


def test_a_pull_that_fails_says_why(page: Page) -> None:
    page.expected.append("status of 4")
    page.go("models")
    page.page.get_by_label("From", exact=True).fill("./no-such-folder-of-models")
    page.button("Pull").click()
    page.page.locator(".notice.bad").wait_for()
    assert "no-such-folder-of-models" in page.page.locator(".notice.bad").inner_text()


def test_a_model_is_pulled_into_the_library_and_its_versions_are_rolled_out(
    page: Page, screenshots: Path | None
) -> None:
    folder = bundled_models()["brook"]
    page.go("models")
    for name in ("river@1", "river@2"):
        page.page.get_by_label("From", exact=True).fill(str(folder))
        page.page.get_by_label("Name (optional)").fill(name)
        page.button("Pull").click()
        page.page.get_by_text(f"{name} is in the library.").wait_for()
        page.page.locator("tr", has_text=name).first.wait_for()
    card = page.page.locator("article.card", has_text="river")
    card.get_by_label("New version").select_option("2")
    card.get_by_role("button", name="Start a canary").click()
    card.get_by_text("% of the traffic").wait_for()
    assert card.get_by_role("row", name=re.compile("^river@2|^2")).count() >= 1
    card.get_by_role("region", name="Comparison of the versions").wait_for()
    keep(page, screenshots, "rollout")
    card.get_by_role("button", name="Promote").click()
    card.get_by_role("button", name="Start a canary").wait_for()
    for name in ("river@1", "river@2"):
        page.page.once("dialog", lambda dialog: dialog.accept())
        page.button(f"Remove {name} from the library").click()
        page.page.locator("tr", has_text=name).first.wait_for(state="detached")


def test_a_batch_is_begun_and_its_results_are_there(page: Page) -> None:
    body = {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "max_tokens": 8}
    lines = [
        {"custom_id": f"a{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(3)
    ]
    page.go("admin/batches")
    page.page.get_by_text("No batches of this key.").wait_for()
    page.page.locator("input[accept='.jsonl']").set_input_files(
        {
            "name": "lines.jsonl",
            "mimeType": "application/jsonl",
            "buffer": "\n".join(map(json.dumps, lines)).encode(),
        }
    )
    with page.page.expect_download() as results:
        page.button("Results").click(timeout=30_000)
    assert len(results.value.path().read_text().splitlines()) == 3


def test_behind_a_path_prefix(page: Page) -> None:
    prefix = f"{page.url}/some/where"
    page.page.route(
        f"{prefix}/**",
        lambda route: route.continue_(url=route.request.url.replace("/some/where", "")),
    )
    outside: list[str] = []
    page.page.on(
        "request",
        lambda request: None if request.url.startswith(prefix) else outside.append(request.url),
    )
    page.page.goto(f"{prefix}/")
    page.ask("What is 1 + 1?")
    page.go("machine")
    page.page.get_by_text("Tokens per second").wait_for()
    assert outside == []


def test_the_machine_is_live_and_explains_a_request(page: Page) -> None:
    page.ask("What is 1 + 1?")
    page.go("machine")
    page.page.get_by_text("Tokens per second").wait_for()
    page.page.get_by_text(re.compile("KV cache of brook")).wait_for()
    assert page.page.locator(".chart canvas").count() >= 5
    assert page.page.locator("canvas.blocks").is_visible()
    page.page.locator("td a").first.click()
    page.page.get_by_role("heading", name=re.compile("^Request req-")).wait_for()
    page.page.locator(".phases rect").nth(4).wait_for()
    assert page.page.locator("main ul li").count() >= 1


def test_figures_of_an_answer_lead_to_its_explanation(page: Page) -> None:
    page.ask("What is 1 + 1?")
    page.page.locator("a.figures").click()
    page.page.get_by_role("heading", name=re.compile("^Request req-")).wait_for()


def test_a_benchmark_has_a_report(page: Page) -> None:
    page.go("bench")
    for label, value in (
        ("Requests", "4"),
        ("Words of a prompt", "20"),
        ("Tokens of an answer", "8"),
    ):
        page.page.get_by_label(label, exact=True).fill(value)
    page.button("Start").click()
    page.page.get_by_text("First token after").wait_for()
    tile = page.page.locator(".tile", has_text="Failed")
    assert tile.locator("dd").inner_text() == "0"


def test_sides_are_compared_and_votes_are_kept(page: Page) -> None:
    page.go("compare")
    page.page.get_by_role("button", name="Settings of side 2").click()
    page.page.get_by_role("dialog").get_by_label("Temperature", exact=True).fill("1.5")
    page.page.keyboard.press("Escape")
    page.page.get_by_label("One prompt for all").fill("Who are you?")
    page.button("Compare").click()
    page.button("1 is best").click()
    page.page.get_by_text("Standings after 1 votes").wait_for()
    rows = page.page.locator("table tbody tr")
    assert [row.split("\t")[:3] for row in rows.all_inner_texts()] == [
        ["brook", "1", "100 %"],
        ["brook, temperature 1.5", "1", "0 %"],
    ]
    page.page.reload()
    page.page.get_by_text("Standings after 1 votes").wait_for()


def test_a_schema_is_edited_and_the_answer_is_valid(page: Page) -> None:
    page.button("Chat settings").click()
    page.page.locator("summary", has_text="Format of the answer").click()
    page.page.get_by_label("Format of the answer").last.select_option("schema")
    editor = page.page.get_by_role("textbox", name="JSON by a schema")
    editor.fill('{"type": "objekt"}')
    page.page.get_by_text("there is no type objekt").wait_for()
    editor.fill('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    page.page.get_by_text("This is a schema.").wait_for()
    answer = page.ask("What is 1 + 1?")
    assert '"n"' in answer
    page.page.get_by_text("✓ Valid by the schema").wait_for()
