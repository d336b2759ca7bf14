"""A dialect of its own is added by adding files and one entry of the table: here, all of it."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import msgspec
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.choices import ChoiceDelta
from tidemill.generation.request import GenerateRequest, Names
from tidemill.server.access.caller import caller_of
from tidemill.server.app import DIALECTS
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.errors import Problem
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.framing import NDJSON
from tidemill.server.transport.sink import Piece

encode = msgspec.json.encode


class Saying(Body, kw_only=True):
    """Body of POST /parrot/say."""

    words: Annotated[str, Meta(min_length=1)]
    bird: str | None = None
    most: int | None = None
    live: bool = False


class ParrotFormat:
    """Words, one line for each step of a stream."""

    content_type = b"application/json"

    def __init__(self, model: ServedModel) -> None:
        self._bird = model.name
        self._said: list[str] = []

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def add(self, delta: ChoiceDelta) -> None:
        """Collect."""
        self._said.append(delta.text)

    def document(self, generation: Generation) -> list[Piece]:
        """All words."""
        words = generation.completion_tokens
        return [encode({"bird": self._bird, "said": "".join(self._said), "words": words})]

    def opening(self, generation: Generation) -> bytes:
        """Who speaks."""
        return NDJSON.part(encode({"bird": self._bird}))

    def events(self, delta: ChoiceDelta) -> bytes:
        """Some words."""
        return NDJSON.part(encode({"said": delta.text})) if delta.text else b""

    def closing(self, generation: Generation) -> bytes:
        """The end."""
        return NDJSON.part(encode({"over": True, "words": generation.completion_tokens}))


async def say(context: ServerContext, request: Request) -> Response:
    """Continue some words."""
    arrival = monotonic()
    body = await read_model(Saying, request, context.limits)
    asked = GenerateRequest(
        prompts=[body.words],
        sampling=SamplingParams(max_tokens=body.most, temperature=0.0),
        caller=caller_of(request, None, arrival),
        arrival=arrival,
        names=Names("words", "most"),
    )

    async def make_format(model: ServedModel, generation: Generation) -> ParrotFormat:
        return ParrotFormat(model)

    framing = NDJSON if body.live else None
    return GeneratedAnswer(
        context, request, body.bird, asked, new_id("parrot"), make_format, framing
    )


def squawk(problem: Problem) -> bytes:
    """The shape of errors."""
    return encode({"squawk": problem.message, "about": problem.param})


PARROT = Dialect(
    "parrot",
    (Endpoint("POST", "/parrot/say", say, Saying, streams=("application/x-ndjson",)),),
    squawk,
    prefixes=("/parrot/",),
)


def _post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/parrot/say", json=body)


def test_a_dialect_is_its_files_and_an_entry_of_the_table() -> None:
    context = fake_context(ScriptedEngine(lambda request, choice: [*b"polly", 257]))
    with serving(context, dialects=(*DIALECTS, PARROT)) as url:
        whole = _post(url, words="who is pretty", most=9)
        assert whole.json() == {"bird": context.host.default.name, "said": "polly", "words": 6}
        stream = _post(url, words="who is pretty", live=True)
        assert stream.headers["content-type"] == "application/x-ndjson"
        lines = [msgspec.json.decode(line) for line in stream.text.splitlines()]
        assert lines[0] == {"bird": context.host.default.name}
        assert "".join(line.get("said", "") for line in lines) == "polly"
        assert lines[-1] == {"over": True, "words": 6}


def test_its_errors_have_its_own_shape_and_field_names() -> None:
    context = fake_context(ScriptedEngine())
    with serving(context, dialects=(*DIALECTS, PARROT)) as url:
        for body, about in (
            ({"words": ""}, "words"),
            ({"words": "a", "most": 10**6}, "most"),
            ({"words": "a" * 10**5}, "words"),
            ({"words": "a", "feather": 1}, "feather"),
        ):
            refused = _post(url, **body)
            assert refused.status_code == 400, body
            assert refused.json()["about"] == about, refused.text
        assert _post(url, words="a", bird="dodo").json()["about"] == "model"
        unknown = httpx.post(f"{url}/parrot/fly", json={})
        assert unknown.status_code == 404 and "/parrot/say" in unknown.json()["squawk"]
        # The other dialects are as they were.
        assert "error" in httpx.post(f"{url}/v1/fly", json={}).json()
        described = httpx.get(f"{url}/openapi.json").json()["paths"]["/parrot/say"]["post"]
        assert "application/x-ndjson" in described["responses"]["200"]["content"]


def test_a_failure_within_a_stream_is_in_its_shape() -> None:
    engine = ScriptedEngine(lambda request, choice: [*b"polly"])
    engine.fail_after = 2
    context = fake_context(engine)
    with serving(context, dialects=(*DIALECTS, PARROT)) as url:
        stream = _post(url, words="a", live=True)
    assert msgspec.json.decode(stream.text.splitlines()[-1])["squawk"]
