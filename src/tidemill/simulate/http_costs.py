"""What a request takes outside of its steps: measured at a running server, over HTTP.

The server tells of every answer where its time went (`include_timings`), by the clock of the
machine; the client sees when chunks arrive. What comes before the engine, and what is left of the
time to the first chunk after the prompt's steps, are costs of the API process and the network. A
step's chunks arrive one after another, whose distance is what one of them takes. The steps' own
times cancel out: they may be as slow and uneven as they like.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import chain, count, pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import config_error
from tidemill.bench.client import Client, Target
from tidemill.bench.words import Segment, Vocabulary
from tidemill.simulate.costs import HostSeconds
from tidemill.simulate.fit import fit_gaps

ROUTE = "/completions"

_PROMPTS = (8, 64, 160, 320, 640)
_STREAMS = 8
_ANSWER = 16  # tokens of each of several streams
_SHORT = 2  # tokens of an answer that comes alone
_TIMES = 2  # a prompt is sent so often: the second one finds it in the cache
_BEFORE = frozenset({"read", "model", "prepare", "quota", "admission", "dispatch"})
_PROMPT = "prefill"


class Answered(NamedTuple):
    """One answer.

    Attributes:
        prompt: tokens.
        before: seconds from the request's arrival at the server until the engine had it.
        queue: seconds until its first step was planned.
        first: seconds until the client had the first chunk.
        steps: seconds of its prompt's steps, as the engine saw them.
        arrivals: of chunks with tokens, on the client's clock.
    """

    prompt: int
    before: float
    queue: float
    first: float
    steps: float
    arrivals: tuple[float, ...]


class Answers:
    """Answers of one server.

    Attributes:
        alone: to requests that came alone.
        together: sets of answers that were written side by side.
    """

    def __init__(self) -> None:
        self.alone: list[Answered] = []
        self.together: list[list[Answered]] = []

    def costs(self, engine: HostSeconds) -> HostSeconds:
        """These costs, beside what the engine's loop takes.

        Raises:
            TidemillError: CONFIG if nothing was measured.
        """
        if not self.alone:
            raise config_error("seconds", "no request was measured: take more --seconds")
        request, token = fit_gaps([(one.prompt, one.before) for one in self.alone])
        chunk = median([_distance(streams) for streams in self.together] or [0.0])
        loop = engine.step + engine.row
        rest = median(one.first - one.before - one.queue - one.steps for one in self.alone)
        return msgspec.structs.replace(
            engine,
            submit=max(0.0, median(one.queue for one in self.alone) - loop),
            request=request,
            prompt_token=token,
            deliver=max(0.0, rest - loop - chunk),
            chunk=chunk,
        )


def _distance(streams: Sequence[Answered]) -> float:
    """Seconds between the chunks of one step: what those that arrived close together have."""
    # Chunks that were read at once say nothing.
    each = [sorted(set(one.arrivals)) for one in streams]
    own = [later - sooner for arrivals in each for sooner, later in pairwise(arrivals)]
    if not own:
        return 0.0
    near = median(own) / 2
    between = [later - sooner for sooner, later in pairwise(sorted(chain(*each)))]
    found = [gap for gap in between if gap < near]
    return median(found) if found else 0.0


async def measure_http(
    base_url: str,
    seconds: float,
    *,
    longest: int,
    seed: int = 0,
    into: Answers | None = None,
) -> Answers:
    """Send requests alone and together for so many seconds, each kind once at least.

    Args:
        base_url: of a server of this machine that does nothing else.
        longest: tokens of a prompt and its answer at most.
        seed: equal seeds send equal prompts.
        into: answers that these are added to.

    Raises:
        HttpFailure, OSError: as `bench.client`.
        TidemillError: CONFIG if the server's answers do not say where their time went.
    """
    answers = Answers() if into is None else into
    client = Client(Target.parse(base_url, None))
    words, keys = Vocabulary(seed, 1, ids=False), count(1)
    most = min(_STREAMS, max(1, longest // (2 * _ANSWER)))
    began = monotonic()
    try:
        await _answer(client, words.text([Segment(0, 8)]), _SHORT)  # a first request is slower
        while True:
            for length in _PROMPTS:
                # Words may be more than a token each.
                if 2 * length + _SHORT > longest and length != _PROMPTS[0]:
                    continue
                prompt = words.text([Segment(next(keys), length)])
                for _ in range(_TIMES):
                    answers.alone.append(await _answer(client, prompt, _SHORT))
            prompts = [words.text([Segment(next(keys), 8)]) for _ in range(most)]
            streams = await asyncio.gather(*(_answer(client, one, _ANSWER) for one in prompts))
            answers.together.append(list(streams))
            if monotonic() - began >= seconds:
                return answers
    finally:
        client.close()


async def _answer(client: Client, prompt: str, tokens: int) -> Answered:
    body = json.dumps(
        {
            "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "stream": True,
            "ignore_eos": True, "include_timings": True, "stream_options": {"include_usage": True},
        }
    ).encode()  # fmt: skip
    sent, arrivals = monotonic(), list[float]()
    prompt_tokens, phases = 0, dict[str, float]()
    async for when, events in client.events(ROUTE, body):
        for event in events:
            if event == b"[DONE]":
                continue
            said = json.loads(event)
            if said.get("choices"):
                arrivals.append(when)
            if usage := said.get("usage"):
                prompt_tokens = usage["prompt_tokens"]
            if timings := said.get("timings"):
                phases = {one["name"]: one["seconds"] for one in timings.get("phases", ())}
    if not arrivals or _PROMPT not in phases:
        raise config_error("timings", "the server's answers do not say where their time went")
    return Answered(
        prompt=prompt_tokens,
        before=sum(seconds for name, seconds in phases.items() if name in _BEFORE),
        queue=phases.get("queue", 0.0),
        first=arrivals[0] - sent,
        steps=phases[_PROMPT],
        arrivals=tuple(arrivals),
    )
