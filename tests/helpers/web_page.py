"""The page as its users drive it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator
    from playwright.sync_api import Page as BrowserPage


class Page:
    """An opened page.

    Args:
        page: of the browser.
        url: of the server.

    Attributes:
        errors: what the console said in error, and exceptions of scripts.
        expected: patterns of errors that the test provokes.
    """

    def __init__(self, page: BrowserPage, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.expected: list[str] = []
        page.on("console", lambda message: self._note(message.text, message.type == "error"))
        page.on("pageerror", lambda error: self._note(str(error), True))

    def _note(self, text: str, bad: bool) -> None:
        if bad and not any(re.search(pattern, text) for pattern in self.expected):
            self.errors.append(text)

    def open(self, path: str = "") -> None:
        self.page.goto(f"{self.url}/{path}")
        self.page.locator("main h1, main h2").first.wait_for()

    def go(self, view: str) -> None:
        """To a view, as its link does."""
        self.page.evaluate("view => { location.hash = `#/${view}`; }", view)

    def open_closed(self) -> None:
        """Open the page of a server that wants a key, or will in a moment."""
        self.page.goto(f"{self.url}/")
        for _ in range(100):
            if self.page.evaluate("async () => (await fetch('v1/models')).status === 401"):
                break
            self.page.wait_for_timeout(100)
        self.page.reload()
        self.page.get_by_label("API key").wait_for()

    def log_in(self, key: str) -> None:
        """With a key that the server may take a moment to know."""
        field = self.page.get_by_label("API key")
        field.fill(key)
        for _ in range(20):
            field.press("Enter")
            self.page.wait_for_timeout(500)
            if not field.is_visible():
                return
        raise AssertionError("the server does not take the key")

    def wait_revoked(self) -> None:
        """Until the server refuses the key of this page."""
        refused = """async () => (await fetch("v1/models", {headers: {
            Authorization: `Bearer ${sessionStorage.getItem("tidemill.key")}`}})).status === 401"""
        for _ in range(100):
            if self.page.evaluate(refused):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError("a revoked key still counts after ten seconds")

    @property
    def composer(self) -> Locator:
        return self.page.locator("#composer")

    @property
    def answers(self) -> Locator:
        return self.page.locator("article.assistant")

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.composer.fill(text)
        self.composer.press("Enter")

    def ask(self, text: str) -> str:
        """Send a message; the answer to it, once it is complete."""
        before = self.answers.count()
        self.send(text)
        return self.answer(before)

    def answer(self, index: int = -1) -> str:
        """The text of an answer, once it is complete."""
        article = self.answers.nth(index)
        article.locator(".figures").wait_for()
        return article.locator(".markdown").inner_text()

    def set_field(self, label: str, value: str) -> None:
        """A field of the chat's settings."""
        settings = self.page.get_by_role("complementary", name="Chat settings")
        if not settings.is_visible():
            self.button("Chat settings").click()
        settings.get_by_label(label, exact=True).fill(value)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def messages(self) -> list[Any]:
        """The messages in the browser's database, in the order of their creation."""
        return sorted(self.rows("messages"), key=lambda row: (row["created"], row["seq"]))

    def rows(self, store: str) -> list[Any]:
        """What the browser's database has in a store."""
        found: list[Any] = self.page.evaluate(
            """store => new Promise((resolve, reject) => {
                const asked = indexedDB.open("tidemill");
                asked.onerror = () => reject(asked.error);
                asked.onsuccess = () => {
                    const all = asked.result.transaction(store).objectStore(store).getAll();
                    all.onsuccess = () => { asked.result.close(); resolve(all.result); };
                };
            })""",
            store,
        )
        return found
