"""Screen readers, keyboards, narrow and dark screens, other scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.scripted_answers import answer_with
from helpers.web_page import Page

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

pytestmark = pytest.mark.xdist_group("ui")

VIEWS = ("chat", "compare", "models", "machine", "admin/keys", "admin/quotas", "admin/usage")
VIEWS += ("admin/audit", "admin/batches", "bench")
NARROW: ViewportSize = {"width": 390, "height": 780}

RICH = """# Heading

Some **bold** text with `code`, a [link](https://example.com) and $e^{i\\pi} = -1$.

| a | b |
|---|--:|
| 1 | 2 |

```python
def f(x: int) -> int:
    return x + 1  # a comment
```

- [x] done
- open

> a quotation
"""


def check(page: Page, what: str) -> None:
    """Axe finds nothing serious."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page.page).response["violations"]
    serious = [
        f"{what}: {one['id']} ({one['help']}): {[n['html'][:160] for n in one['nodes']][:3]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious, "\n".join(serious)


def keep(page: Page, folder: Path | None, name: str) -> None:
    if folder is not None:
        page.page.screenshot(path=folder / f"{name}.png")


def settle(page: Page) -> None:
    page.page.locator("main h1").first.wait_for(state="attached")
    page.page.wait_for_timeout(500)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Page, screenshots: Path | None, scheme: str) -> None:
    page.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    answer_with(page, [RICH])
    page.ask("Show me what you can.")
    page.page.locator(".katex, .hl-keyword").nth(1).wait_for()
    page.button("Chat settings").click()
    for view in VIEWS:
        if view != "chat":
            page.go(view)
        settle(page)
        keep(page, screenshots, f"{view.replace('/', '-')}-{scheme}")
        check(page, f"{view}, {scheme}")
    page.page.keyboard.press("?")
    page.page.get_by_role("dialog").wait_for()
    check(page, "preferences")


def test_a_narrow_screen_scrolls_in_one_direction(page: Page, screenshots: Path | None) -> None:
    page.page.set_viewport_size(NARROW)
    answer_with(page, [RICH])
    page.ask("Show me what you can, " + "at some length " * 10)
    for view in VIEWS:
        if view != "chat":
            page.go(view)
        settle(page)
        keep(page, screenshots, f"{view.replace('/', '-')}-narrow")
        wide = page.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, view
    page.go("chat")
    page.button("Conversations").click()
    page.page.get_by_role("navigation", name="Conversations").wait_for()
    check(page, "narrow")


def test_german_and_the_choice_is_kept(page: Page) -> None:
    page.button("Preferences and keys").click()
    page.page.get_by_role("combobox", name="Language").select_option("de")
    page.page.get_by_role("heading", name="Einstellungen und Tasten").wait_for()
    page.page.keyboard.press("Escape")
    page.page.reload()
    page.page.get_by_label("Nachricht", exact=True).wait_for()
    assert page.page.evaluate("document.documentElement.lang") == "de"
    assert page.page.title() == "Chat · Tidemill"


def test_scripts_from_right_to_left_and_without_spaces(page: Page) -> None:
    answer_with(page, ["مرحبا بالعالم\n\n- عنصر\n\n日本語の文章は改行されます。" + "漢字" * 300])
    page.ask("שלום עולם")
    direction = """selector => getComputedStyle(document.querySelector(selector)).direction"""
    assert page.page.evaluate(direction, "article.user .plain") == "rtl"
    assert page.page.evaluate(direction, "article.assistant .markdown p") == "rtl"
    assert page.page.evaluate(direction, "article.assistant .markdown li") == "rtl"
    assert page.page.evaluate(direction, "article.assistant .markdown p:last-child") == "ltr"
    assert not page.page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_the_keyboard_alone(page: Page) -> None:
    press = page.page.keyboard.press
    page.page.get_by_role("link", name="Skip to the content").focus()
    press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "main"
    press("/")
    page.page.keyboard.type("What is 1 + 1?")
    press("Enter")
    page.answer(0)
    press("Alt+KeyS")
    page.page.get_by_role("complementary", name="Chat settings").wait_for()
    press("Alt+Digit3")
    page.page.get_by_role("heading", name="Models").wait_for()
    press("Alt+KeyN")
    page.page.get_by_text("What shall it be?").wait_for()
    press("Escape")
    page.page.locator("main").focus()
    press("?")
    page.page.get_by_role("dialog").wait_for()
    press("Escape")
    page.page.get_by_role("dialog").wait_for(state="detached")
    assert re.search(r"#/chat/new$", page.page.url)
