"""What a hostile model says, and hostile names, do nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from helpers.scripted_answers import answer_with
from helpers.web_page import Page

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.xdist_group("ui")

EVIL = "globalThis.pwned=1"
OUTPUTS = {
    "scripts": (
        f"<script>{EVIL}</script>\n\n<img src=x onerror='{EVIL}'>\n\ntext <svg/onload={EVIL}>"
    ),
    "links": "\n\n".join(
        f"[x]({target})"
        for target in (
            f"javascript:{EVIL}",
            f"JaVaScRiPt:{EVIL}",
            f"java\tscript:{EVIL}",
            f"&#106;avascript:{EVIL}",
            f"data:text/html,<script>{EVIL}</script>",
            f"vbscript:{EVIL}",
            "//evil.example/x",
            "/admin/models/unload",
        )
    ),
    "images": (
        "![x](http://127.0.0.1:9/leak?secret) ![y](/admin/models) "
        "![z](data:image/svg+xml;base64,PHN2Zy8+)"
    ),
    "autolinks": (
        f"<javascript:{EVIL}> <a href='javascript:{EVIL}'>x</a> http://a.example/\"onclick={EVIL}"
    ),
    "css": (
        "<style>* { display: none }</style>\n\n<p style='position:fixed;inset:0'>x</p>\n\n"
        "<link rel=stylesheet href=//evil.example>"
    ),
    "frames": (
        "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>\n\n"
        "<form action=//evil.example><input name=a></form>\n\n<base href=//evil.example>\n\n"
        "<meta http-equiv=refresh content='0;url=//evil.example'>"
    ),
    "math": (
        "$$\\href{javascript:globalThis.pwned=1}{x}$$\n\n"
        "$$\\htmlData{a=b}{x} \\includegraphics{http://127.0.0.1:9/a}$$\n\n"
        "$\\def\\a{\\a\\a}\\a$ and $\\frac{1$ and $\\rule{99999em}{99999em}$"
    ),
    "code": (
        f'```html"><script>{EVIL}</script>\n<script>{EVIL}</script>\n```\n\n'
        f"```js onload={EVIL}\nx\n```"
    ),
    "nesting": ("> " * 3000 + "deep\n\n" + "- " * 800 + "x\n\n" + "*" * 3000 + "a" + "_" * 3000),
    "brackets": "[" * 5000 + "](" * 5000 + "`" * 3000 + "![" * 2000,
    "table": "|" + "a|" * 60 + "\n|" + "-|" * 60 + "\n" + ("|" + "x|" * 60 + "\n") * 900,
    "controls": "a\u202eb\u0000c\ufeff\u200bd" + "e\u0301" * 2000 + "Z" + "\u0300" * 1000,
}


def watch(page: Page) -> list[str]:
    """Requests that leave the server, from now on; dialogs are dismissed and noted, too."""
    found: list[str] = []
    page.page.on(
        "dialog", lambda dialog: (found.append(f"dialog {dialog.message}"), dialog.dismiss())
    )
    page.page.context.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(page.url) and "/admin/models" not in request.url
            else found.append(request.url)
        ),
    )
    return found


def check_harmless(page: Page) -> None:
    assert page.page.evaluate("typeof globalThis.pwned") == "undefined"
    assert (
        page.page.locator("main").locator("script, iframe, style, link, base, meta, object").count()
        == 0
    )
    attributes = page.page.evaluate(
        """() => [...document.querySelectorAll("main *")].flatMap(e => [...e.attributes]
            .filter(a => a.name.startsWith("on")
                || (a.name === "style" && !e.closest(".katex"))
                || (["href", "src", "action"].includes(a.name)
                    && !/^(#|https?:|mailto:|\\.\\/)/.test(a.value)))
            .map(a => `${e.tagName} ${a.name}=${a.value.slice(0, 80)}`))"""
    )
    assert attributes == []


@pytest.mark.parametrize("name", OUTPUTS)
def test_hostile_output_does_nothing(page: Page, name: str) -> None:
    page.expected.append("Content Security Policy")  # that it was needed is seen below
    left = watch(page)
    text = OUTPUTS[name]
    answer_with(page, [text[i : i + 997] for i in range(0, len(text), 997)])
    page.ask("Be evil.")
    page.page.wait_for_timeout(300)
    check_harmless(page)
    assert left == []
    assert not any("Content Security Policy" in error for error in page.errors)
    # It is kept, and as harmless when it is opened again; the page still works.
    page.page.reload()
    page.answer(0)
    check_harmless(page)
    page.page.unroute_all()
    page.page.keyboard.press("Alt+KeyN")
    page.page.get_by_text("What shall it be?").wait_for()
    assert page.ask("What is 1 + 1?")


def test_hostile_thinking_calls_and_errors(page: Page) -> None:
    left = watch(page)
    evil = f"<img src=x onerror={EVIL}>"
    call = {"index": 0, "id": evil, "function": {"name": evil, "arguments": evil}}
    answer_with(page, ["x"], reasoning_content=evil, tool_calls=[call])
    page.send("Be evil.")
    page.page.locator(".call").wait_for()
    check_harmless(page)
    page.page.unroute_all()
    page.expected.append("status of 400")
    error = json.dumps({"error": {"message": evil, "code": evil}})
    page.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=400, body=error, content_type="application/json"),
    )
    page.answers.first.get_by_role("button", name="Regenerate").click()
    page.page.get_by_role("alert").get_by_text(evil).wait_for()
    check_harmless(page)
    assert left == []


def test_hostile_names_of_models_and_conversations(page: Page) -> None:
    left = watch(page)
    name = f"<img src=x onerror={EVIL}>\"'><b>{'x' * 300}"

    def models(route: Route) -> None:
        card = {
            "id": name,
            "object": "model",
            "state": "loaded",
            "loaded": True,
            "tasks": ["generate"],
        }
        route.fulfill(json={"object": "list", "data": [card]})

    page.page.route("**/v1/models", models)
    page.page.reload()
    answer_with(page, ["hello"])
    page.ask(name)
    assert page.answers.first.locator(".who").inner_text() == name
    page.go("compare")
    page.page.get_by_label("One prompt for all").wait_for()
    check_harmless(page)
    page.go("bench")
    page.page.get_by_label("Words of a prompt").wait_for()
    check_harmless(page)
    assert not page.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert left == []


def test_a_hostile_file_is_not_imported(page: Page) -> None:
    half = {"conversation": {}, "messages": [{"role": "x"}]}
    file = {"format": "tidemill-conversations", "conversations": [half]}
    for text in ("{", "[]", '{"format": "x"}', json.dumps(file)):
        page.page.locator("input[type=file][accept*=json]").set_input_files(
            {"name": "a.json", "mimeType": "application/json", "buffer": text.encode()}
        )
        page.page.locator(".notice.bad").last.wait_for()
    assert page.rows("conversations") == []
