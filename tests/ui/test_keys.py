"""Administration: the first key closes the server, which is therefore one of this module's own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from helpers.real_server import RealServer
from helpers.web_page import Page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("ui")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, browser: object) -> Iterator[RealServer]:
    home = tmp_path_factory.mktemp("closed")
    with RealServer(
        *("--database", f"sqlite:///{home / 'tidemill.db'}", "--content", "database"),
        environment={"TIDEMILL_HOME": str(home)},
    ) as running:
        yield running


def test_conversations_are_kept_on_the_server_by_choice(
    page: Page, browser: Browser, server: RealServer
) -> None:
    page.ask("Who are you?")  # before the choice: it is sent with it
    choose(page)
    page.page.keyboard.press("Alt+KeyN")
    page.page.get_by_text("What shall it be?").wait_for()
    page.ask("What is 1 + 1?")
    page.answers.first.get_by_role("button", name="Regenerate").click()
    page.page.get_by_text("2 of 2").wait_for()
    page.answer(0)

    def kept() -> list[int]:
        chats = server.http.get("/v1/chats").json()["chats"]
        found = [server.http.get(f"/v1/chats/{chat['id']}") for chat in chats]
        # one that the page deletes between the list and its turn is not there any more
        return sorted(len(chat.json()["messages"]) for chat in found if chat.status_code != 404)

    eventually(lambda: kept() == [2, 3])
    other = Page(browser.new_context(locale="en-GB").new_page(), page.url)
    other.open()
    choose(other)
    other.page.reload()
    other.page.get_by_role("link", name="What is 1 + 1?").click()
    other.page.get_by_text("2 of 2").wait_for()
    other.ask("What is 2 + 2?")
    eventually(lambda: kept() == [2, 5])
    page.page.reload()
    page.page.locator("article.user").get_by_text("What is 2 + 2?").wait_for()
    page.page.once("dialog", lambda dialog: dialog.accept())
    page.page.get_by_role("button", name="Delete What is 1 + 1?").click()
    eventually(lambda: kept() == [2])
    other.page.reload()
    eventually(lambda: other.page.locator(".conversations li").count() == 1)
    other.page.context.close()


def choose(page: Page) -> None:
    page.button("Preferences and keys").click()
    page.page.get_by_label("Keep conversations on the server, too").check()
    page.page.keyboard.press("Escape")
    page.page.get_by_role("dialog").wait_for(state="detached")


def eventually(test: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_keys_are_created_used_and_revoked(page: Page) -> None:
    page.go("admin/keys")
    page.page.get_by_text("The first key closes the server").wait_for()
    page.page.get_by_label("Name", exact=True).fill("root")
    page.button("Create").click()
    assert page.page.locator(".secret").inner_text().startswith("tm-")
    page.page.keyboard.press("Escape")
    page.page.reload()  # it goes on with the key that it made
    page.page.get_by_role("cell", name="root", exact=True).wait_for()

    page.page.get_by_label("Name", exact=True).fill("ann")
    page.page.get_by_role("combobox", name="Role").select_option("user")
    page.button("Create").click()
    user = page.page.locator(".secret").inner_text()
    page.page.keyboard.press("Escape")
    other = Page(page.page.context.new_page(), page.url)
    other.expected.append("status of 40")
    other.open_closed()
    other.page.get_by_label("API key").fill("tm-wrong")
    other.page.keyboard.press("Enter")
    other.page.get_by_text("does not accept this key").wait_for()
    other.log_in(user)
    other.ask("What is 1 + 1?")
    assert other.page.get_by_role("link", name="Manage").is_visible()
    other.go("admin")
    other.page.get_by_role("link", name="Usage").wait_for()
    assert not other.page.get_by_role("link", name="Keys").is_visible()
    other.go("chat")

    row = page.page.locator("tr", has_text="ann")
    page.page.once("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Revoke").click()
    row.wait_for(state="detached")
    other.wait_revoked()
    other.send("What is 2 + 2?")
    other.page.get_by_role("dialog").wait_for()
    assert other.answers.count() >= 1, "what was said stays"

    page.go("admin/audit")
    page.button("Verify the log").click()
    page.page.get_by_text(re.compile("all as they were written")).wait_for()
    page.page.get_by_role("cell", name="key.revoke").first.wait_for()
    page.go("admin/usage")
    page.page.get_by_text("Tokens by day").wait_for()
    page.go("admin/quotas")
    page.page.get_by_label("Name", exact=True).fill("root")
    page.page.get_by_label("Value").fill("100000")
    page.button("Save").click()
    page.page.get_by_role("cell", name=re.compile("requests_per_minute")).wait_for()
    assert not other.errors
