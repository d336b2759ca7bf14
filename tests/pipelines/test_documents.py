"""Questions are answered from a folder: passages, vectors on disk, ranks, citations."""

from __future__ import annotations

import asyncio
import itertools
import re
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tidemill.pipelines import ModelError, Models, Ranked, Request
from tidemill.pipelines.calls import Calls
from tidemill.pipelines.examples import documents
from tidemill.pipelines.examples.documents import Passage, citations, passages_of
from tidemill.pipelines.messages import Start

WORDS = ("tide", "mill", "moon", "wheel", "boat")


class FakeModel:
    """Counts words as vectors and ranks by them; says what it was sent.

    Attributes:
        embedded: every text.
        sent: the conversations.
        context: characters that a conversation may have.
    """

    name = "fake"

    def __init__(self, context: int = 10**6) -> None:
        self.embedded: list[str] = []
        self.sent: list[list[dict[str, Any]]] = []
        self.context = context

    async def embed(
        self, texts: Sequence[str] | str, *, prompt_name: str | None = None
    ) -> list[array[float]]:
        given = [texts] if isinstance(texts, str) else texts
        self.embedded += given
        return [array("f", [0.01, *(text.lower().count(w) for w in WORDS)]) for text in given]

    async def rerank(self, query: str, texts: Sequence[str]) -> list[Ranked]:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        return [Ranked(i, float(-len(texts[i]))) for i in order]

    async def stream(self, messages: list[dict[str, Any]], **fields: Any) -> AsyncIterator[str]:
        if sum(len(m["content"]) for m in messages) > self.context:
            raise ModelError("bad_request", "too long", "messages")
        self.sent.append(messages)
        yield "Twice a day "
        yield "[1]."


class FakeModels(Models):
    """One model under every name."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.default = "chat"

    def __getitem__(self, name: str) -> Any:
        return self.model


def _request(question: str, **options: Any) -> Request:
    messages = [{"role": "user", "content": question}]
    fields: dict[str, Any] = {"messages": messages, "options": options, "sampling": {}}
    return Request(
        Start(1, "r", "docs", stream=True, names=(), default="chat", seconds=9.0, **fields)
    )


def _answer(model: FakeModel, question: str, **options: Any) -> str:
    async def all_of_it() -> str:
        texts = documents.answer(_request(question, **options), FakeModels(model))
        return "".join([text async for text in texts])

    return asyncio.run(all_of_it())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(documents, "indexes", {})
    folder = tmp_path / "files"
    (folder / "below").mkdir(parents=True)
    (folder / "tides.md").write_text("# Tides\n\nThe tide comes twice a day; the moon makes it.\n")
    (folder / "below" / "wheel.txt").write_text("A mill has a wheel.\n")
    (folder / "boat.txt").write_text("A boat. Another boat.\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def test_the_nearest_passages_are_numbered_and_cited(folder: Path, tmp_path: Path) -> None:
    model = FakeModel()
    options = {"folder": str(folder), "embedder": "e", "store": str(tmp_path / "v"), "sources": 2}
    said = _answer(model, "When is the tide, and what has the moon to do with it?", **options)
    assert said == "Twice a day [1].\n\nSources:\n[1] tides.md, lines 1-3"
    system = model.sent[0][0]["content"]
    assert "[1] tides.md, lines 1-3\n# Tides" in system and "[2] " in system
    assert "[3]" not in system and "PNG" not in "".join(model.embedded)
    assert model.sent[0][1]["role"] == "user"


def test_passages_are_embedded_once_and_what_changed_again(folder: Path, tmp_path: Path) -> None:
    options = {"folder": str(folder), "embedder": "e", "store": str(tmp_path / "v")}
    first = FakeModel()
    _answer(first, "tide", **options)
    assert len(first.embedded) == 3 + 1
    documents.indexes.clear()  # a new process
    second = FakeModel()
    _answer(second, "tide", **options)
    assert second.embedded == ["tide"]
    (folder / "boat.txt").write_text("No boat any more, a wheel.\n")
    (folder / "below" / "wheel.txt").unlink()
    third = FakeModel()
    said = _answer(third, "wheel", **options)
    assert third.embedded == ["No boat any more, a wheel.", "wheel"]
    assert said.endswith("[1] boat.txt, line 1") and "below/" not in third.sent[0][0]["content"]


def test_a_reranker_decides_the_order_and_too_many_sources_are_halved(
    folder: Path, tmp_path: Path
) -> None:
    options = {"folder": str(folder), "embedder": "e", "store": str(tmp_path / "v")}
    model = FakeModel()
    said = _answer(model, "tide", reranker="r", **options)
    assert said.endswith("[1] below/wheel.txt, line 1")  # the shortest
    short = FakeModel(context=len(documents.INSTRUCTIONS) + 110)
    assert _answer(short, "tide", **options).endswith("[1] tides.md, lines 1-3")
    assert "[2]" not in short.sent[0][0]["content"]


def test_options_that_are_missing_are_said(folder: Path) -> None:
    with pytest.raises(documents.BadRequest, match="option embedder"):
        _answer(FakeModel(), "tide", folder=str(folder))
    with pytest.raises(documents.BadRequest, match="option folder"):
        _answer(FakeModel(), "tide", embedder="e")


def test_passages_cover_every_line_once_and_have_a_bounded_length() -> None:
    lines = [f"line {i} " + "x" * (i * 37 % 150) for i in range(200)]
    lines[7] = "y" * 1000
    for i in range(10, 200, 9):
        lines[i] = ""
    text = "\n".join(lines)
    found = list(passages_of("f", text, 300))
    assert max(len(one.text) for one in found) <= 301
    squeezed = re.sub(r"\s", "", "".join(one.text for one in found))
    assert squeezed == re.sub(r"\s", "", text)
    for one in found:
        assert lines[one.first - 1].startswith(one.text.split("\n")[0][:5]) or one.first == 8
    assert all(a.last <= b.first for a, b in itertools.pairwise(found))


def test_what_is_not_cited_is_said_to_be_consulted() -> None:
    sources = [Passage("a", 1, 1, "x"), Passage("b", 2, 4, "y")]
    assert citations("so [2], [7]", sources) == "\n\nSources:\n[2] b, lines 2-4"
    assert citations("so", sources).startswith("\n\nSources consulted:\n[1] a, line 1\n[2] b")
    assert citations("so", []) == ""


def test_a_model_that_is_not_served_is_named() -> None:
    start = _request("x")
    models = Models(
        Start(1, "r", "p", start.messages, {}, {}, True, ("a", "b"), "a", 1.0),
        Calls(lambda m: None),
    )
    assert "a" in models and list(models) == ["a", "b"] and len(models) == 2
    with pytest.raises(ModelError, match=r"'c'.*there are a, b"):
        models["c"]
