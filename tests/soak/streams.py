"""Streams whose answers are known, and what happened to each."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from tidemill.bench.client import HttpFailure, Target, stream_events

ANSWER_SECONDS = 240.0

_WORDS = ["tide", "mill", "river", "stone", "wheel", "grain", "boat", "rope", "lamp", "salt"]

# Answers that came when nothing was wrong, and those that must come whatever is: per choice text,
# reason, tokens with logprobs; then the usage.
Answer = tuple[Any, ...]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer"},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 6},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


def known_requests(count: int, tokens: int, *, schemas: bool) -> list[tuple[str, dict[str, Any]]]:
    """Route and body of each: prompts of many lengths, greedy and seeded, penalties, choices,
    logprobs, stop strings, schemas."""
    rng = random.Random(10)
    shared = " ".join(rng.choices(_WORDS, k=60))
    made: list[tuple[str, dict[str, Any]]] = []
    for i in range(count):
        own = " ".join(rng.choices(_WORDS, k=rng.choice((2, 5, 17, 40, 90))))
        prompt = f"{shared} {own}" if i % 2 else own
        body: dict[str, Any] = {"max_tokens": tokens + rng.randrange(tokens), "temperature": 0}
        if i % 3:
            body |= {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 1000 + i}
        if i % 5 == 0:
            body |= {"repetition_penalty": 1.2, "presence_penalty": 0.4}
        if i % 8 == 3:
            body |= {"n": 3}
        if i % 8 == 6 and schemas:
            schema = {"name": "person", "schema": PERSON, "strict": True}
            body |= {
                "messages": [{"role": "user", "content": f"Describe a person: {own}"}],
                "response_format": {"type": "json_schema", "json_schema": schema},
                "logprobs": True,
            }
            made.append(("/v1/chat/completions", body))
            continue
        body |= {"prompt": prompt, "ignore_eos": True}
        body |= {"stop": ["qzx"]} if i % 4 == 2 else {}
        body |= {"logprobs": 1} if i % 2 else {}
        made.append(("/v1/completions", body))
    return made


@dataclass(slots=True)
class Watch:
    """A stream's state as its client sees it.

    Attributes:
        expected: events it will have in all; 0 while that is not known.
        seen: events so far.
        done: it has ended.
    """

    expected: int = 0
    seen: int = 0
    done: bool = False

    @property
    def between(self) -> bool:
        """Past its first event, and not so near its end that the engine may be through with it."""
        return not self.done and self.seen > 0 and self.seen < self.expected * 0.9


@dataclass(slots=True)
class _Collected:
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    usage: tuple[int, int] = (0, 0)

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise ValueError(f"error event: {event['error']}")
        if event.get("usage"):
            usage = event["usage"]
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in event["choices"]:
            index = choice["index"]
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            if choice["finish_reason"]:
                if index in self.reasons:
                    raise ValueError(f"choice {index} ended twice")
                self.reasons[index] = choice["finish_reason"]
            entries = choice.get("logprobs") or {}
            for kind in ("content", "tokens", "token_logprobs", "top_logprobs"):
                self.logprobs.setdefault(index, []).extend(entries.get(kind) or ())

    def answer(self) -> Answer:
        return (
            sorted(self.texts.items()),
            sorted(self.reasons.items()),
            repr(sorted(self.logprobs.items())),
            self.usage,
        )


class Refused(Exception):
    """The server was too busy for it, and said so."""


async def ask(target: Target, route: str, body: dict[str, Any], watch: Watch) -> Answer:
    """Stream one request to its end.

    Raises:
        Refused: 429 or 503.
        ValueError, OSError, HttpFailure, EOFError: what must not happen; TimeoutError, an OSError,
            for an answer that has not ended within `ANSWER_SECONDS`.
    """
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    collected = _Collected()
    watch.seen, watch.done, last = 0, False, b""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async for events in stream_events(target, route, json.dumps(wanted).encode()):
                watch.seen += len(events)
                last = events[-1]
                for event in events:
                    if event != b"[DONE]":
                        collected.take(json.loads(event))
    except HttpFailure as failure:
        if failure.status in (429, 503):
            raise Refused(str(failure)) from failure
        raise
    finally:
        watch.done = True
    if last != b"[DONE]":
        raise EOFError("the stream ended without [DONE]")
    watch.expected = watch.seen
    return collected.answer()


class KnownStreams:
    """The requests, their answers, and how often each was right.

    Attributes:
        right, refused: counts.
        wrong: what was not as it should be.
        watches: of the wave that runs.
    """

    def __init__(self, target: Target, count: int, tokens: int, *, schemas: bool) -> None:
        self._target = target
        self._requests = known_requests(count, tokens, schemas=schemas)
        self._answers: list[Answer] = []
        self.watches = [Watch() for _ in self._requests]
        self.right = self.refused = 0
        self.wrong: list[str] = []

    @property
    def between(self) -> int:
        """Streams between their first and last token."""
        return sum(watch.between for watch in self.watches)

    async def learn(self, width: int = 4) -> None:
        """Ask each while nothing is wrong."""
        gate = asyncio.Semaphore(width)

        async def one(route: str, body: dict[str, Any], watch: Watch) -> Answer:
            async with gate:
                return await ask(self._target, route, body, watch)

        pairs = zip(self._requests, self.watches, strict=True)
        self._answers = list(await asyncio.gather(*(one(*r, w) for r, w in pairs)))
        different = len({repr(answer) for answer in self._answers})
        if different < len(self._answers) * 0.9:
            raise RuntimeError("the answers are too much alike to notice a mix-up")

    async def wave(self, rng: random.Random) -> None:
        """All of them at once, in a random order; each is compared."""
        order = list(range(len(self._requests)))
        rng.shuffle(order)
        await asyncio.gather(*(self._check(i) for i in order))

    async def _check(self, i: int) -> None:
        route, body = self._requests[i]
        while True:
            try:
                answer = await ask(self._target, route, body, self.watches[i])
            except Refused:
                self.refused += 1
                await asyncio.sleep(0.5)
                continue
            except (ValueError, OSError, HttpFailure, EOFError) as error:
                self.wrong.append(f"stream {i}: {type(error).__name__}: {error}")
                return
            if answer == self._answers[i]:
                self.right += 1
            else:
                self.wrong.append(f"stream {i}: {_difference(self._answers[i], answer)}")
            return


def _difference(want: Answer, got: Answer) -> str:
    names = ("texts", "finish reasons", "logprobs", "usage")
    for name, a, b in zip(names, want, got, strict=True):
        if a != b:
            return f"{name} differ: {str(a)[:300]!r} became {str(b)[:300]!r}"
    return "equal"
