"""The page's files: who gets them, how they are cached, and what they may do."""

from __future__ import annotations

import gzip
import re

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.security import Security

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def files_of(index: str) -> list[str]:
    """Paths of the files that the index names, relative as it names them."""
    return re.findall(r'(?:src|href)="\./(webui/[^"]+)"', index)


def test_a_browser_gets_the_page_and_a_program_json(base_url: str) -> None:
    page = httpx.get(base_url, headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        found = httpx.get(base_url, headers=accept)
        assert found.json()["server"] == "tidemill"
    assert httpx.head(base_url, headers=HTML).headers["content-type"].startswith("text/html")


def test_everything_that_the_page_names_is_there_and_relative(base_url: str) -> None:
    index = httpx.get(base_url, headers=HTML).text
    names = files_of(index)
    assert {name.rpartition(".")[2] for name in names} == {"js", "css", "svg"}
    for name in names:
        response = httpx.get(f"{base_url}/{name}")
        assert response.status_code == 200, name
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    # A path prefix of a proxy stays in front of relative addresses alone.
    assert not re.findall(r'(?:src|href)="/', index)


def test_what_is_loaded_before_the_first_interaction_is_small(base_url: str) -> None:
    names = ["", *files_of(httpx.get(base_url, headers=HTML).text)]
    sizes = [
        int(httpx.get(f"{base_url}/{name}", headers=HTML).headers["content-length"])
        for name in names
    ]
    assert sum(sizes) <= 120_000, dict(zip(names, sizes, strict=True))


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("br, gzip", "br"), ("gzip", "gzip"), ("identity", None), ("gzip;q=0, br;q=0.0", None)],
)
def test_a_file_comes_in_a_coding_that_the_client_takes(
    base_url: str, accepted: str, coding: str | None
) -> None:
    names = files_of(httpx.get(base_url, headers=HTML).text)
    script = next(name for name in names if "/index-" in name and name.endswith(".js"))
    with httpx.stream(
        "GET", f"{base_url}/{script}", headers={"Accept-Encoding": accepted}
    ) as response:
        raw = b"".join(response.iter_raw())
    assert response.headers.get("content-encoding") == coding
    assert "Accept-Encoding" in response.headers["vary"]
    if coding is None:
        assert raw == httpx.get(f"{base_url}/{script}", headers={"Accept-Encoding": "gzip"}).content
    if coding == "gzip":
        assert b"import" in gzip.decompress(raw)


def test_a_file_that_the_client_has_is_not_sent_again(base_url: str) -> None:
    first = httpx.get(base_url, headers=HTML)
    again = httpx.get(base_url, headers={**HTML, "If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == "no-cache"
    other = httpx.get(base_url, headers={**HTML, "If-None-Match": '"another"'})
    assert other.status_code == 200


def test_the_page_may_run_its_own_scripts_alone(base_url: str) -> None:
    policy = httpx.get(base_url, headers=HTML).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["frame-ancestors"] == "'none'"


@pytest.mark.parametrize("name", ["", "none.js", "../page.py", "%2e%2e/page.py", "index.html/x"])
def test_other_names_are_no_files(base_url: str, name: str) -> None:
    response = httpx.get(f"{base_url}/webui/{name}")
    assert response.status_code == 404
    assert "default-src 'none'" in response.headers.get(
        "content-security-policy", "default-src 'none'"
    )


def test_the_page_needs_no_key_and_the_api_does() -> None:
    key = "first-key-0123456789-0123456789"
    security = Security(keys=StaticKeys([key]))
    with serving(fake_context(ScriptedEngine()), security) as url:
        index = httpx.get(url, headers=HTML)
        assert index.status_code == 200
        assert httpx.get(f"{url}/{files_of(index.text)[0]}").status_code == 200
        assert httpx.get(url).status_code == 401
        assert httpx.get(f"{url}/admin/whoami", headers=HTML).status_code == 401
        found = httpx.get(f"{url}/admin/whoami", headers={"Authorization": f"Bearer {key}"}).json()
    assert (found["name"], found["role"], found["keys"]) == ("key-1", "admin", True)


def test_without_keys_everybody_is_an_administrator(base_url: str) -> None:
    found = httpx.get(f"{base_url}/admin/whoami").json()
    assert (found["role"], found["keys"], found["database"]) == ("admin", False, False)


def test_a_server_without_the_page() -> None:
    context = fake_context(ScriptedEngine())
    context.page = False
    with serving(context) as url:
        assert httpx.get(url, headers=HTML).json()["server"] == "tidemill"
        assert httpx.get(f"{url}/webui/icon.svg").status_code == 404
