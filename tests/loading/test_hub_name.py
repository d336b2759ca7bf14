"""How people write a model on the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.hub_name import HubName, parse, with_options


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name:Q4_K_M", HubName("owner/name", tag="Q4_K_M")),
        ("owner/name@v1.0:q8_0", HubName("owner/name", "v1.0", "q8_0")),
        ("owner/name@refs%2Fpr%2F1", HubName("owner/name", "refs/pr/1")),
        ("owner/name/a.gguf", HubName("owner/name", file="a.gguf")),
        ("owner/name/Q4/a.gguf", HubName("owner/name", file="Q4/a.gguf")),
        ("hf.co/owner/name:Q4_K_M", HubName("owner/name", tag="Q4_K_M")),
        ("huggingface.co/owner/name/", HubName("owner/name")),
        ("hf://owner/name@dev/a.gguf", HubName("owner/name", "dev", file="a.gguf")),
        ("https://huggingface.co/owner/name", HubName("owner/name")),
        ("https://hf.co/owner/name/tree/main", HubName("owner/name", "main")),
        (
            "https://huggingface.co/owner/name/tree/main/Q4",
            HubName("owner/name", "main", file="Q4"),
        ),
        (
            "https://huggingface.co/owner/name/resolve/main/Q4/a.gguf?download=true",
            HubName("owner/name", "main", file="Q4/a.gguf"),
        ),
        (
            "https://huggingface.co/owner/name/blob/refs%2Fpr%2F1/a.gguf",
            HubName("owner/name", "refs/pr/1", file="a.gguf"),
        ),
    ],
)
def test_a_name_of_the_hub(text: str, name: HubName) -> None:
    assert parse(text) == name
    assert parse(str(name)) == name or (name.file or "").count(".") == 0


@pytest.mark.parametrize(
    "text",
    ["name", "a/b/c", "a b/c", "owner/..", "a/b/../c.gguf", "a/b//c.gguf", "a:b", "", "/a/b"],
)
def test_what_is_no_name_of_the_hub(text: str) -> None:
    assert parse(text) is None


def test_another_sites_address_is_refused() -> None:
    with pytest.raises(TidemillError, match="give its path") as caught:
        parse("https://example.com/a.gguf?key=secret")
    assert caught.value.kind == ErrorKind.CONFIG and "secret" not in caught.value.message


def test_flags_say_more_of_a_name(tmp_path: Path) -> None:
    assert with_options("owner/name", None, None) == "owner/name"
    assert with_options("owner/name", "a.gguf", "dev") == "owner/name@dev/a.gguf"
    assert with_options("hf.co/owner/name:Q4_0", None, "x/y") == "owner/name@x%2Fy:Q4_0"
    (tmp_path / "a.gguf").touch()
    assert with_options(str(tmp_path), "a.gguf", None) == str(tmp_path / "a.gguf")
    for model, file, revision, flag in (
        (None, None, "main", "revision"),
        (str(tmp_path), None, "main", "revision"),
        ("owner/name@a", None, "b", "revision"),
        ("owner/name:Q4_0", "a.gguf", None, "file"),
        ("owner/name", "../a.gguf", None, "file"),
        ("brook", "a.gguf", None, "file"),
    ):
        with pytest.raises(TidemillError) as caught:
            with_options(model, file, revision)
        assert (caught.value.kind, caught.value.param) == (ErrorKind.CONFIG, flag)
